"""A photographed digit becomes what MNIST holds, however it was photographed."""

import json
import re
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from posterior_trees import Colorize, Inpaint, Paired, Tree, TreePredictor, UNet, cli, load
from posterior_trees.assets import sample_digits
from posterior_trees.data import find_folder, read_idx
from posterior_trees.errors import DataError
from posterior_trees.pictures.digit import (
    THIN,
    Digit,
    count_side_by_side,
    describe_doubt,
    find_digit,
)
from posterior_trees.pictures.ink import stroke_width
from posterior_trees.pictures.reading import Reading
from posterior_trees.serve.ask import ask
from posterior_trees.serve.start import describe_start

DIGITS = sample_digits()[:, 0].numpy()


def photograph(
    digit: np.ndarray,
    zoom: int = 8,
    place: tuple[int, int] = (60, 120),
    size: tuple[int, int] = (400, 480),
    light: float = 0.4,
    noise: float = 0.03,
    ink: float = 0.15,
) -> np.ndarray:
    """Dark ink on grey paper: light falls from 1 in one corner to `light` in the other."""
    side = zoom * 28
    large = Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC)
    cover = np.zeros(size)
    cover[place[0] : place[0] + side, place[1] : place[1] + side] = np.clip(large, 0, 1)
    down, right = np.linspace(0, 1, size[0])[:, None], np.linspace(0, 1, size[1])
    shone = 1 - (1 - light) * (0.6 * down + 0.4 * right)
    grains = noise * np.random.default_rng(0).standard_normal(size)
    return to_bytes(0.8 * shone * (1 - (1 - ink) * cover) + grains)


def to_bytes(picture: np.ndarray) -> np.ndarray:
    return (picture.clip(0, 1) * 255).round().astype(np.uint8)[None]


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of two pictures."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def moved(digit: np.ndarray) -> np.ndarray:
    """A digit of MNIST whose centre of mass is brought to the middle, by up to half a pixel."""
    fine = np.kron(digit, np.ones((8, 8)))
    shift = [round(8 * (14 - np.average(np.arange(28), weights=digit.sum(axis=1 - axis))))
             for axis in (0, 1)]  # fmt: skip
    return np.roll(fine, shift, (0, 1)).reshape(28, 8, 28, 8).mean(axis=(1, 3))


@cache
def found(number: int) -> np.ndarray:
    """A sample digit, out of a plain photograph of it."""
    return find_digit(photograph(DIGITS[number]))[0]


# ---- the digit ----------------------------------------------------------------------------------


def test_every_sample_digit_comes_back_from_its_photograph() -> None:
    near = []
    for number, digit in enumerate(DIGITS):
        picture = photograph(digit, zoom=6 + number % 7, place=(20, 90))
        near.append(likeness(find_digit(picture)[0], moved(digit)))
    assert min(near) > 0.93
    assert np.mean(near) > 0.99


def test_a_digit_is_as_large_as_in_mnist_and_its_centre_of_mass_in_the_middle() -> None:
    for number in range(0, 48, 4):
        digit = found(number)
        assert (digit.dtype, digit.shape) == (np.float32, (28, 28))
        assert 0 == digit.min() < 0.9 < digit.max() <= 1
        for axis in (0, 1):
            mass = digit.sum(axis=1 - axis)
            assert np.average(np.arange(28), weights=mass) == pytest.approx(14, abs=0.1)
        rows, columns = np.nonzero(digit > 0.3)
        longest = max(np.ptp(rows), np.ptp(columns)) + 1
        assert 19 <= longest <= 21


def test_a_digit_of_mnist_is_found_in_itself() -> None:
    near = [likeness(find_digit(to_bytes(digit))[0], moved(digit)) for digit in DIGITS]
    assert min(near) > 0.98


def drawn_seven(pen: int) -> np.ndarray:
    """A seven of two straight strokes, 240 pixels high, by a pen of so many pixels."""
    paper = Image.new("L", (420, 420), 215)
    corners = [(120, 90), (290, 90), (190, 330)]
    ImageDraw.Draw(paper).line(corners, fill=40, width=pen, joint="curve")
    return np.asarray(paper)[None]


