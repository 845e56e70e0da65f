"""Keeping and sharing in a real browser: figures, stacks, archives, pages, notebooks."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import LEFT, address_of, answers, drag, keep, make_tree, press, selected
from PIL import Image

from posterior_trees.explore import save_page, show


def test_the_tree_is_kept_as_figure_stack_and_archive(
    visit: Callable[..., Any], saved: str
) -> None:
    opened = visit(saved)
    tree = make_tree()
    nodes = [(path, tree.node(path)) for level in range(3) for path in tree.paths(level)]
    pixels = [(n.image[0, 0].double() * 255).round().byte().numpy() for _, n in nodes]
    stack = Image.open(io.BytesIO(keep(opened, "save-tiff")))
    assert stack.n_frames == 7
    for i, (path, node) in enumerate(nodes):
        stack.seek(i)
        assert np.array_equal(np.asarray(stack), pixels[i])
        words = stack.tag_v2[270]
        assert words.endswith("}")  # one NUL ends the text and Pillow takes it away: no padding
        about = json.loads(words)
        assert about == {"path": list(path), "probability": pytest.approx(node.prob.item())}
    archive = zipfile.ZipFile(io.BytesIO(keep(opened, "save-zip")))
    assert archive.testzip() is None
    table = json.loads(archive.read("tree.json"))
    assert (table["schema"], table["branching"], table["size"]) == (1, [2, 2], [28, 28])
    for row, (path, _), expected in zip(table["nodes"], nodes, pixels, strict=True):
        assert row["path"] == list(path)
        stored = np.asarray(Image.open(io.BytesIO(archive.read(row["image"]))))
        assert np.array_equal(stored, expected)
    assert b"<svg" in keep(opened, "save-svg")
    with Image.open(io.BytesIO(keep(opened, "save-png"))) as figure:
        assert np.unique(np.asarray(figure.convert("L"))).size > 5


def test_kept_files_have_one_ending(visit: Callable[..., Any], tmp_path: Path) -> None:
    names = {"x.png": "x", "cell.A1.TIFF": "cell.A1", "v1.2": "v1.2", ".png": ".png"}
    for name, stem in names.items():
        save_page(tmp_path / "p.html", make_tree(), names=[name])
        opened = visit((tmp_path / "p.html").as_uri())
        opened.locator("#share summary").click()
        with opened.expect_download() as download:
            opened.locator("#save-svg").click()
        assert download.value.suggested_filename.lstrip("_.") == f"{stem}.svg".lstrip("_.")


def test_the_citation_is_copied(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    opened.locator("#share summary").click()
    opened.locator("#copy-citation").click()
    opened.wait_for_selector("#message:not([hidden])")
    assert opened.locator("#message").inner_text() == "Citation copied"


def test_two_widgets_of_a_notebook_leave_each_other_alone(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """As notebooks show it: each output's HTML in a page of their own, under its address."""
    bare, shown = make_tree()._repr_html_(), show(make_tree(), height=500)._repr_html_()
    cells = "".join(f"<div class='output'>{frame}</div>" for frame in (bare, shown))
    text = f"<!doctype html><title>Notebook</title><style>*{{margin:3px}}</style><body>{cells}"
    (tmp_path / "cells.html").write_text(text, "utf-8")
    opened = visit((tmp_path / "cells.html").as_uri() + "#cell-2")
    one, two = (opened.frame_locator("iframe").nth(i) for i in range(2))
    one.locator("[aria-label^='Node 2.1']").click()
    two.locator("[aria-label^='Node 1']").first.click()
    two.get_by_text("Node 1", exact=True).wait_for()
    opened.keyboard.press("2")
    two.locator("#theme").click()
    assert one.locator("#node-name").inner_text() == "Node 2.1"
    assert two.locator("#node-name").inner_text() == "Node 1.2"
    two.locator("#modes label", has_text="Heat").click()
    two.locator("#map-canvas").wait_for()
    assert one.locator("#map-canvas").is_hidden()
    two.locator("#share summary").click()
    with opened.expect_download() as download:
        two.locator("#save-tiff").click()
    assert Image.open(download.value.path()).n_frames == 7
    assert address_of(opened).endswith("#cell-2")
    assert opened.title() == "Notebook"


def test_a_served_page_saves_itself_as_one_file(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    drag(opened, LEFT)
    answers(opened)
    (tmp_path / "kept.html").write_bytes(keep(opened, "save-page"))
    kept = visit((tmp_path / "kept.html").as_uri())
    press(kept, "2", "1")
    assert selected(kept) == "2.1"
    assert kept.locator("#own-button").is_hidden()
    drag(kept, LEFT)
    assert answers(kept) == ["0.63", "0.37"]
