"""Measures by name: numbers of one image that a promise can be made about.

`ink` is the mean brightness, `share=0.5` the share of pixels above 0.5, `box=8,8,6,6` the mean of a
box (top, left, height, width), `nuclei` the number of bright regions (`nuclei=0.3`: above that
threshold instead of Otsu's), and `MODULE:FUNCTION` a function of your own that takes one image
`(c, h, w)` in about [0, 1]; its attribute `limits = (low, high)`, if it has one, says what the
number can be.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import MeasureError
from posterior_trees.guarantee.numbers import Measure

NUCLEI = "posterior_trees.pictures.nuclei.count:count_in"
"""In a room that may import this one: it is named like a user's own."""


def ink(image: Float[Tensor, "*shape"]) -> float:
    return image.double().mean().item()


def share(image: Float[Tensor, "*shape"], above: float) -> float:
    return (image > above).double().mean().item()


def box_mean(image: Float[Tensor, "c h w"], top: int, left: int, height: int, width: int) -> float:
    part = image[..., top : top + height, left : left + width]
    if part.shape[-2:] != (height, width):
        raise MeasureError(
            f"the box {top},{left},{height},{width} leaves the image, {image.shape[-2]}×"
            f"{image.shape[-1]}"
        )
    return part.double().mean().item()


def find_measure(name: str) -> Measure:
    """The function that a name stands for."""
    kind, _, value = name.partition("=")
    try:
        if name == "ink":
            return _Named(name, ink, (0.0, 1.0))
        if kind == "share":
            return _Named(name, partial(share, above=float(value)), (0.0, 1.0))
        if kind == "box":
            top, left, height, width = (int(number) for number in value.split(","))
            places = {"top": top, "left": left, "height": height, "width": width}
            return _Named(name, partial(box_mean, **places), (0.0, 1.0))
        if kind == "nuclei":
            count = import_function(NUCLEI)
            threshold = {"threshold": float(value)} if value else {}
            return _Named(name, partial(count, **threshold), (0.0, None))
    except ValueError as error:
        raise MeasureError(f"the measure {name!r} cannot be read ({error}): {__doc__}") from error
    if ":" in name:
        return import_function(name)
    raise MeasureError(
        f"there is no measure {name!r}; it is ink, share=LEVEL, box=TOP,LEFT,HEIGHT,WIDTH, nuclei, "
        "or MODULE:FUNCTION of your own"
    )


def import_function(name: str) -> Callable:
    """A function by `MODULE:FUNCTION`; the module may lie in the folder one is in."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise MeasureError(
            f"the measure {name!r} is not found ({error}): give MODULE:FUNCTION, the module being "
            "installed or in this folder"
        ) from error


def source_of(measure: Measure) -> str | None:
    """The name by which `find_measure` finds a function again, if it can."""
    if isinstance(measure, _Named):
        return measure.name
    module, name = getattr(measure, "__module__", None), getattr(measure, "__qualname__", "")
    return None if module in (None, "__main__") or not name.isidentifier() else f"{module}:{name}"


class _Named(NamedTuple):
    name: str
    function: Measure
    limits: tuple[float | None, float | None]

    def __call__(self, image: Tensor) -> float:
        return float(self.function(image))