def test_strokes_of_the_sample_digits_are_about_a_tenth_of_their_side() -> None:
    """What `digit.THIN` is chosen by: one in twenty is thinner."""
    widths = []
    for digit in DIGITS:
        large = Image.fromarray(digit).resize((224, 224), Image.Resampling.BICUBIC)
        ink = torch.from_numpy(np.array(large) > 0.5)
        side = int((ink.nonzero().amax(dim=0) - ink.nonzero().amin(dim=0)).max()) + 1
        widths.append(stroke_width(ink) / side)
    low, middle, high = np.quantile(widths, (0.05, 0.5, 1))
    assert low == pytest.approx(THIN, abs=0.01)
    assert middle == pytest.approx(0.11, abs=0.01)
    assert high < 0.18


def test_a_thin_pen_writes_what_a_thick_one_does() -> None:
    """A ballpoint's strokes are a hundredth of a digit's height, MNIST's about a tenth."""
    thick = find_digit(drawn_seven(20))[0]
    for pen in (2, 3, 5, 10):
        digit = find_digit(drawn_seven(pen))[0]
        assert likeness(digit, thick) > 0.88
        assert 0.8 < digit.sum() / thick.sum() < 1.1
    # … and what is thick enough stays as it is
    assert find_digit(drawn_seven(30))[0].sum() > 1.15 * thick.sum()


# ---- what does not matter -----------------------------------------------------------------------

CHANGES = {
    "place": {"place": (150, 230)},
    "size": {"zoom": 12},
    "paper": {"size": (300, 700)},
    "light": {"light": 1.0},
    "strong light": {"light": 0.25},
    "pencil": {"ink": 0.6},
    "no noise": {"noise": 0.0},
    "noise": {"noise": 0.06},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_neither_place_nor_size_nor_light_nor_pen_matters(change: dict) -> None:
    for number in range(0, 48, 6):
        other = find_digit(photograph(DIGITS[number], **change))[0]
        assert likeness(other, found(number)) > 0.95, number


def test_exchanging_black_and_white_or_the_scale_of_the_values_changes_nothing() -> None:
    for number in (1, 12, 30):
        picture = photograph(DIGITS[number])
        same = (255 - picture, picture * np.uint16(150), 0.5 - picture.astype(np.float32))
        for other in same:
            np.testing.assert_allclose(find_digit(other)[0], found(number), atol=0.02)


def test_a_large_photograph_is_the_same_as_a_small_one() -> None:
    large = photograph(DIGITS[3]).repeat(5, axis=1).repeat(5, axis=2)
    assert likeness(find_digit(large)[0], found(3)) > 0.995


def test_specks_and_what_touches_the_edge_are_not_the_digit() -> None:
    picture = photograph(DIGITS[4])
    picture[0, 350:353, 30:33] = picture[0, 20:22, 400:402] = 0  # dust
    picture[0, 330:, 440:] = picture[0, :, :6] = 10  # a table, and the paper's edge
    assert likeness(find_digit(picture)[0], found(4)) > 0.95


def test_a_blot_far_away_is_not_the_digits_and_a_bar_close_by_is() -> None:
    picture = photograph(DIGITS[4])
    picture[0, 360:372, 20:32] = 10  # a tenth of the digit's size
    assert likeness(find_digit(picture)[0], found(4)) > 0.95
    five = Image.new("L", (300, 300), 220)
    pen = ImageDraw.Draw(five)
    pen.line([(120, 100), (120, 150), (170, 170), (165, 210), (115, 215)], fill=20, width=14)
    alone = find_digit(np.asarray(five)[None])[0]
    pen.line([(140, 85), (200, 80)], fill=20, width=14)
    assert likeness(find_digit(np.asarray(five)[None])[0], alone) < 0.9


def test_a_digit_close_to_the_edge_is_the_same_digit() -> None:
    far, near = drawn_seven(3), drawn_seven(3)[:, 84:, 114:]
    assert likeness(find_digit(near)[0], find_digit(far)[0]) > 0.95


# ---- what is no digit ---------------------------------------------------------------------------


def test_blank_paper_is_said_to_be_blank() -> None:
    with pytest.raises(DataError, match=r"a\.jpg is blank: all its pixels are 90"):
        find_digit(np.full((1, 40, 50), 90, np.uint8), "a.jpg")
    paper = photograph(np.zeros((28, 28), np.float32), noise=0.03)
    with pytest.raises(
        DataError, match=r"a\.jpg: a digit was not found. .* \d\.\d standard .* 4 or more"
    ):
        find_digit(paper, "a.jpg")


def test_ink_all_around_is_not_taken_for_a_digit() -> None:
    picture = photograph(DIGITS[4])
    picture[0, :20] = picture[0, -20:] = picture[0, :, :20] = 5
    with pytest.raises(DataError, match=r"a\.jpg: .* ink is on \d+% of the picture's edge"):
        find_digit(picture, "a.jpg")


HOLE = Inpaint.box((0, 19), (0, 27), (28, 28))


def test_digits_raise_no_doubt() -> None:
    assert {describe_doubt(digit[None], HOLE) for digit in DIGITS} == {""}


def test_few_digits_of_mnist_raise_doubt() -> None:
    """What `describe_doubt` says of every tenth test digit."""
    try:
        images = read_idx(find_folder(None) / "mnist" / "t10k-images-idx3-ubyte.gz")
    except ValueError:
        pytest.skip("PTREES_DATA names no folder with mnist/")
    found = [torch.from_numpy(find_digit(image[None])[0]) for image in images[::10]]
    assert max(stroke_width(digit > 0.5) for digit in found) == pytest.approx(4.25, abs=0.05)
    assert sum(count_side_by_side(digit) > 1 for digit in found) == 1
    assert sum(bool(describe_doubt(digit[None].numpy(), HOLE)) for digit in found) <= 10


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ((4, 24), (4, 24), "strokes are 1. of 28 pixels wide, those of digits up to 5"),
        ((4, 18), (12, 15), "nothing of the digit is where the model looks"),
    ],
)
def test_what_is_no_digit_raises_doubt(rows, columns, words: str) -> None:
    digit = np.zeros((1, 28, 28), np.float32)
    digit[0, slice(*rows), slice(*columns)] = 1
    assert re.search(words, describe_doubt(digit, HOLE))


