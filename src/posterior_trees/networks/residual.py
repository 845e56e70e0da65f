"""A U-Net of residual blocks with attention (after Ho et al. 2020), for trees and for diffusion.

A block is (GroupNorm, SiLU, 3×3 convolution) twice, added to its input. The last convolution of
each block starts at zero, so that training starts from the identity. At the coarse resolutions
every pixel also looks at every other.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.networks.head import Leaves, ProbabilityHead


class Ladder(nn.Module):
    """Down to the coarsest resolution and up again, skip maps joined on the way.

    `multipliers` gives the width of each resolution in units of `base`, each half the one before;
    `attention` names the resolutions (in steps down from 0) that have attention. With `time`, a
    vector of so many numbers enters every block.
    """

    def __init__(
        self,
        base: int,
        multipliers: Sequence[int],
        blocks: int,
        attention: Sequence[int],
        *,
        dropout: float = 0.0,
        time: int = 0,
    ) -> None:
        super().__init__()
        check_levels(multipliers, attention)
        self.multiple = 2 ** (len(multipliers) - 1)
        self.down, self.middle, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()

        def stage(before: int, after: int, attends: bool = False) -> Stage:
            return Stage(before, after, attends, time=time, dropout=dropout)

        skips, width = [base], base
        for level, multiplier in enumerate(multipliers):
            for _ in range(blocks):
                self.down.append(stage(width, base * multiplier, level in attention))
                width = base * multiplier
                skips.append(width)
            if level < len(multipliers) - 1:
                self.down.append(Shrink(width))
                skips.append(width)
        self.middle.extend([stage(width, width, True), stage(width, width)])
        for level, multiplier in reversed(list(enumerate(multipliers))):
            for number in range(blocks + 1):
                self.up.append(stage(width + skips.pop(), base * multiplier, level in attention))
                width = base * multiplier
                if level and number == blocks:
                    self.up.append(Enlarge(width))
        self.norm = ChannelNorm(norm_groups(width), width)

    def climb(
        self, x: Float[Tensor, "b c h w"], embedding: Float[Tensor, "b d"] | None = None
    ) -> list[Float[Tensor, "b _ _ _"]]:
        """The last maps of every resolution on the way up, the coarsest first, the finest
        normalised."""
        skips, maps = [x], []
        for module in self.down:
            skips.append(module(skips[-1], embedding))
        h = skips[-1]
        for module in self.middle:
            h = module(h, embedding)
        for module in self.up:
            if isinstance(module, Enlarge):
                maps.append(h)
                h = module(h)
            else:
                h = module(torch.cat([h, skips.pop()], dim=1), embedding)
        return [*maps, F.silu(self.norm(h))]


class ResidualUNet(Ladder):
    """Predicts `num_leaves` images and their log-probabilities from one image; one decoder for all.

    The head sees the last maps of every resolution of the decoder.

    Deviation: the paper's network has neither residual blocks nor attention (`UNet`, the default).
    This one lets a tree and a diffusion model be compared on equal terms.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        num_leaves: int,
        *,
        width: int = 48,
        multipliers: Sequence[int] = (1, 2, 3, 4),
        blocks: int = 2,
        attention: Sequence[int] = (2, 3),
        dropout: float = 0.0,
        head_norm: str = "layer",
        head_dropout: float = 0.0,
        is_regional: bool = False,
    ) -> None:
        super().__init__(width, multipliers, blocks, attention, dropout=dropout)
        self.in_channels, self.channels, self.num_leaves = in_channels, channels, num_leaves
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.to_image = nn.Conv2d(width * multipliers[0], num_leaves * channels, 3, padding=1)
        self.head = ProbabilityHead(
            width * sum(multipliers),
            num_leaves,
            norm=head_norm,
            dropout=head_dropout,
            is_regional=is_regional,
        )

    def forward(
        self, y: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"] | None = None
    ) -> Leaves:
        maps = self.climb(self.first(y))
        images = self.to_image(maps[-1]).unflatten(1, (self.num_leaves, self.channels))
        return Leaves(images, self.head(maps, region))


class Stage(nn.Module):
    """A residual block, with attention after it if asked for."""

    def __init__(
        self, before: int, after: int, attends: bool = False, *, time: int, dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = ChannelNorm(norm_groups(before), before)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        if time:
            self.time = nn.Linear(time, after)
        self.norm2 = ChannelNorm(norm_groups(after), after)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = zero(nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.attention = Attention(after) if attends else None

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        if embedding is not None:
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
        return (values * a.reshape(len(x), -1, 1, 1) + b.reshape(len(x), -1, 1, 1)).to(x.dtype)


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

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        return self.conv(x)


class Enlarge(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.interpolate(x, scale_factor=2))


def check_levels(multipliers: Sequence[int], attention: Sequence[int]) -> None:
    """Refuse levels without channels, and attention where there is no level."""
    if not multipliers or min(multipliers) < 1:
        raise InputError(
            f"the multipliers are {list(multipliers)}; give one of at least 1 for each level"
        )
    levels = range(len(multipliers))
    if strange := [level for level in attention if level not in levels]:
        raise InputError(
            f"attention at level {strange[0]}: the {len(multipliers)} multipliers make levels "
            f"0 to {levels[-1]}"
        )


def norm_groups(width: int) -> int:
    """32 groups where they divide the channels, else 16, 8, …"""
    return math.gcd(width, 32)


def zero(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer with weights 0."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
