"""A picture of any size as a model takes it, read in parts."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.size import block_means
from posterior_trees.imaging.source import Source


class Window(NamedTuple):
    """A plane whose blocks of `block` × `block` pixels become one, adjusted, and padded to the
    grid of a network as `networks.padding.pad` does it."""

    source: Source
    adjustment: Adjustment = Adjustment()
    block: int = 1
    multiple: int = 1
    padding: str = "reflect"

    @property
    def shape(self) -> tuple[int, int]:
        h, w = self.source.shape
        return h // self.block, w // self.block

    @property
    def padded(self) -> tuple[int, int]:
        h, w = (-(-side // self.multiple) * self.multiple for side in self.shape)
        return h, w

    @property
    def offset(self) -> tuple[int, int]:
        """How many rows and columns come before the picture's own."""
        top, left = ((p - s) // 2 for p, s in zip(self.padded, self.shape, strict=True))
        return top, left

    def read(self, rows: slice, columns: slice) -> Float[Tensor, "1 1 h w"]:
        """A part of the padded picture, in [0, 1]."""
        places = [self._places(axis, part) for axis, part in enumerate((rows, columns))]
        inside = [place[place >= 0] for place in places]
        (top, bottom), (left, right) = ((p.min(), p.max() + 1) for p in inside)
        f = self.block
        stored = self.source.read_stored(
            slice(f * int(top), f * int(bottom)), slice(f * int(left), f * int(right))
        )
        pixels = self.adjustment.apply(block_means(stored, f), self.source.name)[0, 0].numpy()
        whole = np.zeros([len(place) for place in places], dtype=np.float32)
        down, across = (np.flatnonzero(place >= 0) for place in places)
        whole[np.ix_(down, across)] = pixels[np.ix_(inside[0] - top, inside[1] - left)]
        return torch.from_numpy(whole)[None, None]

    def _places(self, axis: int, part: slice) -> np.ndarray:
        """Which row or column of the picture each of the padded picture's is; -1: none, zero."""
        side, first = self.shape[axis], self.offset[axis]
        places, edges = np.arange(side), (first, self.padded[axis] - side - first)
        if self.padding == "zeros":
            return np.pad(places, edges, constant_values=-1)[part]
        sides = zip(self.padded, self.shape, strict=True)
        is_mirrored = all(p - s - (p - s) // 2 < s for p, s in sides)
        return np.pad(places, edges, mode="reflect" if is_mirrored else "edge")[part]