def test_two_digits_raise_doubt_and_are_warned_of(tmp_path: Path, capsys) -> None:
    picture = photograph(DIGITS[4], zoom=6, place=(100, 20))
    second = photograph(DIGITS[9], zoom=6, place=(100, 20))
    picture[:, :, 240:] = second[:, :, :240]
    Image.fromarray(picture[0]).save(tmp_path / "a.png")
    words = [str(tmp_path / "a.png"), "--digit"]
    cli.main(["predict", "digits", *words, "--out", str(tmp_path / "out")])
    assert "a.png: the ink has large parts side by side" in capsys.readouterr().err
    table = json.loads((tmp_path / "out" / "a" / "tree.json").read_text())
    assert table["note"].startswith("the ink has large parts side by side")
    assert (
        table["resized"]
        == f"the digit found in {'×'.join(map(str, picture.shape[1:]))} (height×width)"
    )
    cli.main(["explore", "digits", *words, "--save", str(tmp_path / "page.html")])
    assert "a.png: the ink has large parts side by side" in capsys.readouterr().err


def test_a_dot_is_too_small_for_a_digit() -> None:
    picture = np.full((1, 200, 300), 200, np.uint8)
    picture[0, 90:95, 100:103] = 10
    with pytest.raises(
        DataError, match=r"the ink is \d pixels long in a picture of 200×300, .* 8 "
    ):
        find_digit(picture, "a.jpg")


@pytest.mark.parametrize(
    ("measurement", "channels", "words"),
    [
        (Inpaint.box((0, 7), (0, 7), (16, 20)), 1, "predicts 16×20 in grey: .*--resize"),
        (Inpaint.box((0, 7), (0, 7), (28, 28)), 3, "predicts 28×28 in colour: "),
        (Colorize(), 3, "predicts pictures of any size in colour: leave --digit out"),
        (Paired(1, 1), 1, "predicts pictures of any size in grey: leave --digit out"),
    ],
)
def test_other_models_are_refused_with_what_they_take(measurement, channels, words: str) -> None:
    network = torch.nn.Conv2d(1, 1, 1)
    predictor = TreePredictor(network, measurement, branching=2, depth=1, channels=channels,
                              name="mine", about={"card": {"importer": "digit"}})  # fmt: skip
    with pytest.raises(DataError, match=f"28×28, as `digits` does; mine {words}"):
        Digit().check(predictor)


