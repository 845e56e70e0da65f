"""Own pictures in a real browser: picked, dropped, pasted, drawn, and with another hole."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import make_leaves, make_predictor, make_tree, picture_of, press, selected, serving
from PIL import Image

from posterior_trees import Colorize, Inpaint, TreePredictor, UNet
from posterior_trees.explore import describe_trees
from posterior_trees.pictures.reading import Reading
from posterior_trees.serve.server import make_app


def test_an_own_picture_gets_its_tree(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#examples button").count() == 1
    Image.linear_gradient("L").resize((50, 40)).save(tmp_path / "mine.png")
    opened.locator("#own-button").click()
    opened.locator("#resize").check()
    opened.locator("#file").set_input_files(tmp_path / "mine.png")
    opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#examples [aria-current=true]").inner_text() == "mine.png"
    assert opened.locator("#own").is_hidden()
    assert opened.locator(".node").count() == 7
    press(opened, "t")
    assert opened.locator("#truth img").count() == 1


def test_a_picture_of_another_size_is_taken_when_the_reader_says_how(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served, expected="422")
    opened.wait_for_selector("body.ready")
    Image.linear_gradient("L").resize((50, 40)).save(tmp_path / "photo.png")
    opened.locator("#file").set_input_files(tmp_path / "photo.png")
    opened.wait_for_selector("#own[open]")
    said = opened.locator("#message").inner_text()
    assert "is 40×50 (height×width), the model takes 28×28" in said
    assert opened.locator("#examples button").count() == 1
    opened.get_by_text("Cut and resize it to 28×28 pixels").click()
    opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#examples [aria-current=true]").inner_text() == "photo.png"
    assert opened.locator("#message").is_hidden()


def test_a_picture_that_was_resized_says_so_beside_it(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served, height=640)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#resized").is_hidden()  # examples need not say anything
    opened.locator("#own-button").click()
    opened.locator("#resize").check()
    words = {
        (28, 28): "",
        (56, 56): "resized from 56×56 to 28×28 (height×width)",
        (50, 40): "cut to its centre and resized from 40×50 to 28×28 (height×width)",
    }
    for i, (size, expected) in enumerate(words.items(), start=2):
        Image.new("L", size, 40).save(tmp_path / f"{i}.png")
        opened.locator("#file").set_input_files(tmp_path / f"{i}.png")
        opened.wait_for_selector(f"#examples button:nth-child({i})")
        assert opened.locator("#resized").text_content() == expected
        assert opened.locator("#resized").is_visible() == bool(expected)
    line, window = (opened.locator(part).bounding_box() for part in ("#resized", "#viewer"))
    assert line["y"] + line["height"] <= window["y"] + window["height"]  # seen without scrolling
    opened.locator("#examples button").last.click()
    assert opened.locator("#resized").is_hidden()


def test_a_camera_s_values_are_read_as_the_reader_says(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """The page begins with the levels of the command line; emptied, they are none."""
    stored = np.linspace(150, 2600, 28 * 28).reshape(28, 28).round().astype(np.uint16)
    Image.fromarray(stored).save(tmp_path / "raw.tif")
    levels = Reading.of(levels=(150, 1375))
    with serving(make_app(make_predictor(), reading=levels)) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        assert opened.locator("#white").input_value() == "1375"
        opened.locator("#degrade").uncheck()
        for i, (white, gamma) in enumerate((("2600", "0.5"), ("", ""))):
            opened.locator("#own-button").click() if i else None
            for field, value in (("black", white and "150"), ("white", white), ("gamma", gamma)):
                opened.locator(f"#{field}").fill(value)
            opened.locator("#file").set_input_files(tmp_path / "raw.tif")
            opened.wait_for_selector(f"#examples button:nth-child({i + 1})")
            seen = picture_of(opened, "#input")[20:, :, 0]
            want = np.sqrt((stored - 150) / 2450) if white else stored / 65535
            assert np.abs(seen - 255 * want[20:]).max() <= 1


def test_a_picture_is_taken_at_the_scale_that_the_reader_says(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    """Not where the model takes one size; the page begins with the scale of the command line."""
    Image.new("RGB", (40, 60), (90, 60, 30)).save(tmp_path / "a.png")
    network = UNet(1, 3, 2, width=4, steps=1)
    model = TreePredictor(network, Colorize(), branching=2, depth=1, channels=3, multiple=2)
    with serving(make_app(model, reading=Reading(scale=0.5))) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        assert opened.locator("#zoom").input_value() == "0.5"
        for i, (scale, words) in enumerate((("0.5", "60×40 to 30×20"), ("1.5", "60×40 to 90×60"))):
            opened.locator("#own-button").click() if i else None
            opened.locator("#zoom").fill(scale)
            opened.locator("#file").set_input_files(tmp_path / "a.png")
            opened.wait_for_selector(f"#examples button:nth-child({i + 1})")
            assert words in opened.locator("#resized").text_content()
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    opened.locator("#values summary").click()
    assert opened.locator("#gamma").is_visible()
    assert opened.locator("#zoom").is_hidden()


def test_a_photographed_digit_is_found_and_leaves_nothing_else_to_say(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    photo = np.full((90, 120), 180, np.uint8)
    photo[20:60, 30:38] = 20
    Image.fromarray(photo).save(tmp_path / "one.png")
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    others = [opened.locator(part) for part in ("#degrade-label", "#invert-label", "#values")]
    assert all(part.is_visible() for part in others)
    opened.locator("#digit").check()
    assert all(part.is_hidden() for part in others)
    opened.locator("#file").set_input_files(tmp_path / "one.png")
    opened.wait_for_selector("#examples button:nth-child(2)")
    words = "the digit found in 90×120 (height×width)"
    assert opened.locator("#resized").text_content() == words
    seen = picture_of(opened, "#input")[20:, :, 0]
    assert seen[0].sum() / 255 == pytest.approx(4, abs=0.1)


def test_values_that_need_levels_open_their_place(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    Image.fromarray(np.full((28, 28), 700, np.float32)).save(tmp_path / "raw.tif")
    opened = visit(served, expected="status of 422")
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    assert opened.locator("#black").is_hidden()
    opened.locator("#file").set_input_files(tmp_path / "raw.tif")
    opened.wait_for_selector("#black")
    assert "without levels they must be in [0, 1]" in opened.locator("#message").inner_text()


def test_a_page_without_examples_waits_for_the_first_picture(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    says = {"takes": "one digit", "prepare": "white on black"}
    with serving(make_app(make_predictor(), model_card=says)) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        begin = "Drop a picture here, or choose a file\nOne digit\nWhite on black"
        assert opened.locator("#begin").inner_text() == begin
        with opened.expect_file_chooser():
            opened.locator("#begin label").click()
        press(opened, "ArrowDown", "m", " ", "b", "Escape")
        Image.new("RGB", (28, 28), (40, 40, 40)).save(tmp_path / "mine.jpg")
        opened.locator("#own-button").click()
        opened.locator("#file").set_input_files(tmp_path / "mine.jpg")
        opened.wait_for_selector(".node >> nth=6")
        assert not opened.evaluate("document.body.classList.contains('empty')")
        assert opened.locator("#begin").is_hidden()


def test_a_bad_upload_is_explained_and_the_page_goes_on(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served, expected="status of 422")
    opened.wait_for_selector("body.ready")
    (tmp_path / "not.png").write_text("no picture")
    opened.locator("#own-button").click()
    with opened.expect_response(lambda r: "predict" in r.url) as response:
        opened.locator("#file").set_input_files(tmp_path / "not.png")
    assert response.value.status == 422
    opened.wait_for_selector("#message.problem:not([hidden])")
    assert "not an image" in opened.locator("#message").inner_text()
    press(opened, "Escape", "ArrowDown")
    assert selected(opened) == "1"


def test_an_error_goes_with_the_next_success(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served, expected="status of 422")
    opened.wait_for_selector("body.ready")
    (tmp_path / "not.png").write_text("no picture")
    Image.new("L", (28, 28), 40).save(tmp_path / "good.png")
    opened.locator("#file").set_input_files(tmp_path / "not.png")
    opened.wait_for_selector("#message.problem:not([hidden])")
    opened.locator("#file").set_input_files(tmp_path / "good.png")
    opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#message").is_hidden()
    opened.locator("#file").set_input_files(tmp_path / "not.png")
    opened.wait_for_selector("#message.problem:not([hidden])")
    press(opened, "ArrowDown")
    assert opened.locator("#message").is_hidden()


def test_every_stroke_of_a_drawing_grows_a_tree(visit: Callable[..., Any], served: str) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    paper = opened.locator("#draw").bounding_box()
    for stroke in (0.3, 0.6):
        with opened.expect_response(lambda r: "predict" in r.url):
            opened.mouse.move(paper["x"] + stroke * paper["width"], paper["y"] + 20)
            opened.mouse.down()
            opened.mouse.move(paper["x"] + 100, paper["y"] + paper["height"] - 10, steps=4)
            opened.mouse.up()
        opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#examples span").all_inner_texts() == ["drawing", "first"]
    press(opened, "Escape", "t")
    source = opened.locator("#truth img").get_attribute("src")
    script = """async (source) => { const i = new Image(); i.src = source; await i.decode();
        const c = document.createElement('canvas'); const p = c.getContext('2d');
        p.drawImage(i, 0, 0); return [i.width, p.getImageData(0, 0, 28, 28).data
        .reduce((a, b) => a + b)] }"""
    width, ink = opened.evaluate(script, source)
    assert width == 28
    assert ink > 28 * 28 * 255 * 1.05  # more than opacity: something was drawn


def stroke(opened: Any, *places: tuple[float, float]) -> None:
    """Draw from place to place, each a share of the paper's width and height."""
    paper = opened.locator("#draw").bounding_box()
    at = [(paper["x"] + x * paper["width"], paper["y"] + y * paper["height"]) for x, y in places]
    with opened.expect_response(lambda r: "predict" in r.url):
        opened.mouse.move(*at[0])
        opened.mouse.down()
        for place in at[1:]:
            opened.mouse.move(*place, steps=4)
        opened.mouse.up()


