r"""Triton kernels for GroupNorm and LeakyReLU in one, on channels-last maps.

Plain torch reads a map for the statistics, reads and writes it to normalise, and reads and writes
it again to activate. Here GroupNorm is $x \mapsto a x + b$ with one $a$ and $b$ per image and
channel, from sums of values and of squares:

- `channel_sums`: these sums, if the convolution did not leave them (`kernels/conv.py`);
- `scale_and_shift`: from the sums to $a$ and $b$;
- `normalize`: applies them and the LeakyReLU; `normalize_and_average` and `normalize_and_halve`
  also return the map's mean and the map at half the size; `to_leaves` maps it straight to pixels;
- the way back, for training, is in `gradients.py`.

`sums` come in parts, (b, parts, 2, channels): deterministic, and quick to add up.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.networks.kernels.plan import (
    Pass,
    by_group,
    channels_last,
    deal_out,
    like,
    power,
)

SLOPE = tl.constexpr(0.2)
SUMS, APPLY, HALVE, LEAVES = Pass(2048, 2, 8), Pass(4096, 2, 8), Pass(1024, 2, 8), Pass(4096, 3, 4)


@triton.jit
@no_type_check
def own_share(scale, shift, channels, CHANNELS: tl.constexpr):
    """A program's part of the pixels, image and channels, and the factors and offsets of these."""
    image = tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
    return tl.program_id(0), image, channel, exists, a, b


@triton.jit
@no_type_check
def store_part(sums, first, second, part, image, channel, exists, channels):
    """Both sums over the pixels that a program has seen."""
    place = sums + (image * tl.num_programs(0) + part) * 2 * channels + channel
    tl.store(place, tl.sum(first, axis=0), mask=exists)
    tl.store(place + channels, tl.sum(second, axis=0), mask=exists)


