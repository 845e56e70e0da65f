r"""Black and white of a whole batch: `--levels auto`.

$$ lo = q_{0.001}, \quad hi = q_{0.999} \quad \text{of all pixels of all fields together.} $$

Choice: never of a field or a tile. A treatment that dims every cell of a well would then be gone.
Values of 8 and 16 bits are counted exactly, others as if they had twelve binary digits.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from posterior_trees.engine import Engine
from posterior_trees.errors import InputError, words_for
from posterior_trees.imaging.adjust import TAIL
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.source import Plane, open_source

STRIP = 1024
"""Rows that are read at once."""
DROPPED = np.uint32(0xFFFFF800)
"""The bits of a float32 that are kept: sign, exponent and twelve digits."""


class Tally(NamedTuple):
    """Which values there are, and how often."""

    values: np.ndarray
    counts: np.ndarray

    @classmethod
    def sum_of(cls, tallies: "Sequence[Tally]") -> "Tally":
        values, places = np.unique(np.concatenate([t.values for t in tallies]), return_inverse=True)
        return cls(values, np.bincount(places, np.concatenate([t.counts for t in tallies])))

    def quantile(self, share: float) -> float:
        total = self.counts.cumsum()
        return float(self.values[np.searchsorted(total, share * total[-1])])


def tally_field(plane: Plane, field: Field) -> Tally:
    """By any process."""
    with open_source(field.path, **plane._asdict()) as source:
        strips = (slice(at, at + STRIP) for at in range(0, source.shape[0], STRIP))
        return Tally.sum_of([_tally(source.read_stored(rows, slice(None))) for rows in strips])


def _tally(stored: np.ndarray) -> Tally:
    if stored.dtype == np.float32:
        finite = np.ascontiguousarray(stored[np.isfinite(stored)])
        stored = (finite.view(np.uint32) & DROPPED).view(np.float32)
    return Tally(*np.unique(stored, return_counts=True))


def choose_levels(engine: Engine, fields: Sequence[Field], plane: Plane) -> tuple[float, float]:
    """Levels of all fields; those that cannot be read do not count, and are named later."""
    tallies = []
    for outcome in engine.run(partial(tally_field, plane), fields):
        if outcome.error is None:
            tallies.append(outcome.value)
        elif not words_for(outcome.error):
            raise outcome.error
    if not tallies:
        raise InputError("--levels auto: none of the fields can be read")
    tally = Tally.sum_of(tallies)
    low, high = tally.quantile(TAIL), tally.quantile(1 - TAIL)
    if not low < high:
        raise InputError(f"--levels auto: nearly all pixels are {low:g}; give two numbers")
    return low, high
