"""Numbers that must be the same on every machine and for ever."""

import math

import torch

from posterior_trees.seeding import unit_hash


def test_a_name_has_one_number_for_ever() -> None:
    """Written down on the day it came: another function would move every split that was drawn."""
    assert unit_hash("A01", "split") == 0.20998409923054084
    assert unit_hash("A01", "fold") != unit_hash("A01", "split") != unit_hash("A02", "split")
    assert unit_hash("ab", "c") != unit_hash("b", "ca"), "name and salt run together"


def test_numbers_of_names_are_uniform_and_salts_independent() -> None:
    """Kolmogorov–Smirnov and Pearson, both at about 1 in 10,000."""
    n = 20_000
    one, other = (
        torch.tensor([unit_hash(f"{i}.png", salt) for i in range(n)], dtype=torch.float64)
        for salt in ("split", "fold")
    )
    steps = torch.arange(1, n + 1) / n
    for numbers in (one, other):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        assert (numbers.sort().values - steps).abs().max() < 2.2 / math.sqrt(n)
    assert torch.corrcoef(torch.stack([one, other]))[0, 1].abs() < 4 / math.sqrt(n)
