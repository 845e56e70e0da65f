"""Bright regions of a picture: what is bright, what hangs together, and where it lies.

A region is a connected set of bright pixels, except that two which only touch, along a few pixels,
are two; its *part* of the picture is the tile that its centre is in.
"""

from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.imaging.components import label, sizes
from posterior_trees.pictures.tiles import Part

BRIDGE = 3
"""Regions that touch along fewer than about twice as many pixels count as two."""


def find_regions(
    bright: Bool[Tensor, "h w"], smallest: int, bridge: int = BRIDGE, reach: int | None = None
) -> Int64[Tensor, "h w"]:
    """Bright regions of at least `smallest` pixels, numbered from 1; 0 elsewhere.

    Their edges are taken off `bridge` times, what is then still connected is one region, and it
    grows back over the bright pixels around it: over all that hang together, or over those within
    `reach` steps of what was left, which bounds the time that long thin strokes take.
    """
    cores = bright
    for _ in range(bridge):
        cores = ~_grow(~cores)
    labels = _spread(label(cores), bright, reach)
    is_large = torch.cat([torch.tensor([False]), sizes(labels) >= smallest])
    return (is_large.cumsum(0) * is_large)[labels]


def _grow(marked: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """These pixels and their four neighbours; nothing comes in from outside."""
    wide = marked.float()[None, None]
    down = F.max_pool2d(wide, (3, 1), stride=1, padding=(1, 0))
    across = F.max_pool2d(wide, (1, 3), stride=1, padding=(0, 1))
    return torch.maximum(down, across)[0, 0].bool()


def _spread(
    labels: Int64[Tensor, "h w"], bright: Bool[Tensor, "h w"], reach: int | None
) -> Int64[Tensor, "h w"]:
    """Labels spread over the bright pixels around them, step by step to the four neighbours; where
    two meet the larger number wins."""
    wide = F.pad(labels, (1, 1, 1, 1))
    flat, width = wide.view(-1), wide.shape[1]
    rest = F.pad(bright & (labels == 0), (1, 1, 1, 1)).view(-1).nonzero()[:, 0]
    for _ in count() if reach is None else range(reach):
        if not len(rest):
            break
        around = torch.stack([flat[rest + step] for step in (-width, -1, 1, width)]).amax(dim=0)
        if not around.any():
            break
        flat[rest] = around
        rest = rest[around == 0]
    return wide[1:-1, 1:-1].contiguous()


class Regions(NamedTuple):
    """The regions of one leaf: their numbers pixel by pixel, from 1, and for each its pixels, its
    centre, and the rows and columns that hold it."""

    numbers: Int64[Tensor, "h w"]
    pixels: Int64[Tensor, "n"]
    centres: Float[Tensor, "n 2"]
    boxes: list[tuple[slice, slice]]

    @classmethod
    def of(cls, numbers: Int64[Tensor, "h w"]) -> "Regions":
        places = numbers.nonzero()
        region = (numbers[places[:, 0], places[:, 1]] - 1)[:, None].expand(-1, 2)
        pixels = sizes(numbers)
        empty = torch.zeros(len(pixels), 2, dtype=torch.long)
        centres = empty.double().scatter_add(0, region, places.double()) / pixels[:, None]
        first, last = (
            empty.scatter_reduce(0, region, places, way, include_self=False).tolist()
            for way in ("amin", "amax")
        )
        boxes = [
            (slice(top, bottom + 1), slice(left, right + 1))
            for (top, left), (bottom, right) in zip(first, last, strict=True)
        ]
        return cls(numbers, pixels, centres, boxes)

    def per_part(self, parts: Sequence[Part]) -> Float[Tensor, "t"]:
        """How many of the regions have their centre in each part of the picture."""
        return owners_of(self.centres, parts).bincount(minlength=len(parts)).double()


def owners_of(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Int64[Tensor, "n"]:
    """The part in which each place lies."""
    edges = torch.tensor([[(p.rows.start, p.columns.start), (p.rows.stop, p.columns.stop)]
                          for p in parts])  # fmt: skip
    places = (centres + 0.5).floor()[:, None]
    inside = (edges[:, 0] <= places) & (places < edges[:, 1])
    return inside.all(dim=2).long().argmax(dim=1)
