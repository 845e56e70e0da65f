"""What a guarantee says of a tree, and on what it rests."""

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.boxes import Box
from posterior_trees.guarantee.conformal import Groups, beta_range, check_level, quantile


class Terms(NamedTuple):
    """What a promise rests on: `n` images in `groups` groups (None: each on its own), and between
    which shares the coverage of such a calibration lies, 9 times of 10."""

    level: float
    n: int
    groups: int | None
    range: tuple[float, float]

    @classmethod
    def at(cls, level: float, n: int, groups: int | None) -> "Terms":
        check_level(level)
        return cls(level, n, groups, beta_range(groups or n, level))

    def __str__(self) -> str:
        low, high = (round(100 * share) for share in self.range)
        of = f"{self.n:,}" + (f" in {self.groups} groups" if self.groups else "")
        return (
            f"{100 * self.level:g} of 100 times ({low}–{high}), for images like the {of} it was "
            "calibrated on"
        )


class Cut(NamedTuple):
    """Nodes that hold the truth's path, and their probabilities by the tree; then its `Terms`."""

    paths: tuple[tuple[int, ...], ...]
    masses: tuple[float, ...]
    level: float
    n: int
    groups: int | None
    range: tuple[float, float]


class Ball(NamedTuple):
    """The truth lies within `radius` (RMSE over the open pixels), one for each image, of some of
    the `nodes`; then its `Terms`."""

    nodes: tuple[tuple[int, ...], ...]
    radius: Float[Tensor, "b"]
    level: float
    n: int
    groups: int | None
    range: tuple[float, float]


class Interval(NamedTuple):
    """From `low` to `high`, for each image; `of` is the measure, or the box that was taken; then
    its `Terms`."""

    low: Float[Tensor, "b"]
    high: Float[Tensor, "b"]
    of: str | Box
    level: float
    n: int
    groups: int | None
    range: tuple[float, float]


class Scores(NamedTuple):
    """The scores of one promise, sorted, and the group of each."""

    values: Float[Tensor, "n"]
    groups: Groups

    @classmethod
    def of(cls, values: Float[Tensor, "n"], groups: Groups) -> "Scores":
        order = values.argsort(stable=True)
        return cls(values[order].float(), None if groups is None else groups[order].int())

    def quantile(self, level: float) -> float:
        groups = None if self.groups is None else self.groups.long()
        return quantile(self.values, level, groups)


class Withdrawn(NamedTuple):
    """In place of a guarantee where there was one, with the reason why it does not hold."""

    reason: str

    def cut(self, *_: Any) -> Any:
        raise GuaranteeError(self.reason)

    ball = interval = cut

    def for_page(self, *_: Any) -> dict[str, str]:
        return {"withdrawn": self.reason}
