r"""What becomes of a file's values before training: `data.scale`, `data.levels`, `data.gamma`, and,
of the y of pairs, `data.shift`.

The first three do what `ptrees predict` does by the options of these names, so that a model is
given what it was trained on: means of blocks of pixels, then black and white, then a power
(`imaging/adjust.py`).

Two cameras, or two filters, rarely see the same spot. A constant offset between the images of a
pair is no uncertainty, but flips and rotations make one of it: a network that sees pairs in all
orientations cannot know which way x lies from y, and its leaves become copies of one answer, moved
to either side. `ptrees evaluate` measures the offset (`metrics.displacement`); `data.shift` undoes
it. The value at pixel $p$ becomes that at $p - d$, by Keys' cubic convolution (1981); beyond the
border the last pixel is repeated. Only y is moved: what a tree is compared with stays as it was
recorded.
"""

import math
import shlex
from collections.abc import Callable, Sequence

import numpy as np

from posterior_trees.data.stream import Pair, RawPair
from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.decode import Pixels
from posterior_trees.imaging.size import block_means, block_of
from posterior_trees.recipe.sections import DataSpec

LARGE = 2**20
"""Pixels along a side that no block is larger than."""


def is_adjusted(spec: DataSpec) -> bool:
    return bool(spec.levels) or spec.gamma != 1


def block_side(spec: DataSpec) -> int:
    """The side of the blocks of pixels that become one."""
    return block_of((LARGE, LARGE), spec.scale) or 1


def check_values(spec: DataSpec) -> None:
    """Errors that can be seen without looking at any image."""
    asked = {"scale": spec.scale != 1, "levels": bool(spec.levels), "gamma": spec.gamma != 1}
    for key in (key for key, is_asked in asked.items() if is_asked):
        if spec.kind not in ("images", "pairs"):
            raise DataError(f"data.{key} is for images and pairs, not for {spec.kind!r}: remove it")
    if spec.scale != 1 and (spec.size or block_side(spec) == 1):
        raise DataError(
            f"data.scale is {spec.scale:g}; it is 1, 1/2 (0.5), 1/3 (0.3333) …, and excludes "
            "data.size, which brings images to one size"
        )
    if len(spec.levels) not in ((0, 2, 4) if spec.kind == "pairs" else (0, 2)):
        raise DataError(
            f"data.levels is {list(spec.levels)}; write [black, white], or of pairs four numbers: "
            "those of y, then those of x"
        )
    try:
        adjustments(spec)
    except InputError as error:
        raise DataError(f"data.levels: {error}") from error


def adjustments(spec: DataSpec) -> tuple[Adjustment, Adjustment]:
    """What is done to y and to x."""
    levels = (spec.levels[:2], spec.levels[-2:]) if spec.levels else (None, None)
    of_y, of_x = (Adjustment.of(pair, spec.gamma, False) for pair in levels)
    return of_y, of_x


def options_of(spec: DataSpec) -> str:
    """The options by which `ptrees predict` does the same; empty if none is needed."""
    channel = [] if isinstance(spec.inputs, str) else ["--channel", spec.inputs.channel]
    scale = [] if spec.scale == 1 else ["--scale", f"{spec.scale:g}"]
    levels = ["--levels", *(f"{value:g}" for value in spec.levels[:2])] if spec.levels else []
    gamma = [] if spec.gamma == 1 else ["--gamma", f"{spec.gamma:g}"]
    return shlex.join(map(str, channel + scale + levels + gamma))


def with_values(read: Callable[[str], RawPair], spec: DataSpec) -> Callable[[str], Pair]:
    """A reader that gives what the network is to see, in 16 bits where values were adjusted, and y
    moved by `data.shift`, rows down and columns to the right."""
    of_y, of_x = adjustments(spec)
    block = block_side(spec)

    def take(stored: np.ndarray, adjustment: Adjustment, name: str) -> np.ndarray:
        stored = block_means(stored, block) if block > 1 else stored
        if is_adjusted(spec):
            pixels = adjustment.apply(stored, name)[0].numpy()
            return (pixels * 65535).round().astype(np.uint16)
        if stored.dtype == np.float32:
            raise DataError(f"{name} has floating-point or 32-bit pixels, and does not say which "
                            "is white: set data.levels")  # fmt: skip
        return stored

    def taken(name: str) -> Pair:
        x, y = read(name)
        x, y = take(x, of_x, name), None if y is None else take(y, of_y, name)
        return x, y if y is None or not any(spec.shift) else move(y, spec.shift)

    return taken


def move(pixels: Pixels, shift: Sequence[float]) -> Pixels:
    """An 8- or 16-bit image, moved by a number of pixels along its last two axes."""
    values = pixels.astype(np.float64)
    for axis, distance in zip((-2, -1), shift, strict=True):
        before, values = values, np.zeros_like(values)
        whole, length = math.floor(distance), values.shape[axis]
        for tap in (-1, 0, 1, 2):  # four pixels around the place that pixel p is read at
            places = (np.arange(length) - whole - tap).clip(0, length - 1)
            values += _keys(tap - (distance - whole)) * before.take(places, axis=axis)
    highest = np.iinfo(pixels.dtype).max
    return values.round().clip(0, highest).astype(pixels.dtype)


def _keys(t: float) -> float:
    """The kernel of cubic convolution: 1 at 0, 0 at every other whole number."""
    t = abs(t)
    if t < 1:
        return 1.5 * t**3 - 2.5 * t**2 + 1
    return -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2 if t < 2 else 0.0
