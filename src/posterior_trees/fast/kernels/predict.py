"""Triton kernels of prediction alone: what else can be done in the pass that normalises."""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.grouped import power
from posterior_trees.fast.kernels.norm import Norm, activated, load_line, own_pixels
from posterior_trees.fast.kernels.plan import PARTS, Pass, channels_last, deal_out, like

HALVE, LEAVES = Pass(2048, 2, 8), Pass(4096, 3, 4, PARTS)


@triton.jit
@no_type_check
def _normalize_and_halve(
    maps, moments, gamma, beta, out, half, area, width, parts, per_part,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Area and width are those of the half-sized map."""
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, GROUP)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        mask = (pixel < end)[:, None] & exists[None, :]
        corner = image * area * 4 + (pixel // width) * 4 * width + (pixel % width) * 2
        mean = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
        for quarter in tl.static_range(4):
            place = corner + quarter // 2 * 2 * width + quarter % 2
            places = place[:, None] * CHANNELS + channel[None, :]
            x = activated(maps, places, mask, a, b).to(out.dtype.element_ty)
            tl.store(out + places, x, mask=mask)
            mean += 0.25 * x.to(tl.float32)
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        tl.store(half + places, mean.to(half.dtype.element_ty), mask=mask)


@triton.jit
@no_type_check
def _to_leaves(
    maps, moments, gamma, beta, weight, bias, out, means, area, parts, per_part,
    CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr, PIXELS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, GROUP)
    column = tl.arange(0, OUT)
    matrix = tl.load(weight + channel[:, None] * OUT + column[None, :])
    level = tl.load(bias + column)
    total = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        inside = (pixel < end)[:, None]
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        x = activated(maps, places, inside & exists[None, :], a, b)
        x = tl.where(inside & exists[None, :], x, 0.0)
        total += x
        leaves = tl.dot(x.to(matrix.dtype), matrix) + level[None, :]
        places = (image * PIXELS + column)[None, :] * area + pixel[:, None]
        mask = inside & (column < PIXELS)[None, :]
        tl.store(out + places, leaves.to(out.dtype.element_ty), mask=mask)
    place = tl.program_id(0).to(tl.int64) * CHANNELS + channel
    tl.store(means + place, tl.sum(total, axis=0) / area, mask=exists)


def normalize_and_halve(
    maps: Float[Tensor, "b c h w"], norm: Norm
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h2 w2"]]:
    """LeakyReLU of the normalised maps, and its averages over 2×2 pixels."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    out = like(maps, channels, height, width)
    half = like(maps, channels, height // 2, width // 2)
    share = deal_out(batch, channels, height * width // 4, HALVE)
    _normalize_and_halve[share.grid](
        maps, *norm, out, half, height * width // 4, width // 2, share.parts, share.per_part,
        channels, channels // norm.moments.shape[1], share.block, share.rows,
        HALVE.stages, num_warps=HALVE.warps,
    )  # fmt: skip
    return out, half


def to_leaves(
    maps: Float[Tensor, "b c h w"],
    norm: Norm,
    weight: Float[Tensor, "c_block out_block"],
    bias: Float[Tensor, "out_block"],
    channels: int,
) -> tuple[Float[Tensor, "b n h w"], Float[Tensor, "b parts c"]]:
    """`channels` pixels of the leaves from the last map, and the mean of the map, activated, in
    parts to be added. The leaves lie one after the other, as trees are grown of them."""
    maps = channels_last(maps)
    batch, into, height, width = maps.shape
    how = LEAVES._replace(values=max(LEAVES.values, 16 * len(weight)))
    share = deal_out(batch, into, height * width, how)
    out = maps.new_empty(batch, channels, height, width)
    means = maps.new_empty(batch, share.parts, into, dtype=torch.float32)
    _to_leaves[share.grid](
        maps, *norm, weight, bias, out, means, height * width, share.parts, share.per_part, into,
        into // norm.moments.shape[1], share.block, share.rows, how.stages,
        channels, weight.shape[1], num_warps=how.warps,
    )  # fmt: skip
    return out, means


def padded(weight: Float[Tensor, "out in"]) -> Float[Tensor, "in_block out_block"]:
    """A matrix as `to_leaves` reads it: transposed, sides padded to powers of two."""
    out, into = weight.shape
    block = weight.new_zeros(power(into), power(out))
    block[:into, :out] = weight.T
    return block
