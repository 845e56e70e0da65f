r"""The one way from a picture to its tree: `answer`. The command line, the explorer and Python give
equal trees of the same file because none of them has a way of its own.

A picture is either the measurement $y$, or the clean image $x$ that the model's own measurement
makes $y$ of: a hole and a lost colour are made here, noise, a lower resolution or another modality
are in the picture already. Who knows better says so (`Reading.is_clean`). A clean picture that
shows what was taken away from it is the truth.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError, warn_picture
from posterior_trees.explore.content import SIDE, Measure, describe_trees
from posterior_trees.imaging.adjust import describe_misfit
from posterior_trees.imaging.size import times
from posterior_trees.imaging.stored import Tiles
from posterior_trees.pictures.nuclei.magnification import describe_magnification
from posterior_trees.pictures.reading import Picture, Reading, Source, read
from posterior_trees.pictures.tiles import (
    OVERLAP,
    TILE,
    Map,
    Part,
    describe_tiles,
    needs_tiles,
    predict_tiled,
)
from posterior_trees.predictor import Predictor, evaluating
from posterior_trees.tree import Tree


class Tiling(NamedTuple):
    """How large pictures are cut (`tiles.py`): into tiles of so many pixels (0: never; None: 512,
    and only a huge picture) that overlap by so many (None: 64, or half of a small tile)."""

    tile: int | None = None
    overlap: int | None = None

    @property
    def sizes(self) -> tuple[int, int]:
        tile = self.tile or TILE
        return tile, min(OVERLAP, tile // 2) if self.overlap is None else self.overlap


class Answer(NamedTuple):
    """The tree of one picture, on the CPU, and what was measured of it.

    `x` is the truth where the picture shows it. A picture in tiles has `parts`. `remarks` are what
    to beware of, the `"note"`, and how it was `"resized"`, if there is anything to say.
    """

    tree: Tree
    y: Float[Tensor, "b _ _ _"]
    x: Float[Tensor, "b _ h w"] | None = None
    parts: tuple[Part, ...] = ()
    remarks: Mapping[str, str] = MappingProxyType({})

    def tiles(self, predictor: Predictor, tiling: Tiling) -> Tiles:
        """How it was cut."""
        size = h, w = self.tree.shape[1], self.tree.shape[2]
        if not self.parts:
            return Tiles.whole(size)
        rows, columns = (sorted({p[axis].start for p in self.parts}) for axis in (0, 1))
        return describe_tiles(predictor, size, *tiling.sizes, (*rows, h), (*columns, w))

    def noted(self, *notes: str) -> "Answer":
        """With more to beware of, if there is more."""
        note = ". ".join(filter(None, (self.remarks.get("note"), *notes)))
        return self._replace(remarks={**self.remarks, "note": note}) if note else self

    def describe(
        self,
        name: str,
        rivals: Mapping[str, Tree] | None = None,
        measures: Mapping[str, Measure] | None = None,
    ) -> dict:
        """The example of a page (`explore/content.py`), with large pictures shown small."""
        (example,) = describe_trees(
            self.tree, inputs=self.y, truths=self.x, names=[name], rivals=rivals,
            measures=measures, side=SIDE,
        )  # fmt: skip
        return example | {"note": "", "resized": "", **self.remarks}


@torch.inference_mode()
def answer(
    predictor: Predictor, picture: Picture, tiling: Tiling | None = None, map: Map = map
) -> Answer:
    """The tree of a picture; `map` predicts the tiles of a large one."""
    tiling, measurement = tiling or Tiling(), predictor.measurement
    is_clean = is_measured_here(predictor, picture)

    def see(pixels: Tensor) -> Tensor:
        """What the model sees: the same of the same picture, noise or not."""
        pixels = pixels.to(predictor.device)
        if not is_clean:
            return measurement.observe(pixels)
        noise = torch.Generator().manual_seed(0)
        return measurement(_whole_blocks(pixels, measurement.block), noise)

    y = see(picture.pixels)
    tree, parts = _predict(predictor, y, tiling, map)
    x = _whole_blocks(picture.pixels, measurement.block).cpu() if is_clean else None
    if x is not None and not (x.shape[1:] == tree.shape and measurement.shows_hidden(x)):
        x = None
    remarks = {"resized": picture.resized} if picture.resized else {}
    made = Answer(tree, y.cpu(), x, parts, remarks)
    if picture.stored is None:
        return made
    importer, done = picture.reading.importer, picture.reading.adjustment
    is_imported = importer is not None and importer.is_grey
    return made.noted(
        picture.doubts(predictor)
        or describe_misfit(picture.stored, done, predictor, see, is_imported),
        describe_magnification(tree, predictor, picture.reading.scale or 1.0),
    )


def predict(predictor: Predictor, source: Source, tile: int | None = None, **reading: Any) -> Tree:
    """The tree of a picture: `predictor.predict`."""
    picture = read(source, predictor, Reading.of(**reading))
    made = answer(predictor, picture, Tiling(tile))
    warn_of(picture, made)
    return made.tree


def is_measured_here(predictor: Predictor, picture: Picture) -> bool:
    """Whether a picture is the clean image, by what was said of it or what is usual."""
    said = picture.reading.is_clean
    return predictor.measurement.is_picture_clean if said is None else said


def warn_of(picture: Picture, made: Answer, warn: Callable[[str], object] = warn_picture) -> None:
    """Say at once what is to be said of a picture, but for what was asked for."""
    is_asked = picture.reading.importer or picture.reading.scale != 1
    if words := [text for key, text in made.remarks.items() if key == "note" or not is_asked]:
        warn(f"{picture.name}: {'. '.join(words)}")


def _predict(
    predictor: Predictor, y: Tensor, tiling: Tiling, map: Map
) -> tuple[Tree, tuple[Part, ...]]:
    if not needs_tiles(predictor, y.shape[-2:], tiling.tile):
        with evaluating(predictor):
            return predictor(y).to("cpu"), ()
    if len(y) != 1:
        raise InputError(
            f"{len(y)} pictures of {times(y.shape[-2:])} in one tensor: large ones are cut into "
            "tiles, which are matched for each. Give one at a time, or tile=0"
        )
    return predict_tiled(predictor, y.cpu(), *tiling.sizes, map)


def _whole_blocks(pixels: Float[Tensor, "b c h w"], block: int) -> Float[Tensor, "b c h2 w2"]:
    """The middle of a picture, of sides that blocks divide."""
    sides = []
    for side in pixels.shape[-2:]:
        if side < block:
            raise InputError(
                f"the picture is {times(pixels.shape[-2:])} (height×width); it must have at least "
                f"{block} pixels a side: give a larger one"
            )
        start = side % block // 2
        sides.append(slice(start, start + side // block * block))
    return pixels[..., sides[0], sides[1]]
