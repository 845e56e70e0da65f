"""Pictures that a model's importer prepares, in a real browser: marked eyes, drawn lines."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import picture_of, press, serving
from PIL import Image, ImageDraw

from posterior_trees import Colorize, Paired, TreePredictor, UNet
from posterior_trees.serve.server import make_app


def predictor_of(measurement: Any, importer: str, at: tuple[float, ...]) -> TreePredictor:
    torch.manual_seed(0)
    network = UNet(measurement.channels(3), 3, 4, width=8, steps=2)
    about = {"card": {"importer": importer}, "frame": {"size": [64, 64], "at": list(at)}}
    return TreePredictor(network, measurement, branching=2, depth=2, channels=3, name=importer,
                         about=about).eval()  # fmt: skip


@pytest.fixture(scope="module")
def faces():
    with serving(make_app(predictor_of(Colorize(), "eyes", (0.375, 0.474, 0.631, 0.474)))) as home:
        yield home


@pytest.fixture(scope="module")
def shoes():
    with serving(make_app(predictor_of(Paired(3, 1), "lines", (0.08, 0.08, 0.91, 0.79)))) as home:
        yield home


def drag_to(opened: Any, mark: str, x: float, y: float) -> None:
    """A mark to a place of the portrait, in shares of it."""
    box = opened.locator("#portrait").bounding_box()
    opened.locator(mark).hover()
    opened.mouse.down()
    opened.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"], steps=3)
    opened.mouse.up()


def test_eyes_that_are_marked_come_to_lie_where_the_model_wants_them(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    picture = Image.new("RGB", (400, 300), (200, 180, 160))
    for x, y in ((160, 140), (220, 150)):
        ImageDraw.Draw(picture).ellipse([x - 8, y - 8, x + 8, y + 8], fill=(10, 10, 10))
    picture.save(tmp_path / "portrait.png")
    opened = visit(faces)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#begin").inner_text() == "Drop a portrait here, or choose a file"
    opened.locator("#file").set_input_files(tmp_path / "portrait.png")
    opened.wait_for_selector("#eyes", state="visible")
    drag_to(opened, "#eye-left", 160 / 400, 140 / 300)
    drag_to(opened, "#eye-right", 225 / 400, 150 / 300)
    opened.locator("#eye-right").focus()
    press(opened, *["ArrowLeft"] * 3)  # 4.8 pixels
    opened.locator("#take-eyes").click()
    opened.wait_for_selector("#examples button")
    assert "Cut around the eyes from 300×400" in opened.locator("#resized").inner_text()
    dark = picture_of(opened, "#input").min(axis=2) < 80
    columns = np.nonzero(dark[int(0.474 * 64)])[0]
    assert abs(columns.min() + columns.max() - 64 * (0.375 + 0.631)) < 5
    assert dark[int(0.474 * 64), round(0.375 * 64)]
    assert dark[int(0.474 * 64), round(0.631 * 64)]


def test_of_a_portrait_that_is_cut_already_only_the_size_is_doubted(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    Image.linear_gradient("L").convert("RGB").resize((80, 100)).save(tmp_path / "mine.png")
    opened = visit(faces)
    opened.wait_for_selector("body.ready")
    opened.locator("#file").set_input_files(tmp_path / "mine.png")
    opened.locator("#no-eyes").click()
    opened.wait_for_selector("#examples button")
    assert opened.locator("#note").inner_text() == (
        "A portrait that is cut has to be as small as those that the task 'eyes' learned from: "
        "64 pixels high, not 100. Mark its eyes, or --scale 0.64"
    )


def test_a_portrait_is_left_for_another_one(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    """A second file takes its place; only one is asked about."""
    opened = visit(faces)
    opened.wait_for_selector("body.ready")
    for name in ("one.png", "two.png"):
        Image.linear_gradient("L").convert("RGB").save(tmp_path / name)
        opened.locator("#file").set_input_files(tmp_path / name)
        opened.wait_for_selector("#eyes", state="visible")
        opened.wait_for_function("document.activeElement.id === 'eye-left'")
        opened.locator("#own").focus()
    opened.locator("#take-eyes").click()
    opened.wait_for_selector("#examples button")
    assert opened.locator("#examples button").all_inner_texts() == ["two.png"]


def test_marks_stay_until_the_portrait_is_cut_and_can_be_moved_again(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    """Neither Esc, nor an error, nor a file that is no picture takes them away."""
    (tmp_path / "not.png").write_text("no picture")
    Image.linear_gradient("L").convert("RGB").resize((400, 300)).save(tmp_path / "one.png")
    opened = visit(faces, expected="422")
    opened.wait_for_selector("body.ready")
    opened.locator("#file").set_input_files(tmp_path / "one.png")
    opened.wait_for_selector("#eyes", state="visible")
    drag_to(opened, "#eye-left", 0.2, 0.3)
    drag_to(opened, "#eye-right", 0.21, 0.3)

    def left_at(x: float) -> bool:
        box, mark = (opened.locator(part).bounding_box() for part in ("#portrait", "#eye-left"))
        at = (mark["x"] + mark["width"] / 2 - box["x"]) / box["width"]
        return at == pytest.approx(x, abs=0.01)

    assert left_at(0.2)
    press(opened, "Escape")
    assert opened.locator("#eyes").is_hidden()
    opened.locator("#own-button").click()
    for words, cause in (
        ("4.0 pixels apart", opened.locator("#take-eyes").click),
        ("not an image", lambda: opened.locator("#file").set_input_files(tmp_path / "not.png")),
    ):
        cause()
        opened.locator("#message.problem", has_text=words).wait_for()
        assert left_at(0.2)
    drag_to(opened, "#eye-right", 0.5, 0.3)
    opened.locator("#take-eyes").click()
    opened.wait_for_selector("#examples button")
    assert opened.locator("#own").is_hidden()
    before = picture_of(opened, "#input")
    opened.get_by_text("Move the marks").click()
    assert left_at(0.2)
    drag_to(opened, "#eye-left", 0.3, 0.3)
    opened.locator("#take-eyes").click()
    opened.wait_for_selector("#own", state="hidden")
    assert opened.locator("#examples button").all_inner_texts() == ["one.png"]
    assert (picture_of(opened, "#input") != before).any()


def test_eyes_are_seen_under_their_marks(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    """Of a face that is 28 pixels wide on the screen, with a mark on its left eye."""
    Image.new("RGB", (4000, 3000), (128, 128, 128)).save(tmp_path / "photo.jpg")
    opened = visit(faces)
    opened.wait_for_selector("body.ready")
    opened.locator("#file").set_input_files(tmp_path / "photo.jpg")
    opened.wait_for_selector("#eyes", state="visible")
    drag_to(opened, "#eye-left", 0.7, 0.7)
    opened.locator("#own h2").hover()
    box = opened.locator("#eye-left").bounding_box()
    x, y = (box[at] + box[length] / 2 for at, length in (("x", "width"), ("y", "height")))
    clip = {"x": round(x) - 14, "y": round(y) - 14, "width": 28, "height": 28}
    seen = []
    for visibility in ("visible", "hidden"):
        opened.evaluate(
            "v => { document.getElementById('eye-left').style.visibility = v }", visibility
        )
        shot = Image.open(io.BytesIO(opened.screenshot(clip=clip))).convert("L")
        seen.append(np.asarray(shot).astype(int))
    changed = np.abs(seen[0] - seen[1]) > 40
    assert 10 < changed.sum() < changed.size / 4
    assert not changed[11:17, 11:17].any()


def test_a_portrait_that_browsers_do_not_show_is_marked_too(
    visit: Callable[..., Any], faces: str, tmp_path: Path
) -> None:
    picture = Image.new("RGB", (3000, 2000), (200, 180, 160))
    for x, y in ((1000, 900), (1300, 900)):
        ImageDraw.Draw(picture).ellipse([x - 40, y - 40, x + 40, y + 40], fill=(10, 10, 10))
    picture.save(tmp_path / "portrait.tif")
    opened = visit(faces)
    opened.wait_for_selector("body.ready")
    opened.locator("#file").set_input_files(tmp_path / "portrait.tif")
    opened.wait_for_selector("#eyes", state="visible")
    drag_to(opened, "#eye-left", 1000 / 3000, 900 / 2000)
    drag_to(opened, "#eye-right", 1300 / 3000, 900 / 2000)
    opened.locator("#take-eyes").click()
    opened.wait_for_selector("#examples button")
    assert "Cut around the eyes from 2000×3000" in opened.locator("#resized").inner_text()
    dark = picture_of(opened, "#input").min(axis=2) < 80
    for x in (0.375, 0.631):
        assert dark[int(0.474 * 64), round(x * 64)]


def test_lines_are_drawn_black_on_white_where_they_stand(
    visit: Callable[..., Any], shoes: str
) -> None:
    opened = visit(shoes)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#paper-tools").is_hidden()
    paper = opened.locator("#hole").bounding_box()

    def place(x: float, y: float) -> tuple[float, float]:
        return paper["x"] + x / 64 * paper["width"], paper["y"] + y / 64 * paper["height"]

    opened.mouse.move(*place(16, 40))
    opened.mouse.down()
    opened.mouse.move(*place(48, 40), steps=8)
    opened.mouse.up()
    opened.wait_for_selector("#examples button")
    lines = picture_of(opened, "#input").min(axis=2)
    rows, columns = np.nonzero(lines < 128)
    assert set(np.unique(lines)) == {0, 255}
    assert abs(rows.mean() - 40) < 1.5
    assert (columns.min(), columns.max()) == (pytest.approx(16, abs=2), pytest.approx(48, abs=2))
    assert len(rows) < 40  # one pixel thin


def draw_shoe(file: Path, size: tuple[int, int], corners: list[tuple[int, int]]) -> None:
    """A triangle, by a thick pen."""
    picture = Image.new("L", size, 230)
    ImageDraw.Draw(picture).line(corners, fill=20, width=7)
    picture.save(file)


def test_a_drawing_is_taken_with_thick_lines(
    visit: Callable[..., Any], shoes: str, tmp_path: Path
) -> None:
    draw_shoe(tmp_path / "shoe.png", (300, 220), [(40, 150), (50, 70), (250, 150), (40, 150)])
    opened = visit(shoes)
    opened.wait_for_selector("body.ready")
    opened.locator("#lines").check()
    opened.locator("#file").set_input_files(tmp_path / "shoe.png")
    opened.wait_for_selector("#examples button")
    assert "The lines found in 220×300" in opened.locator("#resized").inner_text()
    assert (picture_of(opened, "#input") > 128).mean() > 0.85


def test_ticking_that_it_is_a_drawing_does_the_last_file_again(
    visit: Callable[..., Any], shoes: str, tmp_path: Path
) -> None:
    draw_shoe(tmp_path / "shoe.png", (160, 96), [(20, 60), (30, 30), (80, 60), (20, 60)])
    opened = visit(shoes)
    opened.wait_for_selector("body.ready")
    opened.locator("#lines").uncheck()
    opened.locator("#file").set_input_files(tmp_path / "shoe.png")
    opened.wait_for_selector("#examples button")
    assert "let --lines" in opened.locator("#note").inner_text()
    opened.locator("#own-button").click()
    opened.locator("#lines").check()
    opened.locator("#resized", has_text="The lines found in 96×160").wait_for()
    assert opened.locator("#examples button").all_inner_texts() == ["shoe.png"]
    assert opened.locator("#note").is_hidden()
