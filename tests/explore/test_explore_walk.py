"""Walking the tree in a real browser: keys, pointer, modes, thumbnails, the address."""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from browsing import LEFT, address_of, answers, drag, keep, make_leaves, press, selected

from posterior_trees import grow
from posterior_trees.explore import page


def test_the_whole_tree_is_walked_by_keyboard(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    assert selected(opened) == "Root"
    walk = [("ArrowDown", "1"), ("ArrowDown", "1.1"), ("ArrowRight", "1.2"), ("ArrowRight", "2.1"),
            ("2", "2.2"), ("ArrowUp", "2"), ("ArrowLeft", "1"), ("Home", "Root"), ("2", "2"),
            ("1", "2.1"), ("ArrowDown", "2.1"), ("9", "2.1")]  # fmt: skip
    for key, expected in walk:
        press(opened, key)
        assert selected(opened) == expected, key
    assert opened.locator("#crumbs").inner_text().split() == [
        "Root",
        "100%",
        "2",
        "37%",
        "2.1",
        "30%",
    ]
    press(opened, "PageDown")
    assert address_of(opened).endswith("#2/")
    assert opened.locator("#examples [aria-current=true]").inner_text() == "b"


def test_a_view_is_kept_in_the_address(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "1", "2", "m", "m", "t")
    drag(opened, LEFT)
    address = address_of(opened)
    again = visit(address)
    assert selected(again) == "1.2"
    assert again.locator("#modes input:checked").input_value() == "variance"
    assert again.locator("#truth").get_attribute("aria-pressed") == "true"
    assert answers(again) == answers(opened)
    assert address_of(again) == address
    visit(saved + "#99/7.7.7;mode=nonsense;box=a,b;box=900,-5,9999,0,77;side=12")


def test_every_node_says_what_it_is(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "t")
    labels = [n.get_attribute("aria-label") for n in opened.locator("[role=treeitem]").all()]
    assert "Root, the mean of all answers, probability 100%, nearest to the truth" in labels
    assert "Node 2.2, probability 7%, nearest to the truth" in labels
    assert "Node 1.2, probability 23%" in labels
    assert len(labels) == 7
    opened.keyboard.press("Tab")
    reached = set()
    for _ in range(30):
        reached.add(
            opened.evaluate("document.activeElement.id || document.activeElement.className")
        )
        opened.keyboard.press("Tab")
    assert {"truth", "theme", "open-help", "flicker", "add-box"} <= reached
    assert any("node" in name for name in reached)


def test_menus_open_and_close_by_keyboard(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "b")
    opened.locator("#share summary").focus()
    press(opened, "Enter", "Tab")
    assert opened.evaluate("document.activeElement.id") == "save-png"
    press(opened, "Escape")
    assert opened.locator("#save-png").is_hidden()
    assert opened.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert opened.locator(".box").count() == 1  # only the menu was closed
    press(opened, "Escape", "?")
    assert opened.locator(".box").count() == 0
    assert opened.locator("#help").is_visible()
    press(opened, "Escape")
    assert opened.locator("#help").is_hidden()


def test_hovering_fades_and_space_flickers(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    opened.locator("[aria-label^='Node 2.1']").hover()
    assert opened.locator("#node-name").inner_text() == "Node 2.1"
    assert opened.evaluate("document.getElementById('front').getAnimations().length") == 1
    opened.mouse.move(5, 400)
    assert opened.locator("#node-name").inner_text() == "Root: the mean"
    press(opened, "1", " ")
    seen = set()
    for _ in range(12):
        seen.add(opened.locator("#node-name").inner_text())
        opened.wait_for_timeout(120)
    assert seen == {"Node 1", "Node 2"}
    press(opened, " ")
    assert opened.locator("#flicker").get_attribute("aria-pressed") == "false"
    assert opened.locator("#node-name").inner_text() == "Node 1"


def canvas_pixel(opened: Any, row: int, column: int) -> list[int]:
    script = """([y, x]) => [...document.getElementById('map-canvas').getContext('2d')
             .getImageData(x, y, 1, 1).data]"""
    return opened.evaluate(script, [row, column])


def test_modes_show_where_and_how_nodes_differ(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved, expected="willReadFrequently")  # the test itself reads the canvas
    opened.locator("#modes label", has_text="Variance").click()
    opened.wait_for_selector("#map-canvas:not([hidden])")
    left, right, ground = (canvas_pixel(opened, *at) for at in ((5, 5), (5, 21), (25, 14)))
    assert left[:3] == [252, 255, 164]  # the root's children differ in L most …
    assert sum(ground[:3]) < 20  # … and not at all below
    assert sum(right[:3]) < sum(left[:3]) / 2
    spread = 0.6 * (0.63 * 0.37) ** 0.5
    assert float(opened.locator("#scale-high").inner_text()) == pytest.approx(spread, abs=0.006)
    press(opened, "1")
    spread = 0.6 * (0.40 * 0.23) ** 0.5 / 0.63  # between the children of node 1, in R
    assert float(opened.locator("#scale-high").inner_text()) == pytest.approx(spread, abs=0.006)
    press(opened, "m", "m", "m")
    assert opened.locator("#modes input:checked").input_value() == "difference"
    red, _, blue, _ = canvas_pixel(opened, 5, 5)
    assert red > blue  # node 1 is brighter than the root in L
    press(opened, "ArrowRight")
    red, _, blue, _ = canvas_pixel(opened, 5, 5)
    assert red < blue
    press(opened, "m", "m")
    assert canvas_pixel(opened, 25, 14)[3] < 20 < canvas_pixel(opened, 5, 21)[3]


def test_absent_nodes_are_drawn_blank_and_never_entered(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    log_probs = torch.tensor([[0.6, 0.0, 0.0, 0.4]]).log()
    (tmp_path / "a.html").write_text(page(grow(make_leaves()[None], log_probs, 2)), "utf-8")
    opened = visit((tmp_path / "a.html").as_uri())
    assert opened.locator(".node.absent").count() == 2
    press(opened, "1", "2")
    assert selected(opened) == "1"
    press(opened, "ArrowDown", "ArrowRight", "m", "m")
    assert selected(opened) == "2.2"
    drag(opened, LEFT)
    assert answers(opened) == ["0.60", "0.40"]
    keep(opened, "save-svg")
    assert zipfile.ZipFile(io.BytesIO(keep(opened, "save-zip"))).testzip() is None


def test_a_root_alone_is_a_page_too(visit: Callable[..., Any], tmp_path: Path) -> None:
    tree = grow(make_leaves()[None, :1], torch.zeros(1, 1), ())
    (tmp_path / "r.html").write_text(page(tree, inputs=tree.root, truths=tree.root), "utf-8")
    opened = visit((tmp_path / "r.html").as_uri())
    press(opened, "ArrowDown", "1", " ", "b", "m", "m", "m", "m", "t", "ArrowRight", "Home")
    assert selected(opened) == "Root"
    assert opened.locator(".node").count() == 1


def test_thumbnails_are_cropped_to_where_siblings_differ(
    visit: Callable[..., Any], saved: str
) -> None:
    """Half of the image at least, with a frame in the parent that says which part."""
    opened = visit(saved, reduced_motion="reduce")
    opened.wait_for_selector(".node .frame:not([hidden])")
    script = """path => { const node = [...document.querySelectorAll('.node')]
        .find(n => n.path.join() === path.join());
        const inside = (e) => { const a = e.getBoundingClientRect();
          const b = node.querySelector('.thumb').getBoundingClientRect();
          return [a.x - b.x, a.y - b.y, a.width, a.height].map((v, i) =>
            v / (i % 2 ? b.height : b.width)); };
        const frame = node.querySelector('.frame:not([hidden])');
        return [inside(node.querySelector('img')), frame && inside(frame)]; }"""
    image, (x, y, w, h) = opened.evaluate(script, [])
    assert image == pytest.approx([0, 0, 1, 1])  # the root is whole
    assert 0.5 <= w <= 0.9
    assert h == pytest.approx(w, abs=0.01)
    assert x <= 2 / 28 + 0.01
    assert x + w >= 10 / 28  # L is inside
    for child in ([0], [1]):  # they show exactly what the root's frame marks
        image, frame = opened.evaluate(script, child)
        assert image == pytest.approx([-x / w, -y / h, 1 / w, 1 / h], abs=0.02)
        assert frame is None  # of their own children, partly outside
    for leaf in ([0, 0], [1, 0]):  # siblings that differ in R alone: half of the side around it
        image, _ = opened.evaluate(script, leaf)
        assert image == pytest.approx([-1, 0, 2, 2], abs=0.02)
    assert opened.locator("#crop-frame").is_hidden()
    press(opened, "1")
    assert opened.locator("#crop-frame").is_visible()
    opened.locator("#crop").uncheck()
    assert opened.evaluate(script, [1, 0])[0] == pytest.approx([0, 0, 1, 1])
    assert opened.locator(".node .frame:visible").count() == 0


def test_a_picture_of_a_page_of_another_size_has_branches_end_at_their_nodes(
    visit: Callable[..., Any], saved: str
) -> None:
    """Branches do not glide: if nodes did while the size changes, they would lie elsewhere."""
    opened = visit(saved, 1280, 500)
    opened.wait_for_timeout(700)
    tops = (
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done("
        "[...document.querySelectorAll('.node')].map(n => n.getBoundingClientRect().top)))))"
    )
    before = opened.evaluate(tops)
    opened.set_viewport_size({"width": 1280, "height": 900})
    at_once = opened.evaluate(tops)
    opened.wait_for_timeout(700)
    later = opened.evaluate(tops)
    assert at_once != before, "the size did change"
    assert at_once == pytest.approx(later, abs=0.5)
