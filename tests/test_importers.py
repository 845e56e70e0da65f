"""Portraits that are cut around their eyes, and drawings that become thin lines."""

import doctest
import inspect
import json
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from posterior_trees import Colorize, Inpaint, Paired, cli, wrap
from posterior_trees.errors import DataError, InputError, PictureWarning
from posterior_trees.imaging.regions import label
from posterior_trees.imaging.source import Plane
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import load, save_model
from posterior_trees.pictures.answer import answer
from posterior_trees.pictures.eyes import Eyes
from posterior_trees.pictures.lines import find_strokes, place_lines, share_of_areas, thin
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import parse_recipe
from posterior_trees.serve.ask import ask
from posterior_trees.serve.start import describe_start

FRAME = (0.375, 0.474, 0.631, 0.474)
BOX = (0.08, 0.08, 0.914, 0.79)


def predictor_of(measurement, channels: int, importer: str, at, size=(64, 64)) -> TreePredictor:
    backbone = torch.nn.Conv2d(measurement.channels(channels), 4, 1)
    made = wrap(backbone, features=4, channels=channels, measurement=measurement).eval()
    made.about = {"card": {"importer": importer}, "frame": {"size": list(size), "at": list(at)}}
    made.name = "mine"
    return made


FACES = predictor_of(Colorize(), 3, "eyes", FRAME)
EYES = predictor_of(Inpaint.box((20, 37), (10, 53), (64, 64)), 3, "eyes", FRAME)
SHOES = predictor_of(Paired(3, 1), 3, "lines", BOX, (128, 128))


def portrait(size: tuple[int, int], *eyes: complex, radius: float = 6) -> np.ndarray:
    """Dark discs on a bright slope, (3, h, w) of 8 bits."""
    h, w = size
    y, x = np.mgrid[:h, :w] + 0.5
    picture = 150 + 60 * x / w + 30 * y / h
    for eye in eyes:
        picture[np.hypot(x - eye.real, y - eye.imag) < radius] = 10
    return np.repeat(picture[None], 3, axis=0).round().astype(np.uint8)


def dark_spots(image: np.ndarray) -> list[complex]:
    """Centres of the dark discs, from the left."""
    places = label(torch.from_numpy(image[0] < 60))
    found = []
    for number in range(1, int(places.max()) + 1):
        row, column = (places == number).nonzero().double().mean(dim=0).tolist()
        found.append(complex(column + 0.5, row + 0.5))
    return sorted(found, key=lambda z: z.real)


@pytest.mark.parametrize("turn", [1, 3.7, 0.6, 2 * np.exp(0.3j), 1.5 * np.exp(-0.5j)])
def test_eyes_come_to_lie_where_the_card_says(turn: complex) -> None:
    """Whatever the portrait's size, place and tilt."""
    eyes = 160 + 140j + turn * np.array([0, 16])
    picture = portrait((300, 400), *eyes, radius=max(2.5, 2.5 * abs(turn)))
    marks = tuple(float(v) for eye in eyes for v in (eye.real, eye.imag))
    cut = Eyes(marks).make(picture, FACES, "a.png")[0]
    assert (cut.shape, cut.dtype) == ((3, 64, 64), np.uint8)
    left, right = dark_spots(cut)
    assert abs(left - 64 * (0.375 + 0.474j)) < 0.6
    assert abs(right - 64 * (0.631 + 0.474j)) < 0.6


def test_a_portrait_that_is_cut_already_stays_as_it_is() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (3, 64, 64), dtype=np.uint8)
    marks = tuple(64 * v for v in FRAME)
    np.testing.assert_array_equal(Eyes(marks).make(picture, FACES, "a.png")[0], picture)


def test_the_order_of_the_marks_changes_nothing() -> None:
    picture = portrait((200, 200), 80 + 90j, 120 + 95j)
    one, other = (
        Eyes(m).make(picture, FACES, "")[0] for m in ((80, 90, 120, 95), (120, 95, 80, 90))
    )
    np.testing.assert_array_equal(one, other)


def test_an_enlarged_portrait_is_cut_alike() -> None:
    """Means of 4×4 pixels, wherever the cut begins."""
    small = portrait((200, 220), 80 + 90j, 120 + 90j, radius=7)
    large = small.repeat(4, axis=1).repeat(4, axis=2)
    one = Eyes((80, 90, 120, 90)).make(small, FACES, "")[0].astype(float)
    other = Eyes((320, 360, 480, 360)).make(large, FACES, "")[0].astype(float)
    assert np.abs(one - other).mean() < 1


