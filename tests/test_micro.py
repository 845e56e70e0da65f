"""`ptrees predict` of what microscopes write: the same tree whatever the file, by its plane."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from paint import paint_field, write_all, write_ome_tiff, write_ome_zarr, write_plate

from posterior_trees import Tree, cli, load

CELLS = load("cells", "cpu")


def predict(capsys: pytest.CaptureFixture, *words: object) -> str:
    """What the command says, good or bad."""
    with contextlib.suppress(SystemExit):
        cli.main(["predict", "cells", *map(str, words), "--device", "cpu"])
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_every_format_gives_the_same_tree(tmp_path: Path) -> None:
    trees = {}
    for kind, file in write_all(tmp_path, paint_field(48, 56)).items():
        plane = {}
        if kind in ("imagej", "ome", "pyramid", "zarr 0.4", "zarr 0.5"):
            from posterior_trees.imaging.source import Plane

            plane = {"plane": Plane(channel="Actin")}
        trees[kind] = CELLS.predict(file, levels=(7000, 37000), **plane)
    reference = trees.pop("png")
    for kind, tree in trees.items():
        for one, other in zip(reference.images, tree.images, strict=True):
            assert torch.equal(one, other), kind


def test_the_command_takes_planes_folders_and_plates(tmp_path: Path, capsys) -> None:
    plate = write_plate(tmp_path / "plate.ome.zarr", size=(48, 56), sites=1)
    folder = tmp_path / "fields"
    folder.mkdir()
    for site in (10, 9):
        write_ome_tiff(folder / f"X_A01_s{site}_w4.ome.tif", paint_field(48, 56, seed=site))
        tifffile.imwrite(folder / f"X_A01_s{site}_w1.tif", paint_field(48, 56)[0])
    out = tmp_path / "out"
    said = predict(capsys, plate, folder, "--filter", "*_w4*.tif", "--channel", "actin",
                   "--levels", 7000, 37000, "--out", out)  # fmt: skip
    names = ["A1_0", "B2_0", "X_A01_s9_w4", "X_A01_s10_w4"]
    assert [line for line in said.splitlines() if line.startswith(str(out))] == [
        str(out / "index.html"), *(str(out / name) for name in names)
    ]  # fmt: skip
    direct = CELLS.predict(write_ome_tiff(tmp_path / "a.tif", paint_field(48, 56, seed=9)[1],
                                          axes="YX"), levels=(7000, 37000))  # fmt: skip
    assert torch.equal(Tree.load(out / names[2] / "tree.safetensors").root, direct.root)


def test_messages_name_the_options(tmp_path: Path, capsys) -> None:
    path = write_ome_tiff(tmp_path / "field.ome.tif", paint_field(48, 56))
    said = predict(capsys, path, "--out", tmp_path / "out")
    assert (
        f"{path} has 2 channels (0 Hoechst, 1 Actin); the model takes one: add --channel Actin, "
        "or a number"
    ) in said
    said = predict(capsys, path, "--channel", "Actin", "--scale", "auto", "--out", tmp_path / "o")
    assert "--scale auto needs a pixel size of the model (cells has none: --scale)" in said
    file = tmp_path / "plain.tif"
    tifffile.imwrite(file, paint_field(48, 56)[1])
    assert (
        "--scale auto needs a pixel size of the picture (none in the file: --pixel-size) and of "
        "the model (cells has none: --scale)"
    ) in predict(capsys, file, "--scale", "auto", "--out", tmp_path / "o")
    damaged = write_ome_zarr(tmp_path / "x.ome.zarr", paint_field(48, 56))
    (damaged / "0/c/1/0/0").unlink()
    said = predict(capsys, damaged, file, "--levels", 7000, 37000, "--channel", "1",
                   "--out", tmp_path / "o")  # fmt: skip
    assert "x.ome.zarr lacks the chunk" in said
    assert "plain.tif has no channel 1" in said
    assert not (tmp_path / "o").exists()


def test_scale_auto_brings_pixels_to_the_models_size(tmp_path: Path, monkeypatch) -> None:
    from posterior_trees.imaging.source import Plane
    from posterior_trees.pictures.reading import Reading, read

    monkeypatch.setitem(CELLS.about, "pixel_size", 1.3)
    path = write_ome_tiff(tmp_path / "field.ome.tif", paint_field(48, 56), pixel=0.65)
    picture = read(path, CELLS, Reading.of(scale=None, plane=Plane(channel=1)))
    assert picture.pixels.shape[-2:] == (24, 28)
    assert picture.origin is not None
    assert (picture.origin.pixel_size, picture.origin.shrink) == pytest.approx((0.65, 2))
    assert picture.origin.channel == "Actin"
    means = paint_field(48, 56)[1].reshape(24, 2, 28, 2).mean(axis=(1, 3))
    assert picture.stored is not None
    np.testing.assert_array_equal(picture.stored[0], np.floor(means + 0.5))


def test_large_files_have_no_limit_of_pillows(tmp_path: Path) -> None:
    """A 14,000² file is read in tiles; Pillow refuses more than 179 megapixels."""
    from posterior_trees.imaging.source import open_source

    file = tmp_path / "large.tif"
    pages = tifffile.memmap(file, shape=(14000, 14000), dtype=np.uint8)
    pages[13990:, 7] = 9
    del pages
    with open_source(file) as source:
        assert source.shape == (14000, 14000)
        assert (source.read(slice(13985, 14000), slice(0, 9))[5:, 7] == 9).all()


def test_words_of_scale_are_numbers(capsys) -> None:
    from posterior_trees.cli.picture import scale

    assert (scale("1/2"), scale("0.25"), scale("auto")) == (0.5, 0.25, None)
    with pytest.raises(SystemExit):
        cli.main(["predict", "cells", "x.png", "--out", "o", "--scale", "half"])
    assert re.search(r"argument --scale: invalid scale value: 'half'", capsys.readouterr().err)
