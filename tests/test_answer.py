"""One picture has one tree, whoever asks for it."""

import io
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from posterior_trees import (
    Colorize,
    Denoise,
    Downsample,
    Inpaint,
    Measurement,
    Paired,
    Predictor,
    Tree,
    TreePredictor,
    UNet,
    cli,
    grow,
    load,
)
from posterior_trees.errors import DataError, InputError
from posterior_trees.pictures import tiles
from posterior_trees.pictures.answer import Tiling, answer
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.pictures.write import predict_files
from posterior_trees.serve.ask import ask
from posterior_trees.serve.start import describe_start

KINDS = {
    "hole": Inpaint.box((0, 11), (0, 19), (16, 20)),
    "colour": Colorize(),
    "noise": Denoise(0.1),
    "blocks": Downsample(2),
    "pairs": Paired(1, 1),
    "own": Measurement(),
}
PICTURES = {"small": (16, 20), "large": (600, 740), "16-bit": (16, 20)}


def predictor_of(measurement: Measurement) -> TreePredictor:
    torch.manual_seed(0)
    channels = 3 if len(measurement.picture_channels(3)) > 1 else 1
    network = UNet(measurement.channels(channels), channels, 4, width=4)
    return TreePredictor(
        network, measurement, branching=2, depth=2, channels=channels, multiple=16
    ).eval()


def save(file: Path, kind: str) -> Path:
    dtype = np.uint16 if kind == "16-bit" else np.uint8
    most = np.iinfo(dtype).max
    pixels = np.random.default_rng(0).integers(0, most, PICTURES[kind], dtype, endpoint=True)
    Image.fromarray(pixels).save(file)
    return file


