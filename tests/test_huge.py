"""Pictures whose trees are too large for memory: the command writes the same files."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tifffile
import torch
from paint import paint_field, write_ome_tiff, write_plate
from test_stream import digest
from test_written import OPTIONS, rows_of

import posterior_trees
from posterior_trees import Tree, cli
from posterior_trees.imaging.ome_zarr import attributes_of
from posterior_trees.imaging.stored import open_tree
from posterior_trees.pictures import huge
from posterior_trees.pictures.stream import Stream

ALL = ("--write", "zarr,tiff,labels,table", "--tile", "64", "--overlap", "16")
Predict = Callable[..., tuple[Path, str]]


@pytest.fixture
def predict(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Of everything in the folder `in`, to disk or in memory; returns the results and what was
    said."""
    monkeypatch.setattr("sys.argv", ["ptrees"])

    def predict(out: str, *words: object, is_huge: bool = True) -> tuple[Path, str]:
        with monkeypatch.context() as patch:
            patch.setattr(huge, "LIMIT", 0 if is_huge else 2**40)
            inputs = sorted((tmp_path / "in").iterdir())
            given = ["predict", "cells", *inputs, "--out", tmp_path / out, *OPTIONS, *words]
            with contextlib.suppress(SystemExit):
                cli.main(list(map(str, given)))
        captured = capsys.readouterr()
        return tmp_path / out, captured.out + captured.err

    (tmp_path / "in").mkdir()
    return predict


def results_of(out: Path) -> dict[str, str]:
    """A digest of each result."""
    shutil.rmtree(out / ".fields")
    for file in out.glob("fields.csv"):  # without seconds
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in rows_of(file)]
        file.write_text(json.dumps(rows))
    return {p.name: digest(p) if p.is_dir() else p.read_bytes().hex() for p in out.iterdir()}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_the_same_files_come_of_memory_and_of_the_disk(
    tmp_path: Path, predict: Predict, dtype: str
) -> None:
    write_ome_tiff(tmp_path / "in" / "X_B01_s1.ome.tif", paint_field(190, 200))
    words = (*ALL, "--dtype", dtype, "--scale", "1/2", "--tile", "48")
    here, said = predict("here", *words, is_huge=False)
    there, also_said = predict("there", *words, "--work", tmp_path / "scratch")
    assert {"X_B01_s1.tree.ome.zarr", "X_B01_s1.tree.ome.tif", "nuclei.csv"} <= {
        p.name for p in there.iterdir()
    }
    assert len(rows_of(there / "nuclei.csv")) > 1
    assert said.replace("here", "there") == also_said
    assert not list((tmp_path / "scratch").iterdir())
    assert results_of(here) == results_of(there)


def test_several_processes_change_no_byte(tmp_path: Path, predict: Predict) -> None:
    """Huge fields are done one after the other, tile by tile, by all processes."""
    write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(90, 100))
    alone, _ = predict("alone", *ALL)
    together, _ = predict("together", *ALL, "--workers", "2")
    assert results_of(alone) == results_of(together)