@triton.jit
@no_type_check
def _channel_sums(
    maps, sums, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    squares = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    store_part(sums, total, squares, part, image, channel, exists, channels)


@triton.jit
@no_type_check
def add_parts(
    sums, image, channel, exists, parts, channels, PARTS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """Both sums of an image, over all parts."""
    first = tl.zeros((PARTS, CHANNELS), dtype=tl.float32)
    second = tl.zeros((PARTS, CHANNELS), dtype=tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        places = ((image * parts + part) * 2)[:, None] * channels + channel[None, :]
        mask = (part < parts)[:, None] & exists[None, :]
        first += tl.load(sums + places, mask=mask, other=0.0)
        second += tl.load(sums + places + channels, mask=mask, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
@no_type_check
def _scale_and_shift(
    sums, gamma, beta, scale, shift, moments, parts, channels, count, epsilon,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    group, image = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, GROUP_BLOCK)
    channel = group * GROUP + k
    exists = k < GROUP
    total, squares = add_parts(sums, image, channel, exists, parts, channels, PARTS, GROUP_BLOCK)
    mean = tl.sum(total, axis=0) / count
    variance = tl.sum(squares, axis=0) / count - mean * mean
    factor = tl.rsqrt(tl.maximum(variance, 0.0) + epsilon)
    place = (image * tl.num_programs(0) + group) * 2
    tl.store(moments + place, mean)
    tl.store(moments + place + 1, factor)
    a = tl.load(gamma + channel, mask=exists) * factor
    tl.store(scale + image * channels + channel, a, mask=exists)
    b = tl.load(beta + channel, mask=exists) - mean * a
    tl.store(shift + image * channels + channel, b, mask=exists)


@triton.jit
@no_type_check
def _activated(maps, places, mask, a, b):
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32) * a[None, :] + b[None, :]
    return tl.where(x > 0, x, SLOPE * x)


@triton.jit
@no_type_check
def _normalize(
    maps, scale, shift, out, means, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    part, image, channel, exists, a, b = own_share(scale, shift, channels, CHANNELS)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x = _activated(maps, places, mask, a, b)
        tl.store(out + places, x.to(out.dtype.element_ty), mask=mask)
        if MEANS:
            total += tl.where(mask, x, 0.0)
    if MEANS:
        place = (image * tl.num_programs(0) + part) * channels + channel
        tl.store(means + place, tl.sum(total, axis=0) / area, mask=exists)


@triton.jit
@no_type_check
def _normalize_and_halve(
    maps, scale, shift, out, half, area, width, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Area and width are those of the half-sized map."""
    part, image, channel, exists, a, b = own_share(scale, shift, channels, CHANNELS)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        mask = (pixel < end)[:, None] & exists[None, :]
        corner = image * area * 4 + (pixel // width) * 4 * width + (pixel % width) * 2
        mean = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
        for quarter in tl.static_range(4):
            place = corner + quarter // 2 * 2 * width + quarter % 2
            places = place[:, None] * channels + channel[None, :]
            x = _activated(maps, places, mask, a, b).to(out.dtype.element_ty)
            tl.store(out + places, x, mask=mask)
            mean += 0.25 * x.to(tl.float32)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        tl.store(half + places, mean.to(half.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _to_leaves(
    maps, scale, shift, weight, bias, out, means, area, per_part, channels, pixels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    part, image, channel, exists, a, b = own_share(scale, shift, channels, CHANNELS)
    column = tl.arange(0, OUT)
    matrix = tl.load(weight + channel[:, None] * OUT + column[None, :])
    level = tl.load(bias + column)
    total = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        place, inside = image * area + pixel, (pixel < end)[:, None]
        places = place[:, None] * channels + channel[None, :]
        x = _activated(maps, places, inside & exists[None, :], a, b)
        x = tl.where(inside & exists[None, :], x, 0.0)
        total += x
        leaves = tl.dot(x.to(matrix.dtype), matrix) + level[None, :]
        places = place[:, None] * pixels + column[None, :]
        mask = inside & (column < pixels)[None, :]
        tl.store(out + places, leaves.to(out.dtype.element_ty), mask=mask)
    place = (image * tl.num_programs(0) + part) * channels + channel
    tl.store(means + place, tl.sum(total, axis=0) / area, mask=exists)


def channel_sums(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b parts 2 c"]:
    """Sums of values and squares over parts of the pixels."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    grid, per_part, shape = deal_out(batch, channels, height * width, SUMS)
    sums = maps.new_empty(batch, grid[0], 2, channels, dtype=torch.float32)
    _channel_sums[grid](
        maps, sums, height * width, per_part, channels, *shape, num_warps=SUMS.warps
    )
    return sums


def scale_and_shift(
    sums: Float[Tensor, "b parts 2 c"],
    gamma: Float[Tensor, "c"],
    beta: Float[Tensor, "c"],
    groups: int,
    area: int,
    epsilon: float,
) -> tuple[Float[Tensor, "b c"], Float[Tensor, "b c"], Float[Tensor, "b groups 2"]]:
    """Factor and offset of every channel by which GroupNorm normalises maps with these sums, and
    of every group its mean and the inverse of its deviation."""
    batch, parts, _, channels = sums.shape
    scale, shift = (sums.new_empty(batch, channels) for _ in range(2))
    moments = sums.new_empty(batch, groups, 2)
    group, block, held = by_group(channels, groups, parts)
    _scale_and_shift[(groups, batch)](
        sums, gamma, beta, scale, shift, moments, parts, channels, float(group * area), epsilon,
        group, block, held,
    )  # fmt: skip
    return scale, shift, moments


def normalize(
    maps: Float[Tensor, "b c h w"], scale: Float[Tensor, "b c"], shift: Float[Tensor, "b c"]
) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of a·x + b."""
    out, _ = _normalized(maps, scale, shift, has_means=False)
    return out


def normalize_and_average(
    maps: Float[Tensor, "b c h w"], scale: Float[Tensor, "b c"], shift: Float[Tensor, "b c"]
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b parts c"]]:
    """LeakyReLU of a·x + b, and its mean over the pixels, in parts to be added."""
    return _normalized(maps, scale, shift, has_means=True)


def _normalized(maps: Tensor, scale: Tensor, shift: Tensor, *, has_means: bool):
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    out = like(maps, channels, height, width)
    grid, per_part, shape = deal_out(batch, channels, height * width, APPLY)
    means = scale.new_empty(batch, grid[0], channels) if has_means else scale
    _normalize[grid](
        maps, scale, shift, out, means, height * width, per_part, channels, *shape, has_means,
        num_warps=APPLY.warps,
    )  # fmt: skip
    return out, means


def normalize_and_halve(
    maps: Float[Tensor, "b c h w"], scale: Float[Tensor, "b c"], shift: Float[Tensor, "b c"]
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h2 w2"]]:
    """LeakyReLU of a·x + b, and its averages over 2×2 pixels."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    out = like(maps, channels, height, width)
    half = like(maps, channels, height // 2, width // 2)
    area = height * width // 4
    grid, per_part, shape = deal_out(batch, channels, area, HALVE)
    _normalize_and_halve[grid](
        maps, scale, shift, out, half, area, width // 2, per_part, channels, *shape,
        num_warps=HALVE.warps,
    )  # fmt: skip
    return out, half


def to_leaves(
    maps: Float[Tensor, "b c h w"],
    scale: Float[Tensor, "b c"],
    shift: Float[Tensor, "b c"],
    weight: Float[Tensor, "c_block out_block"],
    bias: Float[Tensor, "out_block"],
    channels: int,
) -> tuple[Float[Tensor, "b n h w"], Float[Tensor, "b parts c"]]:
    """`channels` pixels of the leaves from the last map, and the mean of the map, activated, in
    parts to be added."""
    maps = channels_last(maps)
    batch, into, height, width = maps.shape
    how = Pass(max(LEAVES.values, 16 * len(weight)), LEAVES.stages, LEAVES.warps)
    grid, per_part, shape = deal_out(batch, into, height * width, how)
    out = like(maps, channels, height, width)
    means = maps.new_empty(batch, grid[0], into, dtype=torch.float32)
    _to_leaves[grid](
        maps, scale, shift, weight, bias, out, means, height * width, per_part, into, channels,
        *shape, weight.shape[1], num_warps=how.warps,
    )  # fmt: skip
    return out, means


def padded(weight: Float[Tensor, "out in"]) -> Float[Tensor, "in_block out_block"]:
    """A matrix as `to_leaves` reads it: transposed, sides padded to powers of two."""
    out, into = weight.shape
    block = weight.new_zeros(power(into), power(out))
    block[:into, :out] = weight.T
    return block
