"""What predicts: the rooms to the right ask for a `Predictor` and not for a class."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.measure import Measurement
from posterior_trees.tree import Tree


@runtime_checkable
class Predictor(Protocol):
    """Turns measurements into trees: what predicting, scoring, figures and the explorer ask for. A
    `TreePredictor` is one; so is any object with these.

    `name` is its task, `about` what it remembers of its training, and `measurement` what its
    `channels` are measured by. Trees have the `branching`. Sides of a measurement are padded to a
    `multiple`, in the way of `padding`.

    >>> from posterior_trees import wrap
    >>> predictor = wrap(torch.nn.Conv2d(1, 8, kernel_size=1), features=8, channels=1)
    >>> isinstance(predictor, Predictor), predictor.branching
    (True, (3, 3))
    """

    name: str
    about: dict
    measurement: Measurement
    channels: int
    branching: tuple[int, ...]
    multiple: int
    padding: str

    @property
    def device(self) -> torch.device: ...

    def __call__(self, y: Float[Tensor, "b c h w"]) -> Tree: ...

    def with_measurement(self, measurement: Measurement) -> "Predictor":
        """The same network behind another measurement."""
        ...
