r"""How an image becomes a measurement, and what the measurement leaves open.

A measurement $A$ turns a clean image $x$ into $y$. Two more maps make every answer of a tree agree
with $y$ by construction (App. A.2, "we only learned the required residual from the input"):

- `naive(y)`, the plainest image that agrees with $y$;
- `project(v)`, $P v$, which removes from $v$ whatever $A$ can see: $A P = 0$, $P^2 = P$.

A prediction is $\hat x = \mathrm{naive}(y) + P(\text{network})$, so that $A \hat x = y$ whatever
the network says. Where no such $P$ exists (noise, paired channels) it is the identity.

All maps work on any leading axes: one image, a batch, or a batch of leaves.
"""

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.data import ImageSet


class Measurement(nn.Module):
    """Base of all measurements: an identity that leaves everything open."""

    is_random = False

    def forward(
        self, x: Float[Tensor, "b *shape"], generator: torch.Generator | None = None
    ) -> Float[Tensor, "b *shape2"]:
        """Measure clean images, $y = A x$ (plus noise drawn from `generator`)."""
        return x

    def naive(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """The plainest image that agrees with `y`."""
        return y

    def project(self, v: Float[Tensor, "*b2"]) -> Float[Tensor, "*b2"]:
        """Keep of `v` only what the measurement leaves open."""
        return v

    def view(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """The measurement as the network sees it: an image of the size of `x`."""
        return y

    def blank(self, y: Float[Tensor, "*b2"]) -> Float[Tensor, "*b2"]:
        """`y` as it was in training, whatever it shows where nothing was measured."""
        return y

    def observe(self, picture: Float[Tensor, "*b2"]) -> Float[Tensor, "*b3"]:
        """A user's picture as a measurement. Most pictures are what was measured already."""
        return picture

    def impose(self, x: Float[Tensor, "*b2"], y: Float[Tensor, "*b3"]) -> Float[Tensor, "*b2"]:
        """The image nearest to `x` that agrees with `y`."""
        plain = self.naive(y)
        return plain - self.project(plain) + self.project(x)

    def channels(self, of_x: int) -> int:
        """Channels of the measurement of an image with `of_x` channels."""
        return of_x


class Inpaint(Measurement):
    """Hides the pixels of `hole` (True = hidden) and shows `fill` in their place."""

    hole: Tensor

    def __init__(self, hole: Bool[Tensor, "*space"], fill: float | int = 0.5) -> None:
        super().__init__()
        if not hole.any() or hole.all():
            raise InputError("the hole must hide some pixels and leave some; this one hides "
                             f"{int(hole.sum())} of {hole.numel()}")  # fmt: skip
        self.register_buffer("hole", hole, persistent=False)
        self.fill = fill

    @classmethod
    def box(
        cls,
        rows: tuple[int, int],
        columns: tuple[int, int],
        size: tuple[int, int],
        of: tuple[int, int] | None = None,
        fill: float | int = 0.5,
    ) -> "Inpaint":
        """Hide a box, first and last row and column inclusive, given for images of size `of`
        and scaled to `size`."""
        edges = []
        for (first, last), have, base in zip((rows, columns), size, of or size, strict=True):
            if not 0 <= first <= last < base:
                raise InputError(f"the box {first}…{last} lies outside 0…{base - 1}")
            edges.append((round(first * have / base), round((last + 1) * have / base)))
        hole = torch.zeros(size, dtype=torch.bool)
        hole[edges[0][0] : edges[0][1], edges[1][0] : edges[1][1]] = True
        return cls(hole, fill)

    def forward(self, x, generator=None):
        self._check(x)
        return torch.where(self.hole, self.fill, x)

    def project(self, v):
        self._check(v)
        return v * self.hole

    def blank(self, y):
        return self(y)

    def observe(self, picture):
        return self(picture)

    def _check(self, x: Tensor) -> None:
        space = x.shape[x.ndim - self.hole.ndim :]
        if space != self.hole.shape:
            raise InputError(
                f"the mask is {'×'.join(map(str, self.hole.shape))} but the image is "
                f"{'×'.join(map(str, space))}: resize the image to the mask's size"
            )


class Colorize(Measurement):
    """Drops the colour: `y` is the plain mean of the channels (not luma), one channel."""

    def forward(self, x, generator=None):
        return x.mean(dim=-3, keepdim=True)

    def naive(self, y):
        return y.expand(*y.shape[:-3], 3, *y.shape[-2:])

    def project(self, v):
        return v - v.mean(dim=-3, keepdim=True)

    def observe(self, picture):
        return self(picture)

    def channels(self, of_x):
        if of_x != 3:
            raise InputError(f"colourisation predicts 3 channels, the data have {of_x}")
        return 1


class Denoise(Measurement):
    """Adds white Gaussian noise of standard deviation `sigma`; nothing is known for sure."""

    is_random = True

    def __init__(self, sigma: float | int) -> None:
        super().__init__()
        if not sigma > 0:
            raise InputError(f"the noise has sigma {sigma}; it must be positive")
        self.sigma = sigma

    def forward(self, x, generator=None):
        device = x.device if generator is None else generator.device
        noise = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
        return x + self.sigma * noise.to(x.device)


class Downsample(Measurement):
    """Averages blocks of `factor × factor` pixels."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        if factor < 2:
            raise InputError(f"the downsampling factor is {factor}; it must be 2 or more")
        self.factor = factor

    def forward(self, x, generator=None):
        if x.shape[-1] % self.factor or x.shape[-2] % self.factor:
            raise InputError(
                f"an image of {x.shape[-2]}×{x.shape[-1]} does not divide into blocks of "
                f"{self.factor}×{self.factor}: crop it to a multiple of {self.factor}"
            )
        images = x.flatten(0, -4) if x.ndim > 3 else x.unsqueeze(0)
        small = F.avg_pool2d(images, self.factor)
        return small.reshape(*x.shape[:-2], *small.shape[-2:])

    def naive(self, y):
        f = self.factor
        return y.repeat_interleave(f, dim=-1).repeat_interleave(f, dim=-2)

    def project(self, v):
        return v - self.naive(self(v))

    def view(self, y):
        return self.naive(y)


class Paired(Measurement):
    """`y` comes with the data: another channel, an edge map, another modality.

    The network predicts the residual from the input where the channels allow it (equal numbers, or
    one channel that is copied); `is_residual=False` predicts the image itself.
    """

    def __init__(self, channels: int, input_channels: int, is_residual: bool = True) -> None:
        super().__init__()
        self.out_channels, self.input_channels = channels, input_channels
        self.is_residual = is_residual and input_channels in (1, channels)

    def forward(self, x, generator=None):
        raise InputError(
            "this task is trained on pairs: its measurements come with the data and cannot be "
            "made from the clean image"
        )

    def naive(self, y):
        shape = (*y.shape[:-3], self.out_channels, *y.shape[-2:])
        return y.expand(shape) if self.is_residual else y.new_zeros(shape)

    def channels(self, of_x):
        return self.input_channels


class Free(Paired):
    """A measurement nothing is known about: the network predicts images from any input."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, input_channels=0, is_residual=False)  # 0: any number


def is_same(one: Measurement, other: Measurement) -> bool:
    """Whether two measurements hide the same things; those of pairs come with the data."""
    if isinstance(one, Paired) and isinstance(other, Paired):
        return True
    if type(one) is not type(other):
        return False
    tensors, others = dict(one.named_buffers()), dict(other.named_buffers())
    return (
        _numbers(one) == _numbers(other)
        and tensors.keys() == others.keys()
        and all(torch.equal(tensors[name].cpu(), others[name].cpu()) for name in tensors)
    )


def _numbers(measurement: Measurement) -> dict[str, float | int]:
    """The plain numbers that a measurement was made with: a fill, a factor, a noise."""
    kept = vars(measurement).items()
    return {k: v for k, v in kept if isinstance(v, int | float) and not isinstance(v, bool)}


def hole_of(measurement: Measurement) -> Bool[Tensor, "*shape"] | None:
    """The hidden pixels, where a measurement hides some."""
    return measurement.hole if isinstance(measurement, Inpaint) else None


def measured_batch(
    images: "ImageSet", indices: Tensor, measurement: Measurement, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Clean images of a set and their measurements: as recorded, or made by `measure_each`."""
    x, y = images.batch(indices)
    x = x.to(device)
    y = measure_each(measurement, x, indices, seed) if y is None else y
    return x, y.to(device)


def measure_each(
    measurement: Measurement, x: Float[Tensor, "b *shape"], indices: Tensor, seed: int
) -> Tensor:
    """Measure images so that the noise of image `i` depends on `(seed, i)` only."""
    if not measurement.is_random:
        return measurement(x)
    generator = torch.Generator()
    measured = []
    for image, index in zip(x, indices.tolist(), strict=True):
        generator.manual_seed((seed * 1_000_003 + index) % 2**63)
        measured.append(measurement(image[None], generator))
    return torch.cat(measured)
