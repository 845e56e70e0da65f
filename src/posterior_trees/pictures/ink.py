r"""Ink on paper, in a photograph, a scan or a drawing: dark on light or light on dark.

1. *Paper.* Light falls unevenly. The paper's brightness is the quadratic surface $p$ nearest to the
   picture $g$ by the sum of absolute differences: most pixels are paper, and ink, however dark,
   pulls such a surface no more than any other pixel does.
2. *Ink.* Otsu's threshold parts $g - p$, a little smoothed, into two sides. The rarer one is ink.
3. *Parts.* What touches the edge of the picture (a table, a line of the paper) goes unless nothing
   else is there, and so do specks, and small parts far from the largest one (a blot, a page
   number).

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

from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.regions import label, otsu, sizes

LARGEST = 1024
"""Pixels of the longer side in which ink is looked for; larger pictures are shrunk."""
SMOOTH = 200
"""Ink and paper are told apart by means over squares of a 200th of the longer side."""
SPECK = 0.02
"""Parts with a smaller share of the largest one's pixels are specks."""
FAR = 0.25
"""Parts that are smaller than half the largest one and farther from it, in units of its longer
side, are none of what is drawn."""
CLEAR = 4.0
"""How far ink is from paper, in standard deviations of the paper. The two sides into which Otsu's
threshold parts mere noise are 2.3 apart."""
ROUNDS, ENOUGH = 30, 20_000
"""Of reweighting, and the pixels that a surface is fitted to."""


def even_light(stored: Stored, what: str, name: str) -> Float[Tensor, "h2 w2"]:
    """Grey values `(1, h, w)`, from 0 to 1 without the paper's own brightness."""
    values = torch.from_numpy(stored[0].astype(np.float64))
    low, high = values.min().item(), values.max().item()
    if low == high:
        raise DataError(f"{name} is blank: all its pixels are {low:g}. Give one with {what}")
    grey = (values - low) / (high - low)
    if (zoom := LARGEST / max(grey.shape)) < 1:
        size = [max(1, round(length * zoom)) for length in grey.shape]
        grey = torch.from_numpy(resize(grey, size)).double()
    return grey - fit_surface(grey, torch.ones_like(grey, dtype=torch.bool), degree=2)


def fit_surface(
    values: Float[Tensor, "h w"], where: Bool[Tensor, "h w"], degree: int, quantile: float = 0.5
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


def find_ink(even: Float[Tensor, "h w"], what: str, name: str) -> tuple[Bool[Tensor, "h w"], int]:
    """Where ink is, and whether it is the lighter side (1) or the darker one (-1)."""
    crop = f"Crop the picture to the paper, with plain paper on all sides of {what}"
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
            f"{name}: {what} was not found. What stands out does so by {clear:.1f} standard "
            f"deviations of the rest, ink by {CLEAR:g} or more. {crop}"
        )
    border = torch.cat([ink[0], ink[-1], ink[1:-1, 0], ink[1:-1, -1]]).double().mean().item()
    if border > 0.5:
        raise DataError(
            f"{name}: what looks like ink is on {border:.0%} of the picture's edge; it may be "
            f"on 50%. {crop}"
        )
    return ink, sign


def main_parts(ink: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
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
    low, high = box_of(labels == main)
    far = FAR * int((high - low).max())
    for part in (pixels > SPECK * pixels.max()).nonzero().flatten().tolist():
        if pixels[part] < pixels[main] / 2:
            first, last = box_of(labels == part)
            pixels[part] *= int(torch.maximum(first - high, low - last).max()) <= far
    return (pixels > SPECK * pixels.max())[labels]


def box_of(part: Bool[Tensor, "h w"]) -> tuple[Tensor, Tensor]:
    """First and last row and column."""
    places = part.nonzero()
    return places.amin(dim=0), places.amax(dim=0)


def longer_side(ink: Bool[Tensor, "h w"]) -> int:
    """Of the box around the ink."""
    low, high = box_of(ink)
    return int((high - low).max()) + 1


def stroke_width(ink: Bool[Tensor, "h w"]) -> float:
    """The mean width of strokes in pixels: a long one has an edge on either side."""
    edge = ink & grow_ink(~ink, 1)
    return 2 * ink.sum().item() / max(edge.sum().item(), 1)


def grow_ink(ink: Bool[Tensor, "h w"], margin: int) -> Bool[Tensor, "h w"]:
    """All pixels within a margin of the ink."""
    return thicken(ink.double(), margin) > 0


def thicken(digit: Float[Tensor, "h w"], margin: int) -> Float[Tensor, "h w"]:
    """The largest value within a margin of each pixel, along columns and along rows."""
    for size in ((2 * margin + 1, 1), (1, 2 * margin + 1)):
        padding = tuple(side // 2 for side in size)
        digit = F.max_pool2d(digit[None], size, stride=1, padding=padding)[0]
    return digit


def resize(
    image: Float[Tensor, "h w"],
    size: Sequence[int],
    box: tuple[float, float, float, float] | None = None,
) -> Float[np.ndarray, "h2 w2"]:
    """Area averaging of an image, or of the box (left, top, right, bottom) in it."""
    picture = Image.fromarray(image.float().numpy())
    return np.array(picture.resize((size[1], size[0]), Image.Resampling.BOX, box=box))
