r"""From the bytes of somebody's picture to the tree of it, without trusting them.

The bytes are limited before they are read (`server`), the number of pixels before they are decoded
and after they are scaled, and the picture's format is what decoding says it is, whatever its name.
All else is `pictures.answer`'s: the page predicts whole pictures, as the command line does, and
shows them small.

A network that saw one hole in training has learned what belongs into that one. The method itself
takes any (the answers still agree with every pixel that is visible), so the page offers to paint
another one, and says every time that the model was not trained for it.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from posterior_trees.errors import DataError, InputError, plural
from posterior_trees.explore.content import SIDE, to_png
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.guarded import decode_picture, picture_header, picture_size
from posterior_trees.imaging.size import scale_size
from posterior_trees.pictures.answer import Answer, answer, is_measured_here
from posterior_trees.pictures.reading import Picture, Reading, read
from posterior_trees.pictures.tiles import TILE, needs_tiles
from posterior_trees.predictor import Predictor

NOTE = (
    "This is not the hole that the model was trained for: its answers agree with what is visible, "
    "but they and their probabilities are outside its training"
)


class Limits(NamedTuple):
    """What an upload may be."""

    megabytes: float = 20.0
    megapixels: float = 40.0
    tiles: int = 64
    """How many tiles of 512×512 pixels an answer may have: each takes up to a second on a CPU, and
    all nodes are held at once."""


def ask(
    predictor: Predictor,
    content: bytes,
    name: str,
    reading: Reading | None = None,
    hole: bytes | None = None,
    limits: Limits | None = None,
) -> Answer:
    """The tree of the picture in these bytes; `hole` is a picture of the pixels to hide, where they
    are not the model's own."""
    limits, reading = limits or Limits(), reading or Reading()
    reading.check(predictor)
    size = check_pixels(content, name, limits)
    if reading.scale not in (None, 1):
        _check_area(scale_size(size, reading.scale, name), name, limits)
    picture = read(content, predictor, reading, name)
    refuse_doubtful(predictor, picture)
    is_clean, own = is_measured_here(predictor, picture), predictor.measurement
    zoom = 1 if is_clean else own.block
    _check_tiles([zoom * side for side in picture.pixels.shape[-2:]], name, limits)
    if hole is None:
        return answer(predictor, picture)
    check_pixels(hole, "the hole", limits)
    if own.hole is None:
        raise InputError("this model does not fill holes. Leave the hole out")
    hidden = read_hole(hole, own.size)
    if bool((hidden == own.hole.cpu()).all()):
        return answer(predictor, picture)
    made = answer(predictor.with_measurement(own.with_hole(hidden)), picture)
    truth = picture.pixels if is_clean else None  # what a user paints over is one, blank or not
    return made._replace(x=truth, remarks={**made.remarks, "note": NOTE})


def preview(content: bytes, name: str, done: Adjustment, limits: Limits) -> dict:
    """A picture that browsers do not show, TIFF say, as a small one that they do, and its size."""
    check_pixels(content, name, limits)
    stored = decode_picture(content, name, 3)
    (pixels,) = done.apply(stored, name)
    return {"size": list(stored.shape[-2:]), "src": to_png(pixels, name, 2 * SIDE)}


def check_pixels(content: bytes, name: str, limits: Limits) -> tuple[int, int]:
    """Height and width by what a file says of itself, before any pixel is decoded; too many are
    refused. (Not by its header: to find the orientation, Pillow may decode the whole file.)"""
    try:
        height, width = picture_size(content, name)
    except DataError:
        return 0, 0  # decoding will say what is wrong
    _check_area((height, width), name, limits)
    return height, width


def _check_area(size: tuple[int, int], name: str, limits: Limits) -> None:
    height, width = size
    if width * height > limits.megapixels * 1e6:
        raise DataError(
            f"{name} has {width}×{height} = {width * height / 1e6:.3g} megapixels, the limit is "
            f"{limits.megapixels:g}. Make it smaller first"
        )


def _check_tiles(size: list[int], name: str, limits: Limits) -> None:
    """Refuse an answer that would take the page too long and too much memory."""
    tiles = math.prod(size) / TILE**2
    if tiles > limits.tiles:
        raise InputError(
            f"the answer to {name} has {size[0]}×{size[1]} pixels, {math.ceil(tiles)} tiles of "
            f"{TILE}×{TILE}; the page takes {limits.tiles}. `ptrees predict MODEL PICTURE --out "
            "DIR` takes any number"
        )


def refuse_doubtful(predictor: Predictor, picture: Picture) -> None:
    """What takes many tiles and is likely none of the model's pictures is not begun."""
    is_tiled = needs_tiles(predictor, picture.pixels.shape[-2:], None)
    if is_tiled and (doubt := picture.doubts(predictor)):
        raise InputError(f"{picture.name}: {doubt}")


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
