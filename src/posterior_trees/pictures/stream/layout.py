"""A picture of any size as a model takes it, read in parts, and where everything of it lies, on the
picture and on disk."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.size import block_means
from posterior_trees.imaging.source import Plane, Source, open_source
from posterior_trees.imaging.stored import Tiles
from posterior_trees.imaging.tree_zarr import TreeWriter
from posterior_trees.pictures.nuclei.blocks import Block, blocks_of
from posterior_trees.pictures.stream.disk import Marks, RawTiles
from posterior_trees.pictures.tiles import (
    Tile,
    cut,
    describe_tiles,
    grid_sizes,
    part_edges,
    place_tile,
)
from posterior_trees.predictor import Predictor

Place = tuple[slice, slice]
PLANE, UNCHANGED = Plane(), Adjustment()


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
        down, across = (self._places(axis, part) for axis, part in enumerate((rows, columns)))
        top, left = (int(places[places >= 0].min()) for places in (down, across))
        bottom, right = (int(places.max()) + 1 for places in (down, across))
        f = self.block
        stored = self.source.read_stored(slice(f * top, f * bottom), slice(f * left, f * right))
        pixels = self.adjustment.apply(block_means(stored, f), self.source.name)[0, 0].numpy()
        whole = pixels[np.ix_(down.clip(top) - top, across.clip(left) - left)]
        whole[down < 0], whole[:, across < 0] = 0, 0
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


@dataclasses.dataclass
class Layout:
    """One picture on its way to `folder`; a copy that another process gets opens its own files."""

    make_predictor: Callable[[], Predictor]
    field: Field
    folder: Path
    work: Path
    plane: Plane = PLANE
    adjustment: Adjustment = UNCHANGED
    block: int = 1
    tile: int = 512
    overlap: int = 64
    dtype: str = "uint8"
    ngff: str = "0.5"
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    is_counted: bool = False
    threshold: float | int | None = None
    is_deep: bool = False
    """Whether nodes are kept in 16 bits too, where the result has 8."""
    keeps_tiles: bool = False
    is_pyramid: bool = True

    @cached_property
    def predictor(self) -> Predictor:
        return self.make_predictor()

    @cached_property
    def window(self) -> Window:
        source = open_source(self.field.path, **self.plane._asdict())
        return Window(source, self.adjustment, self.block, self.predictor.multiple,
                      self.predictor.padding)  # fmt: skip

    @cached_property
    def tiles(self) -> list[Tile]:
        """As they are cut from the padded picture."""
        step = self.predictor.multiple
        sizes = grid_sizes(self.predictor, self.tile, self.overlap)
        return list(cut(self.window.padded, *sizes, step))

    @cached_property
    def places(self) -> list[tuple[Tile, list[slice]]]:
        """Where each lies on the picture, and which part of it that is."""
        return [place_tile(t, self.window.offset, self.window.shape) for t in self.tiles]

    @cached_property
    def raw(self) -> RawTiles:
        return RawTiles(self.work / "tiles", self.tiles, self.predictor.branching)

    @cached_property
    def marks(self) -> Marks:
        return Marks(self.work)

    @cached_property
    def frame(self) -> Frame:
        pixel = self.window.source.pixel_size
        return Frame(pixel[0] if pixel else None, self.block)

    @cached_property
    def writer(self) -> TreeWriter:
        return TreeWriter(self.part, self.predictor.branching, self.window.shape,
                          dtype=self.dtype, ngff=self.ngff, frame=self.frame,
                          is_pyramid=self.is_pyramid, is_labelled=self.is_counted)  # fmt: skip

    @cached_property
    def deep(self) -> TreeWriter:
        return TreeWriter(self.work / "deep", self.predictor.branching, self.window.shape,
                          dtype="uint16", is_pyramid=False)  # fmt: skip

    @property
    def part(self) -> Path:
        """The result before it has its name."""
        return self.folder.with_name(f".{self.folder.name}.part")

    @cached_property
    def chunks(self) -> list[Place]:
        return list(self.writer.chunks())

    @cached_property
    def blocks(self) -> list[Block]:
        return blocks_of(self.window.shape)

    @property
    def last(self) -> str:
        """The last step that reads tiles."""
        return "count" if self.is_counted else "blend"

    @cached_property
    def areas(self) -> list[Place]:
        """Of the picture, which its items need."""
        return [(b.tall, b.wide) for b in self.blocks] if self.is_counted else self.chunks

    def tiles_in(self, area: Place) -> list[int]:
        return [i for i, (place, _) in enumerate(self.places) if common(area, place[:2])]

    def described_tiles(self) -> Tiles:
        places = [place for place, _ in self.places]
        return describe_tiles(self.predictor, self.window.shape, self.tile, self.overlap,
                              *part_edges(places))  # fmt: skip


def common(one: Sequence[slice], other: Sequence[slice]) -> Place | None:
    """Where two parts of the picture overlap."""
    parts = []
    for a, b in zip(one, other, strict=True):
        first, last = max(a.start, b.start), min(a.stop, b.stop)
        if first >= last:
            return None
        parts.append(slice(first, last))
    return parts[0], parts[1]
