"""The measurements that we have: a hole, lost colour, noise, fewer pixels, another modality."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.measure.base import Measurement

FLAT = 0.02
"""How much the values of a hole that is blank differ at most: compression leaves traces."""


class Inpaint(Measurement):
    """Hides the pixels of `hole` (True = hidden) and shows `fill` in their place.

    >>> measure = Inpaint(torch.tensor([[False, True]]))
    >>> measure(torch.ones(1, 1, 2))
    tensor([[[1.0000, 0.5000]]])
    """

    is_picture_clean = True
    action = "hide the hole"
    hole: Tensor  # ty: ignore[incompatible-mutable-override]

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
        rows: Sequence[int],
        columns: Sequence[int],
        size: Sequence[int],
        of: Sequence[int] = (),
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

    def shows_hidden(self, picture):
        """Unless the hole is of a single value: then the picture has a hole of its own."""
        inside = picture[..., self.hole.to(picture.device)]
        return bool((inside.amax(dim=-1) - inside.amin(dim=-1) > FLAT).any())

    def with_hole(self, hole):
        return Inpaint(hole.to(self.hole.device), self.fill)

    def describe(self):
        return "the picture in [0, 1]; the hidden pixels may hold anything"

    def _check(self, x: Tensor) -> None:
        space = x.shape[x.ndim - self.hole.ndim :]
        if space != self.hole.shape:
            raise InputError(
                f"the mask is {'×'.join(map(str, self.hole.shape))} but the image is "
                f"{'×'.join(map(str, space))}: resize the image to the mask's size"
            )


class Colorize(Measurement):
    """Drops the colour: `y` is the plain mean of the channels (not luma), one channel.

    >>> Colorize()(torch.rand(2, 3, 8, 8)).shape
    torch.Size([2, 1, 8, 8])
    """

    is_picture_clean = True
    gain = 1 / 3
    action = "drop its colour"

    @property
    def open_share(self):
        return 2 / 3

    def forward(self, x, generator=None):
        return x.mean(dim=-3, keepdim=True)

    def naive(self, y):
        return y.expand(*y.shape[:-3], 3, *y.shape[-2:])

    def project(self, v):
        return v - v.mean(dim=-3, keepdim=True)

    def channels(self, of_x):
        if of_x != 3:
            raise InputError(f"colourisation predicts 3 channels, the data have {of_x}")
        return 1

    def picture_channels(self, of_x):
        return of_x, self.channels(of_x)

    def shows_hidden(self, picture):
        """A grey photograph has no colour to lose."""
        return bool((picture != picture[:, :1]).any())

    def describe(self):
        return "the plain mean of the red, green and blue channels, in [0, 1]"


class Denoise(Measurement):
    """Adds white Gaussian noise of standard deviation `sigma`; nothing is known for sure.

    >>> y = Denoise(sigma=0.1)(torch.zeros(1, 1, 100, 100), torch.Generator().manual_seed(0))
    >>> round(y.std().item(), 2)
    0.1
    """

    is_random = True
    is_exact = False
    action = "add the noise"

    def __init__(self, sigma: float | int) -> None:
        super().__init__()
        if not sigma > 0:
            raise InputError(f"the noise has sigma {sigma}; it must be positive")
        self.sigma = self.noise = sigma

    def forward(self, x, generator=None):
        device = x.device if generator is None else generator.device
        noise = torch.randn(x.shape, dtype=x.dtype, device=device, generator=generator)
        return x + self.sigma * noise.to(x.device)


class Downsample(Measurement):
    """Averages blocks of `factor` × `factor` pixels.

    >>> Downsample(factor=2)(torch.rand(1, 3, 8, 8)).shape
    torch.Size([1, 3, 4, 4])
    """

    action = "shrink it"

    def __init__(self, factor: int) -> None:
        super().__init__()
        if factor < 2:
            raise InputError(f"the downsampling factor is {factor}; it must be 2 or more")
        self.factor = self.block = factor
        self.gain = 1 / factor**2

    @property
    def open_share(self):
        return 1 - self.gain

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
    one channel that is copied); `is_residual=False` predicts the image itself. `channels` are those
    of x, `input_channels` those of y.

    >>> Paired(channels=3, input_channels=1).naive(torch.rand(1, 1, 8, 8)).shape
    torch.Size([1, 3, 8, 8])
    """

    is_exact = False
    is_computable = False

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

    def same_as(self, other):
        return isinstance(other, Paired)


class Free(Paired):
    """A measurement nothing is known about: the network predicts images from any input."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, input_channels=0, is_residual=False)  # 0: any number
