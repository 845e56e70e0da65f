r"""Triton kernels for GroupNorm and LeakyReLU in one, on channels-last maps.

Plain torch reads a map for the statistics, reads and writes it to normalise, and reads and writes
it again to activate. Here GroupNorm is $x \mapsto a x + b$ with one $a$ and $b$ per image and
channel, from sums of values and of squares:

- `channel_sums`: these sums, if the convolution did not leave them (`kernels/conv.py`);
- `scale_and_shift`: from the sums to $a$ and $b$;
- `normalize`: applies them and the LeakyReLU; `normalize_and_average` and `normalize_and_halve`
  also return the map's mean and the map at half the size; `to_leaves` maps it straight to pixels;
- `gradients`: the way back, for training (`networks/norm.py`).

`sums` come in parts, (b, parts, 2, channels): deterministic, and quick to add up.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

SLOPE = tl.constexpr(0.2)
STAGES = tl.constexpr(3)
"""Tiles that are loaded ahead."""
TILE = 4096
"""Values that a program holds at a time."""
PROGRAMS = 2048
"""Programs that keep a large GPU busy: a map is cut into about so many parts,"""
PARTS = 256
"""but an image not into more than these, which have to be added up."""


@triton.jit
@no_type_check
def _channel_sums(
    maps, sums, area, per_part, channels, CHANNELS: tl.constexpr, ROWS: tl.constexpr
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
    place = sums + (image * tl.num_programs(0) + part) * 2 * channels + channel
    tl.store(place, tl.sum(total, axis=0), mask=exists)
    tl.store(place + channels, tl.sum(squares, axis=0), mask=exists)


@triton.jit
@no_type_check
def _add_parts(
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
    total, squares = _add_parts(sums, image, channel, exists, parts, channels, PARTS, GROUP_BLOCK)
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
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, MEANS: tl.constexpr,
):  # fmt: skip
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
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
    CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Area and width are those of the half-sized map."""
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
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
    maps, scale, shift, weight, bias, out, means, area, channels, pixels_out,
    CHANNELS: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    tile, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel, column = tl.arange(0, CHANNELS), tl.arange(0, OUT)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
    pixel = tile * ROWS + tl.arange(0, ROWS)
    mask = (pixel < area)[:, None] & exists[None, :]
    places = (image * area + pixel)[:, None] * channels + channel[None, :]
    x = _activated(maps, places, mask, a, b)
    x = tl.where(mask, x, 0.0)
    place = means + (image * tl.num_programs(0) + tile) * channels + channel
    tl.store(place, tl.sum(x, axis=0) / area, mask=exists)
    matrix = tl.load(weight + channel[:, None] * OUT + column[None, :])
    leaves = tl.dot(x.to(matrix.dtype), matrix) + tl.load(bias + column)[None, :]
    places = (image * area + pixel)[:, None] * pixels_out + column[None, :]
    mask = (pixel < area)[:, None] & (column < pixels_out)[None, :]
    tl.store(out + places, leaves.to(out.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _sloped(maps, grads, places, mask, a, b):
    """x, and the gradient with respect to a·x + b."""
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grads + places, mask=mask, other=0.0).to(tl.float32)
    return x, tl.where(x * a[None, :] + b[None, :] > 0, grad, SLOPE * grad)


@triton.jit
@no_type_check
def _grad_sums(
    maps, grads, scale, shift, sums, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
    first = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    second = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        x, grad = _sloped(maps, grads, places, (pixel < end)[:, None] & exists[None, :], a, b)
        first += grad
        second += grad * x
    place = sums + (image * tl.num_programs(0) + part) * 2 * channels + channel
    tl.store(place, tl.sum(first, axis=0), mask=exists)
    tl.store(place + channels, tl.sum(second, axis=0), mask=exists)


@triton.jit
@no_type_check
def _grad_plan(
    sums, gamma, moments, slope, offset, of_gamma, of_beta, parts, channels, count,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    group, image = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, GROUP_BLOCK)
    channel = group * GROUP + k
    exists = k < GROUP
    total, with_x = _add_parts(sums, image, channel, exists, parts, channels, PARTS, GROUP_BLOCK)
    place = (image * tl.num_programs(0) + group) * 2
    mean, factor = tl.load(moments + place), tl.load(moments + place + 1)
    with_x = factor * (with_x - mean * total)  # now with the normalised x
    weight = tl.load(gamma + channel, mask=exists, other=0.0)
    first = tl.sum(weight * total, axis=0) / count
    second = tl.sum(weight * with_x, axis=0) / count
    places = image * channels + channel
    tl.store(of_beta + places, total, mask=exists)
    tl.store(of_gamma + places, with_x, mask=exists)
    steep = -factor * factor * second
    tl.store(slope + places, tl.zeros_like(total) + steep, mask=exists)
    tl.store(offset + places, tl.zeros_like(total) - steep * mean - factor * first, mask=exists)


@triton.jit
@no_type_check
def _grad_maps(
    maps, grads, scale, shift, slope, offset, out, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    part, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    exists = channel < channels
    a = tl.load(scale + image * channels + channel, mask=exists, other=0.0)
    b = tl.load(shift + image * channels + channel, mask=exists, other=0.0)
    steep = tl.load(slope + image * channels + channel, mask=exists, other=0.0)
    level = tl.load(offset + image * channels + channel, mask=exists, other=0.0)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x, grad = _sloped(maps, grads, places, mask, a, b)
        grad = a[None, :] * grad + steep[None, :] * x + level[None, :]
        tl.store(out + places, grad.to(out.dtype.element_ty), mask=mask)


def channel_sums(maps: Float[Tensor, "b c h w"]) -> Float[Tensor, "b parts 2 c"]:
    """Sums of values and squares over parts of the pixels."""
    batch, channels, height, width = maps.shape
    grid, (block, rows, per_part) = _plan(batch, channels, height * width)
    sums = maps.new_empty(batch, grid[0], 2, channels, dtype=torch.float32)
    _channel_sums[grid](maps, sums, height * width, per_part, channels, block, rows)
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
    group, block, held = _group_plan(channels, groups, parts)
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
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c"]]:
    """LeakyReLU of a·x + b, and its mean over the pixels."""
    out, means = _normalized(maps, scale, shift, has_means=True)
    return out, means.sum(dim=1)


def _normalized(maps: Tensor, scale: Tensor, shift: Tensor, *, has_means: bool):
    batch, channels, height, width = maps.shape
    out = torch.empty_like(maps)
    grid, (block, rows, per_part) = _plan(batch, channels, height * width)
    means = scale.new_empty(batch, grid[0], channels) if has_means else scale
    _normalize[grid](
        maps, scale, shift, out, means, height * width, per_part, channels, block, rows, has_means
    )
    return out, means


def normalize_and_halve(
    maps: Float[Tensor, "b c h w"], scale: Float[Tensor, "b c"], shift: Float[Tensor, "b c"]
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h2 w2"]]:
    """LeakyReLU of a·x + b, and its averages over 2×2 pixels."""
    batch, channels, height, width = maps.shape
    out, half = torch.empty_like(maps), like(maps, channels, height // 2, width // 2)
    area = height * width // 4
    grid, (block, rows, per_part) = _plan(batch, channels, area, values=TILE // 4)
    _normalize_and_halve[grid](
        maps, scale, shift, out, half, area, width // 2, per_part, channels, block, rows
    )
    return out, half


def to_leaves(
    maps: Float[Tensor, "b c h w"],
    scale: Float[Tensor, "b c"],
    shift: Float[Tensor, "b c"],
    weight: Float[Tensor, "c_block out_block"],
    bias: Float[Tensor, "out_block"],
    channels: int,
) -> tuple[Float[Tensor, "b n h w"], Float[Tensor, "b c"]]:
    """`channels` pixels of the leaves from the last map, and the mean of the map, activated."""
    batch, into, height, width = maps.shape
    rows = max(16, TILE // weight.shape[0])
    tiles = triton.cdiv(height * width, rows)
    out = like(maps, channels, height, width)
    means = maps.new_empty(batch, tiles, into, dtype=torch.float32)
    _to_leaves[(tiles, batch)](
        maps, scale, shift, weight, bias, out, means, height * width, into, channels,
        weight.shape[0], weight.shape[1], rows, num_warps=4,
    )  # fmt: skip
    return out, means.sum(dim=1)


def padded(weight: Float[Tensor, "out in"]) -> Float[Tensor, "in_block out_block"]:
    """A matrix as `to_leaves` reads it: transposed, sides padded to powers of two."""
    out, into = weight.shape
    block = weight.new_zeros(power(into), power(out))
    block[:into, :out] = weight.T
    return block


def gradients(
    grads: Float[Tensor, "b c h w"],
    maps: Float[Tensor, "b c h w"],
    gamma: Float[Tensor, "c"],
    scale: Float[Tensor, "b c"],
    shift: Float[Tensor, "b c"],
    moments: Float[Tensor, "b groups 2"],
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "c"], Float[Tensor, "c"]]:
    r"""Of the maps, gamma and beta, from that of what `normalize` returned.

    With $g$ the gradient before the LeakyReLU, $r$ the inverse deviation, $\hat x = r (x - \mu)$
    and means over pixels and channels of a group,

    $$ \partial x = r \big( \gamma g - \overline{\gamma g}
       - \hat x \, \overline{\gamma g \hat x} \big), $$

    which is $a g + s x + t$ with one $a$, $s$, $t$ per image and channel. All of it follows from
    the sums of $g$ and of $g x$.
    """
    batch, channels, height, width = maps.shape
    grid, (block, rows, per_part) = _plan(batch, channels, height * width, values=TILE // 2)
    sums = scale.new_empty(batch, grid[0], 2, channels)
    area = height * width
    _grad_sums[grid](maps, grads, scale, shift, sums, area, per_part, channels, block, rows)
    slope, offset, of_gamma, of_beta = scale.new_empty(4, batch, channels)
    group, group_block, held = _group_plan(channels, moments.shape[1], grid[0])
    _grad_plan[(moments.shape[1], batch)](
        sums, gamma, moments, slope, offset, of_gamma, of_beta, grid[0], channels,
        float(group * area), group, group_block, held,
    )  # fmt: skip
    out = torch.empty_like(maps)
    _grad_maps[grid](
        maps, grads, scale, shift, slope, offset, out, area, per_part, channels, block, rows
    )
    return out, of_gamma.sum(dim=0), of_beta.sum(dim=0)


def like(maps: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Room for another map of the same kind."""
    return torch.empty(
        (maps.shape[0], channels, height, width),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )


def _plan(
    batch: int, channels: int, area: int, values: int = TILE
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """How a pass over a map is dealt out: the grid (parts, images, blocks of channels), and a
    program's channels, the pixels it holds at a time and those it has in all."""
    block = min(power(channels), 1024)
    rows, blocks = max(1, values // block), triton.cdiv(channels, block)
    parts = min(PARTS, max(1, PROGRAMS // (batch * blocks)))
    per_part = triton.cdiv(triton.cdiv(area, parts), rows) * rows
    return (triton.cdiv(area, per_part), batch, blocks), (block, rows, per_part)


def _group_plan(channels: int, groups: int, parts: int) -> tuple[int, int, int]:
    """Channels of a group, the block they fill, and the parts that a program holds at a time."""
    group = channels // groups
    block = power(group, least=1)
    return group, block, max(1, min(power(parts, least=1), TILE // block))


def power(n: int, least: int = 16) -> int:
    return max(least, triton.next_power_of_2(n))