def same(one: Tree, other: Tree) -> bool:
    pairs = zip((*one.images, *one.log_probs), (*other.images, *other.log_probs), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("picture", PICTURES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_the_explorer_and_python_give_equal_trees(
    kind: str, picture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large pictures are cut into tiles here, by all of them."""
    monkeypatch.setattr(tiles, "WHOLE", 300_000)
    predictor, file = predictor_of(KINDS[kind]), save(tmp_path / "a.png", picture)
    reading = Reading(resize=True)
    predict_files(predictor, [file], tmp_path / "out", reading, warn=lambda _: None)
    command = Tree.load(tmp_path / "out" / "a" / "tree.safetensors")
    explorer = ask(predictor, file.read_bytes(), "a.png", reading)
    python = predictor.predict(file, resize=True)
    assert same(command, explorer.tree)
    assert same(command, python)
    is_cut = picture == "large" and kind != "hole"
    assert bool(explorer.parts) == is_cut
    zoom = 2 if kind == "blocks" else 1
    size = PICTURES[picture] if kind != "hole" else (16, 20)
    assert tuple(command.shape[1:]) == tuple(zoom * side for side in size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_clean", [True, False])
def test_both_commands_agree_on_what_is_measured(kind: str, is_clean: bool, tmp_path: Path) -> None:
    """Said or not, a picture is the measurement where noise or a lower resolution are the task."""
    predictor, file = predictor_of(KINDS[kind]), save(tmp_path / "a.png", "small")
    reading = Reading(is_clean=is_clean)
    if kind == "pairs" and is_clean:
        for ask_for in (read, lambda *a: predict_files(a[1], [a[0]], tmp_path / "o", a[2])):
            with pytest.raises(ValueError, match="trained on pairs"):
                ask_for(file, predictor, reading)
        return
    made = answer(predictor, read(file, predictor, reading))
    assert same(ask(predictor, file.read_bytes(), "a", reading).tree, made.tree)
    (shown,) = describe_start(predictor, [file], reading)
    has_truth = is_clean and kind != "colour"  # the file is grey
    assert (made.x is not None, bool(shown["truth"])) == (has_truth, has_truth)
    usual = answer(predictor, read(file, predictor))
    assert same(usual.tree, made.tree) == (
        is_clean == predictor.measurement.is_picture_clean or kind in ("hole", "colour", "own")
    )


class Thirds:
    """A predictor that is no network: the picture, and a third more and less light."""

    name, channels, branching, multiple, padding = "thirds", 1, (3,), 1, "zeros"
    device = torch.device("cpu")

    def __init__(self, measurement: Measurement) -> None:
        self.measurement, self.about = measurement, {}

    def __call__(self, y: Tensor) -> Tree:
        leaves = self.measurement.naive(y)[:, None] + torch.tensor([-1, 0, 1]).view(3, 1, 1, 1) / 3
        return grow(leaves, torch.zeros(len(y), 3).log_softmax(1), 3)

    def with_measurement(self, measurement: Measurement) -> "Thirds":
        return Thirds(measurement)


def test_any_predictor_serves_in_every_way(tmp_path: Path) -> None:
    predictor, file = Thirds(KINDS["hole"]), save(tmp_path / "a.png", "small")
    assert isinstance(predictor, Predictor)
    _, folder = predict_files(predictor, [file], tmp_path / "out")
    made = ask(predictor, file.read_bytes(), "a")
    assert same(Tree.load(folder / "tree.safetensors"), made.tree)
    cut = answer(Thirds(KINDS["own"]), read(torch.rand(1, 40, 50), predictor=Thirds(KINDS["own"])),
                 Tiling(32, 8))  # fmt: skip
    assert (cut.tree.shape, len(cut.parts)) == ((1, 40, 50), 4)
    stream = io.BytesIO()
    Image.fromarray(255 * np.eye(16, 20, dtype=np.uint8)).save(stream, "PNG")
    other = ask(predictor, file.read_bytes(), "a", hole=stream.getvalue())
    assert "not the hole" in other.remarks["note"]
    assert torch.equal(other.y[0, 0] == 0.5, torch.eye(16, 20).bool())


def test_numbers_of_a_leaf_are_those_of_the_whole_picture(tmp_path: Path) -> None:
    """Though it is shown small."""
    predictor, file = predictor_of(KINDS["pairs"]), save(tmp_path / "a.png", "large")
    sides = {"side": lambda image: image.shape[-1]}
    (shown,) = describe_start(predictor, [file], measures=sides)
    assert shown["measures"]["side"] == [740.0] * 4
    assert shown["size"] == [415, 512]


def test_tiles_may_be_predicted_beside_each_other() -> None:
    predictor = predictor_of(KINDS["pairs"])
    picture = read(torch.rand(1, 100, 130), predictor)
    one = answer(predictor, picture, Tiling(64, 16))
    with ThreadPoolExecutor(3) as pool:
        other = answer(predictor, picture, Tiling(64, 16), map=pool.map)
    assert same(one.tree, other.tree)
    assert len(one.parts) == 6

    def counted(predict: Callable, parts: Iterable) -> Iterable:
        return map(predict, list(parts)[:2])

    with pytest.raises(ValueError, match="zip"):
        answer(predictor, picture, Tiling(64, 16), map=counted)


def test_numbers_in_memory_are_not_adjusted() -> None:
    with pytest.raises(ValueError, match="only files are resized or adjusted"):
        predictor_of(KINDS["pairs"]).predict(np.zeros((8, 8), np.uint8), invert=True)


def test_the_terminal_says_whether_pictures_are_clean(tmp_path: Path, capsys) -> None:
    file = save(tmp_path / "a.png", "small")
    place = ["--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit):
        cli.main(["predict", "cells", str(file), "--clean", *place])
    assert "trained on pairs" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["predict", "digits", str(file), "--clean", "--measured", *place])
    assert "not allowed with" in capsys.readouterr().err
    cli.main(["predict", "digits", str(file), "--resize", "--measured", *place])
    assert not (tmp_path / "o" / "a" / "picture.png").exists()
    cli.main(["predict", "digits", str(file), "--resize", *place])
    assert (tmp_path / "o" / "a" / "picture.png").is_file()


@pytest.mark.parametrize("form", ["png", "tif"])
def test_a_picture_whose_tree_has_no_room_is_refused_before_it_is_read(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"large.{form}"
    Image.new("I;16", (300, 200)).save(file)
    model = load("cells", "cpu")
    needed = 4 * (300 * 200 + 13 * 300 * 200)
    monkeypatch.setattr("posterior_trees.data.memory.free_bytes", lambda: needed)
    assert read(file, model).pixels.shape == (1, 1, 200, 300)
    monkeypatch.setattr("posterior_trees.data.memory.free_bytes", lambda: needed - 1)
    for reader in ("decode_picture", "fit_values"):
        refuse = f"posterior_trees.pictures.reading.{reader}"
        monkeypatch.setattr(refuse, lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(InputError, match=r"200×300 .* needs 0\.00336 GB, 0\.00336 GB are free"):
        read(file, model)


@pytest.mark.parametrize("name", ["photo.heic", "photo.jpg"])
def test_a_phone_s_picture_is_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    """Phones write HEIC, which Pillow does not read, whatever the file is called."""
    (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    with pytest.raises(DataError, match=rf"{name} is .* HEIC\)\. Save or export it as JPEG or PNG"):
        predictor_of(KINDS["colour"]).predict(tmp_path / name)
