"""Triton kernels for convolutions grouped by leaf, on channels-last maps.

cuDNN runs grouped convolutions of a few channels slowly, and as dense ones (`unet.LeafConv`) they
do many times the arithmetic. Here a program convolves the channels of one leaf, or of a few that
together are wide enough for the matrix unit, and sums what it writes: the normalisation that
follows (`kernels/norm.py`) need not read the map for its statistics.

What the kernels compute is written in plain torch in `unet.py`; the tests hold them against it.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.kernels.plan import channels_last, like
from posterior_trees.fast.packing import Chunks, power

CONFIG = (128, 4, 3)
"""Pixels of a tile, warps, and the steps that are loaded ahead."""
FEW = 1024
"""Pixels of a batch that would make too few such tiles."""


@triton.jit
@no_type_check
def _add_taps(
    acc, maps, weight, top, left, inside, chunk, height, width,
    TOTAL: tl.constexpr, SIDE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    STEPS: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """Add the products of SIDE×SIDE pixels from (top, left) on with their weights, for a chunk's
    share of the channels."""
    column = tl.arange(0, OUT)
    for step in range(SIDE * SIDE * STEPS):
        tap = step // STEPS
        k = (step % STEPS) * BLOCK + tl.arange(0, BLOCK)
        row, col = top + tap // SIDE, left + tap % SIDE
        seen = inside & (row >= 0) & (row < height) & (col >= 0) & (col < width)
        channel = chunk * CHUNK + k
        exists = (k < CHUNK) & (channel < TOTAL)
        a = tl.load(
            maps + (row * width + col).to(tl.int64)[:, None] * TOTAL + channel[None, :],
            mask=seen[:, None] & exists[None, :],
            other=0.0,
        )
        rows = tap * (STEPS * BLOCK) + k
        b = tl.load(weight + rows[:, None] * OUT + column[None, :])
        acc = tl.dot(a, b, acc, input_precision="ieee")  # which only float32 would round
    return acc


@triton.jit
@no_type_check
def _store_tile(
    acc, out, sums, pixel, inside, part, chunk,
    TOTAL: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    k = tl.arange(0, BLOCK)
    channel = chunk * OUT + k
    exists = (k < OUT) & (channel < TOTAL)
    places = pixel.to(tl.int64)[:, None] * TOTAL + channel[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=inside[:, None] & exists[None, :])
    place = sums + part * 2 * TOTAL + channel  # pixels outside have added nothing
    tl.store(place, tl.sum(acc, axis=0), mask=exists)
    tl.store(place + TOTAL, tl.sum(acc * acc, axis=0), mask=exists)


@triton.jit
@no_type_check
def _leaf_conv(
    maps, weight, out, sums, height, width, tiles, chunks,
    TOTAL: tl.constexpr, OUT_TOTAL: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
    OUT: tl.constexpr, OUT_BLOCK: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    chunk, tile = tl.program_id(0) % chunks, tl.program_id(0) // chunks % tiles
    image = (tl.program_id(0) // (chunks * tiles)).to(tl.int64)
    area = height * width
    pixel = tile * PIXELS + tl.arange(0, PIXELS)
    inside = pixel < area
    acc = tl.zeros((PIXELS, OUT_BLOCK), dtype=tl.float32)
    acc = _add_taps(
        acc, maps + image * area * TOTAL, weight + chunk * 9 * STEPS * BLOCK * OUT_BLOCK,
        pixel // width - 1, pixel % width - 1, inside,
        chunk, height, width, TOTAL, 3, CHUNK, BLOCK, STEPS, OUT_BLOCK,
    )  # fmt: skip
    _store_tile(
        acc, out + image * area * OUT_TOTAL, sums, pixel, inside, image * tiles + tile,
        chunk, OUT_TOTAL, OUT, OUT_BLOCK,
    )  # fmt: skip


@triton.jit
@no_type_check
def _leaf_up(
    features, of_features, skip, of_skip, out, sums, height, width, tiles, chunks,
    FEATURES: tl.constexpr, TOTAL: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
    SKIP: tl.constexpr, SKIP_BLOCK: tl.constexpr, SKIP_STEPS: tl.constexpr,
    OUT: tl.constexpr, OUT_BLOCK: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    """A tile is of small pixels, and of one of the four places in them."""
    chunk, quarter = tl.program_id(0) % chunks, tl.program_id(0) // chunks % 4
    tile = tl.program_id(0) // (4 * chunks) % tiles
    image = (tl.program_id(0) // (4 * chunks * tiles)).to(tl.int64)
    area = height * width  # of the small features
    small = tile * PIXELS + tl.arange(0, PIXELS)
    inside = small < area
    h, w, down, right = small // width, small % width, quarter // 2, quarter % 2
    acc = tl.zeros((PIXELS, OUT_BLOCK), dtype=tl.float32)
    acc = _add_taps(
        acc, features + image * area * FEATURES,
        of_features + (chunk * 4 + quarter) * 4 * STEPS * BLOCK * OUT_BLOCK,
        h + down - 1, w + right - 1, inside, chunk, height, width, FEATURES,
        2, CHUNK, BLOCK, STEPS, OUT_BLOCK,
    )  # fmt: skip
    row, col = 2 * h + down, 2 * w + right
    acc = _add_taps(
        acc, skip + image * 4 * area * TOTAL,
        of_skip + chunk * 9 * SKIP_STEPS * SKIP_BLOCK * OUT_BLOCK, row - 1, col - 1, inside,
        chunk, 2 * height, 2 * width, TOTAL, 3, SKIP, SKIP_BLOCK, SKIP_STEPS, OUT_BLOCK,
    )  # fmt: skip
    _store_tile(
        acc, out + image * 4 * area * TOTAL, sums, row * 2 * width + col, inside,
        (image * tiles + tile) * 4 + quarter, chunk, TOTAL, OUT, OUT_BLOCK,
    )  # fmt: skip


def tile_of(maps: Float[Tensor, "b c h w"]) -> int:
    """Pixels of a tile; few pixels are cut finer, to occupy more of the GPU."""
    batch, _, height, width = maps.shape
    most = CONFIG[0] if batch * height * width > FEW else CONFIG[0] // 2
    return min(most, power(height * width))


def parts_of(maps: Float[Tensor, "b c h w"]) -> int:
    """Tiles of a map."""
    return triton.cdiv(maps.shape[2] * maps.shape[3], tile_of(maps))


def leaf_conv(
    maps: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "chunks 9 in_block out_block"],
    channels: int,
    groups: int,
) -> tuple[Float[Tensor, "b c2 h w"], Float[Tensor, "b parts 2 c2"]]:
    """The grouped convolution of `maps` to `channels` by a packed weight, and the sums of what it
    wrote."""
    maps, weight = channels_last(maps), weight.contiguous()
    batch, total, height, width = maps.shape
    chunks = Chunks.of(groups, total // groups, channels // groups)
    pixels, tiles = tile_of(maps), parts_of(maps)
    out = like(maps, channels, height, width)
    sums = maps.new_empty(batch, tiles, 2, channels, dtype=torch.float32)
    _leaf_conv[(chunks.count * tiles * batch,)](
        maps, weight, out, sums, height, width, tiles, chunks.count, total, channels,
        *chunks.tile, chunks.out, weight.shape[-1], pixels,
        num_warps=CONFIG[1], num_stages=CONFIG[2],
    )  # fmt: skip
    return out, sums


def leaf_up(
    features: Float[Tensor, "b c h w"],
    of_features: Float[Tensor, "chunks 16 in_block out_block"],
    skip: Float[Tensor, "b c2 h2 w2"],
    of_skip: Float[Tensor, "chunks 9 in_block2 out_block"],
    groups: int,
) -> tuple[Float[Tensor, "b c2 h2 w2"], Float[Tensor, "b parts 2 c2"]]:
    """The grouped convolution of the features, enlarged twice and joined with the skip maps leaf
    by leaf (`unet.UpConv`), and the sums of what it wrote."""
    features, skip = channels_last(features), channels_last(skip)
    of_features, of_skip = of_features.contiguous(), of_skip.contiguous()
    batch, total, height, width = features.shape
    channels = skip.shape[1]
    below = Chunks.of(groups, total // groups, channels // groups)
    across = Chunks.of(groups, channels // groups, channels // groups)
    pixels, tiles = tile_of(features), parts_of(features)
    out = like(features, channels, 2 * height, 2 * width)
    sums = features.new_empty(batch, 4 * tiles, 2, channels, dtype=torch.float32)
    _leaf_up[(4 * across.count * tiles * batch,)](
        features, of_features, skip, of_skip, out, sums, height, width, tiles, across.count,
        total, channels, *below.tile, *across.tile, across.out, of_skip.shape[-1], pixels,
        num_warps=CONFIG[1], num_stages=CONFIG[2],
    )  # fmt: skip
    return out, sums