@pytest.mark.parametrize(
    ("marks", "words"),
    [
        ((10, 10, 900, 10), r"an eye at 900 10 is not in the picture of 400×300 \(width×height\)"),
        ((10, 10, 12, 10), r"the eyes are 2\.0 pixels apart, they must be 8 or more"),
    ],
)
def test_marks_that_are_no_eyes_are_refused(marks, words: str) -> None:
    with pytest.raises(DataError, match=f"a.png: {words}"):
        Eyes(marks).make(portrait((300, 400)), FACES, "a.png")


def test_marks_of_nan_or_of_other_models_are_refused() -> None:
    with pytest.raises(InputError, match="give four numbers"):
        Reading.of(align=(1, 2, math.nan, 3)).check(FACES)
    with pytest.raises(DataError, match=r"whose card says where eyes lie.*mine does not"):
        Reading.of(align=(1, 2, 30, 3)).check(SHOES)
    with pytest.raises(DataError, match=r"whose card says that they take lines.*mine is none"):
        Reading.of(lines=True).check(FACES)
    with pytest.raises(InputError, match="--align cuts and scales by itself: leave --resize out"):
        Reading.of(align=(1, 2, 30, 3), resize=True).check(EYES)
    with pytest.raises(InputError, match="--align and --lines make different pictures"):
        Reading.of(align=(1, 2, 30, 3), lines=True)


