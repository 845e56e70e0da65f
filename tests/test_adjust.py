"""Stored values: levels, gamma, inversion, and advice that was checked before it was given."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Measurement, Paired, TreePredictor, UNet
from posterior_trees.errors import DataError
from posterior_trees.imaging.adjust import Adjustment, describe_misfit
from posterior_trees.imaging.decode import decode_raw
from posterior_trees.pictures.reading import Reading, read

CAMERA = np.random.default_rng(0).integers(150, 2600, (1, 40, 50), np.uint16, endpoint=True)


def advice(stored: np.ndarray, done: Adjustment, low: float, high: float, name: str = "t") -> str:
    """What is said of a picture to a model that was trained on these brightnesses."""
    about = {"input_brightness": [low, high]} if low < high else {}
    made = {"branching": 2, "depth": 1, "channels": 1, "name": name, "about": about}
    model = TreePredictor(torch.nn.Linear(1, 1), Measurement(), **made)
    return describe_misfit(stored, done, model, lambda x: x)


def follow(text: str, stored: np.ndarray, done: Adjustment) -> float:
    """The mean brightness of a picture adjusted as the advice says."""
    levels = re.search(r"--levels (\S+) ([^\s)]+)", text)
    gamma = re.search(r"--gamma ([^\s)]+)", text)
    other = Adjustment.of(
        [float(value) for value in levels.groups()] if levels else done.levels,
        float(gamma[1]) if gamma else done.gamma,
        done.is_inverted != ("--invert" in text),
    )
    return other.apply(stored).mean().item()


# ---- values ---------------------------------------------------------------------------------


def test_levels_come_first_then_gamma_then_the_exchange_of_black_and_white() -> None:
    stored = np.array([[[100, 200, 300, 400]]], np.uint16)
    seen = Adjustment.of((200, 400), 0.5, invert=True).apply(stored)
    torch.testing.assert_close(seen, 1 - torch.tensor([[[[0, 0, 0.5, 1]]]]).sqrt())


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_without_levels_white_is_the_largest_number_of_its_bits(dtype: type) -> None:
    top = np.iinfo(dtype).max
    assert Adjustment().apply(np.array([[[0, top]]], dtype)).tolist() == [[[[0, 1]]]]


def test_floating_point_values_need_levels_unless_they_are_in_0_1() -> None:
    unit = np.array([[[-0.0005, 0.25, 1.0005]]], np.float32)
    assert Adjustment().apply(unit).flatten().tolist() == [0, 0.25, 1]
    camera = CAMERA.astype(np.float32)
    with pytest.raises(DataError, match=r"a\.tif .* from 15\d to 2\d+; .*--levels 15\d 25\d\d"):
        Adjustment().apply(camera, "a.tif")
    levels = Adjustment.of((150, 2600), 0.5, invert=False)
    torch.testing.assert_close(levels.apply(camera), levels.apply(CAMERA))


@pytest.mark.parametrize(
    ("levels", "gamma", "words"),
    [
        ((9, 3), 1.0, "the levels are 9 and 3; the first must be the lower one"),
        ((5, 5), 1.0, "the levels are 5 and 5; the first must be the lower one"),
        ((1, 2, 3), 1.0, "the levels are 1 2 3; give two numbers"),
        ((0, float("inf")), 1.0, "the levels are 0 inf; give two numbers"),
        (None, 0.0, "gamma is 0; it must be positive"),
        (None, float("nan"), "gamma is nan; it must be positive"),
    ],
)
def test_wrong_numbers_are_explained(levels, gamma: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Adjustment.of(levels, gamma, invert=False)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_a_file_of_32_bits_is_read_with_levels(dtype: type, tmp_path: Path) -> None:
    network = UNet(1, 1, 2, width=4)
    model = TreePredictor(network, Paired(1, 1), branching=2, depth=1, channels=1, multiple=16)
    values = 100 * CAMERA[0].astype(dtype)
    Image.fromarray(values).save(tmp_path / "a.tif")
    options = {"levels": (15_000, 260_000), "gamma": 0.5}
    found = read(tmp_path / "a.tif", model, Reading.of(**options)).pixels
    inverted = read(tmp_path / "a.tif", model, Reading.of(**options, invert=True)).pixels
    torch.testing.assert_close(inverted, 1 - found)
    want = Adjustment.of((150, 2600), 0.5, invert=False).apply(CAMERA)
    torch.testing.assert_close(found, want)
    with pytest.raises(DataError, match=r"a\.tif has floating-point or 32-bit pixels from 15"):
        read(tmp_path / "a.tif", model)


def test_numbers_in_0_1_stay_there_when_they_are_resized() -> None:
    """Bicubic resizing overshoots at edges."""
    stream = io.BytesIO()
    edge = np.repeat([[0.0] * 9 + [1.0] * 9], 18, axis=0).astype(np.float32)
    Image.fromarray(edge).save(stream, "TIFF")
    stored = decode_raw(stream, "a", 1, (7, 7))
    assert (stored.dtype, stored.min(), stored.max()) == (np.float32, 0, 1)


# ---- advice ---------------------------------------------------------------------------------


def test_what_fits_or_cannot_be_judged_needs_no_advice() -> None:
    grey = np.full((1, 4, 4), 128, np.uint8)
    assert advice(grey, Adjustment(), 0.4, 0.6) == ""
    assert advice(grey, Adjustment(), 1.0, 0.0) == ""  # a model that does not know


def test_black_on_white_is_told_to_exchange_them_and_back() -> None:
    light = np.full((1, 4, 4), 204, np.uint8)
    text = advice(light, Adjustment(), 0.1, 0.3)
    assert "the task 't': as the model sees it, its mean brightness is 0.800" in text
    assert text.endswith("Exchanging black and white (--invert) would make it 0.200")
    dark = Adjustment(is_inverted=True)
    assert "(no --invert) would make it 0.800" in advice(light, dark, 0.7, 0.9)
    assert "this model" in advice(light, dark, 0.7, 0.9, name="")


def test_a_camera_s_values_are_told_their_own_range() -> None:
    text = advice(CAMERA, Adjustment(), 0.4, 0.6)  # 12 bits in 16 are nearly black
    assert re.search(r"Its own range of values \(--levels 15\d 25\d\d\) would make it 0\.5", text)
    text = advice(CAMERA, Adjustment(), 0.62, 0.7)  # as after a square root
    assert re.search(r"\(--levels 15\d 25\d\d --gamma 0.5\) would make it 0\.6", text)


def test_a_camera_s_few_bits_are_not_taken_for_an_inverted_picture() -> None:
    """Nearly black in 16 bits, exchanged nearly white: the task may take that, but it is wrong."""
    text = advice(CAMERA, Adjustment(), 0.4, 1.0)
    assert re.search(r"Its own range of values \(--levels 15\d 25\d\d\) would make it 0\.5", text)
    flat = np.full((1, 4, 4), 2000, np.uint16)  # has no range of its own
    assert "--invert" in advice(flat, Adjustment(), 0.4, 1.0)


def test_too_bright_by_its_levels_is_not_told_to_exchange_black_and_white() -> None:
    """Though that would do: who names levels knows which end is black."""
    done = Adjustment.of((150, 900), 1.0, invert=False)
    mean = done.apply(CAMERA).mean().item()
    text = advice(CAMERA, done, 1 - mean - 0.01, 0.6)
    assert "invert" not in text
    assert "Its own range of values (--levels" in text
    forgotten = Adjustment.of((150, 2600), 1.0, invert=False)
    assert "--gamma 0.5) would make it 0.6" in advice(CAMERA, forgotten, 0.62, 0.7)


def test_nothing_is_suggested_that_was_not_tried_or_does_not_help() -> None:
    flat = np.full((1, 4, 4), 128, np.uint8)
    text = advice(flat, Adjustment(), 0.1, 0.2)
    assert "Neither" in text
    assert "--" not in text
    generator = np.random.default_rng(1)
    helped = 0
    for _ in range(200):
        stored = generator.integers(0, generator.integers(2, 65536), (1, 9, 9)).astype(np.uint16)
        low = generator.uniform(0, 0.8)
        levels = sorted(generator.uniform(0, 65536, 2)) if generator.random() < 0.5 else None
        done = Adjustment.of(levels, generator.choice([0.5, 1.0, 2.0]), generator.random() < 0.3)
        text = advice(stored, done, low, low + 0.1)
        if "would make it" in text:
            helped += 1
            mean = follow(text, stored, done)
            assert low - 0.001 <= mean <= low + 0.101
            assert text.endswith(f"would make it {mean:.3f}")
    assert 40 < helped < 200
