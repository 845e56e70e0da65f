"""The hole of an inpainting model on the page: shown there, painted anew, and sent back.

A network that saw one hole in training has learned what belongs into that one. The method itself
takes any hole (the answers still agree with every pixel that is visible), so the page offers it,
and says every time that the model was not trained for it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool
from PIL import Image
from torch import Tensor

from posterior_trees.errors import DataError, plural
from posterior_trees.explore.content import png_url
from posterior_trees.imaging.guarded import decode_picture, picture_header
from posterior_trees.pictures.lines import takes_lines
from posterior_trees.predictor import Predictor

NOTE = (
    "This is not the hole that the model was trained for: its answers agree with what is visible, "
    "but they and their probabilities are outside its training"
)
SMALL = 64
"""Grey pictures up to this side can be drawn by hand."""


def describe_paper(predictor: Predictor) -> dict | None:
    """What the page needs to show a picture with its hole: the size, the model's own hole, and
    whether pictures of this kind can be drawn, with which `ink`. Drawings of lines have no hole.
    None where there is nothing to hide or to draw."""
    measurement = predictor.measurement
    if takes_lines(predictor):
        size = list(predictor.about["frame"]["size"])
        return {"size": size, "hole": None, "can_draw": True, "ink": "black"}
    if measurement.hole is None or measurement.hole.ndim < 2:
        return None
    size = measurement.hole.shape[-2:]
    hidden = measurement.hole.reshape(size).cpu().to(torch.uint8) * 255
    return {
        "size": list(size),
        "hole": png_url(Image.fromarray(hidden.numpy())),
        "can_draw": max(size) <= SMALL and predictor.channels == 1,
        "ink": "white",
    }


def read_hole(content: bytes, size: Sequence[int]) -> Bool[Tensor, "h w"]:
    """A hole from a picture of exactly this size: white is hidden, black is visible."""
    hole = read_mask(content, size, "the hole")
    hidden = int(hole.sum())
    if hidden in (0, hole.numel()):
        raise DataError(
            f"the hole hides {hidden} of {plural(hole.numel(), 'pixel')}. It must hide some "
            "and leave some"
        )
    return hole


def read_mask(content: bytes, size: Sequence[int], what: str) -> Bool[Tensor, "h w"]:
    """Where a picture of exactly this size is white; it has no other values than black."""
    height, width, *_ = picture_header(content, what)
    if (height, width) != tuple(size):
        raise DataError(
            f"{what} is {height}×{width}, this model takes {size[0]}×{size[1]} pixels. "
            "Draw it at that size"
        )
    pixels = decode_picture(content, what, 1)[0]
    if other := sorted(set(np.unique(pixels).tolist()) - {0, 255}):
        raise DataError(f"{what} has a pixel of value {other[0]}. Each must be 0 (out) or 255 (in)")
    return torch.from_numpy(pixels == 255)
