r"""A drawing becomes what a model of edge maps was trained on: black lines of one pixel on white,
with the thing where the training's things are.

1. Ink is told from paper (`ink.py`): dark on light or light on dark, by lamp or by day. Specks go.
2. The box around the ink is brought into the frame of the model's card: as wide as there, or as
   high if it is higher, standing on the frame's ground. A pixel is ink if any of its part is, so
   that thin lines stay. A drawing that has the frame's size already stays where it is.
3. Lines become thin (Zhang & Suen, 1984): pixels of the rim that join nothing go, first of one
   side, then of the other, until none is left to go. Of those that would go at once each is looked
   at again, so that no line of two pixels goes as a whole; ends stay (Lü & Wang, 1986).

Choice: a line of a pen becomes its middle, where an edge map of a photograph has both its sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.regions import label, sizes
from posterior_trees.imaging.size import times
from posterior_trees.models.card import says
from posterior_trees.pictures.ink import box_of, even_light, find_ink, longer_side, stroke_width
from posterior_trees.predictor import Predictor

SPECK = 0.001
"""Parts with a smaller share of the ink are specks; a lace is none."""
FILLED = 0.12
"""How wide strokes may be, of the longer side of what is drawn: wider ones are areas."""
THINNEST = 3.0
"""Pixels that strokes may be wide in the smallest drawing."""
AREAS = 0.2
"""Of the ink of drawings at most this share is in wide parts, as where lines cross; of photographs
of shoes more."""
GREY = (0.2, 0.8, 0.1)
"""A map of lines has hardly any values between these, at most this share."""


@dataclass(frozen=True)
class Lines:
    """`--lines`: the importer of models of edge maps (`importers.Importer`)."""

    option = "--lines"
    does = "finds ink, paper and size by itself"
    excludes = frozenset({"--resize", "--scale", "--levels", "--gamma", "--invert"})
    is_grey = True

    def check(self, predictor: Predictor) -> None:
        if not takes_lines(predictor):
            raise DataError(
                "--lines is for models whose card says that they take lines, as that of shoes "
                f"does; {predictor.name or 'this model'} is none: leave --lines out"
            )

    def make(self, stored: Stored, predictor: Predictor, name: str) -> tuple[np.ndarray, str]:
        frame, strokes = predictor.about["frame"], find_strokes(stored, name)
        lines = place_lines(strokes, frame["size"], frame["at"])
        channels = predictor.measurement.picture_channels(predictor.channels)[0]
        made = np.repeat((~lines.numpy()).astype(np.float32)[None], channels, axis=0)
        return made, doubt_strokes(strokes)

    def caption(self, size: tuple[int, int], predictor: Predictor) -> str:
        return f"the lines found in {times(size)} (height×width)"


def takes_lines(predictor: Predictor) -> bool:
    """Whether a model says that drawings are made into its pictures."""
    return says(predictor, "importer") == "lines" and bool(predictor.about.get("frame"))


def is_no_map(stored: Stored) -> bool:
    """Whether values are not those of a map of lines: greys, or more ink than lines have."""
    low, high, most = GREY
    unit = stored / (1 if stored.dtype == np.float32 else np.iinfo(stored.dtype).max)
    return bool(((unit > low) & (unit < high)).mean() > most or (unit < low).mean() > 0.5)


def find_strokes(stored: Stored, name: str = "the drawing") -> Bool[Tensor, "h2 w2"]:
    """The ink of a drawing."""
    ink, _ = find_ink(even_light(stored, "a drawing", name), "a drawing", name)
    parts = label(ink)
    is_kept = torch.cat([torch.tensor([False]), sizes(parts) >= SPECK * ink.sum()])
    if not bool(is_kept.any()):
        raise DataError(f"{name} shows nothing but specks. Draw lines")
    ink = is_kept[parts]
    longest = longer_side(ink)
    widest = max(FILLED * longest, THINNEST)
    if (width := stroke_width(ink)) > widest:
        raise DataError(
            f"{name}: strokes are {width:.0f} of {longest} pixels wide, lines up to "
            f"{widest:.0f}: it is filled. Draw the outlines alone"
        )
    return ink


def doubt_strokes(ink: Bool[Tensor, "h w"]) -> str:
    """Why ink may be no drawing; empty if it looks like one. Strokes of a pen are of one width,
    dark parts of a photograph are not."""
    if (share := share_of_areas(ink)) <= AREAS:
        return ""
    return (
        f"{share:.0%} of the ink is in parts over twice as wide as its lines are on average, in "
        f"drawings up to {AREAS:.0%}: is it a photograph? Draw the outlines alone"
    )


def share_of_areas(ink: Bool[Tensor, "h w"]) -> float:
    """The share of ink that discs of twice the strokes' width can cover."""
    from scipy.ndimage import distance_transform_edt

    wide, reach = F.pad(ink, (1, 1, 1, 1)).numpy(), stroke_width(ink)
    centres = distance_transform_edt(wide) > reach
    if not centres.any():
        return 0.0
    return float((wide & (distance_transform_edt(~centres) <= reach)).sum() / wide.sum())


def place_lines(
    ink: Bool[Tensor, "h w"], size: Sequence[int], frame: Sequence[float | int]
) -> Bool[Tensor, "h2 w2"]:
    """The lines of a drawing in a picture of a `size` whose `frame` (left, top, right and bottom,
    of 1) they fill."""
    if ink.shape != tuple(size):
        low, high = box_of(ink)
        ink = _place(ink[low[0] : high[0] + 1, low[1] : high[1] + 1], size, frame)
    return thin(ink)


def _place(
    ink: Bool[Tensor, "h w"], size: Sequence[int], frame: Sequence[float | int]
) -> Bool[Tensor, "h2 w2"]:
    """The ink in its frame: in its middle, on its ground."""
    height, width = size
    left, top, right, bottom = (
        round(v * side) for v, side in zip(frame, (width, height) * 2, strict=True)
    )
    zoom = min((right - left) / ink.shape[1], (bottom - top) / ink.shape[0])
    h, w = (max(1, round(zoom * side)) for side in ink.shape)
    small = F.adaptive_max_pool2d(ink[None].float(), (h, w))[0] > 0
    placed = torch.zeros(height, width, dtype=torch.bool)
    start = (left + right - w) // 2
    placed[bottom - h : bottom, start : start + w] = small
    return placed


def thin(ink: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """Lines that are connected as the ink is, of one pixel but for steps of slanted ones."""
    wide = F.pad(ink, (1, 1, 1, 1))
    h, w = ink.shape
    places = [(0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0)]  # from north, round

    def look(i: slice | int, j: slice | int) -> tuple[Tensor, Tensor, Tensor]:
        """Around pixels: who is there, how many, and how often nobody is followed by somebody."""
        around = [wide[a : a + h, b : b + w][i, j] for a, b in places]
        p = torch.stack(around)
        return p, p.sum(dim=0), (~p & p.roll(-1, dims=0)).sum(dim=0)

    while True:
        before = wide.clone()
        for side in (0, 1):
            p, count, steps = look(slice(None), slice(None))
            north, east, south, west = p[::2]
            if side == 0:
                is_rim = ~(north & east & south) & ~(east & south & west)
            else:
                is_rim = ~(north & east & west) & ~(north & south & west)
            goes = wide[1:-1, 1:-1] & (count >= 3) & (count <= 6) & (steps == 1) & is_rim
            for i, j in goes.nonzero().tolist():
                _, count, steps = look(i, j)
                if count >= 2 and steps == 1:
                    wide[i + 1, j + 1] = False
        if bool((wide == before).all()):
            return wide[1:-1, 1:-1]
