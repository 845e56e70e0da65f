r"""A photograph or a scan of one handwritten digit becomes what MNIST holds: white on black, 28×28.

1. *Paper.* Light falls unevenly. The paper's brightness is the quadratic surface $p$ nearest to the
   picture $g$ by the sum of absolute differences: most pixels are paper, and ink, however dark,
   pulls such a surface no more than any other pixel does.
2. *Ink.* Otsu's threshold parts $g - p$, a little smoothed, into two sides. The rarer one is ink,
   dark on light or light on dark. What touches the edge of the picture (a table, a line of the
   paper) goes unless nothing else is there, and so do specks, and small parts far from the largest
   one (a blot, a page number).
3. *Strength.* Light falls unevenly on ink too: at full strength its $|g - p|$ is a plane $q$, which
   is above nine tenths of the ink. The digit is

   $$ v = \operatorname{clip}\Bigl(\frac12 + \frac32 \Bigl(\frac{|g - p|}{q} - \frac12\Bigr),
      0, 1\Bigr) $$

   at the ink and close to it, and 0 elsewhere; the $\frac32$ makes soft edges sharper. Neither
   another brightness or contrast nor the exchange of black and white changes $v$.
4. *Pen.* MNIST's were thick. Strokes of a mean width (two times the ink over its edge) below 8 % of
   the digit's longer side, as thin as the thinnest in twenty of the sample digits, are thickened.
5. *Size and place*, as MNIST has them (LeCun et al., 1998): the longer side of the box around the
   ink becomes 20 pixels, by area averaging and with its aspect kept, and the centre of mass comes
   to the middle of 28×28. MNIST's centres are there but for up to half a pixel, because it moves
   digits by whole ones.

Light is taken to change smoothly: a shadow with a sharp edge is ink to this recipe.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.errors import DataError, plural
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.otsu import otsu
from posterior_trees.imaging.regions import label, sizes
from posterior_trees.models.card import says
from posterior_trees.predictor import Predictor

SIDE, BOX, MIDDLE = 28, 20, 14.5
"""In pixels: MNIST's images, the longer side of a digit in them, and their middle (that of the
pixel in row and column 14)."""
LARGEST = 1024
"""Pixels of the longer side in which ink is looked for; larger pictures are shrunk."""
SMOOTH = 200
"""Ink and paper are told apart by means over squares of a 200th of the longer side."""
SPECK = 0.02
"""Parts with a smaller share of the largest one's pixels are specks."""
FAR = 0.25
"""Parts that are smaller than half the largest one and farther from it, in units of its longer
side, are none of the digit's."""
MARGINS = "Crop the picture to the paper, with plain paper on all sides of the digit"
SMALLEST = 8
"""Pixels of the longer side of the ink; with fewer nobody can tell."""
CLEAR = 4.0
"""How far ink is from paper, in standard deviations of the paper. The two sides into which Otsu's
threshold parts mere noise are 2.3 apart."""
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
ROUNDS, ENOUGH = 30, 20_000
"""Of reweighting, and the pixels that a surface is fitted to."""


def find_digit(stored: Stored, name: str = "the picture") -> Float[np.ndarray, "1 28 28"]:
    """The digit in the grey values `(1, h, w)` of a picture as MNIST would have it, in [0, 1]."""
    values = torch.from_numpy(stored[0].astype(np.float64))
    low, high = values.min().item(), values.max().item()
    if low == high:
        raise DataError(f"{name} is blank: all its pixels are {low:g}. Give one with a digit")
    grey = _shrink((values - low) / (high - low))
    even = grey - _fit_surface(grey, torch.ones_like(grey, dtype=torch.bool), degree=2)
    ink, sign = _find_ink(even, name)
    even, side = sign * even, _longer_side(ink)
    if side < SMALLEST:
        raise DataError(
            f"{name}: the ink is {plural(side, 'pixel')} long in a picture of "
            f"{'×'.join(map(str, even.shape))}, a digit must be {SMALLEST} or more. Come closer"
        )
    strength = _fit_surface(even, ink, degree=1, quantile=STRONG)
    strength = strength.clamp(min=even[ink].median().item() / 2)  # a plane may go below 0 far away
    covered = (0.5 + EDGE * (even / strength - 0.5)).clamp(0, 1)
    digit = covered * _grow(ink, math.ceil(side / BOX / 2))
    margin = max(0, round((THIN * side - stroke_width(ink)) / 2))
    return _place(_thicken(F.pad(digit, (margin,) * 4), margin), side + 2 * margin)[None]


def takes_digits(predictor: Predictor) -> bool:
    """Whether a model says that photographs of digits are made into its pictures, and has their
    shape. (By its shape alone it may be of clothes.)"""
    is_shape = predictor.measurement.size == (SIDE, SIDE) and predictor.channels == 1
    return is_shape and says(predictor, "importer") == "digit"


def check_takes_digits(predictor: Predictor) -> None:
    """Refuse a model that does not say so."""
    if takes_digits(predictor):
        return
    measurement, channels = predictor.measurement, predictor.channels
    kind = {1: "grey", 3: "colour"}.get(channels, f"{channels} channels")
    size, fix = "pictures of any size", "leave --digit out"
    if measurement.size:
        size = "×".join(map(str, measurement.size))
        fix = "leave --digit out (--resize brings a picture to that size)"
    raise DataError(
        f"--digit is for models whose card says that they take grey digits of {SIDE}×{SIDE}, as "
        f"`digits` does; {predictor.name or 'this model'} predicts {size} in {kind}: {fix}"
    )


