"""docs/cells.md, from a plate to a table: its commands run, on a plate that is painted here."""

import csv
import os
import runpy
import shlex
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
import zarr
from paint import paint_field, write_ome_tiff, write_plate
from PIL import Image
from test_readme import ROOT, find_blocks

from posterior_trees import cli
from posterior_trees.data import list_names
from posterior_trees.imaging.regions import FAINTEST, SMALLEST, find_regions, otsu
from posterior_trees.models.checkpoint import load_recipe

PAGE = ROOT / "docs" / "cells.md"
WELLS = [f"{row}/{column}" for row in "ABC" for column in range(1, 6)]
QUICK = {"network.width": 6, "network.steps": 2, "tree.depth": 1, "training.epochs": 1,
         "data.patch": 32, "data.test": 0.6, "training.picture_every": 0}  # fmt: skip
"""What makes the page's recipe one of seconds."""


def as_camera(field: np.ndarray) -> np.ndarray:
    """Painted values where the page's levels expect them."""
    return (field - np.uint16(7037)) // np.uint16(14) + np.uint16(150)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the page's reader has."""
    folder = tmp_path_factory.mktemp("lab")
    plate = write_plate(folder / "plate.ome.zarr", WELLS, 1, size=(96, 112))
    for array in (zarr.open_array(plate / well / "0" / "0", mode="a") for well in WELLS):
        array[...] = as_camera(np.asarray(array[...]))
    (folder / "DIR").mkdir()
    (folder / "DIR" / "plate.ome.zarr").symlink_to(plate)
    (folder / "images").mkdir()
    field = as_camera(paint_field(96, 112))
    write_ome_tiff(folder / "field.ome.tif", field)
    for wave, channel in (("w1", 0), ("w4", 1)):
        tifffile.imwrite(folder / "images" / f"IXM_A01_s1_{wave}.tif", field[channel])
    (recipe,) = (text for _, text in find_blocks(PAGE, "toml"))
    (folder / "stain.toml").write_text(recipe)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def commands() -> list[str]:
    return [line for _, text in find_blocks(PAGE, "sh") for line in text.splitlines()]


def test_every_command_of_the_page_runs_and_the_plate_becomes_a_table(lab: Path, capsys) -> None:
    """One after the other, as the page has them: each goes on where those before it ended."""
    for command in commands():
        run_command(command, capsys)
    check_tables(lab)


def run_command(command: str, capsys) -> None:
    words = shlex.split(command)
    assert words[0] == "ptrees"
    if words[1] == "train":
        words += [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    code = 0
    try:
        cli.main(words[1:])
    except SystemExit as ended:
        code = int(ended.code or 0)
    out, err = capsys.readouterr()
    if "--bioimageio" in words and code:  # an environment of its own has it
        assert "pip install" in err
    else:
        assert code == 0, f"{command}: {err}"
    if "--resume" in words:
        assert "15 of 15 fields were done before" in err
    if words[1] == "inspect":
        assert "0 Hoechst, 1 Actin" in out or "YX, 96×112, uint16" in out


def read_table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def check_tables(lab: Path) -> None:
    """One row for each field, and for each label of its image; places in pixels of the input."""
    fields, nuclei = (read_table(lab / "nuclei" / f"{name}.csv") for name in ("fields", "nuclei"))
    assert [row["well"] for row in fields] == [well.replace("/", "") for well in WELLS]
    assert {row["status"] for row in fields} == {"done"}
    assert nuclei
    for field in fields:
        rows = [row for row in nuclei if row["file"] == field["file"]]
        labels = tifffile.imread(lab / "nuclei" / f"{field['well']}_0.nuclei.tif")
        assert labels.shape == (48, 56)
        assert labels.dtype == np.uint16
        assert sorted(np.unique(labels)[1:].tolist()) == [int(row["label"]) for row in rows]
        for row in rows:
            y, x = float(row["row"]), float(row["column"])
            assert 0 <= y < 96
            assert 0 <= x < 112
            assert float(row["y_um"]) == pytest.approx(0.65 * y, abs=1e-3)
    (more,) = read_table(lab / "more" / "fields.csv")
    assert (more["well"], more["site"], more["status"]) == ("A01", "1", "done")


@pytest.mark.slow
def test_nuclei_of_the_real_plate_are_those_of_its_dna(tmp_path: Path, monkeypatch) -> None:
    """From PTREES_DATA/cells_actin_dna.tar (BBBC022), test wells: files in, tables out, F1 as in
    results/cells_actin_to_dna, where cameras are moved onto each other first."""
    tar = Path(os.environ.get("PTREES_DATA", "nowhere")) / "cells_actin_dna.tar"
    if not tar.is_file():
        pytest.skip("PTREES_DATA has no cells_actin_dna.tar")
    names = list_names(load_recipe("cells").data, tar.parent, "test")
    with tarfile.open(tar) as archive:
        files = [m for m in archive if m.isfile() and Path(m.name).name in names]
        archive.extractall(tmp_path, files, filter="data")
    (actin,) = tmp_path.rglob("actin_golgi")
    out = tmp_path / "out"
    words = ["--well-pattern", r"(?P<well>[A-P]\d\d)_s(?P<site>\d+)", "--out", str(out)]
    cli.main(["predict", "cells", str(actin), *words])  # of so many fields tables and labels
    nuclei = read_table(out / "nuclei.csv")
    monkeypatch.syspath_prepend(ROOT / "reproduction" / "scripts")
    matched = runpy.run_path(str(ROOT / "reproduction" / "scripts" / "count_f1.py"))["matched"]
    there = true = 0
    for name in names:
        dna = torch.from_numpy(np.asarray(Image.open(actin.parent / "dna" / name)) / 255)
        truth = find_regions(dna > max(otsu(dna), FAINTEST), SMALLEST)
        labels = tifffile.imread(out / f"{Path(name).stem}.nuclei.tif").astype(np.int64)
        there += matched(torch.from_numpy(labels), truth)
        true += int(truth.max())
    assert {row["well"] for row in nuclei} == {name[:3] for name in names}
    assert 2 * there / (len(nuclei) + true) == pytest.approx(0.928, abs=0.02)


def test_a_nucleus_is_the_same_if_half_of_the_union_is_shared(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "reproduction" / "scripts")
    matched = runpy.run_path(str(ROOT / "reproduction" / "scripts" / "count_f1.py"))["matched"]
    truth, found = (torch.zeros(12, 30, dtype=torch.long) for _ in range(2))
    truth[2:8, 2:8], truth[2:8, 20:26] = 1, 2
    found[2:8, 2:8], found[2:8, 22:28] = 2, 1  # the second shares 24 of 48 pixels
    assert matched(found, truth) == matched(truth, found) == 2
    found[2:8, 22] = 0
    assert matched(found, truth) == 1
    assert matched(torch.zeros_like(truth), truth) == 0
