"""From a measurement to a tree, consistent with the measurement by construction."""

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from posterior_trees.errors import GuaranteeError, InputError, plural
from posterior_trees.measure import Measurement
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.padding import crop, pad
from posterior_trees.predictor.growth import Growth
from posterior_trees.predictor.region import Region, look_at
from posterior_trees.tree import Tree, grow, layout, level_sizes

if TYPE_CHECKING:
    import numpy as np

    from posterior_trees.fast.predictor import FastPredictor
    from posterior_trees.guarantee.certificate import Guarantee


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


class TreePredictor(nn.Module):
    """A network and a measurement that together turn `y` into a `Tree`.

    Every leaf is `naive(y) + P(network(y))`, so every node, being an average of leaves, agrees with
    the measurement to float precision. Images of any size are padded (`padding`) to a `multiple`
    that the network takes and cropped back.

    `network` makes `Leaves` of what `measurement` shows it; `branching` and `depth` are the layout,
    `channels` those of an answer; `name` and `about` say where the model comes from. Build one with
    `wrap`, or take one with `load`.

    >>> predictor = load("digits", "cpu")
    >>> y = predictor.measure(torch.rand(2, 1, 28, 28))
    >>> predictor(y)
    Tree(2 images of (1, 28, 28), 3×3, cpu)
    """

    def __init__(
        self,
        network: nn.Module,
        measurement: Measurement,
        *,
        branching: int | Sequence[int],
        depth: int | None = None,
        channels: int,
        multiple: int = 1,
        padding: str = "reflect",
        name: str = "",
        about: dict | None = None,
    ) -> None:
        super().__init__()
        self.network, self.measurement = network, measurement
        self.branching = layout(branching, depth=depth)
        self.channels = channels
        self.multiple, self.padding = multiple, padding
        self.name, self.about = name, about or {}
        self._guarantee: Guarantee | None = None

    is_compiled = False
    """A compiled one shows no features on the way, and so knows no typical inputs."""

    @property
    def depth(self) -> int:
        return len(self.branching)

    @property
    def num_leaves(self) -> int:
        return level_sizes(self.branching)[-1]

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @property
    def guarantee(self) -> "Guarantee | None":
        """What is promised about the trees of this predictor, as it is now; see `calibrate`."""
        return self._guarantee

    @guarantee.setter
    def guarantee(self, guarantee: "Guarantee | None") -> None:
        if guarantee is not None:
            guarantee.check(self)
        self._guarantee = guarantee

    def forward(self, y: Float[Tensor, "b *shape"]) -> Tree:
        y = self._checked(y)
        if self._guarantee is not None and not self.training:
            return self._guarantee.promise(self, y)
        return self.tree_of(y)

    def tree_of(self, y: Float[Tensor, "b *shape"]) -> Tree:
        """The trees, without promises."""
        return self.assemble(self.network(self.view(y)), y)

    def begin(self, y: Float[Tensor, "b *shape"], region: Region | None = None) -> Growth:
        """The tree of one picture, to be grown by `Growth.expand` and `Growth.grow`: for what may
        be in a region, a mask or a box (top, left, height, width). A predictor that is not growing
        shows the tree that it has, where it matters in the region first."""
        if len(y) != 1:
            raise InputError(f"y holds {len(y)} pictures; begin_each(y) begins a growth of each")
        return self.begin_each(y, region)[0]

    @torch.no_grad()
    def begin_each(
        self, y: Float[Tensor, "b *shape"], region: Region | None = None
    ) -> list[Growth]:
        """`begin` for several pictures, which `grow_each` grows together."""
        y = self._checked(y)
        return self._growths(y, look_at(region, self.measurement.naive(y), self.measurement))

    def _growths(self, y: Tensor, masks: Tensor) -> list[Growth]:
        return [Growth.of(tree, mask) for tree, mask in zip(self(y), masks, strict=True)]

    def _checked(self, y: Float[Tensor, "b *shape"]) -> Float[Tensor, "b *shape"]:
        check_brightness(y)
        y = self.measurement.blank(y)
        check_values(y, self.measurement.noise)
        return y

    @torch.inference_mode()
    def typical(self, y: Float[Tensor, "b *shape"]) -> Float[Tensor, "b"]:
        """How typical measurements are of those that the guarantee was made from: p-values. A small
        one withdraws every promise; a large one is no certificate."""
        if self._guarantee is None:
            raise GuaranteeError(
                "nothing is known of what this model was calibrated on: run ptrees calibrate"
            )
        with evaluating(self):
            return self._guarantee.p_values_of(self(y))

    def view(self, y: Float[Tensor, "b *shape"]) -> Tensor:
        """What the network sees of `y`: an image padded to a size it can take."""
        seen = self.measurement.view(y)
        if seen.ndim == 3:
            raise InputError(f"y is {tuple(y.shape)}; a batch (b, c, h, w) is needed: give y[None]")
        expected = self.measurement.channels(self.channels)
        if seen.ndim == 4 and expected and seen.shape[1] != expected:
            raise InputError(
                f"the measurement has {plural(seen.shape[1], 'channel')}, this model takes "
                f"{expected}"
            )
        return pad(seen, self.multiple, self.padding).to(self.dtype)

    def assemble(self, leaves: Leaves, y: Float[Tensor, "b *shape"]) -> Tree:
        """The tree of the network's leaves, made to agree with `y`."""
        naive = self.measurement.naive(y)
        images = naive.unsqueeze(1) + self.measurement.project(self._inner(leaves, naive))
        return grow(images, leaves.log_probs, self.branching)

    def _inner(self, leaves: Leaves, like: Tensor) -> Tensor:
        """The network's images without what was padded, in float32 at least."""
        images = crop(leaves.images, like.shape[-2:]) if like.ndim == 4 else leaves.images
        return images.to(torch.promote_types(images.dtype, torch.float32))

    def measure(
        self, x: Float[Tensor, "b *shape"], generator: torch.Generator | None = None
    ) -> Tensor:
        """The model's own degradation of clean images."""
        return self.measurement(x, generator)

    @property
    def _plain(self) -> type["TreePredictor"]:
        """What the same network makes behind another measurement."""
        return TreePredictor

    def with_measurement(self, measurement: Measurement) -> "TreePredictor":
        """The same network behind another measurement; this predictor stays as it is."""
        other = self._plain(
            self.network, measurement, branching=self.branching, channels=self.channels,
            multiple=self.multiple, padding=self.padding, name=self.name, about=self.about,
        )  # fmt: skip
        return other.eval() if not self.training else other

    def compile(  # ty: ignore[incompatible-method-override]
        self, dtype: torch.dtype | None = None
    ) -> "FastPredictor":
        """The same predictor, for prediction only and as fast as its device can
        (`fast/predictor.py`).

        `dtype` is that of the network: bfloat16 on CUDA unless you say otherwise. The first call
        with each shape of `y` takes up to a minute, to compile.
        """
        from posterior_trees.fast.predictor import FastPredictor

        uses_cuda = self.device.type == "cuda"
        dtype = dtype or (torch.bfloat16 if uses_cuda else torch.float32)
        return FastPredictor(self, dtype, is_recorded=uses_cuda)

    def predict(
        self,
        picture: "str | PathLike[str] | np.ndarray | Tensor",
        *,
        tile: int | None = None,
        **reading: Any,
    ) -> Tree:
        """The tree of a user's picture, on the CPU: of a file, an array `(h, w)` or `(h, w, c)`, or
        a tensor `(h, w)`, `(c, h, w)` or `(b, c, h, w)`.

        Where the model's measurement can be made from any picture (a hole, a lost colour) it is
        made here; else the picture is taken as the measurement itself. A picture larger than `tile`
        along a side is predicted in tiles of that size (`pictures.tiles`); by default only a huge
        one is, with `tile=0` none. Further options, `resize=True` for one, are those of
        `pictures.reading.Reading.of`.

        Models of faces and cats need to know where both eyes are, in pixels from the upper left
        corner of the file:

        >>> tree = predictor.predict("portrait.jpg", align=(160, 140, 220, 150))  # x1, y1, x2, y2

        What to beware of, a portrait without eyes for one, is an `errors.PictureWarning`.
        """
        from posterior_trees.pictures.answer import predict

        return predict(self, picture, tile, **reading)