def _fit_surface(
    values: Float[Tensor, "h w"],
    where: Bool[Tensor, "h w"],
    degree: int,
    quantile: float = 0.5,
) -> Float[Tensor, "h w"]:
    r"""The polynomial surface $s$ that is nearest to the values $v$ at some pixels, or that has a
    share $\tau$ of them below it:

    $$ \min_s \sum_{ij} \tau\,(v_{ij} - s_{ij})_+ + (1 - \tau)\,(s_{ij} - v_{ij})_+, \qquad
       s_{ij} = \sum_{a + b \le \text{degree}} c_{ab}\, i^a j^b, $$

    by least squares, each difference divided by its own size in the round before.
    """
    h, w = values.shape
    i, j = (torch.linspace(-1, 1, n, dtype=values.dtype) for n in (h, w))
    powers = [(a, b) for a in range(degree + 1) for b in range(degree + 1 - a)]
    terms = torch.stack([i[:, None] ** a * j**b for a, b in powers], dim=-1)
    stride = math.ceil(int(where.sum()) / ENOUGH)
    v, m = values[where][::stride], terms[where][::stride]
    ridge = 1e-9 * len(v) * torch.eye(len(powers), dtype=v.dtype)  # ink may be one straight line
    weight, c = torch.ones_like(v), v.new_zeros(len(powers))
    for _ in range(ROUNDS):
        weighted = m * weight[:, None]
        c = torch.linalg.solve(weighted.T @ m + ridge, weighted.T @ v)
        above = v - m @ c
        weight = torch.where(above > 0, quantile, 1 - quantile) / above.abs().clamp(min=1e-3)
    return terms @ c


def _find_ink(even: Float[Tensor, "h w"], name: str) -> tuple[Bool[Tensor, "h w"], int]:
    """Where ink is, and whether it is the lighter side (1) or the darker one (-1)."""
    half = round(max(even.shape) / SMOOTH / 2)
    smooth = F.avg_pool2d(even[None], 2 * half + 1, 1, half, count_include_pad=False)[0]
    unit = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    ink, sign = unit > otsu(unit), 1
    if ink.double().mean() > 0.5:
        ink, sign = ~ink, -1
    paper = smooth[~ink]
    spread = 1.4826 * (paper - paper.median()).abs().median()
    clear = ((smooth[ink].median() - paper.median()).abs() / spread.clamp(min=1e-6)).item()
    if not clear >= CLEAR:
        raise DataError(
            f"{name}: no digit found. What stands out does so by {clear:.1f} standard deviations "
            f"of the rest, ink by {CLEAR:g} or more. {MARGINS}"
        )
    border = torch.cat([ink[0], ink[-1], ink[1:-1, 0], ink[1:-1, -1]]).double().mean().item()
    if border > 0.5:
        raise DataError(
            f"{name}: what looks like ink is on {border:.0%} of the picture's edge; it may be "
            f"on 50%. {MARGINS}"
        )
    return _find_parts(ink), sign


def _find_parts(ink: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """The largest part, which touches the edge only if nothing but specks does not, and those near
    to it or nearly as large."""
    labels = label(ink)
    pixels = F.pad(sizes(labels), (1, 0))
    inside = pixels.clone()
    for edge in (labels[0], labels[-1], labels[:, 0], labels[:, -1]):
        inside[edge] = 0
    if inside.max() > SPECK * pixels.max():
        pixels = inside
    main = int(pixels.argmax())
    low, high = _box(labels == main)
    far = FAR * int((high - low).max())
    for part in (pixels > SPECK * pixels.max()).nonzero().flatten().tolist():
        if pixels[part] < pixels[main] / 2:
            first, last = _box(labels == part)
            pixels[part] *= int(torch.maximum(first - high, low - last).max()) <= far
    return (pixels > SPECK * pixels.max())[labels]


def _box(part: Bool[Tensor, "h w"]) -> tuple[Tensor, Tensor]:
    """First and last row and column."""
    places = part.nonzero()
    return places.amin(dim=0), places.amax(dim=0)


def _longer_side(ink: Bool[Tensor, "h w"]) -> int:
    """Of the box around the ink."""
    low, high = _box(ink)
    return int((high - low).max()) + 1


def stroke_width(ink: Bool[Tensor, "h w"]) -> float:
    """The mean width of strokes in pixels: a long one has an edge on either side."""
    edge = ink & _grow(~ink, 1)
    return 2 * ink.sum().item() / max(edge.sum().item(), 1)


def _grow(ink: Bool[Tensor, "h w"], margin: int) -> Bool[Tensor, "h w"]:
    """All pixels within a margin of the ink."""
    return _thicken(ink.double(), margin) > 0


def _thicken(digit: Float[Tensor, "h w"], margin: int) -> Float[Tensor, "h w"]:
    """The largest value within a margin of each pixel, along columns and along rows."""
    for size in ((2 * margin + 1, 1), (1, 2 * margin + 1)):
        padding = tuple(side // 2 for side in size)
        digit = F.max_pool2d(digit[None], size, stride=1, padding=padding)[0]
    return digit


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
    return _resize(wide, (SIDE, SIDE), box).clip(0, 1)


def _shrink(grey: Float[Tensor, "h w"]) -> Float[Tensor, "h2 w2"]:
    zoom = LARGEST / max(grey.shape)
    if zoom >= 1:
        return grey
    size = [max(1, round(length * zoom)) for length in grey.shape]
    return torch.from_numpy(_resize(grey, size)).double()


def _resize(
    image: Float[Tensor, "h w"],
    size: Sequence[int],
    box: tuple[float, float, float, float] | None = None,
) -> Float[np.ndarray, "h2 w2"]:
    """Area averaging of an image, or of the box (left, top, right, bottom) in it."""
    picture = Image.fromarray(image.float().numpy())
    return np.array(picture.resize((size[1], size[0]), Image.Resampling.BOX, box=box))
