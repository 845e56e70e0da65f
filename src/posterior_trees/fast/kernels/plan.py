"""How passes over channels-last maps are dealt out to programs.

Numbers of channels are constants of the kernels. Triton knows of an argument only whether 16
divides it; of a constant it knows that rows of 72 channels start at multiples of eight, and loads
eight numbers at a time instead of one.
"""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from posterior_trees.fast.grouped import power

TILE = 4096
"""Values that a program holds at a time where nothing else is said."""
PROGRAMS = 2048
"""Programs that keep a large GPU busy: a map is cut into about so many parts,"""
PARTS = 256
"""but an image not into more than these where they have to be added up."""


class Pass(NamedTuple):
    """How a pass over a map runs: values that a program holds at a time, how many of these tiles it
    loads ahead, its warps, and the most parts of an image."""

    values: int
    stages: int
    warps: int
    parts: int = PROGRAMS


class Share(NamedTuple):
    """How a pass is dealt out: a program has `per_part` pixels of an image and `block` channels,
    `rows` pixels at a time."""

    grid: tuple[int, int]
    parts: int
    per_part: int
    block: int
    rows: int


def channels_last(maps: Tensor) -> Tensor:
    """Dense, channels last, as all kernels read their maps; a copy where they lie otherwise.

    With one channel or one pixel torch calls either order both: strides say it clearly, or a
    convolution of such a map would return another order.
    """
    _, channels, height, width = maps.shape
    dense = maps.contiguous(memory_format=torch.channels_last)
    return dense.as_strided(maps.shape, (height * width * channels, 1, width * channels, channels))


def like(maps: Tensor, channels: int, height: int, width: int) -> Tensor:
    """Room for another map of the same kind."""
    return torch.empty(
        (maps.shape[0], channels, height, width),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )


def deal_out(batch: int, channels: int, area: int, how: Pass) -> Share:
    """The grid is (parts of all images, blocks of channels): only its first side may be long."""
    block = min(power(channels), 1024)
    rows, blocks = max(1, how.values // block), triton.cdiv(channels, block)
    parts = min(how.parts, max(1, PROGRAMS // (batch * blocks)))
    per_part = triton.cdiv(triton.cdiv(area, parts), rows) * rows
    parts = triton.cdiv(area, per_part)
    return Share((parts * batch, blocks), parts, per_part, block, rows)


def by_group(channels: int, groups: int, parts: int) -> tuple[int, int]:
    """The block that the channels of a group fill, and the parts that a program holds at a time."""
    block = power(channels // groups, least=1)
    return block, max(1, min(power(parts, least=1), TILE // block))