@contextmanager
def evaluating(module: nn.Module | Predictor) -> Generator[None, None, None]:
    """A network as it predicts, without dropout; afterwards it trains again if it did."""
    if not isinstance(module, nn.Module):
        yield
        return
    was_training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(was_training)


def check_brightness(y: Shaped[Tensor, "*shape"]) -> None:
    """Refuse integers: 255 would be 255 times white."""
    if not y.is_floating_point():
        raise InputError(
            f"y is {y.dtype}; it must be floating-point numbers in [0, 1]: y / 255, or give "
            "pictures to predictor.predict, which scales them"
        )


FAR = 8.0
"""How far beyond [0, 1] values may be, beside the measurement's own noise."""


def check_values(y: Float[Tensor, "*shape"], noise: float | int = 0.0) -> None:
    """Refuse NaN, and images far outside [0, 1], whose tree would say nothing.

    Choice: points (of two axes) have no range, and networks of one's own may be given images of
    another scale, so only what is far outside is refused. What is compiled, traced or recorded is
    not looked at: it would end there.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or y.is_meta or not y.numel():
        return
    if y.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    low, high = (bound.item() for bound in y.detach().aminmax())
    if math.isnan(low) or math.isnan(high):
        bad = int(y.isnan().sum())
        raise InputError(
            f"{bad} of {y.numel()} numbers of y are NaN; replace them, or see what made them"
        )
    far = FAR + 8 * noise
    if y.ndim > 2 and not (-far <= low and high <= 1 + far):
        raise InputError(
            f"y goes from {low:g} to {high:g}, far outside [0, 1] (at most {far:g} beyond): divide "
            "by 255 (16-bit: by 65535), or give pictures to predictor.predict, which scales them"
        )
