"""Training from pictures of several channels: the pairs of two folders, seen as `predict` sees."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from paint import paint_field, write_imagej, write_ome_tiff, write_ome_zarr, write_plate
from PIL import Image

from posterior_trees import cli, load
from posterior_trees.data import ImageSet, list_names, load_split
from posterior_trees.errors import DataError, RecipeError
from posterior_trees.imaging.source import Plane
from posterior_trees.models.card import says
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.recipe import parse_recipe, parse_resolved, write_recipe
from posterior_trees.recipe.sections import Channel, DataSpec

ALL = DataSpec(name="cells", kind="pairs", channels=1, validation=0.0, test=0.0,
               inputs=Channel("Actin"), targets=Channel("hoechst"))  # fmt: skip
FOLDERS = dataclasses.replace(ALL, inputs="actin", targets="dna")
LEVELS = (7000.0, 37000.0)


def fields() -> list[np.ndarray]:
    return [paint_field(48, 56, seed) for seed in range(3)]


def write_folders(data: Path) -> None:
    for number, field in enumerate(fields()):
        for channel, pixels in zip(("dna", "actin"), field, strict=True):
            (data / "cells" / channel).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(data / "cells" / channel / f"{number}.png")


def write_stacks(data: Path) -> None:
    (data / "cells").mkdir(parents=True)
    one, two, three = fields()
    write_ome_tiff(data / "cells/0.ome.tif", one)
    write_imagej(data / "cells/1.tif", two)
    write_ome_zarr(data / "cells/2.ome.zarr", three, "0.4")


def batch_of(data: Path, spec: DataSpec) -> tuple[torch.Tensor, torch.Tensor, ImageSet]:
    images = load_split(spec, data, "train")
    x, y = images.batch(range(len(images)))
    assert y is not None
    return x, y, images


@pytest.mark.parametrize("changes", [{}, {"levels": LEVELS, "gamma": 0.5}, {"scale": 0.5},
                                     {"levels": (*LEVELS, 100.0, 40000.0), "scale": 0.3333},
                                     {"size": (24, 28), "levels": LEVELS}])  # fmt: skip
def test_channels_of_a_picture_are_the_pairs_of_two_folders(tmp_path: Path, changes: dict) -> None:
    write_stacks(tmp_path / "stacks")
    write_folders(tmp_path / "folders")
    x, y, images = batch_of(tmp_path / "stacks", dataclasses.replace(ALL, **changes))
    other_x, other_y, others = batch_of(
        tmp_path / "folders", dataclasses.replace(FOLDERS, **changes)
    )
    assert torch.equal(x, other_x)
    assert torch.equal(y, other_y)
    assert not torch.equal(x, y)
    assert images.names == ["0.ome.tif", "1.tif", "2.ome.zarr"]
    assert others.pixel_size is None
    expected = None if "size" in changes else 0.65 * round(1 / changes.get("scale", 1))
    assert images.pixel_size == (expected and pytest.approx(expected))


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_a_network_trains_on_what_predict_gives_it(tmp_path: Path, scale: float) -> None:
    write_stacks(tmp_path)
    levels = (*LEVELS, 0.0, 9.0)
    spec = dataclasses.replace(ALL, levels=levels, gamma=0.5, scale=scale)
    _, y, _ = batch_of(tmp_path, spec)
    reading = Reading.of(scale=scale, levels=LEVELS, gamma=0.5, plane=Plane(channel="Actin"))
    seen = read(tmp_path / "cells/1.tif", load("cells", "cpu"), reading).pixels
    torch.testing.assert_close(y[1:2], seen, rtol=0, atol=0.5 / 65535 + 1e-6)


def test_a_plate_is_split_by_its_wells(tmp_path: Path) -> None:
    write_plate(tmp_path / "plate.ome.zarr", ("A/1", "B/2", "C/3"), 2, size=(48, 56))
    spec = dataclasses.replace(ALL, name="plate.ome.zarr", split="well", split_order="sorted",
                               validation=0.3, test=0.3)  # fmt: skip
    names = [list_names(spec, tmp_path, split) for split in ("train", "validation", "test")]
    assert sorted(name for part in names for name in part) == [
        f"plate/{w}_{s}" for w in ("A1", "B2", "C3") for s in (0, 1)
    ]
    assert all(len({name.split("_")[0] for name in part}) == 1 for part in names)
    x, y, _ = batch_of(tmp_path, dataclasses.replace(spec, validation=0.0, test=0.0))
    field = paint_field(48, 56, seed=11) / 65535  # well B2, site 1
    np.testing.assert_allclose(torch.cat([x[3], y[3]]), field, atol=1e-6)


def test_one_picture_is_a_set(tmp_path: Path) -> None:
    write_ome_tiff(tmp_path / "large.ome.tif", paint_field(80, 112), tile=(32, 32))
    x, y, _ = batch_of(tmp_path, dataclasses.replace(ALL, name="large.ome.tif"))
    np.testing.assert_allclose(torch.cat([x[0], y[0]]), paint_field(80, 112) / 65535, atol=1e-6)


def test_numbers_of_any_kind_train_once_levels_are_known(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    field = paint_field(48, 56).astype(np.float32)
    write_ome_tiff(tmp_path / "cells/0.ome.tif", field)
    with pytest.raises(DataError, match=r"floating-point or 32-bit pixels.*set data\.levels"):
        batch_of(tmp_path, ALL)
    _, y, _ = batch_of(tmp_path, dataclasses.replace(ALL, levels=LEVELS))
    expected = ((field[1] - LEVELS[0]) / (LEVELS[1] - LEVELS[0])).clip(0, 1)
    np.testing.assert_allclose(y[0, 0], expected, atol=1e-5)
    for channel in ("dna", "actin"):
        (tmp_path / "cells" / channel).mkdir()
        tifffile.imwrite(tmp_path / "cells" / channel / "0.tif", field[1])
    _, same, _ = batch_of(tmp_path, dataclasses.replace(FOLDERS, levels=LEVELS))
    assert torch.equal(same, y)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"targets": "dna"}, r"needs data\.targets = \{channel"),
        ({"kind": "images"}, r'and data\.kind = "pairs"'),
        ({"channels": 3}, "data.channels is 3 .* set both to 1"),
        ({"inputs": Channel("DAPI")}, "has no channel DAPI: it has 0 Hoechst, 1 Actin"),
        ({"scale": 0.7}, r"data\.scale is 0\.7; it is 1, 1/2"),
        ({"scale": 0.5, "size": (24, 28)}, "excludes data.size"),
        ({"levels": (1.0, 2.0, 3.0)}, r"data\.levels is \[1\.0, 2\.0, 3\.0\]; write"),
        ({"levels": (5.0, 2.0)}, "the first must be the lower one"),
        ({"name": "nothing"}, "'nothing' is not in"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, changes: dict, words: str) -> None:
    write_stacks(tmp_path)
    with pytest.raises(DataError, match=words):
        load_split(dataclasses.replace(ALL, **changes), tmp_path, "train")


def test_a_plane_is_not_guessed(tmp_path: Path) -> None:
    planes = np.stack([paint_field(40, 56, seed) for seed in range(3)])
    (tmp_path / "cells").mkdir()
    write_ome_tiff(tmp_path / "cells/a.ome.tif", planes, axes="ZCYX")
    with pytest.raises(DataError, match=r"3 planes along Z.*Training has no such option: save"):
        load_split(ALL, tmp_path, "train")
    with pytest.raises(DataError, match=r"data\.levels is for images and pairs, not for 'idx'"):
        load_split(DataSpec(name="mnist", kind="idx", levels=(0.0, 9.0)), tmp_path, "train")


def test_pixel_sizes_that_differ_are_unknown(tmp_path: Path) -> None:
    for number, pixel in enumerate((0.65, 0.65, 1.3)):
        for channel, pixels in zip(("dna", "actin"), paint_field(48, 56), strict=True):
            file = tmp_path / "cells" / channel / f"{number}.ome.tif"
            file.parent.mkdir(parents=True, exist_ok=True)
            write_ome_tiff(file, pixels, pixel, axes="YX")
    assert load_split(FOLDERS, tmp_path, "train").pixel_size is None
    for folder in ("dna", "actin"):
        (tmp_path / "cells" / folder / "2.ome.tif").unlink()
    streamed = load_split(FOLDERS, tmp_path, "train", resident_limit_bytes=0)
    assert streamed.pixel_size == pytest.approx(0.65)
    assert streamed.subset([0]).load().pixel_size == pytest.approx(0.65)


RECIPE = """
task = "stain"
[data]
name = "cells"
kind = "pairs"
channels = 1
inputs = {channel = "Actin"}
targets = {channel = 1}
levels = [7000, 37000]
gamma = 0.5
scale = 0.5
patch = 16
validation = 0
test = 0
[measurement]
kind = "paired"
[tree]
branching = 2
depth = 1
[network]
width = 4
steps = 2
[training]
epochs = 1
batch_size = 3
picture_every = 0
"""


def run(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str]:
    code = 0
    try:
        cli.main([str(word) for word in words])
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    return code, said.out + said.err


def test_a_model_remembers_its_channel_and_suggests_it(tmp_path: Path, capsys) -> None:
    (tmp_path / "cells").mkdir()
    names: Sequence[str] = ("Actin", "Hoechst")  # the last would be suggested without a model
    for number, field in enumerate(fields()):
        write_ome_tiff(tmp_path / f"cells/{number}.ome.tif", field[::-1], names=names)
    (tmp_path / "r.toml").write_text(RECIPE)
    model, out = tmp_path / "run", tmp_path / "out"
    code, said = run(capsys, "train", tmp_path / "r.toml", "--data", tmp_path, "--out", model)
    assert code == 0, said
    predictor = load(model, "cpu")
    assert predictor.about["input_channel"] == "Actin"
    assert predictor.about["pixel_size"] == pytest.approx(1.3)
    options = "--channel Actin --scale 0.5 --levels 7000 37000 --gamma 0.5"
    assert options in says(predictor, "prepare")
    file = tmp_path / "cells/0.ome.tif"
    code, said = run(capsys, "predict", model, file, "--out", out)
    assert code == 1
    assert "(0 Actin, 1 Hoechst); the model takes one: add --channel Actin, or a number" in said
    code, said = run(capsys, "predict", model, file, "--out", out, *options.split())
    assert code == 0, said
    auto = options.replace("0.5", "auto", 1).split()
    code, said = run(capsys, "predict", model, file, "--out", tmp_path / "auto", *auto)
    assert code == 0, said
    assert (out / "0/node_root.png").read_bytes() == (
        tmp_path / "auto/0/node_root.png"
    ).read_bytes()


def test_a_recipe_says_channels_and_is_read_back() -> None:
    recipe = parse_recipe(RECIPE)
    assert recipe.data.inputs == Channel("Actin")
    assert parse_resolved(write_recipe(recipe), "it") == recipe
    changed = parse_recipe(RECIPE, ['data.inputs={channel = "GFP"}', "data.scale=1"])
    assert changed.data.inputs == Channel("GFP")
    for wrong in ("5", '{chanel = "x"}', '{channel = "x", z = 2}'):
        with pytest.raises(RecipeError, match=r"data\.inputs is .* str or \{channel = …\}"):
            parse_recipe(RECIPE, [f"data.inputs={wrong}"])


def test_a_tar_of_stacks_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "cells.tar").write_bytes(b"")
    with pytest.raises(DataError, match=r"not from a tar\. Unpack it"):
        load_split(ALL, tmp_path, "train")


def test_single_images_have_levels_too(tmp_path: Path) -> None:
    """Of a camera of 12 bits, say; three channels stay three."""
    (tmp_path / "photos").mkdir()
    Image.fromarray(paint_field(48, 56)[1]).save(tmp_path / "photos/0.png")
    spec = DataSpec(name="photos", levels=LEVELS, scale=0.5, validation=0.0, test=0.0)
    x, y = load_split(spec, tmp_path, "train").batch([0])
    assert y is None
    assert x.shape == (1, 3, 24, 28)
    means = np.floor(paint_field(48, 56)[1].reshape(24, 2, 28, 2).mean(axis=(1, 3)) + 0.5)
    expected = ((means - LEVELS[0]) / (LEVELS[1] - LEVELS[0])).clip(0, 1)
    np.testing.assert_allclose(x[0], np.stack([expected] * 3), atol=1e-5)


def test_plain_tiff_needs_no_levels(tmp_path: Path) -> None:
    """As before: 8 and 16 bits are what their range says."""
    for channel, pixels in zip(("dna", "actin"), paint_field(48, 56), strict=True):
        (tmp_path / "cells" / channel).mkdir(parents=True)
        tifffile.imwrite(tmp_path / "cells" / channel / "0.tif", pixels)
    x, y, images = batch_of(tmp_path, FOLDERS)
    np.testing.assert_allclose(torch.cat([x[0], y[0]]), paint_field(48, 56) / 65535, atol=1e-6)
    assert images.pixel_size is None
