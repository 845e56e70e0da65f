"""What a guarantee says of a tree, and on what it rests."""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.boxes import Box
from posterior_trees.guarantee.conformal import (
    ROUNDING,
    Groups,
    beta_range,
    check_level,
    finest_level,
    quantile,
)

UNITS = {"well": "wells", "file": "files"}
"""What the groups of a kind are called."""


@dataclass(frozen=True)
class Terms:
    """What a promise rests on: `n` images in `groups` groups (None: each on its own)."""

    level: float
    n: int
    groups: int | None
    kind: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_level(self.level)

    @property
    def units(self) -> str:
        return UNITS.get(self.kind, "groups")

    @property
    def range(self) -> tuple[float, float]:
        """Between which shares the coverage of such a calibration lies, 9 times of 10; of groups as
        if the images of one were always right or wrong together."""
        return beta_range(self.groups or self.n, self.level)

    @property
    def too_fine(self) -> str:
        """Why so few cannot promise this level; empty if they can."""
        count, things = (self.groups, self.units) if self.groups else (self.n, "images")
        if self.level <= finest_level(count) + ROUNDING:
            return ""
        return (
            f"{100 * self.level:g} % is finer than {count} {things} allow: they promise up to "
            f"{100 * finest_level(count):.3g} %, and {100 * self.level:g} % needs "
            f"{math.ceil(1 / (1 - self.level) - 1 - ROUNDING)} {things}"
        )

    def __str__(self) -> str:
        low, high = (round(100 * share) for share in self.range)
        of = f"{self.n:,}" + (f" in {self.groups} {self.units}" if self.groups else "")
        return (
            f"{100 * self.level:g} of 100 times ({low}–{high}), for images like the {of} it was "
            "calibrated on"
        )


@dataclass(frozen=True)
class Cut(Terms):
    """Nodes that hold the truth's path, and their probabilities by the tree."""

    paths: tuple[tuple[int, ...], ...]
    masses: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Ball(Terms):
    """The truth lies within `radius` (RMSE over the open pixels), one for each image, of some of
    the `nodes`."""

    nodes: tuple[tuple[int, ...], ...]
    radius: Float[Tensor, "b"]


@dataclass(frozen=True, eq=False)
class Interval(Terms):
    """From `low` to `high`, for each image; `of` is the measure, or the box that was taken."""

    low: Float[Tensor, "b"]
    high: Float[Tensor, "b"]
    of: str | Box


class Scores(NamedTuple):
    """The scores of one promise, sorted, and the group of each."""

    values: Float[Tensor, "n"]
    groups: Groups

    @classmethod
    def of(cls, values: Float[Tensor, "n"], groups: Groups) -> "Scores":
        order = values.argsort(stable=True)
        return cls(values[order].float(), None if groups is None else groups[order].int())

    def check(self, name: str, n: int, groups: int | None) -> None:
        """Refuse scores that are not as many as is said of them: a promise rests on these."""
        count = None if self.groups is None else len(self.groups.unique())
        is_sorted = self.values.shape == (n,) and bool((self.values[1:] >= self.values[:-1]).all())
        is_alike = self.groups is None or self.groups.shape == self.values.shape
        if n < 1 or not (is_sorted and is_alike) or count != groups or self.values.isnan().any():
            raise GuaranteeError(
                f"the guarantee is damaged: it says that {n} images in {groups} groups were scored "
                f"by {name}, and holds {tuple(self.values.shape)} scores in {count}, or they are "
                "not in order; calibrate again"
            )

    def quantile(self, level: float) -> float:
        return quantile(self.values, level, self.groups)


class Withdrawn(NamedTuple):
    """In place of a guarantee where there was one, with the reason why it does not hold."""

    reason: str

    def cut(self, *_: Any) -> Any:
        raise GuaranteeError(self.reason)

    ball = interval = cut

    def for_page(self, *_: Any) -> dict[str, str]:
        return {"withdrawn": self.reason}
