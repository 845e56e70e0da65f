"""Asking the tree in a real browser: boxes, measures, and two methods side by side."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import (
    LEFT,
    RIGHT,
    address_of,
    answers,
    drag,
    drawn_order,
    make_leaves,
    make_predictor,
    make_tree,
    press,
    selected,
    serving,
)
from PIL import Image

from posterior_trees import grow
from posterior_trees.explore import page
from posterior_trees.serve.server import make_app
from posterior_trees.serve.start import describe_start


def test_a_box_is_answered_with_probabilities(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    drag(opened, LEFT)
    assert answers(opened) == ["0.63", "0.37"]
    assert opened.locator("#spoken").text_content() == "Box 1: A 63%, B 37%"
    opened.locator(".question input").nth(0).fill("lit")
    opened.locator(".question input").nth(1).fill("dark")
    press(opened, "Tab")
    drag(opened, RIGHT)
    assert answers(opened, 1) == ["0.70", "0.30"]
    cells = opened.locator(".joint td").all_inner_texts()[1:]
    assert cells == ["0.40", "0.23", "0.30", "0.07"]
    assert opened.locator(".joint th").all_inner_texts() == ["A", "B", "lit", "dark"]
    assert "box=2,2,8,8,0,lit,dark" in address_of(opened)
    press(opened, "Escape")
    assert opened.locator("#ask").is_hidden()


def test_the_tree_is_sorted_by_disagreement_inside_the_box(
    visit: Callable[..., Any], saved: str
) -> None:
    opened = visit(saved)
    assert drawn_order(opened, 2) == ["1.1", "1.2", "2.1", "2.2"]
    drag(opened, LEFT)
    answers(opened)
    # L is likely, so the leaves without it are farther from the mean answer.
    assert drawn_order(opened, 1) == ["2", "1"]
    press(opened, "Escape")
    drag(opened, RIGHT)
    answers(opened)
    # In R, the rarer light patch is farther from the mean, so lit leaves come first everywhere.
    assert drawn_order(opened, 2) == ["1.2", "1.1", "2.2", "2.1"]
    press(opened, "2", "ArrowRight")
    assert selected(opened) == "2"  # the last of its level on the screen


def test_a_box_where_all_leaves_agree_says_so(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    drag(opened, (slice(20, 27), slice(5, 20)))
    assert answers(opened) == ["1.00"]
    assert "all leaves agree" in opened.locator(".question h3").inner_text()
    opened.get_by_label("More answers").click()
    assert len(answers(opened)) == 2
    opened.get_by_label("Remove box 1").click()
    assert opened.locator(".question").count() == 0


def test_a_box_needs_no_pointer(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "b", *["ArrowLeft"] * 9, *["ArrowUp"] * 9, "Shift+ArrowLeft")
    assert "box=0,0,8,9,0" in address_of(opened)
    assert answers(opened) == ["0.63", "0.37"]
    press(opened, "Delete")
    assert "box" not in address_of(opened)


def test_groups_of_leaves_are_nested_and_cheapest_first(
    visit: Callable[..., Any], served: str
) -> None:
    """Ward's method: every grouping refines the next, probabilities are kept, and of three points
    on a line the two near ones are joined first."""
    opened = visit(served)
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(7)).tolist()
    region = [{"leaf": i, "p": p[i], "values": generator.random(5).tolist()} for i in range(7)]
    script = """async ([region, count]) => {
        const { groupLeaves } = await import('/static/answers.js');
        return groupLeaves(region, count).map(({ p, leaves }) => ({ p, leaves }));
    }"""
    finer: list[dict] = []
    for count in range(7, 0, -1):
        groups = opened.evaluate(script, [region, count])
        assert len(groups) == count
        assert sum(g["p"] for g in groups) == pytest.approx(1)
        assert sorted(leaf for g in groups for leaf in g["leaves"]) == list(range(7))
        for small in finer:
            assert any(set(small["leaves"]) <= set(g["leaves"]) for g in groups)
        finer = groups
    line = [{"leaf": i, "p": 1 / 3, "values": [v]} for i, v in enumerate((0.0, 0.3, 1.0))]
    groups = opened.evaluate(script, [line, 2])
    assert sorted(sorted(g["leaves"]) for g in groups) == [[0, 1], [2]]


def test_a_measure_is_a_histogram_over_the_leaves(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    values = iter([3, 4, 3, 7])
    text = page(make_tree(), measures={"count": lambda image: next(values)})
    (tmp_path / "m.html").write_text(text, "utf-8")
    opened = visit((tmp_path / "m.html").as_uri())
    chart = opened.locator(".histogram .bars")
    assert chart.get_attribute("aria-label") == "Distribution of count: 3: 70%; 4: 23%; 7: 7%"
    assert opened.locator(".histogram p").inner_text().split("\n") == ["3", "mean 3.51", "7"]


@pytest.fixture
def compared(tmp_path: Path) -> str:
    """A page with a rival whose leaves have other probabilities."""
    rival = grow(make_leaves()[None], torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), 2)
    (tmp_path / "c.html").write_text(page(make_tree(), rivals={"Samples": rival}), "utf-8")
    return (tmp_path / "c.html").as_uri()


def test_two_methods_stand_side_by_side_and_share_their_answers(
    visit: Callable[..., Any], compared: str
) -> None:
    opened = visit(compared)
    assert opened.locator(".pane h2").all_inner_texts() == ["This model", "Samples"]
    press(opened, "1", "c", "2", "ArrowDown")
    assert selected(opened) == "2.2"
    assert "side=2" in address_of(opened)
    press(opened, "c")
    assert selected(opened) == "1"
    drag(opened, LEFT)
    assert answers(opened) == ["0.37", "0.63"]  # likeliest first on the average of both
    press(opened, "c")
    assert answers(opened) == ["0.70", "0.30"]  # the same answers, with the other's probabilities
    opened.locator(".pane").nth(0).locator("[aria-label^='Node 2.1']").click()
    assert selected(opened) == "2.1"
    assert answers(opened) == ["0.37", "0.63"]


def test_the_address_of_a_comparison_keeps_the_paths_of_both_sides(
    visit: Callable[..., Any], compared: str
) -> None:
    opened = visit(compared)
    press(opened, "1", "2", "c", "2")
    again = visit(address_of(opened))
    assert address_of(again) == address_of(opened)
    assert selected(again) == "2"
    press(again, "c")
    assert selected(again) == "1.2"
    assert address_of(visit(address_of(again))) == address_of(again)
    visit(compared + "#1/1;at=2/7.7;at=9/1;at=;at=1/2.2;at=x")


def test_number_keys_go_to_the_numbers_that_are_shown_on_both_sides(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """Sorted by a box, children are no longer in the order of their numbers; two trees of nine
    leaves side by side still have room for the numbers and the probabilities."""
    generator = torch.Generator().manual_seed(0)
    ours, rival = (
        grow(torch.rand(2, 9, 1, 28, 28, generator=generator), torch.zeros(2, 9).log_softmax(1), 3)
        for _ in range(2)
    )
    (tmp_path / "c.html").write_text(page(ours, rivals={"Samples": rival}), "utf-8")
    opened = visit((tmp_path / "c.html").as_uri(), reduced_motion="reduce")
    drag(opened, LEFT)
    answers(opened)
    for side in range(2):
        pane = opened.locator(".pane").nth(side)
        assert pane.locator(".node .key").count() == 12
        for key in ("1", "2", "3"):
            press(opened, "Home", key)
            chosen = pane.locator(".node[aria-selected=true]")
            assert chosen.locator(".key").inner_text() == key
        labels = [n.bounding_box() for n in pane.locator("[aria-level='3'] .p").all()]
        labels.sort(key=lambda box: box["x"])
        for left, right in itertools.pairwise(labels):
            assert left["x"] + left["width"] + 5 <= right["x"]
        press(opened, "c")


def test_a_served_comparison_takes_own_pictures_too(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """What `ptrees explore MODEL a.png --compare Samples=FILE` serves. A new picture: no rival."""
    make_tree().save(tmp_path / "rival.safetensors")
    Image.new("L", (28, 28), 40).save(tmp_path / "a.png")
    rivals = [("Samples", tmp_path / "rival.safetensors")]
    examples = describe_start(make_predictor(), [tmp_path / "a.png"], rivals=rivals)
    with serving(make_app(make_predictor(), examples=examples)) as address:
        opened = visit(address + "#1/1;at=2/2.1")
        opened.wait_for_selector("body.ready")
        assert opened.locator(".pane h2").all_inner_texts() == ["This model", "Samples"]
        press(opened, "c")
        assert selected(opened) == "2.1"
        opened.locator("#file").set_input_files(tmp_path / "a.png")
        opened.wait_for_selector("#examples button:nth-child(2)")
        assert opened.locator(".pane").count() == 1
        press(opened, "PageDown")
        assert opened.locator(".pane").count() == 2
        drag(opened, LEFT)
        assert opened.locator(".question li small").first.inner_text().startswith("other ")
