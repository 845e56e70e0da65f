r"""From the numbers that a picture file stores to what the model sees, and whether that fits it.

A stored value $v$ (0 to 255, to 65535, or any number) becomes

$$ v \mapsto \operatorname{clip}\Bigl(\frac{v - lo}{hi - lo}, 0, 1\Bigr)^\gamma, $$

or 1 minus that; without levels $lo = 0$, and $hi$ is the largest number of 8 or 16 bits.
Floating-point and 32-bit files do not say which number is white: without levels they must be in
[0, 1].

Whether a picture fits the task is judged by the mean brightness of its measurement,

$$ \bar y = \text{mean over pixels of } y, \qquad
   q_{0.001} \le \bar y \le q_{0.999} \text{ of the training measurements,} $$

which tells white digits on black, what the model was trained on, from black ones on white. If it
does not fit, other adjustments are tried, and the first that brings it there is suggested.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.decode import Stored
from posterior_trees.predictor import Predictor

SLACK = 0.001
"""How far rounding may push a pixel, or a mean, out of its limits."""
TAIL = 0.001
"""The share of the pixels that are beyond a picture's own levels, at each end."""
DIM = 0.5
"""A 16-bit file whose values end below this share of its range has levels of its own."""
ROOT = 0.5
"""The gamma of a square root, which makes the noise of a camera the same at all brightnesses."""


class Adjustment(NamedTuple):
    """What is done to the stored values of a picture: levels first, then gamma, then exchanging
    black and white."""

    levels: tuple[float | int, float | int] | None = None
    gamma: float | int = 1.0
    is_inverted: bool = False

    @classmethod
    def of(
        cls, levels: Sequence[float | int] | None, gamma: float | int, invert: bool
    ) -> "Adjustment":
        """Checked: the errors name the value and the limit."""
        if not (gamma > 0 and math.isfinite(gamma)):
            raise InputError(f"gamma is {gamma:g}; it must be positive (0.5 is the square root)")
        if levels is None:
            return cls(None, gamma, invert)
        if len(levels) != 2 or not all(map(math.isfinite, levels)):
            listed = " ".join(f"{value:g}" for value in levels)
            raise InputError(f"the levels are {listed}; give two numbers, of black and of white")
        low, high = levels
        if not low < high:
            raise InputError(
                f"the levels are {low:g} and {high:g}; the first must be the lower one"
            )
        return cls((low, high), gamma, invert)

    def apply(self, stored: Stored, name: str = "the picture") -> Float[Tensor, "1 _ h w"]:
        """The picture as the model takes it, in [0, 1]."""
        if self.levels is not None:
            low, high = self.levels
            values = torch.from_numpy(stored.astype(np.float32))
            pixels = values.sub(low).div(high - low).clamp(0, 1)
        elif stored.dtype == np.float32:
            pixels = torch.from_numpy(_unit(stored, name))
        else:
            pixels = to_float(torch.from_numpy(stored.copy()))
        pixels = pixels.pow(self.gamma) if self.gamma != 1 else pixels
        return (1 - pixels if self.is_inverted else pixels).unsqueeze(0)


def _unit(stored: np.ndarray, name: str) -> np.ndarray:
    low, high = float(stored.min()), float(stored.max())
    if low < -SLACK or high > 1 + SLACK:
        raise DataError(
            f"{name} has floating-point or 32-bit pixels from {low:g} to {high:g}; without levels "
            "they must be in [0, 1]. Say which values are black and white, for instance "
            f"--levels {' '.join(_numbers(_own_levels(stored) or (low, low + 1)))}"
        )
    return stored.clip(0, 1)


def describe_misfit(
    stored: Stored, done: Adjustment, model: Predictor,
    see: Callable[[Float[Tensor, "1 _ h w"]], Tensor], is_imported: bool = False,
) -> str:  # fmt: skip
    """Why a picture may not be what the model was trained on, and what would help; empty if it fits
    or nobody knows. `see` gives the measurement of an adjusted picture. What was made of a digit
    or a drawing (`is_imported`) has the right black and white."""
    if not (usual := model.about.get("input_brightness")):
        return ""
    low, high = usual

    def brightness(adjustment: Adjustment) -> float:
        return see(adjustment.apply(stored)).mean().item()

    def fits(mean: float) -> bool:
        return low - SLACK <= mean <= high + SLACK

    if fits(mean := brightness(done)):
        return ""
    task = f"the task {model.name!r}" if model.name else "this model"
    why = (
        f"the picture may not fit {task}: as the model sees it, its mean "
        f"brightness is {mean:.3f}, in training it was {low:.3f} to {high:.3f}. "
    )
    if is_imported:
        return f"{why}Is it what the model knows, alone and upright?"
    for words, other in _remedies(stored, done):
        if fits(reached := brightness(other)):
            return f"{why}{words} would make it {reached:.3f}"
    tried = "Neither its own range of values nor exchanging black and white brings it there"
    return f"{why}{tried}: its tree may mean nothing"


def _remedies(stored: Stored, done: Adjustment) -> Iterator[tuple[str, Adjustment]]:
    """Other adjustments, the likeliest first: who gave levels knows which end is black."""
    words = ("Exchanging black and white (--invert)", "Black and white as they are (no --invert)")
    inverted = words[done.is_inverted], done._replace(is_inverted=not done.is_inverted)
    is_dim = stored.dtype == np.uint16 and stored.max() < DIM * 65535  # of 12 bits, say
    if done.levels is None and not is_dim:
        yield inverted
    own, other = _own_levels(stored), ROOT if done.gamma == 1 else 1.0
    if own is not None and own != done.levels:
        text = f"Its own range of values (--levels {' '.join(_numbers(own))})"
        yield text, done._replace(levels=own)
        text = f"{text[:-1]} --gamma {other:g})"
        yield text, done._replace(levels=own, gamma=other)
    if done.levels is not None:
        yield f"Another gamma (--gamma {other:g})", done._replace(gamma=other)
    if done.levels is not None or is_dim:
        yield inverted


def _own_levels(stored: np.ndarray) -> tuple[float, float] | None:
    """The range of a picture's values but for a few pixels, as it is printed; None if it is
    flat."""
    low, high = (float(text) for text in _numbers(np.quantile(stored, [TAIL, 1 - TAIL]).tolist()))
    return (low, high) if low < high else None


def _numbers(values: Sequence[float]) -> list[str]:
    return [f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}" for value in values]


def to_float(stored: Tensor) -> Float[Tensor, "..."]:
    """Integers → float32 in [0, 1]; 16-bit ones come signed or unsigned."""
    if stored.dtype == torch.uint8:
        return stored.to(torch.float32).div_(255)
    bits = signed(stored).to(torch.int32).bitwise_and_(0xFFFF)
    return bits.to(torch.float32).div_(65535)


def signed(stored: Tensor) -> Tensor:
    """The same bits under a type that every device can index: torch's uint16 can do little."""
    return stored.view(torch.int16) if stored.dtype == torch.uint16 else stored


def unsigned(stored: Tensor) -> Tensor:
    """16 bits as torch's uint16 again."""
    return stored.view(torch.uint16) if stored.dtype == torch.int16 else stored
