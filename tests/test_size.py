"""The size that a picture is brought to for a model."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Denoise, Inpaint, Paired, TreePredictor, UNet, cli
from posterior_trees.imaging.size import check_scale, scale_size
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.pictures.write import predict_files
from posterior_trees.serve.start import describe_start

HOLE = Inpaint.box((0, 3), (0, 7), (8, 8))


def predictor_of(measurement) -> TreePredictor:
    network = UNet(1, 1, 3, width=3, steps=1)
    return TreePredictor(network, measurement, branching=3, depth=1, channels=1, multiple=2)


PAIRS = predictor_of(Paired(1, 1))


def stored(file: Path, scale: float) -> np.ndarray:
    values = read(file, PAIRS, Reading(scale=scale)).stored
    assert values is not None
    return values


def save(file: Path, pixels: np.ndarray) -> Path:
    Image.fromarray(pixels).save(file)
    return file


@pytest.mark.parametrize("scale", [0.0, -1.0, 0.06, 16.1, float("nan"), float("inf")])
def test_a_scale_has_limits(scale: float) -> None:
    with pytest.raises(ValueError, match=rf"the scale is {scale:g}; it must be from 0.0625 to 16"):
        check_scale(scale, Denoise(0.1))


def test_a_model_of_one_size_takes_no_scale() -> None:
    check_scale(1.0, HOLE)
    with pytest.raises(ValueError, match=r"takes 8×8 pixels and nothing else: leave --scale out"):
        check_scale(0.5, HOLE)


def test_sides_are_scaled_alike_and_never_vanish() -> None:
    assert scale_size((520, 696), 0.5, "a") == (260, 348)
    assert scale_size((3, 400), 0.1, "a") == (1, 40)
    with pytest.raises(ValueError, match=r"a.tif would have 16000×16000 pixels at 16 of its size"):
        scale_size((1000, 1000), 16, "a.tif")
    assert scale_size((16000, 16000), 1, "a.tif") == (16000, 16000)  # as it is, it is its own


def test_half_the_size_averages_what_a_camera_counted(tmp_path: Path) -> None:
    """Before levels and gamma: the square root of a mean is not the mean of the square roots."""
    blocks = np.array([[400, 2000, 300], [900, 150, 2600]])
    fine = np.kron(blocks, np.ones((16, 16))).astype(np.uint16)
    noise = np.tile([[100, -100], [-100, 100]], (16, 24))
    file = save(tmp_path / "raw.tif", (fine + noise).astype(np.uint16))
    seen = read(file, PAIRS, Reading.of(levels=(150, 2600), gamma=0.5, scale=0.5)).pixels
    assert seen.shape == (1, 1, 16, 24)
    centres = seen[0, 0, 4::8, 4::8]
    wanted = torch.from_numpy((blocks - 150) / 2450).sqrt()
    torch.testing.assert_close(centres.double(), wanted, atol=2e-3, rtol=0)


def test_scaling_back_and_forth_keeps_a_smooth_picture(tmp_path: Path) -> None:
    smooth = 128 + 100 * np.sin(np.arange(48)[:, None] / 9) * np.cos(np.arange(60) / 7)
    file = save(tmp_path / "a.png", smooth.round().astype(np.uint8))
    larger = stored(file, scale=2)[0]
    assert larger.shape == (96, 120)
    again = stored(save(tmp_path / "b.png", larger), scale=0.5)[0]
    assert np.abs(again - smooth).max() < 3


@pytest.mark.parametrize("size", [(3, 400), (10, 1000), (37, 53)])
def test_nothing_is_cut_off_by_scaling(size: tuple[int, int], tmp_path: Path) -> None:
    """Sides are rounded, and thin pictures change their shape by that; their light stays."""
    pixels = np.zeros(size, np.uint8)
    pixels[: max(1, size[0] // 4), : size[1] // 2] = 200
    file = save(tmp_path / "a.png", pixels)
    for scale in (0.12, 0.3, 1.7):
        found = stored(file, scale)
        assert found.shape[1:] == scale_size(size, scale, "a")
        assert found.mean() == pytest.approx(pixels.mean(), rel=0.25)


def test_a_third_is_the_mean_of_whole_blocks(tmp_path: Path) -> None:
    """As a camera bins, and of files as of arrays; what is no whole block is left out."""
    pixels = np.random.default_rng(0).integers(0, 65535, (37, 50)).astype(np.uint16)
    for name in ("a.png", "a.tif"):
        found = stored(save(tmp_path / name, pixels), scale=1 / 3)
        means = pixels[:36, :48].reshape(12, 3, 16, 3).mean(axis=(1, 3))
        np.testing.assert_array_equal(found[0], np.floor(means + 0.5))
    assert stored(tmp_path / "a.png", scale=0.333).shape == (1, 12, 16)
    assert stored(tmp_path / "a.png", scale=0.34).shape == (1, 13, 17)


def test_resize_says_when_it_does_nothing(tmp_path: Path) -> None:
    file = save(tmp_path / "a.png", np.full((8, 8), 99, np.uint8))
    for measurement, words in ((Paired(1, 1), "--resize does nothing here"), (HOLE, "")):
        heard: list[str] = []
        predict_files(
            predictor_of(measurement),
            [file],
            tmp_path / "o",
            Reading(resize=True),
            warn=heard.append,
        )
        assert [text[: len(words)] for text in heard] == [words] * bool(words)


def test_the_explorer_starts_with_files_at_a_scale(tmp_path: Path) -> None:
    """Predicted whole and shown small; nothing is said of what was asked for."""
    file = save(tmp_path / "a.png", np.full((100, 600), 99, np.uint8))
    for scale, size in ((0.5, [50, 300]), (0.9, [85, 512])):
        heard: list[str] = []
        (shown,) = describe_start(PAIRS, [file], Reading(scale=scale), warn=heard.append)
        assert (shown["size"], heard) == (size, [])
        assert shown["resized"].startswith("resized from 100×600 to ")


@pytest.mark.parametrize("command", ["predict", "explore"])
def test_wrong_scales_end_with_words(command: str, tmp_path: Path, capsys) -> None:
    save(tmp_path / "a.png", np.full((28, 28), 9, np.uint8))
    out = {"predict": "--out", "explore": "--save"}[command]
    for model, options, words in (
        ("digits", ["--scale", "0.5"], "takes 28×28 pixels and nothing else: leave --scale out"),
        ("digits", ["--scale", "2", "--digit"], "by itself: leave --scale out"),
        ("cells", ["--scale", "0"], "the scale is 0; it must be from 0.0625 to 16"),
    ):
        line = [command, model, str(tmp_path / "a.png"), out, str(tmp_path / "o"), *options]
        with pytest.raises(SystemExit, match="1"):
            cli.main(line)
        assert words in capsys.readouterr().err
        assert not (tmp_path / "o").exists()
