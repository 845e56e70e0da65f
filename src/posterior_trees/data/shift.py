r"""Two cameras, or two filters, rarely see the same spot: move y onto x by a known offset.

A constant offset between the images of a pair is no uncertainty, but flips and rotations make one
of it: a network that sees pairs in all orientations cannot know which way x lies from y, and its
leaves become copies of one answer, moved to either side. `ptrees evaluate` measures the offset
(`metrics.displacement`); `data.shift` undoes it.

The value at pixel $p$ becomes that at $p - d$, by Keys' cubic convolution (1981); beyond the border
the last pixel is repeated. Only y is moved: what a tree is compared with stays as it was recorded.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from posterior_trees.data.stream import Pair
from posterior_trees.imaging.decode import Pixels


def with_shift(read: Callable[[str], Pair], shift: Sequence[float]) -> Callable[[str], Pair]:
    """A reader of pairs whose y is moved by `shift`, rows down and columns to the right."""

    def moved(file: str) -> Pair:
        x, y = read(file)
        return x, None if y is None else move(y, shift)

    return moved


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
