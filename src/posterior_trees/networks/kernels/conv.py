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
from torch.nn import functional as F

from posterior_trees.networks.grouped import enlarging
from posterior_trees.networks.kernels.plan import channels_last, like, power

CONFIG = (128, 4, 3)
"""Pixels of a tile, warps, and the steps that are loaded ahead."""


@triton.jit
@no_type_check
def _add_taps(
    acc, maps, weight, top, left, inside, chunk, height, width, total,
    SIDE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
    OUT: tl.constexpr,
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
        exists = (k < CHUNK) & (channel < total)
        a = tl.load(
            maps + (row * width + col).to(tl.int64)[:, None] * total + channel[None, :],
            mask=seen[:, None] & exists[None, :],
            other=0.0,
        )
        rows = (chunk * SIDE * SIDE + tap) * (STEPS * BLOCK) + k
        b = tl.load(weight + rows[:, None] * OUT + column[None, :])
        acc = tl.dot(a, b, acc, input_precision="ieee")  # which only float32 would round
    return acc


@triton.jit
@no_type_check
def _store_tile(
    acc, out, sums, pixel, inside, part, chunk, total, OUT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    k = tl.arange(0, BLOCK)
    channel = chunk * OUT + k
    exists = (k < OUT) & (channel < total)
    places = pixel.to(tl.int64)[:, None] * total + channel[None, :]
    tl.store(out + places, acc.to(out.dtype.element_ty), mask=inside[:, None] & exists[None, :])
    place = sums + part * 2 * total + channel  # pixels outside have added nothing
    tl.store(place, tl.sum(acc, axis=0), mask=exists)
    tl.store(place + total, tl.sum(acc * acc, axis=0), mask=exists)


@triton.jit
@no_type_check
def _leaf_conv(
    maps, weight, out, sums, height, width, tiles, chunks, total, out_total,
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
        acc, maps + image * area * total, weight, pixel // width - 1, pixel % width - 1, inside,
        chunk, height, width, total, 3, CHUNK, BLOCK, STEPS, OUT_BLOCK,
    )  # fmt: skip
    _store_tile(
        acc, out + image * area * out_total, sums, pixel, inside, image * tiles + tile,
        chunk, out_total, OUT, OUT_BLOCK,
    )  # fmt: skip


@triton.jit
@no_type_check
def _leaf_up(
    features, of_features, skip, of_skip, out, sums, height, width, tiles, chunks,
    features_total, total, CHUNK: tl.constexpr, BLOCK: tl.constexpr, STEPS: tl.constexpr,
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
        acc, features + image * area * features_total,
        of_features + quarter * chunks * 4 * STEPS * BLOCK * OUT_BLOCK,
        h + down - 1, w + right - 1, inside, chunk, height, width, features_total,
        2, CHUNK, BLOCK, STEPS, OUT_BLOCK,
    )  # fmt: skip
    row, col = 2 * h + down, 2 * w + right
    acc = _add_taps(
        acc, skip + image * 4 * area * total, of_skip, row - 1, col - 1, inside,
        chunk, 2 * height, 2 * width, total, 3, SKIP, SKIP_BLOCK, SKIP_STEPS, OUT_BLOCK,
    )  # fmt: skip
    _store_tile(
        acc, out + image * 4 * area * total, sums, row * 2 * width + col, inside,
        (image * tiles + tile) * 4 + quarter, chunk, total, OUT, OUT_BLOCK,
    )  # fmt: skip


def leaves_together(channels: int) -> int:
    """How many leaves of so many channels share a product: thin ones leave the matrix unit idle.
    It takes 16 at least; leaves of up to 31 go in pairs, wider ones alone."""
    return -(-16 // channels) if channels < 16 else 2 if channels < 32 else 1


class LeafWeight:
    """The weight of a grouped convolution as the kernels read it: (chunks, taps, in, out).

    A chunk is one leaf or a few that work together; its weight is zero between leaves, and padded
    to powers of two.
    """

    def __init__(self, weight: Float[Tensor, "out in side side"], groups: int) -> None:
        out, into, side, _ = weight.shape
        out, taps = out // groups, side * side
        leaves = min(groups, leaves_together(min(out, into)))
        chunks = -(-groups // leaves)
        self.into, self.out = leaves * into, leaves * out
        self.block = min(64, power(self.into))
        self.steps, self.out_block = -(-self.into // self.block), power(self.out)
        blocks = weight.reshape(groups, out, into, taps)
        blocks = F.pad(blocks, (0, 0) * 3 + (0, chunks * leaves - groups))
        eye = torch.eye(leaves, dtype=weight.dtype, device=weight.device)
        dense = torch.einsum("cgoit,gh->ctgiho", blocks.unflatten(0, (chunks, leaves)), eye)
        dense = dense.reshape(chunks, taps, self.into, self.out)
        sides = 0, self.out_block - self.out, 0, self.steps * self.block - self.into
        self.tensor = F.pad(dense, sides).contiguous()

    def to(self, dtype: torch.dtype) -> "LeafWeight":
        self.tensor = self.tensor.to(dtype)
        return self


class UpWeight(LeafWeight):
    """Of the convolution of enlarged features: (4, chunks, 4, in, out).

    Each of the four pixels that a small one becomes sees 2×2 small pixels, with the sums of those
    of the nine weights that fall on the same one.
    """

    def __init__(self, weight: Float[Tensor, "out in 3 3"], groups: int) -> None:
        quarters, kernel = [], enlarging(weight).transpose(0, 1).flip(2, 3)
        for down, right in ((0, 0), (0, 1), (1, 0), (1, 1)):
            super().__init__(kernel[:, :, down::2, right::2], groups)
            quarters.append(self.tensor)
        self.tensor = torch.stack(quarters)


def tile_of(maps: Float[Tensor, "b c h w"]) -> int:
    """Pixels of a tile."""
    return min(CONFIG[0], power(maps.shape[2] * maps.shape[3]))


def parts_of(maps: Float[Tensor, "b c h w"]) -> int:
    """Tiles of a map."""
    return triton.cdiv(maps.shape[2] * maps.shape[3], tile_of(maps))


def leaf_conv(
    maps: Float[Tensor, "b c h w"],
    weight: LeafWeight,
    channels: int,
) -> tuple[Float[Tensor, "b c2 h w"], Float[Tensor, "b parts 2 c2"]]:
    """The grouped convolution of `maps` to `channels`, and the sums of what it wrote."""
    maps = channels_last(maps)
    batch, total, height, width = maps.shape
    pixels, tiles, chunks = tile_of(maps), parts_of(maps), len(weight.tensor)
    out = like(maps, channels, height, width)
    sums = maps.new_empty(batch, tiles, 2, channels, dtype=torch.float32)
    _leaf_conv[(chunks * tiles * batch,)](
        maps, weight.tensor, out, sums, height, width, tiles, chunks, total, channels,
        weight.into, weight.block, weight.steps, weight.out, weight.out_block, pixels,
        num_warps=CONFIG[1], num_stages=CONFIG[2],
    )  # fmt: skip
    return out, sums


def leaf_up(
    features: Float[Tensor, "b c h w"],
    of_features: UpWeight,
    skip: Float[Tensor, "b c2 h2 w2"],
    of_skip: LeafWeight,
) -> tuple[Float[Tensor, "b c2 h2 w2"], Float[Tensor, "b parts 2 c2"]]:
    """The grouped convolution of the features, enlarged twice and joined with the skip maps leaf
    by leaf (`unet.UpConv`), and the sums of what it wrote."""
    features, skip = channels_last(features), channels_last(skip)
    batch, total, height, width = features.shape
    channels, chunks = skip.shape[1], len(of_skip.tensor)
    pixels, tiles = tile_of(features), parts_of(features)
    out = like(features, channels, 2 * height, 2 * width)
    sums = features.new_empty(batch, 4 * tiles, 2, channels, dtype=torch.float32)
    _leaf_up[(4 * chunks * tiles * batch,)](
        features, of_features.tensor, skip, of_skip.tensor, out, sums, height, width, tiles, chunks,
        total, channels, of_features.into, of_features.block, of_features.steps,
        of_skip.into, of_skip.block, of_skip.steps, of_skip.out, of_skip.out_block, pixels,
        num_warps=CONFIG[1], num_stages=CONFIG[2],
    )  # fmt: skip
    return out, sums
