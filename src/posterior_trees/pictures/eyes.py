r"""A portrait is cut as the training's were: both eyes where the model's card says they lie.

Two points fix a similarity: with places as complex numbers, the eyes $e_1, e_2$ of the picture and
$f_1, f_2$ of the frame,

$$ z \mapsto e_1 + \frac{e_2 - e_1}{f_2 - f_1}\,(z - f_1) $$

says which point of the picture is shown at $z$. Turned heads become upright. Where the frame is
smaller than what it shows, pixels are averaged; beyond the picture's edge its last pixels go on.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.size import times
from posterior_trees.models.card import says
from posterior_trees.predictor import Predictor

LEAST = 8
"""Pixels between the eyes; with fewer there is no face to see."""
BEYOND = 0.02
"""The share of the frame that may lie beyond the picture before it is said."""
ROOM = 3
"""Pixels around what is seen, for the curves between them."""


@dataclass(frozen=True)
class Eyes:
    """`--align X1 Y1 X2 Y2`: the importer of models of faces (`importers.Importer`); the eyes in
    pixels from the upper left corner, in either order."""

    marks: tuple[float | int, ...]

    option = "--align"
    does = "cuts and scales by itself"
    excludes = frozenset({"--resize", "--scale"})
    is_grey = False

    def check(self, predictor: Predictor) -> None:
        if not takes_eyes(predictor):
            raise DataError(
                "--align is for models whose card says where eyes lie, as those of faces and cats "
                f"do; {predictor.name or 'this model'} does not: leave --align out"
            )
        if len(self.marks) != 4 or not all(map(math.isfinite, self.marks)):
            raise InputError(f"--align {self.marks}: give four numbers, X1 Y1 X2 Y2 of both eyes")

    def make(self, stored: Stored, predictor: Predictor, name: str) -> tuple[np.ndarray, str]:
        """Of the same kind as the stored values, at the frame's size."""
        h, w = stored.shape[-2:]
        self._check_inside((h, w), name)
        size, (start, turn) = side_of(predictor), self._similarity(predictor)
        corners = start + turn * _grid(size, 2)
        (left, right), (top, bottom) = (
            (math.floor(part.min()) - ROOM, math.ceil(part.max()) + ROOM)
            for part in (corners.real, corners.imag)
        )
        rows, columns = np.arange(top, bottom).clip(0, h - 1), np.arange(left, right).clip(0, w - 1)
        fine = max(1, math.ceil(abs(turn)))  # samples along a pixel: then means of them
        start, step = start - complex(left, top), turn / fine
        affine = (step.real, -step.imag, start.real, step.imag, step.real, start.imag)
        found = []
        for channel in stored[:, rows][:, :, columns].astype(np.float32):
            picture = Image.fromarray(channel).transform(
                (fine * size[1], fine * size[0]), Image.Transform.AFFINE, affine,
                Image.Resampling.BICUBIC,
            )  # fmt: skip
            found.append(np.array(picture).reshape(size[0], fine, size[1], fine).mean(axis=(1, 3)))
        made = np.stack(found).clip(stored.min(), stored.max())  # cubic curves swing over
        return (made if stored.dtype == np.float32 else np.rint(made)).astype(stored.dtype), ""

    def caption(self, size: tuple[int, int], predictor: Predictor) -> str:
        start, turn = self._similarity(predictor)
        seen = start + turn * _grid(side_of(predictor), 64)
        x, y = seen.real, seen.imag
        beyond = 1 - ((x >= 0) & (x <= size[1]) & (y >= 0) & (y <= size[0])).mean()
        tail = f"; {beyond:.0%} of the cut is beyond its edge" if beyond > BEYOND else ""
        return f"cut around the eyes from {times(size)} (height×width){tail}"

    def _similarity(self, predictor: Predictor) -> tuple[complex, complex]:
        """Where the frame begins in the picture, and what a pixel of it is there."""
        x1, y1, x2, y2 = self.marks
        e1, e2 = sorted((complex(x1, y1), complex(x2, y2)), key=lambda z: z.real)
        x1, y1, x2, y2 = predictor.about["frame"]["at"]
        height, width = side_of(predictor)
        f1, f2 = complex(x1 * width, y1 * height), complex(x2 * width, y2 * height)
        turn = (e2 - e1) / (f2 - f1)
        return e1 - turn * f1, turn

    def _check_inside(self, size: tuple[int, int], name: str) -> None:
        (height, width), (x1, y1, x2, y2) = size, self.marks
        for x, y in ((x1, y1), (x2, y2)):
            if not (0 <= x <= width and 0 <= y <= height):
                raise DataError(
                    f"{name}: an eye at {x:g} {y:g} is not in the picture of {width}×{height} "
                    "(width×height). Give pixels from its upper left corner"
                )
        if math.hypot(x2 - x1, y2 - y1) < LEAST:
            raise DataError(
                f"{name}: the eyes are {math.hypot(x2 - x1, y2 - y1):.1f} pixels apart, they must "
                f"be {LEAST} or more. Mark both, or come closer"
            )


def takes_eyes(predictor: Predictor) -> bool:
    """Whether a model says where the eyes of its pictures lie."""
    return says(predictor, "importer") == "eyes" and bool(predictor.about.get("frame"))


def side_of(predictor: Predictor) -> tuple[int, int]:
    """Height and width of an aligned picture: the model's own, or its training's."""
    height, width = predictor.measurement.size or predictor.about["frame"]["size"]
    return height, width


def _grid(size: tuple[int, int], count: int) -> np.ndarray:
    """Points of a frame, with its corners."""
    y, x = (np.linspace(0, side, count) for side in size)
    return x[None] + 1j * y[:, None]