def test_a_result_says_how_it_was_made(tmp_path: Path, predict: Predict) -> None:
    file = write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(90, 100))
    out, _ = predict("out", *ALL, "--write", "zarr", "--scale", "1/2", "--gamma", "0.5")
    told = open_tree(out / "a.tree.ome.zarr").provenance
    stamp = {"bytes": file.stat().st_size, "modified": file.stat().st_mtime_ns}
    expected = {
        "model": "cells", "path": str(file), "stamp": stamp, "axes": None, "channel": "Actin",
        "at": [], "scale": 0.5, "levels": [7000, 37000], "gamma": 0.5, "invert": False,
        "dtype": "uint8", "device": "cpu", "torch": torch.__version__, "threads": 1,
        "pixel_size": 0.65, "tile": 64, "overlap": 16, "command": "ptrees",
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected
    assert re.fullmatch("[0-9a-f]{64}", told["weights"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", told["date"])
    assert told["version"] == posterior_trees.__version__
    assert told["commit"]


def test_what_was_not_asked_for_is_not_kept(tmp_path: Path, predict: Predict) -> None:
    write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(90, 100))
    out, _ = predict("out", *ALL, "--write", "labels,table", "--keep-work")
    assert sorted(p.name for p in out.iterdir()) == [
        ".a.work", ".fields", "a.nuclei.tif", "a.nuclei_probability.tif", "fields.csv", "job.json",
        "nuclei.csv",
    ]  # fmt: skip
    assert list((out / ".a.work" / "tiles").iterdir())
    labels = tifffile.imread(out / "a.nuclei.tif")
    assert labels.max() == len(rows_of(out / "nuclei.csv")) > 0
    _, said = predict("out", *ALL, "--write", "labels,table", "--keep-work")
    assert "1 of 1 fields were done before" in said
    assert (out / ".a.work").is_dir()
    predict("out", *ALL, "--write", "labels,table")
    assert not (out / ".a.work").exists()


def test_a_field_goes_on_with_the_same_settings_only(
    tmp_path: Path, predict: Predict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the middle (here by a tile that cannot be predicted)."""
    write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(90, 100))
    whole, _ = predict("whole", *ALL)
    real, tiles = Stream.count, []

    def fail(self: Stream, index: int):
        raise OSError(5, "the drive is gone")

    monkeypatch.setattr(Stream, "count", fail)
    out, said = predict("out", *ALL)
    assert "a.ome.tif: [Errno 5] the drive is gone" in said
    assert not (out / "a.tree.ome.zarr").exists()
    monkeypatch.setattr(Stream, "count", real)
    monkeypatch.setattr(Stream, "predict", lambda self, index: tiles.append(index))
    _, said = predict("out", *ALL[:-2], "--overlap", "32")
    assert "was begun with overlap 16 (now 32): go on with the same, choose another --out" in said
    predict("out", *ALL)
    assert not tiles
    assert results_of(out) == results_of(whole)


def test_fields_of_plates_go_to_their_wells(tmp_path: Path, predict: Predict) -> None:
    write_plate(tmp_path / "in" / "p.ome.zarr", sites=1)
    out, _ = predict("out", *ALL, "--write", "zarr,table")
    tree = Tree.load(out / "p.tree.ome.zarr" / "A" / "1" / "0")
    assert tree.shape == (1, 80, 112)
    assert attributes_of(out / "p.tree.ome.zarr")["plate"]["field_count"] == 1
    assert {row["well"] for row in rows_of(out / "nuclei.csv")} == {"A1", "B2"}
    assert not list(out.rglob(".*.work"))


def test_pages_and_other_sizes_are_made_in_memory(tmp_path: Path, predict: Predict) -> None:
    write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(90, 100))
    out, _ = predict("page", *ALL, "--write", "page,zarr")
    assert (out / "a" / "tree.png").is_file()
    _, said = predict("out", *ALL, "--scale", "0.9")
    assert "is too large for memory, and is predicted as it is or at --scale 1/2, 1/3" in said


def test_a_dry_run_tells_what_a_huge_field_takes(tmp_path: Path, predict: Predict) -> None:
    """On disk its tiles lie beside the result, and memory does not grow with the picture."""
    write_ome_tiff(tmp_path / "in" / "a.ome.tif", paint_field(900, 1000))
    words = ("--dry-run", "--write", "zarr", "--tile", "64", "--overlap", "16")
    said = [predict("out", *words, is_huge=is_huge)[1] for is_huge in (False, True)]
    scratch, memory = ([float(re.search(rf"{what} ([\d.]+) GB", text)[1]) for text in said]
                       for what in ("scratch", "memory per worker"))  # fmt: skip
    assert scratch[1] > scratch[0]
    assert memory[1] == 0.8
