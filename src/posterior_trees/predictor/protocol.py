"""What predicts: the rooms to the right ask for a `Predictor` and not for a class."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.measure import Measurement
from posterior_trees.tree import Tree


@runtime_checkable
class Predictor(Protocol):
    """Turns measurements into trees; a `TreePredictor` is one.

    `name` is its task, `about` what it remembers of its training. A measurement's sides are padded
    to a `multiple`, in the way of `padding`.
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