@pytest.mark.parametrize("predictor", [FACES, EYES])
def test_a_portrait_is_predicted_as_its_cut(predictor: TreePredictor, tmp_path: Path) -> None:
    stored = portrait((300, 400), 160 + 140j, 220 + 150j)
    Image.fromarray(stored.transpose(1, 2, 0)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png", predictor, Reading.of(align=(160, 140, 220, 150)))
    cut = Eyes((160, 140, 220, 150)).make(stored, predictor, "")[0]
    np.testing.assert_allclose(picture.pixels[0].numpy(), cut / 255, atol=1e-6)
    made = answer(predictor, picture)
    assert made.tree.shape == (3, 64, 64)
    assert made.remarks["resized"].startswith("cut around the eyes from 300×400 (height×width)")
    assert "note" not in made.remarks


def test_python_is_told_what_the_command_line_is_told_of_a_picture(
    faces: Path, tmp_path: Path, capsys
) -> None:
    """Once for each picture, in the same words, at the line that asked; nothing where eyes are."""
    file = tmp_path / "a.png"
    Image.fromarray(portrait((80, 100)).transpose(1, 2, 0)).save(file)
    cli.main(["predict", str(faces), str(file), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "cut around both eyes, and nobody said" in said
    predictor = load(faces, "cpu")
    with pytest.warns(PictureWarning) as caught:
        predictor.predict(file)
    assert [f"ptrees predict: {w.message}\n" for w in caught] == [said]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.predict(file, align=(40, 40, 60, 40))


def test_a_warning_names_the_line_that_predicted(faces: Path, tmp_path: Path) -> None:
    """Without the type checker's frames, as users run it."""
    Image.fromarray(portrait((80, 100)).transpose(1, 2, 0)).save(tmp_path / "a.png")
    words = f"import posterior_trees as p\np.load({str(faces)!r}, 'cpu').predict('a.png')\n"
    (tmp_path / "mine.py").write_text(words)
    done = subprocess.run([sys.executable, "mine.py"], cwd=tmp_path, capture_output=True, text=True)
    assert "mine.py:2: PictureWarning: a.png: the task 'faces_colorize' knows" in done.stderr


def test_the_example_of_a_portrait_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(portrait((300, 400)).transpose(1, 2, 0)).save(tmp_path / "portrait.jpg")
    monkeypatch.chdir(tmp_path)
    text, known = inspect.getdoc(TreePredictor.predict) or "", {"predictor": FACES}
    example = doctest.DocTestParser().get_doctest(text, known, "predict", None, None)
    assert "align=" in example.examples[0].source
    runner = doctest.DocTestRunner(verbose=False)
    assert runner.run(example, clear_globs=False) == (0, 1)
    assert example.globs["tree"].shape == (3, 64, 64)


def test_what_lies_beyond_the_portrait_is_said(tmp_path: Path) -> None:
    Image.fromarray(portrait((100, 100), 30 + 20j).transpose(1, 2, 0)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png", FACES, Reading.of(align=(10, 10, 60, 10)))
    assert re.search(r"; \d\d% of the cut is beyond its edge", picture.resized)


@pytest.mark.parametrize(("predictor", "resize"), [(FACES, False), (EYES, True)])
def test_a_portrait_without_marks_is_doubted(predictor, resize: bool, tmp_path: Path) -> None:
    Image.fromarray(portrait((80, 100)).transpose(1, 2, 0)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png", predictor, Reading.of(resize=resize))
    note = answer(predictor, picture).remarks["note"]
    assert "cut around both eyes, and nobody said" in note
    size = "64 pixels high, not 80. Mark its eyes, or --scale 0.8"
    assert (size in note) is not resize
    said_so = picture._replace(reading=picture.reading._replace(is_cut=True))
    note = answer(predictor, said_so).remarks.get("note", "")
    assert "nobody said" not in note
    assert (size in note) is not resize


def test_the_page_doubts_what_takes_many_tiles_instead_of_predicting_it(tmp_path: Path) -> None:
    """What is sent to it, and what it begins with."""
    photo = tmp_path / "photo.png"
    Image.new("RGB", (1600, 1200)).save(photo)

    for reading, words in (
        (Reading(), "nobody said where they are"),
        (
            Reading(is_cut=True),
            r"photo.png: A portrait.* 64 pixels high, not 1200. Mark its eyes$",
        ),
    ):
        with pytest.raises(InputError, match=words):
            ask(FACES, photo.read_bytes(), "photo.png", reading)
        with pytest.raises(InputError, match=words):
            describe_start(FACES, [photo], reading)
    with pytest.raises(InputError, match="let --lines"):
        ask(SHOES, photo.read_bytes(), "photo.png")
    marked = Reading.of(align=(600, 500, 700, 500))
    assert "note" not in ask(FACES, photo.read_bytes(), "photo.png", marked).remarks


# ---- drawings -----------------------------------------------------------------------------------


def drawing(pen: int, zoom: float = 1.0, dark: int = 20, light: int = 230) -> np.ndarray:
    """A low shoe from its side, (1, h, w)."""
    image = Image.new("L", (round(300 * zoom), round(220 * zoom)), light)
    points = [(40, 150), (50, 70), (100, 75), (150, 110), (240, 125), (255, 150), (40, 150)]
    places = [(zoom * x, zoom * y) for x, y in points]
    ImageDraw.Draw(image).line(places, fill=dark, width=pen, joint="curve")
    ImageDraw.Draw(image).line([(zoom * 110, zoom * 100), (zoom * 150, zoom * 130)], fill=dark,
                               width=pen)  # fmt: skip
    return np.asarray(image)[None]


def find_lines(stored: np.ndarray, size: tuple[int, int], frame, name: str = "") -> torch.Tensor:
    return place_lines(find_strokes(stored, name), size, frame)


def near(one: torch.Tensor, other: torch.Tensor, pixels: int = 2) -> float:
    """The share of the lines of one that have the other's within so many pixels."""
    reach = 2 * pixels + 1
    wide = torch.nn.functional.max_pool2d(other[None].float(), reach, 1, pixels)[0] > 0
    return (one & wide).sum().item() / one.sum().item()


OTHERS = [drawing(5), drawing(9), drawing(12, zoom=3), drawing(3, zoom=0.6), drawing(5, 1, 240, 15)]


@pytest.mark.parametrize("other", OTHERS)
def test_lines_thick_or_thin_light_or_dark_are_the_same(other: np.ndarray) -> None:
    usual = find_lines(drawing(3), (128, 128), BOX)
    lines = find_lines(other, (128, 128), BOX)
    assert near(usual, lines) > 0.97
    assert near(lines, usual) > 0.97


def test_a_drawing_fills_its_frame_and_stands_on_its_ground() -> None:
    rows, columns = (
        find_lines(drawing(3), (128, 128), BOX).any(dim=axis).nonzero().flatten() for axis in (1, 0)
    )
    assert int(columns[0]) == pytest.approx(10, abs=2)
    assert int(columns[-1]) == pytest.approx(116, abs=2)
    assert int(rows[-1]) == pytest.approx(101, abs=2)
    high = drawing(3).transpose(0, 2, 1)  # higher than wide: as high as the frame
    rows = find_lines(high, (128, 128), BOX).any(dim=1).nonzero().flatten()
    assert (int(rows[0]), int(rows[-1])) == (pytest.approx(10, abs=3), pytest.approx(101, abs=3))


def test_a_drawing_of_the_models_size_stays_where_it_is() -> None:
    image = Image.new("L", (128, 128), 255)
    ImageDraw.Draw(image).line([(30, 40), (60, 90)], fill=0, width=3)
    rows = find_lines(np.asarray(image)[None], (128, 128), BOX).any(dim=1).nonzero().flatten()
    assert (int(rows[0]), int(rows[-1])) == (pytest.approx(40, abs=2), pytest.approx(90, abs=2))


@pytest.mark.parametrize("seed", range(6))
def test_thin_lines_are_connected_as_the_ink_and_one_pixel_wide(seed: int) -> None:
    """As many parts and as many holes as before (its Euler number), and no 2×2 square is left but
    where lines cross."""
    from scipy import ndimage

    image = Image.new("L", (80, 80), 0)
    rng, pen = np.random.default_rng(seed), ImageDraw.Draw(image)
    for _ in range(4):
        pen.line([tuple(p) for p in rng.integers(8, 72, (3, 2))], fill=1, width=5, joint="curve")
    ink = torch.from_numpy(np.asarray(image).astype(bool))
    lines = thin(ink)
    eight = np.ones((3, 3))
    for array, structure in ((lambda t: t.numpy(), eight), (lambda t: ~t.numpy(), None)):
        counts = [ndimage.label(array(t), structure)[1] for t in (ink, lines)]
        assert counts[0] == counts[1]
    assert bool((lines <= ink).all())
    square = torch.nn.functional.avg_pool2d(lines[None].float(), 2, 1)
    assert (square == 1).sum() <= 4
    assert torch.equal(thin(lines), lines)


def test_thin_lines_of_two_pixels_stay_lines() -> None:
    square = torch.zeros(6, 6, dtype=torch.bool)
    square[2:4, 2:4] = True
    assert 1 <= int(thin(square).sum()) < 4
    slanted = torch.eye(64, dtype=torch.bool)
    slanted[:-1, 1:] |= torch.eye(63, dtype=torch.bool)
    left = thin(slanted).nonzero()
    assert left[:, 0].unique().numel() >= 62


def test_the_smallest_drawing_is_not_called_filled() -> None:
    image = Image.new("L", (40, 40), 255)
    ImageDraw.Draw(image).rectangle([12, 12, 26, 26], outline=0)
    assert find_lines(np.asarray(image)[None], (40, 40), BOX).sum() >= 50


def test_a_drawing_larger_than_the_model_s_is_doubted(tmp_path: Path) -> None:
    Image.fromarray(np.where(drawing(3)[0] > 128, 255, 0).astype(np.uint8)).save(tmp_path / "a.png")
    picture = read(tmp_path / "a.png", SHOES, Reading())
    assert "has 220×300: let --lines" in answer(SHOES, picture).remarks["note"]
    made = read(tmp_path / "a.png", SHOES, Reading.of(lines=True))
    assert "note" not in answer(SHOES, made).remarks


def test_nothing_but_specks_is_refused() -> None:
    dots = np.full((1, 1000, 1000), 255, np.uint8)
    for row in range(10, 1000, 25):
        for column in range(10, 1000, 25):
            dots[0, row : row + 6, column : column + 6] = 0
    with pytest.raises(DataError, match=r"dots.png shows nothing but specks"):
        find_lines(dots, (128, 128), BOX, "dots.png")


def test_a_filled_drawing_is_refused_and_a_blank_one() -> None:
    image = Image.new("L", (300, 200), 255)
    ImageDraw.Draw(image).ellipse([60, 50, 240, 150], fill=0)
    with pytest.raises(DataError, match=r"d.png: strokes are \d+ of \d+ pixels wide.*outlines"):
        find_lines(np.asarray(image)[None], (128, 128), BOX, "d.png")
    with pytest.raises(DataError, match=r"d.png is blank: .* Give one with a drawing"):
        find_lines(np.full((1, 40, 50), 90, np.uint8), (128, 128), BOX, "d.png")


def test_a_drawing_becomes_black_lines_on_white(tmp_path: Path) -> None:
    Image.fromarray(drawing(5)[0]).save(tmp_path / "d.png")
    picture = read(tmp_path / "d.png", SHOES, Reading.of(lines=True))
    assert picture.pixels.shape == (1, 1, 128, 128)
    assert set(picture.pixels.unique().tolist()) == {0.0, 1.0}
    assert picture.pixels.mean() > 0.9
    assert answer(SHOES, picture).remarks["resized"] == "the lines found in 220×300 (height×width)"


def test_a_photograph_given_as_lines_is_doubted(tmp_path: Path) -> None:
    Image.fromarray(portrait((128, 128))[0]).save(tmp_path / "p.png")
    note = answer(SHOES, read(tmp_path / "p.png", SHOES)).remarks["note"]
    assert "knows thin black lines on white" in note
    Image.fromarray(drawing(1, zoom=0.4)[0]).save(tmp_path / "d.png")
    assert "note" not in answer(SHOES, read(tmp_path / "d.png", SHOES)).remarks


def dark_shoe() -> np.ndarray:
    """A photograph of one on white: thin laces, a thick sole and a shaded shaft, (1, h, w)."""
    image, (y, x) = Image.new("L", (300, 220), 240), np.mgrid[:220, :300]
    pen = ImageDraw.Draw(image)
    pen.polygon([(40, 100), (60, 60), (110, 65), (130, 95), (120, 115), (60, 115)], fill=60)
    pen.line([(40, 150), (255, 150)], fill=40, width=9)
    for place in range(120, 240, 8):
        pen.line([(place, 100), (place + 12, 145)], fill=80, width=2)
    shade = 20 * np.sin(x / 9) * np.cos(y / 7)
    return (np.asarray(image) + np.where(np.asarray(image) < 200, shade, 0)).astype(np.uint8)[None]


@pytest.mark.parametrize(("stored", "is_doubted"), [(dark_shoe(), True),
                         *((other, False) for other in (*OTHERS, drawing(16)))])  # fmt: skip
def test_lines_found_in_a_photograph_are_doubted(
    stored: np.ndarray, is_doubted: bool, tmp_path: Path
) -> None:
    """A pen of whatever width is believed."""
    Image.fromarray(stored[0]).save(tmp_path / "a.png")
    made = answer(SHOES, read(tmp_path / "a.png", SHOES, Reading.of(lines=True)))
    assert ("is it a photograph?" in made.remarks.get("note", "")) == is_doubted


def test_areas_are_what_discs_of_twice_the_width_cover() -> None:
    ink = torch.zeros(200, 200, dtype=torch.bool)
    ink[20:180, 50:53] = ink[20:180, 100:103] = ink[90:93, 50:100] = True
    assert share_of_areas(ink) == 0  # as wide everywhere
    lines = int(ink.sum())
    ink[100:140, 140:180] = True
    assert share_of_areas(ink) == pytest.approx(1600 / (1600 + lines), abs=0.05)


# ---- the model says it, and the command does it --------------------------------------------------


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """A stored model that says where eyes lie."""
    recipe = parse_recipe("task = 'faces_colorize'\n[data]\nsize = [64, 64]\n[network]\nwidth = 9\n"
                          "steps = 2\ndecoder = 'shared'\n")  # fmt: skip
    predictor = build_predictor(recipe).eval()
    assert predictor.about["frame"] == {"size": [64, 64], "at": list(FRAME)}
    save_model(tmp_path / "m.safetensors", predictor, recipe)
    return tmp_path / "m.safetensors"


def test_a_stored_model_says_where_eyes_lie_and_predict_cuts_there(
    faces: Path, tmp_path: Path, capsys
) -> None:
    assert load(faces, "cpu").about["frame"]["at"] == list(FRAME)
    Image.fromarray(portrait((300, 400), 160 + 140j).transpose(1, 2, 0)).save(tmp_path / "a.png")
    words = [str(faces), str(tmp_path / "a.png")]
    out = tmp_path / "out"
    cli.main(["predict", *words, "--align", "160", "140", "220", "150", "--out", str(out)])
    table = json.loads((out / "a" / "tree.json").read_text())
    assert table["size"] == [64, 64]
    assert table["resized"].startswith("cut around the eyes")
    with pytest.raises(SystemExit):
        cli.main(["predict", "digits", words[1], "--lines", "--out", str(out)])
    assert "--lines is for models whose card" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["predict --out", "explore --save"])
def test_one_pair_of_eyes_is_refused_for_several_portraits(
    words: str, faces: Path, tmp_path: Path, capsys
) -> None:
    """They were all cut around the eyes of one."""
    command, option = words.split()
    for name in ("a", "b", "c"):
        Image.fromarray(portrait((300, 400)).transpose(1, 2, 0)).save(tmp_path / f"{name}.png")
    files = [str(tmp_path / f"{name}.png") for name in ("a", "b", "c")]
    marks = ["--align", "160", "140", "220", "150"]
    with pytest.raises(SystemExit):
        cli.main([command, str(faces), *files, *marks, option, str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "eyes of one picture are, and 3 pictures are given: make one call for each" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["turned", "palette"])
def test_a_tiff_that_pillow_reads_is_asked_for_the_planes_that_are_told(
    name: str, tmp_path: Path
) -> None:
    """Not read without them: a channel that is not there was ignored, and a tree written."""
    grey = Image.fromarray(np.full((20, 30), 90, np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    grey.save(tmp_path / "turned.tif", exif=exif)
    grey.convert("P").save(tmp_path / "palette.tif")
    with pytest.raises(ValueError, match="no channel 3"):
        read(tmp_path / f"{name}.tif", SHOES, Reading.of(plane=Plane(channel=3)))
