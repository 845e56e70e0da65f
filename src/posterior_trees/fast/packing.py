"""How the kernels of a convolution grouped by leaf want its weight (`kernels/conv.py`).

Plain torch, without Triton: in training weights are packed at every step, and the compiler fuses
it.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.fast.grouped import enlarging


class Chunks(NamedTuple):
    """How the channels of a grouped convolution are dealt out: a chunk is one leaf, or a few that
    work together because thin ones leave the matrix unit idle. It takes 16 channels at least;
    leaves of up to 31 go in pairs, wider ones alone."""

    leaves: int
    count: int
    into: int
    out: int

    @classmethod
    def of(cls, groups: int, into: int, out: int) -> "Chunks":
        """Of `groups` leaves with so many channels each."""
        thinnest = min(into, out)
        together = -(-16 // thinnest) if thinnest < 16 else 2 if thinnest < 32 else 1
        leaves = min(groups, together)
        return cls(leaves, -(-groups // leaves), leaves * into, leaves * out)

    @property
    def tile(self) -> tuple[int, int, int]:
        """A chunk's channels, how many of them a step takes, and the steps."""
        block = min(64, power(self.into))
        return self.into, block, -(-self.into // block)


def pack(
    weight: Float[Tensor, "out in side side"], groups: int
) -> Float[Tensor, "chunks taps in_block out_block"]:
    """The weight of a grouped convolution as the kernels read it: zero between the leaves of a
    chunk, and padded to powers of two."""
    out, into, side, _ = weight.shape
    out, taps = out // groups, side * side
    chunks = Chunks.of(groups, into, out)
    blocks = weight.reshape(groups, out, into, taps)
    blocks = F.pad(blocks, (0, 0) * 3 + (0, chunks.count * chunks.leaves - groups))
    blocks = blocks.unflatten(0, (chunks.count, chunks.leaves)).permute(0, 4, 1, 3, 2)
    eye = torch.eye(chunks.leaves, dtype=weight.dtype, device=weight.device)
    dense = blocks.unsqueeze(4) * eye.reshape(chunks.leaves, 1, chunks.leaves, 1)
    dense = dense.reshape(chunks.count, taps, chunks.into, chunks.out)
    _, block, steps = chunks.tile
    sides = 0, power(chunks.out) - chunks.out, 0, steps * block - chunks.into
    return F.pad(dense, sides).contiguous()


def pack_up(
    weight: Float[Tensor, "out in 3 3"], groups: int
) -> Float[Tensor, "chunks 16 in_block out_block"]:
    """The same of the convolution of enlarged features.

    Each of the four pixels that a small one becomes sees 2×2 small pixels, with the sums of those
    of the nine weights that fall on the same one: taps are (pixel, pixel seen).
    """
    kernel = enlarging(weight).transpose(0, 1).flip(2, 3)
    kernel = kernel.unflatten(3, (2, 2)).unflatten(2, (2, 2))
    return pack(kernel.permute(0, 1, 3, 5, 2, 4).reshape(*weight.shape[:2], 4, 4), groups)


def power(n: int, least: int = 16) -> int:
    """The next power of two, which the sides of a kernel's tiles must be; to a compiler that keeps
    sizes open, of the one at hand."""
    return max(least, 1 << (int(n) - 1).bit_length())
