r"""From the bytes of somebody's picture to the tree of it, without trusting them.

The bytes are limited before they are read (`server`), the number of pixels before they are decoded,
and the picture's format is what decoding says it is, whatever its name. A large picture is shrunk
to `Limits.side`, because a tree of $K^d$ such pictures has to travel to the page.

A picture is either clean, then the model's own measurement degrades it here and it is kept as the
truth, or it is a measurement already. An inpainting model also takes another hole than its own
(`hole`). Which of its stored values are black and white is said as on the command line (`adjust`),
or that it is a photograph of a digit (`digit`), or how much larger or smaller to make it (`size`).
"""

from io import BytesIO
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.errors import DataError
from posterior_trees.imaging.adjust import Adjustment, describe_misfit, refuse_with_digit
from posterior_trees.imaging.decode import FORMATS, UNREADABLE, Stored, decode_raw, read_header
from posterior_trees.imaging.size import (
    caption_digit,
    caption_resize,
    check_scale,
    scale_size,
)
from posterior_trees.measure import Measurement
from posterior_trees.pictures.digits.doubt import describe_doubt
from posterior_trees.pictures.digits.find import check_takes_digits, find_digit
from posterior_trees.pictures.nuclei.magnification import describe_magnification
from posterior_trees.serve.hole import NOTE, read_hole
from posterior_trees.tree import Tree


@runtime_checkable
class Predictor(Protocol):
    """What the explorer asks of a model; a `TreePredictor` is one."""

    measurement: Measurement
    channels: int
    branching: tuple[int, ...]
    name: str
    about: dict

    @property
    def device(self) -> torch.device: ...

    def __call__(self, y: Tensor) -> Tree: ...

    def with_measurement(self, measurement: Measurement) -> "Predictor": ...

    def measure(self, x: Tensor, generator: torch.Generator | None) -> Tensor: ...


class Limits(NamedTuple):
    """What an upload may be."""

    megabytes: float = 20.0
    megapixels: float = 40.0
    side: int = 512
    """The longer side in pixels of what the network gets; larger pictures are shrunk to it."""


class Answer(NamedTuple):
    """The tree of one picture, what was measured of it, what is wrong with it, and what was done
    to bring it to the model's size."""

    tree: Tree
    y: Float[Tensor, "1 _ _ _"]
    x: Float[Tensor, "1 _ _ _"] | None
    note: str = ""
    resized: str = ""


def answer(
    predictor: Predictor,
    content: bytes,
    name: str,
    *,
    degrade: bool = True,
    adjustment: Adjustment | None = None,
    digit: bool = False,
    scale: float | int = 1.0,
    hole: bytes | None = None,
    limits: Limits | None = None,
) -> Answer:
    """The tree of the picture in these bytes; `degrade` measures it first and keeps it as truth.
    `digit` finds the handwritten digit in it, `scale` makes it larger or smaller, and `hole` is a
    picture of the pixels to hide, where they are not the model's own."""
    adjustment, limits = adjustment or Adjustment(), limits or Limits()
    if digit:
        refuse_with_digit(adjustment, is_measured=not degrade, scale=scale)
    stored = read_bytes(predictor, content, name, limits, digit, scale)
    pixels = adjustment.apply(stored, name)
    if hole is None:
        made = predict_pixels(predictor, pixels, degrade=degrade)
    else:
        _check_pixels(hole, "the hole", limits)
        made = predict_with_hole(predictor, pixels, hole, degrade=degrade)
    if not made.note and digit:
        made = made._replace(note=describe_doubt(stored, predictor.measurement))
    if not made.note:
        note = describe_misfit(stored, adjustment, predictor,
                               lambda other: measure(predictor, other, degrade),
                               is_digit=digit)  # fmt: skip
        made = made._replace(note=note)
    have = read_header(BytesIO(content), name)[:2]
    if digit:
        return made._replace(resized=caption_digit(have))
    resized = caption_resize(have, pixels.shape[-2:])
    if scale_size(have, scale, name) == pixels.shape[-2:]:
        notes = made.note, describe_magnification(made.tree, predictor, scale)
        made = made._replace(note=". ".join(filter(None, notes)))
    elif has_scale(predictor):
        resized += f", {RESCALED}"
    return made._replace(resized=resized)


