r"""Triton kernels for GroupNorm and LeakyReLU in one, on channels-last maps.

Plain torch reads a map for the statistics, reads and writes it to normalise, and reads and writes
it again to activate. Here GroupNorm is $x \mapsto a x + b$ with one $a = \gamma r$ and
$b = \beta - \mu a$ per image and channel, from the mean $\mu$ and the inverse deviation $r$ of its
group, and these from sums of values and of squares:

- `channel_sums`: these sums, if the convolution did not leave them (`kernels/conv.py`);
- `measure`: from the sums to $\mu$ and $r$, the *moments*;
- `normalize`: applies them and the LeakyReLU; what else a prediction does in that pass is in
  `kernels/predict.py`;
- groups so small that a program holds one need no sums (`kernels/small.py`): `group_norm` chooses;
- the way back, for training, is in `gradients.py`.

Of maps with more channels than there are parameters the others are zeros, groups of their own
(`grouped.room_for`): where none is `KNOWN`, a parameter is 0.

`sums` come in parts, (b, parts, 2, channels): deterministic, and quick to add up.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.kernels.plan import PARTS, Pass, by_group, channels_last, deal_out, like
from posterior_trees.fast.kernels.small import SLOPE, fits, small_norm

SUMS, APPLY, AVERAGE = Pass(4096, 2, 2, PARTS), Pass(4096, 2, 4), Pass(4096, 2, 4, PARTS)


class Norm(NamedTuple):
    """What GroupNorm does to certain maps: its parameters, and the groups' means and inverse
    deviations."""

    moments: Float[Tensor, "b groups 2"]
    gamma: Float[Tensor, "known"]
    beta: Float[Tensor, "known"]


@triton.jit
@no_type_check
def own_pixels(area, parts, per_part, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """A program's image, part of its pixels (first and last), and channels."""
    image, part = (tl.program_id(0) // parts).to(tl.int64), tl.program_id(0) % parts
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    end = tl.minimum(area, (part + 1) * per_part)
    return image, part * per_part, end, channel, channel < CHANNELS


@triton.jit
@no_type_check
def load_moments(
    moments, image, channel, exists, CHANNELS: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """Of two numbers of every group, those of the channels."""
    place = moments + (image * (CHANNELS // GROUP) + channel // GROUP) * 2
    return tl.load(place, mask=exists, other=0.0), tl.load(place + 1, mask=exists, other=0.0)


@triton.jit
@no_type_check
def load_line(
    moments, gamma, beta, image, channel, exists, CHANNELS: tl.constexpr, KNOWN: tl.constexpr,
    GROUP: tl.constexpr,
):  # fmt: skip
    """a and b of the channels."""
    mean, factor = load_moments(moments, image, channel, exists, CHANNELS, GROUP)
    known = exists & (channel < KNOWN)
    a = tl.load(gamma + channel, mask=known, other=0.0) * factor
    return a, tl.load(beta + channel, mask=known, other=0.0) - mean * a


@triton.jit
@no_type_check
def store_part(sums, first, second, channel, exists, CHANNELS: tl.constexpr):
    """Both sums over the pixels that a program has seen."""
    place = sums + tl.program_id(0).to(tl.int64) * 2 * CHANNELS + channel
    tl.store(place, tl.sum(first, axis=0), mask=exists)
    tl.store(place + CHANNELS, tl.sum(second, axis=0), mask=exists)


@triton.jit
@no_type_check
def add_parts(
    sums, image, channel, exists, parts, CHANNELS: tl.constexpr, PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Both sums of an image, over all parts."""
    first = tl.zeros((PARTS, BLOCK), dtype=tl.float32)
    second = tl.zeros((PARTS, BLOCK), dtype=tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        places = ((image * parts + part) * 2)[:, None] * CHANNELS + channel[None, :]
        mask = (part < parts)[:, None] & exists[None, :]
        first += tl.load(sums + places, mask=mask, other=0.0)
        second += tl.load(sums + places + CHANNELS, mask=mask, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
@no_type_check
def _channel_sums(
    maps, sums, area, parts, per_part,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    squares = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    store_part(sums, total, squares, channel, exists, CHANNELS)


@triton.jit
@no_type_check
def _measure(
    sums, moments, parts, count, epsilon, CHANNELS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    groups: tl.constexpr = CHANNELS // GROUP
    image, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    k = tl.arange(0, BLOCK)
    total, squares = add_parts(
        sums, image, group * GROUP + k, k < GROUP, parts, CHANNELS, PARTS, BLOCK
    )
    mean = tl.sum(total, axis=0) / count
    variance = tl.sum(squares, axis=0) / count - mean * mean
    place = moments + (image * groups + group) * 2
    tl.store(place, mean)
    tl.store(place + 1, tl.rsqrt(tl.maximum(variance, 0.0) + epsilon))


@triton.jit
@no_type_check
def activated(maps, places, mask, a, b):
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    return tl.where(x > 0, x, SLOPE * x)


@triton.jit
@no_type_check
def _normalize(
    maps, moments, gamma, beta, out, means, area, parts, per_part,
    CHANNELS: tl.constexpr, KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, KNOWN, GROUP)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x = activated(maps, places, mask, a, b)
        tl.store(out + places, x.to(out.dtype.element_ty), mask=mask)
        if MEANS:
            total += tl.where(mask, x, 0.0)
    if MEANS:
        place = tl.program_id(0).to(tl.int64) * CHANNELS + channel
        tl.store(means + place, tl.sum(total, axis=0) / area, mask=exists)


def group_norm(
    maps: Float[Tensor, "b c h w"],
    gamma: Float[Tensor, "known"],
    beta: Float[Tensor, "known"],
    groups: int,
    epsilon: float,
    sums: Float[Tensor, "b parts 2 c"] | None = None,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b groups 2"]]:
    """LeakyReLU of the normalised maps, and the moments; `sums`, if there are some, save a pass."""
    if fits(maps, groups, 1):
        return small_norm(maps, gamma, beta, groups, epsilon)
    sums = channel_sums(maps) if sums is None else sums
    moments = measure(sums, groups, maps.shape[2] * maps.shape[3], epsilon)
    return normalize(maps, Norm(moments, gamma, beta)), moments


def channel_sums(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b parts 2 c"]:
    """Sums of values and squares over parts of the pixels."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    share = deal_out(batch, channels, height * width, SUMS)
    sums = maps.new_empty(batch, share.parts, 2, channels, dtype=torch.float32)
    _channel_sums[share.grid](
        maps, sums, height * width, share.parts, share.per_part, channels, share.block, share.rows,
        SUMS.stages, num_warps=SUMS.warps,
    )  # fmt: skip
    return sums


def measure(
    sums: Float[Tensor, "b parts 2 c"], groups: int, area: int, epsilon: float
) -> Float[Tensor, "b groups 2"]:
    """Mean and inverse deviation of every group of maps with these sums."""
    batch, parts, _, channels = sums.shape
    moments, group = sums.new_empty(batch, groups, 2), channels // groups
    _measure[(groups * batch,)](
        sums, moments, parts, float(group * area), epsilon, channels, group,
        *by_group(channels, groups, parts), num_warps=8,
    )  # fmt: skip
    return moments


def normalize(maps: Float[Tensor, "b c h w"], norm: Norm) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of the normalised maps."""
    out, _ = _normalized(maps, norm, APPLY, has_means=False)
    return out


def normalize_and_average(
    maps: Float[Tensor, "b c h w"], norm: Norm
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b parts c"]]:
    """LeakyReLU of the normalised maps, and its mean over the pixels, in parts to be added."""
    return _normalized(maps, norm, AVERAGE, has_means=True)


def _normalized(maps: Tensor, norm: Norm, how: Pass, *, has_means: bool):
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    out, share = like(maps, channels, height, width), deal_out(batch, channels, height * width, how)
    means = norm.moments.new_empty(batch, share.parts, channels) if has_means else norm.moments
    _normalize[share.grid](
        maps, *norm, out, means, height * width, share.parts, share.per_part, channels,
        len(norm.gamma), channels // norm.moments.shape[1], share.block, share.rows, how.stages,
        has_means, num_warps=how.warps,
    )  # fmt: skip
    return out, means
