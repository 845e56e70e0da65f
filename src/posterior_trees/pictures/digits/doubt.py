"""Whether what `digit.py` found looks like one digit, so that a photograph of something else is
noticed.

Limits are those of MNIST's test digits, of which every tenth was measured: their strokes are at
most 4.3 pixels wide (two times the ink over its edge), and one of 1,000 has large parts side by
side.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.imaging.regions import label
from posterior_trees.measure import Measurement
from posterior_trees.pictures.ink import stroke_width

WIDEST = 5.0
"""Pixels, of 28, that strokes may be wide."""
FAINT = 0.3
"""The brightness below which nothing is seen."""
LARGE = 0.15
"""The share of the ink that a digit of its own has at least."""


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