@torch.inference_mode()
def predict_pixels(
    predictor: Predictor, pixels: Float[Tensor, "1 _ _ _"], *, degrade: bool = True
) -> Answer:
    """The tree of a picture that is clean (`degrade`) or a measurement already."""
    if degrade and not predictor.measurement.is_computable:
        raise DataError(
            "this model was trained on pairs and cannot degrade a picture: give it the "
            "measurement itself, and leave `degrade` out"
        )
    made = _predict(predictor, pixels, degrade)
    return made if predictor.measurement.shows_hidden(pixels) else made._replace(x=None)


def _predict(predictor: Predictor, pixels: Float[Tensor, "1 _ _ _"], degrade: bool) -> Answer:
    y = measure(predictor, pixels, degrade)
    tree = predictor(y).to("cpu")
    is_truth = degrade and pixels.shape[1:] == tree.shape
    return Answer(tree, y.cpu(), pixels.cpu() if is_truth else None)


def measure(
    predictor: Predictor, pixels: Float[Tensor, "1 _ _ _"], degrade: bool
) -> Float[Tensor, "1 _ _ _"]:
    """What the model sees of a picture: the same of the same picture, noise or not."""
    pixels = pixels.to(predictor.device)
    noise = torch.Generator().manual_seed(0)
    return predictor.measure(pixels, noise) if degrade else predictor.measurement.observe(pixels)


@torch.inference_mode()
def predict_with_hole(
    predictor: Predictor, pixels: Float[Tensor, "1 _ _ _"], hole: bytes, *, degrade: bool = True
) -> Answer:
    """The tree of a picture through another hole than the model's, with a note that says so. What
    is under a hole that a user paints is the truth, blank or not."""
    own = predictor.measurement
    if own.hole is None:
        raise DataError("this model does not fill holes. Leave the hole out")
    hidden = read_hole(hole, own.size)
    if bool((hidden == own.hole.cpu()).all()):
        return predict_pixels(predictor, pixels, degrade=degrade)
    other = predictor.with_measurement(own.with_hole(hidden))
    return _predict(other, pixels, degrade)._replace(note=NOTE)


def read_bytes(
    predictor: Predictor,
    content: bytes,
    name: str,
    limits: Limits,
    digit: bool = False,
    scale: float | int = 1.0,
) -> Stored:
    """The values `(c, h, w)` of a picture, brought to the model's channels and its mask's size; or
    the digit in it."""
    check_scale(scale, predictor.measurement)
    if digit:
        check_takes_digits(predictor.measurement, predictor.channels, predictor.name)
    channels = predictor.measurement.picture_channels(predictor.channels)[0]
    if channels not in (1, 3):
        raise DataError(f"this model takes {channels or 'any'} channels, a picture has 1 or 3")
    if not content:
        raise DataError(f"{name} is empty. Choose a picture file")
    _check_pixels(content, name, limits)
    if digit:
        return find_digit(decode_raw(BytesIO(content), name, 1), name)
    size = fitted_size(predictor, content, name, limits, scale)
    return decode_raw(BytesIO(content), name, channels, size, is_cut=scale == 1)


def fitted_size(
    predictor: Predictor, content: bytes, name: str, limits: Limits, scale: float | int = 1.0
) -> tuple[int, ...]:
    """Height and width a picture is brought to: the mask's, or else its own, scaled, at most
    `limits.side`, and what blocks divide evenly."""
    measurement = predictor.measurement
    if size := measurement.size:
        return size
    size = scale_size(read_header(BytesIO(content), name)[:2], scale, name)
    zoom = min(1.0, limits.side / max(size))
    block = measurement.block
    return tuple(max(block, round(side * zoom) // block * block) for side in size)


RESCALED = "no longer at the scale that the model was trained at"


def has_scale(predictor: Predictor) -> bool:
    """Whether shrinking a picture changes what it means: a model of pairs knows its things at one
    magnification, and has no mask that says how large a picture should be."""
    return not predictor.measurement.is_computable


def _check_pixels(content: bytes, name: str, limits: Limits) -> None:
    """Refuse too many pixels by what the file says of itself, before any of them is decoded. (Not
    by `read_header`: to find the orientation, Pillow may decode the whole file.)"""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, *UNREADABLE):
        return  # decoding will say what is wrong
    if width * height > limits.megapixels * 1e6:
        raise DataError(
            f"{name} has {width}×{height} = {width * height / 1e6:.3g} megapixels, the limit is "
            f"{limits.megapixels:g}. Make it smaller first"
        )
