"""Promises in a real browser: rings and grey nodes, intervals of drawn boxes, and no promise."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import LEFT, drag, press

from posterior_trees import Tree, grow
from posterior_trees.explore import page
from posterior_trees.guarantee.answers import Withdrawn
from posterior_trees.guarantee.certify import calibrate_trees


def make_world(n: int = 300, side: int = 24) -> tuple[Tree, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    leaves = torch.nn.functional.interpolate(
        torch.rand(n * 4, 1, 4, 4, generator=g), size=side, mode="bilinear"
    ).reshape(n, 4, 1, side, side)
    log_probs = (2 * torch.randn(n, 4, generator=g)).log_softmax(dim=1)
    leaf = torch.multinomial(log_probs.exp(), 1, generator=g)[:, 0]
    noise = 0.05 * torch.randn(n, 1, side, side, generator=g)
    return grow(leaves, log_probs, (2, 2)), (leaves[torch.arange(n), leaf] + noise).clamp(0, 1)


@pytest.fixture(scope="module")
def world() -> Tree:
    tree, x = make_world()
    tree.guarantee = calibrate_trees(tree, x, measures=["ink"], box=(6, 6))
    return tree


def save(tree: Tree, folder: Path) -> str:
    file = folder / "page.html"
    file.write_text(page(tree), encoding="utf-8")
    return file.as_uri()


def test_nodes_outside_the_cut_turn_grey_and_the_others_carry_a_ring(
    visit: Callable[..., Any], world: Tree, tmp_path: Path
) -> None:
    # The first tree whose cut leaves something out.
    number = next(i for i in range(50) if world[i].cut(0.9)[0].paths != ((),))
    opened = visit(save(world[number], tmp_path))
    assert opened.locator(".node.ring, .node.outside").count() == 0
    assert opened.locator("#promise-words").is_hidden()
    press(opened, "p")
    paths = world[number].cut(0.9)[0].paths
    rings = opened.locator(".node.ring").evaluate_all("nodes => nodes.map(node => node.path)")
    assert {tuple(path) for path in rings} == set(paths)
    near = [p for p in [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
            if any(p[: len(c)] == c or c[: len(p)] == p for c in paths)]  # fmt: skip
    assert opened.locator(".node.outside").count() == 7 - len(near)
    words = opened.locator("#promise-words").inner_text()
    assert "90 of 100 times" in words
    assert "it was calibrated on" in words
    assert "mean brightness 0." in words
    assert "The truth lies at or under a ringed node" in words
    assert "not for this one alone" in words
    assert ";promise" in opened.evaluate("location.hash")


def test_a_drawn_box_gets_the_interval_that_python_gives(
    visit: Callable[..., Any], world: Tree, tmp_path: Path
) -> None:
    opened = visit(save(world[0], tmp_path))
    for box in ((6, 4, 6, 6), (3, 5, 13, 7), (0, 0, 24, 24)):
        top, left, height, width = box
        opened.evaluate(f"location.hash = '1/;box={left},{top},{width},{height},0'")
        opened.wait_for_selector(".promised")
        opened.wait_for_timeout(150)
        words = opened.locator(".promised").inner_text()
        low, high = map(float, re.search(r"(\d\.\d\d) – (\d\.\d\d)", words).groups())
        found = world[0].interval(box, 0.9, chosen="after")
        assert (low, high) == pytest.approx((found.low.item(), found.high.item()), abs=0.0051)
        taken = found.of
        assert ("mean brightness here" in words) == (tuple(taken) == box)
        if tuple(taken) != box:
            assert f"{taken.height}×{taken.width} box nearest" in words


def test_withdrawn_promises_say_why(visit: Callable[..., Any], world: Tree, tmp_path: Path) -> None:
    unlike = world[1]
    unlike.p_values = torch.tensor([0.004])
    opened = visit(save(unlike, tmp_path))
    assert opened.locator("#promise-label").is_hidden()
    said = "Unlike the calibration images (p = 0.004): no promise"
    assert opened.locator("#promise-words").inner_text() == said
    drag(opened, LEFT, 24)
    assert opened.locator(".promised").inner_text() == said[0].lower() + said[1:]
    press(opened, "p")
    assert opened.locator(".node.ring").count() == 0
    other = world[2]
    other.guarantee = Withdrawn("calibrate on pictures of that size")
    opened = visit(save(other, tmp_path))
    assert "Calibrate on pictures of that size" in opened.locator("#promise-words").inner_text()


def test_a_level_finer_than_the_data_allow_is_not_offered(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    tree, x = make_world(24)
    tree.guarantee = calibrate_trees(tree, x, [f"g{i % 12}" for i in range(24)])
    assert tree.guarantee.finest_level < 0.9
    opened = visit(save(tree[0], tmp_path))
    assert opened.locator("#promise-label").is_hidden()
    assert "90 % is finer than" in opened.locator("#promise-words").inner_text()


def test_without_a_guarantee_the_page_is_as_it_was(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    tree, _ = make_world(1)
    opened = visit(save(tree, tmp_path))
    assert opened.locator("#promise-label").is_hidden()
    drag(opened, LEFT, 24)
    assert opened.locator(".promised").count() == 0
