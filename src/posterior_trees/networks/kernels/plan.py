"""How passes over channels-last maps are dealt out to programs."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

TILE = 4096
"""Values that a program holds at a time where nothing else is said."""
PROGRAMS = 2048
"""Programs that keep a large GPU busy: a map is cut into about so many parts,"""
PARTS = 256
"""but an image not into more than these, which have to be added up."""


class Pass(NamedTuple):
    """How a pass over a map runs: values that a program holds at a time, how many of these tiles it
    loads ahead, and its warps."""

    values: int
    stages: int
    warps: int


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


def deal_out(
    batch: int, channels: int, area: int, how: Pass
) -> tuple[tuple[int, int, int], int, tuple[int, int, int]]:
    """How a pass is dealt out: the grid (parts, images, blocks of channels), the pixels of a part,
    and what a program holds: channels, pixels, and tiles ahead."""
    block = min(power(channels), 1024)
    rows, blocks = max(1, how.values // block), triton.cdiv(channels, block)
    parts = min(PARTS, max(1, PROGRAMS // (batch * blocks)))
    per_part = triton.cdiv(triton.cdiv(area, parts), rows) * rows
    return (triton.cdiv(area, per_part), batch, blocks), per_part, (block, rows, how.stages)


def by_group(channels: int, groups: int, parts: int) -> tuple[int, int, int]:
    """Channels of a group, the block they fill, and the parts that a program holds at a time."""
    group = channels // groups
    block = power(group, least=1)
    return group, block, max(1, min(power(parts, least=1), TILE // block))


def power(n: int, least: int = 16) -> int:
    return max(least, triton.next_power_of_2(n))
