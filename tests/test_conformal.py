"""Promises as theorems: leave-one-out over exchangeable scores holds exactly, in every case."""

import math
from fractions import Fraction

import pytest
import scipy.stats
import torch

from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.conformal import (
    beta_range,
    finest_level,
    p_values,
    quantile,
    weights,
)

CASES = 400
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def draw(case: int) -> torch.Generator:
    return torch.Generator().manual_seed(case)


def draw_groups(generator: torch.Generator, most: int = 12) -> torch.Tensor:
    """Numbers of 2 to 25 groups of 1 to `most` images, in any order."""
    count = int(torch.randint(2, 26, (1,), generator=generator))
    sizes = torch.randint(1, most + 1, (count,), generator=generator)
    groups = torch.arange(count).repeat_interleave(sizes)
    return groups[torch.randperm(len(groups), generator=generator)]


@pytest.mark.parametrize("level", LEVELS)
def test_leaving_one_of_distinct_scores_out_covers_exactly_as_many_as_promised(level):
    for case in range(CASES):
        g = draw(case)
        n = int(torch.randint(1, 40, (1,), generator=g))
        scores = torch.randperm(1000, generator=g)[: n + 1].double()
        q = [quantile(torch.cat([scores[:j], scores[j + 1 :]]), level) for j in range(n + 1)]
        k = math.ceil(Fraction(str(level)) * (n + 1))
        assert sum(s <= t for s, t in zip(scores.tolist(), q, strict=True)) == min(k, n + 1)


@pytest.mark.parametrize("level", [0.8, 0.9])
@pytest.mark.parametrize("has_ties", [False, True])
def test_leaving_one_group_out_covers_as_much_as_promised(level, has_ties):
    for case in range(CASES):
        g = draw(case)
        groups = draw_groups(g)
        scores = torch.randint(6 if has_ties else 10**9, groups.shape, generator=g).double()
        covered = Fraction(0)
        for j in groups.unique().tolist():
            own, rest = scores[groups == j], groups != j
            q = quantile(scores[rest], level, groups[rest])
            covered += Fraction(int((own <= q).sum()), len(own))
        assert covered >= len(groups.unique()) * Fraction(str(level))


def test_groups_of_one_image_are_images_on_their_own():
    for case in range(50):
        scores = torch.rand(1 + case, generator=draw(case), dtype=torch.float64)
        for level in LEVELS:
            assert quantile(scores, level) == quantile(scores, level, torch.arange(len(scores)))


@pytest.mark.parametrize("has_ties", [False, True])
def test_few_p_values_are_small(has_ties):
    for case in range(CASES):
        g = draw(case)
        n = int(torch.randint(1, 40, (1,), generator=g))
        scores = torch.randint(5 if has_ties else 10**9, (n + 1,), generator=g).double()
        p = [
            p_values(torch.cat([scores[:j], scores[j + 1 :]]), scores[j : j + 1]).item()
            for j in range(n + 1)
        ]
        ranks = [round(value * (n + 1)) for value in p]  # p is a whole number of (n+1)ths
        assert all(abs(r - value * (n + 1)) < 1e-9 for r, value in zip(ranks, p, strict=True))
        for u in range(1, n + 2):
            assert sum(rank <= u for rank in ranks) <= u


def test_few_p_values_of_groups_are_small_and_none_is_below_one_group():
    for case in range(CASES):
        g = draw(case)
        groups = draw_groups(g)
        scores = torch.randint(30, groups.shape, generator=g).double()
        names = groups.unique().tolist()
        p = torch.zeros(len(scores), dtype=torch.float64)
        for j in names:
            rest = groups != j
            p[~rest] = p_values(scores[rest], scores[~rest], groups[rest])
        assert p.min() >= 1 / len(names) - 1e-12
        for u in (0.05, 0.1, 0.2, 0.5):
            share = sum(Fraction(int((p[groups == j] <= u).sum()), int((groups == j).sum()))
                        for j in names)  # fmt: skip
            assert share <= Fraction(str(u)) * len(names)


def test_the_order_of_images_and_the_numbers_of_groups_change_nothing():
    for case in range(50):
        g = draw(case)
        groups = draw_groups(g)
        scores = torch.rand(len(groups), generator=g, dtype=torch.float64)
        order = torch.randperm(len(groups), generator=g)
        for level in LEVELS:
            moved = quantile(scores[order], level, 7 - 3 * groups[order])
            assert moved == quantile(scores, level, groups)


def test_too_few_images_or_groups_promise_nothing_finite():
    scores = torch.arange(16.0)
    assert quantile(scores, 0.95) == math.inf
    assert quantile(scores, 0.9) == 15
    assert quantile(torch.arange(128.0), 0.95, torch.arange(16).repeat(8)) == math.inf
    assert finest_level(16) == pytest.approx(16 / 17)
    assert beta_range(8, 0.95) == (1.0, 1.0)


@pytest.mark.parametrize("n", [20, 50, 100, 1000, 5000])
@pytest.mark.parametrize("level", [0.8, 0.9])
def test_the_range_of_coverage_is_that_of_the_beta_distribution(n, level):
    k = math.ceil(Fraction(str(level)) * (n + 1))
    expected = tuple(scipy.stats.beta(k, n + 1 - k).ppf([0.05, 0.95]))
    assert beta_range(n, level) == pytest.approx(expected, abs=1e-7)


def test_coverage_of_drawn_calibrations_lies_in_the_range_nine_times_of_ten():
    g = draw(0)
    low, high = beta_range(50, 0.9)
    coverage = torch.tensor(
        [quantile(torch.rand(50, generator=g, dtype=torch.float64), 0.9) for _ in range(2000)]
    )
    assert ((coverage >= low) & (coverage <= high)).double().mean().item() == pytest.approx(
        0.9, abs=0.02
    )
    assert coverage.mean().item() == pytest.approx(46 / 51, abs=0.005)


def test_what_cannot_be_is_refused_in_words():
    with pytest.raises(GuaranteeError, match="level is 1"):
        quantile(torch.arange(3.0), 1.0)
    with pytest.raises(GuaranteeError, match="2 of 3 scores are NaN"):
        quantile(torch.tensor([1.0, math.nan, math.nan]), 0.5)
    with pytest.raises(GuaranteeError, match="3 scores and 2 group numbers"):
        weights(torch.tensor([0, 1]), 3)