# ---- the commands -------------------------------------------------------------------------------


def test_the_tree_of_a_photograph_is_that_of_its_digit(tmp_path: Path) -> None:
    """A digit of which few rows are visible may grow another tree by half a pixel, or less."""
    model, near = load("digits", device="cpu"), []
    for number in range(0, 48, 3):
        file = tmp_path / f"{number}.png"
        Image.fromarray(photograph(DIGITS[number])[0]).save(file)
        root = model.predict(file, digit=True).root
        want = model.predict(torch.from_numpy(moved(DIGITS[number])).float()).root
        near.append(likeness(root.numpy(), want.numpy()))
    assert min(near) > 0.8
    assert np.mean(near) > 0.95


def test_both_commands_find_the_digit_in_a_photograph(tmp_path: Path, capsys) -> None:
    picture = Image.fromarray(photograph(DIGITS[8])[0]).convert("RGB")
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side: turn it clockwise to see it upright
    picture.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "a.jpg", quality=90, exif=exif)
    words = [str(tmp_path / "a.jpg"), "--digit"]
    cli.main(["predict", "digits", *words, "--out", str(tmp_path / "out")])
    taken = np.asarray(Image.open(tmp_path / "out" / "a" / "picture.png")) / 255
    assert likeness(taken, found(8)) > 0.95
    cli.main(["explore", "digits", *words, "--save", str(tmp_path / "page.html")])
    said = capsys.readouterr()
    assert said.err == ""
    text = re.search(r'id="trees">(.*?)</script>', (tmp_path / "page.html").read_text("utf-8"))
    assert text is not None
    (example,) = json.loads(text[1])["examples"]
    assert example["resized"] == "the digit found in 400×480 (height×width)"
    assert example["truth"]


@pytest.mark.parametrize("command", ["predict", "explore"])
def test_nothing_else_is_done_to_a_photographed_digit(command: str, tmp_path: Path, capsys) -> None:
    place = ["--out" if command == "predict" else "--save", str(tmp_path / "out")]
    words = [command, "digits", "a.jpg", "--digit", *place]
    for options in (["--invert"], ["--levels", "9", "99"], ["--gamma", "2"]):
        with pytest.raises(SystemExit):
            cli.main([*words, *options])
        fix = f"--digit finds ink, paper and size by itself: leave {options[0]} out"
        assert fix in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*words, "--measured"])
    assert "leave --measured out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([command, "cells", "a.jpg", "--digit", *place])
    assert "predicts pictures of any size in grey: leave --digit out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_predict_does_not_resize_a_photographed_digit_too(tmp_path: Path, capsys) -> None:
    words = ["predict", "digits", "a.jpg", "--digit", "--resize", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        cli.main(words)
    assert "by itself: leave --resize out" in capsys.readouterr().err


def test_a_digit_that_does_not_fit_is_not_told_to_exchange_black_and_white(tmp_path: Path) -> None:
    hole = Inpaint.box((0, 19), (0, 27), (28, 28))
    model = TreePredictor(UNet(1, 1, 2, width=4), hole, branching=2, depth=1, channels=1,
                          multiple=16, about={"input_brightness": [0.9, 1.0],
                                              "card": {"importer": "digit"}})  # fmt: skip
    stream, heard = BytesIO(), []
    Image.fromarray(photograph(DIGITS[8])[0]).save(stream, "PNG")
    note = ask(model, stream.getvalue(), "a", Reading.of(digit=True)).remarks["note"]
    assert "Is it what the model knows, alone and upright?" in note
    assert "--invert" not in note
    (tmp_path / "a.png").write_bytes(stream.getvalue())
    (example,) = describe_start(
        model, [tmp_path / "a.png"], Reading.of(digit=True), warn=heard.append
    )
    assert heard == [f"{tmp_path / 'a.png'}: {note}"]
    assert example["note"] == note
    assert isinstance(model.predict(tmp_path / "a.png", digit=True), Tree)
