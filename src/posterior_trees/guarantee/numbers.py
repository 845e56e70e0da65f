r"""Intervals for a number $f(x)$ that was named before looking.

With the leaves' values $f_l$ and probabilities $\alpha_l$ a tree gives a range $[a, b]$: either
from the 5 % to the 95 % quantile of its $f_l$ (where leaves know how unsure they are), or
$m = \sum_l \alpha_l f_l$ and what it was off by on other images, $[m - r_1, m + r_2]$ (where they
do not). Which of them is narrower is tried on two halves of the images that fit the scales. Then

$$ S = \max(a - f(x),\ f(x) - b), \qquad f(x) \in [a - q,\ b + q] $$

with the level's probability (Romano, Patterson & Candès, 2019). If $q < 0$ shrinks a range past its
middle, the middle is left.

Choice: the range within is that of 90 % whatever the level, so that one score per image serves all
levels and a higher level never gives a narrower interval. $m$ is never $f$ of the root: a function
of a blur is not the mean of the function.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import MeasureError
from posterior_trees.guarantee.conformal import Groups, quantile
from posterior_trees.tree import Tree

WITHIN = 0.9
ENDS = -math.inf, math.inf

Measure = Callable[[Tensor], float]
"""A number of one image `(c, h, w)`; an attribute `limits = (low, high)` says what it can be."""

Limits = Sequence[float | None]
Values = Float[Tensor, "n leaves"]


class Form(NamedTuple):
    """How a range is read off a tree: from the quantiles of the leaves, or below and above their
    mean."""

    uses_leaves: bool
    below: float = 0.0
    above: float = 0.0

    def range(self, values: Values, probs: Values) -> tuple[Tensor, Tensor]:
        if self.uses_leaves:
            tail = (1 - WITHIN) / 2
            return leaf_quantile(values, probs, tail), leaf_quantile(values, probs, 1 - tail)
        mean = (probs * values).sum(dim=1)
        return mean - self.below, mean + self.above

    def score(self, values: Values, probs: Values, truth: Float[Tensor, "n"]) -> Tensor:
        low, high = self.range(values, probs)
        return torch.maximum(low - truth, truth - high)

    def interval(
        self, values: Values, probs: Values, q: float, limits: Limits = (None, None)
    ) -> tuple[Tensor, Tensor]:
        """The interval of every image, within the limits of the measure."""
        low, high = self.range(values, probs)
        middle = (low + high) / 2
        least, most = (
            end if limit is None else limit for limit, end in zip(limits, ENDS, strict=True)
        )
        low, high = torch.minimum(low - q, middle), torch.maximum(high + q, middle)
        return low.clamp(least, most), high.clamp(least, most)


def limits_of(measure: Measure) -> list[float | None]:
    """What a measure says that it can be."""
    limits = getattr(measure, "limits", (None, None))
    return [None if limit is None else float(limit) for limit in limits]


def leaf_quantile(values: Values, probs: Values, share: float) -> Float[Tensor, "n"]:
    """The smallest value at or below which the leaves have this share of probability."""
    order = values.argsort(dim=1)
    below = probs.gather(1, order).cumsum(dim=1) < share - 1e-9
    last = below.sum(dim=1, keepdim=True).clamp(max=values.shape[1] - 1)
    return values.gather(1, order).gather(1, last)[:, 0]


def choose_form(values: Values, probs: Values, truth: Float[Tensor, "n"], groups: Groups) -> Form:
    """The form whose intervals are narrower, each half of these images judged by the other."""
    off = truth - (probs * values).sum(dim=1)
    tail = torch.tensor([(1 - WITHIN) / 2, (1 + WITHIN) / 2], dtype=off.dtype)
    low, high = off.quantile(tail).tolist()
    forms = Form(True), Form(False, -low, high)
    place = torch.arange(len(truth)) if groups is None else groups.unique(return_inverse=True)[1]
    halves = place % 2 == 0, place % 2 == 1
    widths = [sum(_width(form, values, probs, truth, half) for half in halves) for form in forms]
    return forms[0] if widths[0] <= widths[1] else forms[1]


def _width(form: Form, values: Values, probs: Values, truth: Tensor, half: Tensor) -> float:
    """Mean width on the other half of the intervals that this half calibrates."""
    if not half.any() or half.all():
        return 0.0
    scores = form.score(values[half], probs[half], truth[half])
    q = quantile(scores, min(WITHIN, 1 - 1 / (len(scores) + 1)))
    low, high = form.interval(values[~half], probs[~half], q)
    return (high - low).mean().item()


def measure_leaves(
    tree: Tree, measure: Measure, name: str, names: Sequence[str] | None = None
) -> Values:
    """The measure of every leaf; an absent one repeats its parent, and weighs nothing."""
    count = tree.leaves.shape[1]
    of = [f"an answer to {one}" for one in names or ["a tree"] * len(tree) for _ in range(count)]
    return measure_each(tree.leaves.flatten(0, 1), measure, name, of).reshape(-1, count)


def measure_each(
    images: Float[Tensor, "n *shape"], measure: Measure, name: str, of: Sequence[str]
) -> Float[Tensor, "n"]:
    """The measure of every image, or which of them it fails on."""
    values = []
    for i, image in enumerate(images.detach().cpu()):
        try:
            value = float(measure(image))
        except Exception as error:
            raise MeasureError(
                f"the measure {name!r} fails of {of[i]}: {type(error).__name__}: {error}. It takes "
                f"one image {tuple(image.shape)} and must give a number for each"
            ) from error
        if not math.isfinite(value):
            raise MeasureError(
                f"the measure {name!r} gave {value} for {of[i]}; it must give finite numbers for "
                "all images: let it say what it is where there is nothing to measure"
            )
        values.append(value)
    return torch.tensor(values, dtype=torch.float64)
