"""A little of the attack, so that it keeps running; all of it is `python -m tests.attack`."""

import importlib

import pytest


@pytest.mark.parametrize("part", ["archives", "fields", "images", "recipes", "stored"])
def test_the_attack_finds_nothing(part: str, monkeypatch) -> None:
    module = importlib.import_module(f"tests.attack.{part}")
    if part == "images":  # these take their whole limit, and have tests of their own
        monkeypatch.setattr(module, "bombs", list)
    tried, failed = module.attack(seed=1, count=90)
    assert tried == 90
    assert not failed