def test_a_revealed_truth_goes_when_the_next_drawing_has_none(
    visit: Callable[..., Any], served: str
) -> None:
    """A drawing that is blank in the hole shows nothing of what is hidden."""
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    stroke(opened, (0.3, 0.1), (0.5, 0.9))
    opened.wait_for_selector("#examples button:nth-child(2)")
    press(opened, "Escape", "t")
    assert opened.locator("#truth img").count() == 1
    opened.locator("#own-button").click()
    stroke(opened, (0.6, 0.1), (0.6, 0.9))  # the truth of the next stroke stays revealed
    opened.wait_for_function("document.querySelectorAll('#truth img').length === 1")
    opened.locator("#clear-drawing").click()
    stroke(opened, (0.2, 0.95), (0.8, 0.95))
    opened.wait_for_selector("body.without-truth")
    assert opened.locator("#message").is_hidden()
    assert "no picture" in opened.locator("#take-example").get_attribute("title")


def test_a_new_picture_hides_its_truth(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    Image.linear_gradient("L").resize((28, 28)).save(tmp_path / "mine.png")
    for uploads in (1, 2):
        opened.locator("#file").set_input_files(tmp_path / "mine.png")
        opened.wait_for_selector(f"#examples button:nth-child({uploads + 1})")
        assert opened.locator("#truth img").count() == 0
        press(opened, "t")
        assert opened.locator("#truth img").count() == 1


GIVE = """([kind, bytes, name]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([new Uint8Array(bytes)], name, { type: 'image/png' }));
    const event = kind === 'drop' ? new DragEvent('drop', { dataTransfer: transfer, bubbles: true })
      : new ClipboardEvent('paste', { clipboardData: transfer, bubbles: true });
    document.body.dispatchEvent(event);
}"""


def colour_predictor() -> TreePredictor:
    torch.manual_seed(0)
    network = UNet(1, 3, 4, width=4)
    return TreePredictor(
        network, Colorize(), branching=2, depth=2, channels=3, multiple=16, name="colours"
    ).eval()


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_a_colour_picture_that_is_dropped_or_pasted_loses_its_colour(
    visit: Callable[..., Any], kind: str
) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(colours).save(stream, "PNG")
    with serving(make_app(colour_predictor())) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        assert "drop its colour" in opened.locator("#degrade-label").inner_text()
        assert opened.locator("#drawing").is_hidden()
        opened.evaluate(GIVE, [kind, list(stream.getvalue()), "mine.png"])
        opened.wait_for_selector(".node >> nth=6")
        seen = picture_of(opened, "#input")
        expected = (colours.astype(float) / 255).mean(axis=2) * 255
        assert np.abs(seen - expected.round()[..., None]).max() <= 1
        press(opened, "t")
        assert np.array_equal(picture_of(opened, "#truth img"), colours)
        for leaf in opened.locator("[aria-level='3'] img").all():
            pixels = picture_of(opened, leaf)
            inside = ((pixels > 0) & (pixels < 255)).all(axis=2)  # not clipped for display
            assert np.abs(pixels.mean(axis=2) - expected)[inside].max() <= 1.5  # all have this grey
        assert opened.locator("#note").is_hidden()


def test_the_hole_is_painted_moved_and_taken_back(visit: Callable[..., Any]) -> None:
    examples = describe_trees(make_tree(), truths=make_tree().leaves[:, 1], names=["first"])
    with serving(make_app(make_predictor(), examples=examples)) as address:
        opened = visit(address)
        opened.wait_for_selector("body.ready")
        opened.locator("#own-button").click()
        opened.locator("#take-example").click()
        assert opened.locator("#paper-tools input:checked").input_value() == "hide"
        paper = opened.locator("#hole").bounding_box()
        at = [(x / 28 * paper["width"] + paper["x"], 24 / 28 * paper["height"] + paper["y"])
              for x in (4, 20)]  # fmt: skip
        with opened.expect_response(lambda r: "predict" in r.url):
            opened.mouse.move(*at[0])
            opened.mouse.down()
            opened.mouse.move(*at[1], steps=3)
            opened.mouse.up()
        opened.wait_for_selector("#note:not([hidden])")
        assert "not the hole that the model was trained for" in opened.locator("#note").inner_text()
        assert opened.locator("#hole-note").is_visible()
        assert opened.locator("#examples span").all_inner_texts() == ["first, other hole", "first"]
        painted = picture_of(opened, "#input")[..., 0]
        truth = (make_leaves()[1, 0] * 255).round().byte().numpy()
        assert (painted[:20] == 128).all()
        assert (painted[24, 4:20] == 128).all()
        assert np.array_equal(painted[27], truth[27])

        opened.locator("#hole").focus()
        source = opened.locator("#input").get_attribute("src")
        press(opened, "ArrowDown")
        opened.wait_for_function("was => document.getElementById('input').src !== was", arg=source)
        assert opened.locator("#examples button").count() == 2
        moved = picture_of(opened, "#input")[..., 0]
        assert np.array_equal(moved[1:] == 128, painted[:-1] == 128)
        assert np.array_equal(moved[0], truth[0])

        with opened.expect_response(lambda r: "predict" in r.url):
            opened.locator("#own-hole").click()
        opened.wait_for_selector("#note", state="hidden")
        assert opened.locator("#hole-note").is_hidden()
        assert (picture_of(opened, "#input")[:20] == 128).all()
        assert np.array_equal(picture_of(opened, "#input")[20:, :, 0], truth[20:])


def test_the_hole_of_a_colour_photograph_is_moved_by_keyboard(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    """A model whose pictures nobody draws: its paper shows an example, once it is taken."""
    torch.manual_seed(0)
    hole = Inpaint.box((30, 50), (20, 75), (96, 96))
    network = UNet(3, 3, 4, width=4)
    predictor = TreePredictor(network, hole, branching=2, depth=2, channels=3, multiple=16).eval()
    colours = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "photo.png")
    with serving(make_app(predictor)) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        assert opened.locator("#paper").is_hidden()
        assert opened.locator("#take-example").is_disabled()
        opened.locator("#file").set_input_files(tmp_path / "photo.png")
        opened.wait_for_selector(".node >> nth=6")
        opened.locator("#own-button").click()
        opened.locator("#take-example").click()
        assert opened.locator("#tool-draw").is_hidden()
        opened.locator("#hole").focus()
        press(opened, "ArrowRight")
        opened.wait_for_selector("#note:not([hidden])")
        expected = colours.copy()
        expected[30:51, 22:78] = 128  # a step is a 64th of the width
        assert np.array_equal(picture_of(opened, "#input"), expected)
        press(opened, "Escape", "t")
        assert np.array_equal(picture_of(opened, "#truth img"), colours)
