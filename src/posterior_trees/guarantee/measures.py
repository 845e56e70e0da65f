"""Measures by name: numbers of one image that a promise can be made about.

`ink` is the mean brightness, `share=0.5` the share of pixels above 0.5, `box=8,8,6,6` the mean of a
box (top, left, height, width), `nuclei` the number of bright regions (`nuclei=0.3`: above that
threshold instead of Otsu's), and `MODULE:FUNCTION` a function of your own that takes one image
`(c, h, w)` in about [0, 1]; its attribute `limits = (low, high)`, if it has one, says what the
number can be.
"""

from functools import partial
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import MeasureError
from posterior_trees.functions import find_function
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


def nuclei(image: Float[Tensor, "1 h w"], **threshold: float) -> int:
    return find_function("the measure", NUCLEI)(image, **threshold)


def find_measure(name: str) -> Measure:
    """The function that a name stands for."""
    return find_function("the measure", name) if ":" in name else find_known(name)


def find_known(name: str) -> Measure:
    """A measure of this package; a file may name one, and no other code is run because it does."""
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
            threshold = {"threshold": float(value)} if value else {}
            return _Named(name, partial(nuclei, **threshold), (0.0, None))
    except ValueError as error:
        raise MeasureError(f"the measure {name!r} cannot be read ({error}): {__doc__}") from error
    raise MeasureError(
        f"there is no measure {name!r}; it is ink, share=LEVEL, box=TOP,LEFT,HEIGHT,WIDTH, nuclei, "
        "or MODULE:FUNCTION of your own"
    )


class _Named(NamedTuple):
    name: str
    function: Measure
    limits: tuple[float | None, float | None]

    def __call__(self, image: Tensor) -> float:
        return float(self.function(image))
