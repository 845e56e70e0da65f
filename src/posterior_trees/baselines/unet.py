r"""The diffusion U-Net (Ho et al. 2020): residual blocks that know the noise level, and attention
at the coarse resolutions.

The level $t$ enters as sines and cosines of $t\, e^{-\ln(10^4)\, i / (d/2)}$, through two linear
layers, and is added between the two convolutions of every residual block. The last convolution of
each block and of the network starts at zero, so that training starts from the identity.
"""

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class DiffusionUNet(nn.Module):
    """Maps noisy images, extra channels and noise levels to an image of `channels` channels.

    `multipliers` gives the width of each resolution in units of `base`, each half the one before;
    `attention` names the resolutions (in steps down from 0) that have attention.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        base: int = 48,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (2,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.base, self.channels = base, channels
        self.multiple = 2 ** (len(multipliers) - 1)
        depth = 4 * base
        stage = functools.partial(Stage, time=depth, dropout=dropout)
        self.embed = nn.Sequential(nn.Linear(base, depth), nn.SiLU(), nn.Linear(depth, depth))
        self.first = nn.Conv2d(in_channels, base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        skips, width = [base], base
        for level, multiplier in enumerate(multipliers):
            for _ in range(blocks):
                self.down.append(stage(width, base * multiplier, level in attention))
                width = base * multiplier
                skips.append(width)
            if level < len(multipliers) - 1:
                self.down.append(Shrink(width))
                skips.append(width)
        self.middle = nn.ModuleList([stage(width, width, True), stage(width, width)])
        for level, multiplier in reversed(list(enumerate(multipliers))):
            for number in range(blocks + 1):
                before = width + skips.pop()
                self.up.append(stage(before, base * multiplier, level in attention))
                width = base * multiplier
                if level and number == blocks:
                    self.up.append(Enlarge(width))
        self.norm = ChannelNorm(norm_groups(width), width)
        self.last = zero(nn.Conv2d(width, channels, 3, padding=1))

    def forward(
        self, x: Float[Tensor, "b c h w"], t: Int[Tensor, "b"]
    ) -> Float[Tensor, "b c2 h w"]:
        embedding = self.embed(sinusoids(t, self.base).to(x.dtype))
        features = [self.first(pad(x, self.multiple))]
        for module in self.down:
            features.append(module(features[-1], embedding))
        h = features[-1]
        for module in self.middle:
            h = module(h, embedding)
        for module in self.up:
            h = module(h if isinstance(module, Enlarge) else _join(h, features.pop()), embedding)
        return crop(self.last(F.silu(self.norm(h))), x)


class Stage(nn.Module):
    """A residual block, with attention after it if asked for."""

    def __init__(
        self, before: int, after: int, attends: bool = False, *, time: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(norm_groups(before), before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.norm2 = ChannelNorm(norm_groups(after), after)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = zero(nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.attention = Attention(after) if attends else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(embedding))[:, :, None, None]
        h = self.conv2(self.dropout(F.silu(self.norm2(h))))
        h = self.skip(x) + h
        return h if self.attention is None else self.attention(h)


class ChannelNorm(nn.GroupNorm):
    """GroupNorm, which the compiler gets as sums over the pixels of every channel.

    A group has few channels, and those of one pixel are far from the next pixel's in channels-last
    maps; all channels of a pixel lie side by side.
    """

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        if input.is_cuda and torch.compiler.is_compiling():
            return self.by_channels(input)
        return super().forward(input)

    def by_channels(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        r"""$x \mapsto a x + b$ with $a = \gamma r$, $b = \beta - \mu a$ per image and channel."""
        values = x if x.dtype == torch.float64 else x.float()
        each = (len(x), self.num_groups, -1)
        mean = values.mean((2, 3)).reshape(each).mean(2, keepdim=True)
        square = values.square().mean((2, 3)).reshape(each).mean(2, keepdim=True)
        inverse = ((square - mean.square()).clamp_min(0) + self.eps).rsqrt()
        a = self.weight.reshape(1, self.num_groups, -1) * inverse
        b = self.bias.reshape(1, self.num_groups, -1) - mean * a
        return values * a.reshape(len(x), -1, 1, 1) + b.reshape(len(x), -1, 1, 1)


class Attention(nn.Module):
    """Every pixel looks at every other, in one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = ChannelNorm(norm_groups(width), width)
        self.query = nn.Conv2d(width, 3 * width, 1)
        self.back = zero(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.query(self.norm(x)).flatten(2).mT.unsqueeze(1).chunk(3, dim=3)
        seen = F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())
        return x + self.back(seen.squeeze(1).mT.reshape(x.shape))


class Shrink(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2, padding=1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.conv(x)


class Enlarge(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2))


def sinusoids(t: Int[Tensor, "b"], width: int) -> Float[Tensor, "b w"]:
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = t.unsqueeze(1).float() * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


def norm_groups(width: int) -> int:
    """32 groups where they divide the channels, else 16, 8, …"""
    return math.gcd(width, 32)


def zero(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer with weights 0."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def pad(x: Float[Tensor, "b c h w"], multiple: int) -> Float[Tensor, "b c h2 w2"]:
    """Zeros around the image, up to sides that are a multiple; `crop` undoes it."""
    high, wide = (-size % multiple for size in x.shape[-2:])
    return F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


def crop(
    x: Float[Tensor, "b c h2 w2"], like: Float[Tensor, "b c2 h w"]
) -> Float[Tensor, "b c h w"]:
    (top, left), (h, w) = (
        [(have - want) // 2 for have, want in zip(x.shape[-2:], like.shape[-2:], strict=True)],
        like.shape[-2:],
    )
    return x[..., top : top + h, left : left + w]


def _join(h: Tensor, skip: Tensor) -> Tensor:
    return torch.cat([h, skip], dim=1)
