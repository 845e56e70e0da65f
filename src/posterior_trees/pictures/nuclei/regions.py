"""The regions of one leaf: their sizes and centres, and in which part of the picture they lie.

A region's *part* of the picture is the tile that its centre is in.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posterior_trees.imaging.regions import sizes
from posterior_trees.pictures.tiles import Part


class Regions(NamedTuple):
    """The regions of one leaf: their numbers pixel by pixel, from 1, and for each its pixels, its
    centre, and the rows and columns that hold it."""

    numbers: Int64[Tensor, "h w"]
    pixels: Int64[Tensor, "n"]
    centres: Float[Tensor, "n 2"]
    boxes: list[tuple[slice, slice]]

    @classmethod
    def of(cls, numbers: Int64[Tensor, "h w"]) -> "Regions":
        from scipy import ndimage

        pixels = sizes(numbers)
        boxes = ndimage.find_objects(numbers.numpy())
        places = numbers.nonzero()
        region = (numbers[places[:, 0], places[:, 1]] - 1)[:, None].expand(-1, 2)
        sums = torch.zeros(len(pixels), 2).double().scatter_add(0, region, places.double())
        return cls(numbers, pixels, sums / pixels[:, None], boxes)

    def per_part(self, parts: Sequence[Part]) -> Float[Tensor, "t"]:
        """How many of the regions have their centre in each part of the picture."""
        return owners_of(self.centres, parts).bincount(minlength=len(parts)).double()


def owners_of(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Int64[Tensor, "n"]:
    """The part in which each place lies."""
    return lies_in(centres, parts).long().argmax(dim=1)


def lies_in(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Bool[Tensor, "n t"]:
    """Whether the pixel of each place is in each part."""
    edges = torch.tensor([[(p.rows.start, p.columns.start), (p.rows.stop, p.columns.stop)]
                          for p in parts])  # fmt: skip
    places = (centres + 0.5).floor()[:, None]
    return ((edges[:, 0] <= places) & (places < edges[:, 1])).all(dim=2)
