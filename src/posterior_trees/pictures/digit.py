r"""A photograph or a scan of one handwritten digit becomes what MNIST holds: white on black, 28×28.

1. *Ink* is told from paper, of brightness $p$, as `ink.py` says.
2. *Strength.* Light falls unevenly on ink too: at full strength its $|g - p|$ is a plane $q$, which
   is above nine tenths of the ink. The digit is

   $$ v = \operatorname{clip}\Bigl(\frac12 + \frac32 \Bigl(\frac{|g - p|}{q} - \frac12\Bigr),
      0, 1\Bigr) $$

   at the ink and close to it, and 0 elsewhere; the $\frac32$ makes soft edges sharper. Neither
   another brightness or contrast nor the exchange of black and white changes $v$.
3. *Pen.* MNIST's were thick. Strokes of a mean width (two times the ink over its edge) below 8 % of
   the digit's longer side, as thin as the thinnest in twenty of the sample digits, are thickened.
4. *Size and place*, as MNIST has them (LeCun et al., 1998): the longer side of the box around the
   ink becomes 20 pixels, by area averaging and with its aspect kept, and the centre of mass comes
   to the middle of 28×28. MNIST's centres are there but for up to half a pixel, because it moves
   digits by whole ones.

What does not look like one digit then is doubted, so that a photograph of something else is
noticed. The limits are those of MNIST's test digits, of which every tenth was measured: strokes are
at most 4.3 pixels wide, and one of 1,000 has large parts side by side.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.errors import DataError, plural
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.regions import label
from posterior_trees.imaging.size import times
from posterior_trees.measure import Measurement
from posterior_trees.models.card import says
from posterior_trees.pictures.ink import (
    even_light,
    find_ink,
    fit_surface,
    grow_ink,
    longer_side,
    main_parts,
    resize,
    stroke_width,
    thicken,
)
from posterior_trees.predictor import Predictor

SIDE, BOX, MIDDLE = 28, 20, 14.5
"""In pixels: MNIST's images, the longer side of a digit in them, and their middle (that of the
pixel in row and column 14)."""
SMALLEST = 8
"""Pixels of the longer side of the ink; with fewer nobody can tell."""
STRONG = 0.9
"""The share of the ink that is weaker than full strength."""
EDGE = 1.5
"""How much steeper edges become. Those of a photograph are soft; MNIST's digits were black and
white before they were scaled, and the model of them takes soft edges for another digit."""
THIN = 0.08
"""Width of strokes over the digit's longer side; in the sample digits it is 0.07 to 0.17, and 0.11
in the middle. Thinner ones would be faint in 28×28 pixels."""
FINE = 16
"""Pixels of the picture, repeated if they are fewer, along each pixel of the digit: averages then
are of areas, wherever those begin."""
WIDEST = 5.0
"""Pixels, of 28, that strokes may be wide."""
FAINT = 0.3
"""The brightness below which nothing is seen."""
LARGE = 0.15
"""The share of the ink that a digit of its own has at least."""


def find_digit(stored: Stored, name: str = "the picture") -> Float[np.ndarray, "1 28 28"]:
    """The digit in the grey values `(1, h, w)` of a picture as MNIST would have it, in [0, 1]."""
    even = even_light(stored, "a digit", name)
    ink, sign = find_ink(even, "a digit", name)
    ink = main_parts(ink)
    even, side = sign * even, longer_side(ink)
    if side < SMALLEST:
        raise DataError(
            f"{name}: the ink is {plural(side, 'pixel')} long in a picture of "
            f"{times(even.shape)}, a digit must be {SMALLEST} or more. Come closer"
        )
    strength = fit_surface(even, ink, degree=1, quantile=STRONG)
    strength = strength.clamp(min=even[ink].median().item() / 2)  # a plane may go below 0 far away
    covered = (0.5 + EDGE * (even / strength - 0.5)).clamp(0, 1)
    digit = covered * grow_ink(ink, math.ceil(side / BOX / 2))
    margin = max(0, round((THIN * side - stroke_width(ink)) / 2))
    return _place(thicken(F.pad(digit, (margin,) * 4), margin), side + 2 * margin)[None]


@dataclass(frozen=True)
class Digit:
    """`--digit`: the importer of models of digits (`importers.Importer`)."""

    option = "--digit"
    does = "finds ink, paper and size by itself"
    excludes = frozenset({"--measured", "--resize", "--scale", "--levels", "--gamma", "--invert"})
    is_grey = True

    def check(self, predictor: Predictor) -> None:
        if takes_digits(predictor):
            return
        channels, own = predictor.channels, predictor.measurement.size
        kind = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
        size, fix = "pictures of any size", "leave --digit out"
        if own:
            size, fix = times(own), f"{fix} (--resize brings a picture to that size)"
        raise DataError(
            f"--digit is for models whose card says that they take grey digits of {SIDE}×{SIDE}, "
            f"as `digits` does; {predictor.name or 'this model'} predicts {size} in {kind}: {fix}"
        )

    def make(self, stored: Stored, predictor: Predictor, name: str) -> tuple[np.ndarray, str]:
        digit = find_digit(stored, name)
        return digit, describe_doubt(digit, predictor.measurement)

    def caption(self, size: tuple[int, int], predictor: Predictor) -> str:
        return f"the digit found in {times(size)} (height×width)"


def takes_digits(predictor: Predictor) -> bool:
    """Whether a model says that photographs of digits are made into its pictures, and has their
    shape. (By its shape alone it may be of clothes.)"""
    is_shape = predictor.measurement.size == (SIDE, SIDE) and predictor.channels == 1
    return is_shape and says(predictor, "importer") == "digit"


def describe_doubt(digit: Float[np.ndarray, "1 28 28"], measurement: Measurement) -> str:
    """Why what was found may not be one digit, or not help the model; empty if it looks well."""
    ink = torch.from_numpy(digit[0])
    if count_side_by_side(ink) > 1:
        return "the ink has large parts side by side: if it is more than one digit, crop it to one"
    if (width := stroke_width(ink > 0.5)) > WIDEST:
        return (
            f"the ink's strokes are {width:.0f} of 28 pixels wide, those of digits up to "
            f"{WIDEST:.0f}: it may be no digit, or a shadow"
        )
    hole = measurement.hole
    if hole is not None and ink[~hole.cpu()].amax() < FAINT:
        return "nothing of the digit is where the model looks: its tree says what digits are like"
    return ""


def count_side_by_side(ink: Float[Tensor, "h w"]) -> int:
    """Large parts of the ink that share no column with the one to their left."""
    parts, count, end = label(ink > FAINT), 0, -1
    spans = []
    for number in range(1, int(parts.max()) + 1):
        is_here = parts == number
        if ink[is_here].sum() >= LARGE * ink.sum():
            columns = is_here.any(dim=0).nonzero()
            spans.append((int(columns.min()), int(columns.max())))
    for first, last in sorted(spans):
        count += first > end
        end = max(end, last)
    return count


def _place(digit: Float[Tensor, "h w"], side: int) -> Float[np.ndarray, "28 28"]:
    """A square of 28/20 of the digit's longer side, around its centre of mass, as 28×28."""
    rows, columns = ((digit > 0).any(dim=axis).nonzero() for axis in (1, 0))
    digit = digit[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    times = math.ceil(FINE * BOX / side)
    digit, side = digit.repeat_interleave(times, 0).repeat_interleave(times, 1), side * times
    pixel = side / BOX
    room = math.ceil(SIDE * pixel)
    wide = F.pad(digit, (room, room, room, room))
    start = []
    for mass in (wide.sum(dim=1), wide.sum(dim=0)):
        centre = (mass * (torch.arange(len(mass)) + 0.5)).sum() / mass.sum()
        start.append(centre.item() - MIDDLE * pixel)
    top, left = start
    box = (left, top, left + SIDE * pixel, top + SIDE * pixel)
    return resize(wide, (SIDE, SIDE), box).clip(0, 1)
