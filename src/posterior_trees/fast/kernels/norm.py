r"""Triton kernels for GroupNorm and LeakyReLU in one, on channels-last maps.

Plain torch reads a map for the statistics, reads and writes it to normalise, and reads and writes
it again to activate. Here GroupNorm is $x \mapsto a x + b$ with one $a = \gamma r$ and
$b = \beta - \mu a$ per image and channel, from the mean $\mu$ and the inverse deviation $r$ of its
group, and these from sums of values and of squares:

- `measure`: these sums, and from them $\mu$ and $r$, the *moments*;
- `_normalized`: applies them and the LeakyReLU; what else a prediction does in that pass is in
  `kernels/predict.py`;
- small maps are bound by launches, not by bytes: where a program can hold a group, it reads it once
  and needs no sums; `group_norm` chooses.

Sums come in parts, (b, parts, 2, channels): deterministic, and quick to add up.
"""

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.grouped import power
from posterior_trees.fast.kernels.plan import PARTS, Pass, by_group, channels_last, deal_out, like

SLOPE = tl.constexpr(0.2)
HELD = 32768
"""Values that a program can hold: a small group."""
SUMS, APPLY, AVERAGE = Pass(4096, 2, 2, PARTS), Pass(4096, 2, 4), Pass(4096, 2, 4, PARTS)


class Norm(NamedTuple):
    """What GroupNorm does to certain maps: its parameters, and the groups' means and inverse
    deviations."""

    moments: Float[Tensor, "b groups 2"]
    gamma: Float[Tensor, "c"]
    beta: Float[Tensor, "c"]


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
def load_line(
    moments, gamma, beta, image, channel, exists, CHANNELS: tl.constexpr, GROUP: tl.constexpr
):  # fmt: skip
    """a and b of the channels."""
    place = moments + (image * (CHANNELS // GROUP) + channel // GROUP) * 2
    mean = tl.load(place, mask=exists, other=0.0)
    factor = tl.load(place + 1, mask=exists, other=0.0)
    a = tl.load(gamma + channel, mask=exists, other=0.0) * factor
    return a, tl.load(beta + channel, mask=exists, other=0.0) - mean * a


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
    place = sums + tl.program_id(0).to(tl.int64) * 2 * CHANNELS + channel
    tl.store(place, tl.sum(total, axis=0), mask=exists)
    tl.store(place + CHANNELS, tl.sum(squares, axis=0), mask=exists)


@triton.jit
@no_type_check
def _measure(
    sums, moments, parts, count, epsilon, CHANNELS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    groups: tl.constexpr = CHANNELS // GROUP
    image, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    k = tl.arange(0, BLOCK)
    total = tl.zeros((PARTS, BLOCK), dtype=tl.float32)
    squares = tl.zeros((PARTS, BLOCK), dtype=tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        places = ((image * parts + part) * 2)[:, None] * CHANNELS + (group * GROUP + k)[None, :]
        mask = (part < parts)[:, None] & (k < GROUP)[None, :]
        total += tl.load(sums + places, mask=mask, other=0.0)
        squares += tl.load(sums + places + CHANNELS, mask=mask, other=0.0)
    mean = tl.sum(tl.sum(total, axis=0), axis=0) / count
    variance = tl.sum(tl.sum(squares, axis=0), axis=0) / count - mean * mean
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
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, GROUP)
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


@triton.jit
@no_type_check
def _group_norm(
    maps, gamma, beta, out, area, count, epsilon, CHANNELS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program has a group of an image. Places are counted from where that begins, with 32 bits
    each: of 64 the registers would be full."""
    groups: tl.constexpr = CHANNELS // GROUP
    image, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    pixel, k = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    channel, exists = group * GROUP + k, k < GROUP
    begin = image * area * CHANNELS + group * GROUP
    places = pixel[:, None] * CHANNELS + k[None, :]
    mask = (pixel < area)[:, None] & exists[None, :]
    maps, out = maps + begin, out + begin
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
    weight = tl.load(gamma + channel, mask=exists, other=0.0)
    level = tl.load(beta + channel, mask=exists, other=0.0)
    mean = tl.sum(tl.sum(x, axis=0), axis=0) / count
    centred = tl.where(mask, x - mean, 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(centred * centred, axis=0), axis=0) / count + epsilon)
    x = centred * (factor * weight)[None, :] + level[None, :]
    x = tl.where(x > 0, x, SLOPE * x)
    tl.store(out + places, x.to(out.dtype.element_ty), mask=mask)


def group_norm(
    maps: Float[Tensor, "b c h w"],
    gamma: Float[Tensor, "c"],
    beta: Float[Tensor, "c"],
    groups: int,
    epsilon: float,
) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of the normalised maps."""
    batch, channels, height, width = maps.shape
    block, rows = power(channels // groups, least=1), power(height * width, least=1)
    if block * rows > HELD:
        how = Norm(measure(maps, groups, epsilon), gamma, beta)
        return _normalized(maps, how, APPLY, has_means=False)[0]
    maps, group, area = channels_last(maps), channels // groups, height * width
    out = like(maps, channels, height, width)
    warps = min(16, max(1, power(block * rows // 1024, least=1)))  # 32 values or more a thread
    _group_norm[(batch * groups,)](
        maps, gamma, beta, out, area, float(group * area), epsilon, channels, group, block, rows,
        num_warps=warps,
    )  # fmt: skip
    return out


def measure(
    maps: Float[Tensor, "b c h w"], groups: int, epsilon: float
) -> Float[Tensor, "b groups 2"]:
    """Mean and inverse deviation of every group, from sums over parts of the pixels."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    share = deal_out(batch, channels, height * width, SUMS)
    sums = maps.new_empty(batch, share.parts, 2, channels, dtype=torch.float32)
    _channel_sums[share.grid](
        maps, sums, height * width, share.parts, share.per_part, channels, share.block, share.rows,
        SUMS.stages, num_warps=SUMS.warps,
    )  # fmt: skip
    moments, group = sums.new_empty(batch, groups, 2), channels // groups
    _measure[(groups * batch,)](
        sums, moments, share.parts, float(group * height * width), epsilon, channels, group,
        *by_group(channels, groups, share.parts), num_warps=8,
    )  # fmt: skip
    return moments


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
        channels // norm.moments.shape[1], share.block, share.rows, how.stages,
        has_means, num_warps=how.warps,
    )  # fmt: skip
    return out, means
