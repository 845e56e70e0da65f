"""What `ptrees predict` writes of many fields: formats others open, done one by one, resumable."""

import contextlib
import csv
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tifffile
import torch
import zarr
from paint import paint_field, write_ome_tiff, write_plate
from PIL import Image
from yaozarrs import validate_zarr_store

from posterior_trees import Tree, cli
from posterior_trees.engine import OneProcess, make_engine
from posterior_trees.errors import InputError, MissingError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ome_zarr import attributes_of
from posterior_trees.imaging.source import Plane
from posterior_trees.imaging.stored import open_tree
from posterior_trees.pictures import work as work_module
from posterior_trees.pictures import write as write_module
from posterior_trees.pictures.levels import choose_levels

OPTIONS = ("--levels", "7000", "37000", "--channel", "Actin", "--device", "cpu")


def predict(capsys: pytest.CaptureFixture, *words: object) -> str:
    with contextlib.suppress(SystemExit):
        cli.main(["predict", "cells", *map(str, words), *OPTIONS])
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three fields of two channels, whose pixels are 0.65 µm."""
    made = tmp_path / "in"
    made.mkdir()
    for site in (1, 2, 3):
        write_ome_tiff(made / f"X_B0{site}_s{site}.ome.tif", paint_field(160, 224, site))
    return made


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_everything_of_a_field_agrees(tmp_path: Path, folder: Path, capsys) -> None:
    out = tmp_path / "out"
    file = folder / "X_B01_s1.ome.tif"
    write_ome_tiff(file, np.kron(paint_field(160, 224, 1), np.ones((2, 2), np.uint16)))
    predict(capsys, file, "--out", out, "--scale", "1/2", "--write", "page,zarr,tiff,labels,table")
    assert sorted(p.name for p in out.iterdir()) == sorted([
        ".fields", "X_B01_s1", "X_B01_s1.nuclei.tif", "X_B01_s1.nuclei_probability.tif",
        "X_B01_s1.tree.ome.tif", "X_B01_s1.tree.ome.zarr", "fields.csv", "index.html", "job.json",
        "nuclei.csv",
    ])  # fmt: skip
    tree = Tree.load(out / "X_B01_s1/tree.safetensors")
    nodes = torch.cat(tree.images, dim=1)[0, :, 0].clamp(0, 1).numpy()
    with tifffile.TiffFile(out / "X_B01_s1.tree.ome.tif") as tiff:
        series = tiff.series[0]
        assert (series.axes, series.dtype) == ("CYX", np.uint16)
        np.testing.assert_allclose(series.asarray() / 65535, nodes, atol=0.51 / 65535)
        text = tiff.ome_metadata
    assert 'Name="root"' in text
    assert 'Name="0.1"' in text
    assert 'PhysicalSizeX="1.3"' in text
    rows = rows_of(out / "nuclei.csv")
    labels = tifffile.imread(out / "X_B01_s1.nuclei.tif")
    painted = tifffile.imread(out / "X_B01_s1.nuclei_probability.tif")
    assert labels.dtype == np.uint16
    assert painted.dtype == np.float32
    assert len(rows) == labels.max() > 3
    assert set(np.unique(labels)) == {0, *(int(row["label"]) for row in rows)}
    for row in rows:
        mine = labels == int(row["label"])
        assert mine.sum() == int(row["pixels"])
        np.testing.assert_allclose(painted[mine], float(row["probability"]), rtol=1e-6)
        assert float(row["area_um2"]) == pytest.approx(1.3**2 * mine.sum())
        places = np.argwhere(mine).mean(axis=0) * 2 + 0.5  # half a pixel of the input further
        assert np.abs(places - [float(row["row"]), float(row["column"])]).max() < 6
        assert float(row["y_um"]) == pytest.approx(0.65 * float(row["row"]), abs=1e-3)
        assert (row["well"], row["site"], row["file"]) == ("B01", "1", str(file))
    store = out / "X_B01_s1.tree.ome.zarr"
    np.testing.assert_array_equal(zarr.open_array(store / "labels/nuclei/0", mode="r")[:], labels)
    listed = attributes_of(store / "labels/nuclei")["image-label"]["properties"]
    assert [p["probability"] for p in listed] == [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(zarr.open_array(store / "0", mode="r")[:] / 255, nodes, atol=0.002)
    validate_zarr_store(str(store))
    provenance = open_tree(store).provenance
    assert provenance["levels"] == [7000, 37000]
    assert provenance["stamp"]["bytes"] == file.stat().st_size
    assert len(provenance["weights"]) == 64
    (field,) = rows_of(out / "fields.csv")
    assert (field["well"], field["status"], field["tiles"]) == ("B01", "done", "1")
    expected = sum(float(row["probability"]) for row in rows)
    assert float(field["mean"]) == pytest.approx(expected, rel=0.5)


def test_a_masks_hole_is_not_the_nucleus_at_its_centre(tmp_path: Path) -> None:
    """Labels are the pixels that were counted, of rings and arcs too."""
    from posterior_trees import grow
    from posterior_trees.pictures.nuclei.count import count_nuclei

    image = torch.zeros(64, 64)
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    distance = ((rows - 30) ** 2 + (columns - 30) ** 2).sqrt()
    image[(distance > 12) & (distance < 24)] = 0.9
    image[25:36, 25:36] = 0.9  # another one where the ring's centre is
    count = count_nuclei(grow(image[None, None, None], torch.zeros(1, 1), ()))
    assert len(count.nuclei) == 2
    for label, nucleus in enumerate(count.nuclei, start=1):
        assert int((count.labels == label).sum()) == nucleus.pixels
    assert (count.labels[30, 30] > 0) & (count.labels[30, 30] != count.labels[30, 14])


def test_what_is_done_is_not_done_again(tmp_path: Path, folder: Path, capsys, monkeypatch) -> None:
    out = tmp_path / "out"
    words = (folder, "--out", out, "--write", "page,table,labels")
    predict(capsys, *words)
    before = {p: p.stat().st_mtime_ns for p in out.glob("*.tif")}
    page, table = (out / "index.html").read_bytes(), (out / "nuclei.csv").read_bytes()
    predicted = []
    real = work_module.answer

    def answer(predictor, picture, *rest, **options):
        predicted.append(Path(picture.name).name)
        return real(predictor, picture, *rest, **options)

    monkeypatch.setattr(work_module, "answer", answer)
    said = predict(capsys, *words)
    assert "3 of 3 fields were done before (--overwrite makes them anew)" in said
    assert not predicted
    (out / "index.html").unlink()
    write_ome_tiff(folder / "X_B02_s2.ome.tif", paint_field(160, 224, 7))  # another file now
    assert "2 of 3 fields were done before" in predict(capsys, *words, "--resume")
    assert predicted == ["X_B02_s2.ome.tif"]
    assert {p for p in before if p.stat().st_mtime_ns != before[p]} == {
        out / "X_B02_s2.nuclei.tif", out / "X_B02_s2.nuclei_probability.tif"
    }  # fmt: skip
    write_ome_tiff(folder / "X_B02_s2.ome.tif", paint_field(160, 224, 2))
    predict(capsys, *words)
    assert sorted((out / "nuclei.csv").read_bytes().splitlines()) == sorted(table.splitlines())
    assert len((out / "index.html").read_bytes()) == len(page)
    predicted.clear()
    predict(capsys, *words, "--overwrite")
    assert len(predicted) == 3


@pytest.mark.parametrize("wrong", ['{"status": "done"}', "[1]", "\xff", None])
def test_changed_records_are_made_anew(tmp_path: Path, folder: Path, capsys, wrong) -> None:
    """A record is believed as it was written, or not at all; so are the settings."""
    out, file = tmp_path / "out", folder / "X_B01_s1.ome.tif"
    words = (file, "--out", out, "--write", "table")
    predict(capsys, *words)
    record, whole = out / ".fields" / "X_B01_s1.json", (out / "fields.csv").read_text()
    changed = record.read_text().replace('"well": "B01"', '"well": 3, "x": {}')
    record.write_bytes((changed if wrong is None else wrong).encode("latin-1"))
    assert "done before" not in predict(capsys, *words)
    assert (out / "fields.csv").read_text().rpartition(",")[0] == whole.rpartition(",")[0]
    assert "1 of 1 fields were done before" in predict(capsys, *words)
    (out / "job.json").write_text("[]")
    assert "job.json is damaged" in predict(capsys, *words)


def test_other_settings_are_refused(tmp_path: Path, folder: Path, capsys) -> None:
    out, file = tmp_path / "out", folder / "X_B01_s1.ome.tif"
    predict(capsys, file, "--out", out, "--write", "table", "--tile", 128)
    said = predict(capsys, file, "--out", out, "--write", "table", "--tile", 256)
    assert (
        f"{out} was begun with tile 128 (now 256): go on with the same, choose another --out, or "
        "--overwrite"
    ) in said
    assert "tile" not in predict(
        capsys, file, "--out", out, "--write", "table", "--tile", 256, "--overwrite"
    )
    said = predict(capsys, file, "--out", tmp_path / "new", "--resume")
    assert "new has no results to go on with: leave --resume out" in said
    (out / "job.json").write_text("{")
    assert "job.json is damaged" in predict(capsys, file, "--out", out, "--write", "table")
    assert "--write pages: write words of page,zarr" in predict(
        capsys, file, "--out", out, "--write", "pages"
    )


def test_a_failing_field_stops_no_other_and_is_tried_again(
    tmp_path: Path, folder: Path, capsys
) -> None:
    out, bad = tmp_path / "out", folder / "X_B02_s2.ome.tif"
    content = bad.read_bytes()
    bad.write_bytes(content[: len(content) // 2])
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", "cells", str(folder), "--out", str(out), "--write", "table", *OPTIONS])
    assert end.value.code == 1
    rows = rows_of(out / "fields.csv")
    assert [row["status"] for row in rows] == ["done", "failed", "done"]
    assert "truncated or damaged" in rows[1]["note"]
    assert {row["well"] for row in rows_of(out / "nuclei.csv")} == {"B01", "B03"}
    bad.write_bytes(content)
    said = predict(capsys, folder, "--out", out, "--write", "table", "--resume")
    assert "2 of 3 fields were done before" in said
    assert {row["well"] for row in rows_of(out / "nuclei.csv")} == {"B01", "B02", "B03"}
    assert {row["status"] for row in rows_of(out / "fields.csv")} == {"done"}


def test_tables_are_there_while_the_run_goes_on(tmp_path: Path, folder: Path, monkeypatch) -> None:
    """A kill after two of three fields leaves their rows and their page."""
    out, done = tmp_path / "out", 0
    real = work_module.answer

    def answer(*words, **options):
        nonlocal done
        if done == 2:
            raise KeyboardInterrupt
        done += 1
        return real(*words, **options)

    monkeypatch.setattr(work_module, "answer", answer)
    with pytest.raises(SystemExit) as end:
        cli.main(["predict", "cells", str(folder), "--out", str(out), "--write", "page,table",
                  *OPTIONS])  # fmt: skip
    assert end.value.code == 130
    assert len(rows_of(out / "fields.csv")) == 2
    assert {row["well"] for row in rows_of(out / "nuclei.csv")} == {"B01", "B02"}
    assert "X_B02_s2" in (out / "index.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_a_plate_becomes_a_plate(tmp_path: Path, capsys, ngff: str) -> None:
    plate = write_plate(tmp_path / "p.ome.zarr", size=(48, 56))
    out = tmp_path / "out"
    predict(capsys, plate, "--out", out, "--write", "zarr,table", "--ngff", ngff)
    made = out / "p.tree.ome.zarr"
    validate_zarr_store(str(made))
    assert [w["path"] for w in attributes_of(made)["plate"]["wells"]] == ["A/1", "B/2"]
    assert Tree.load(made / "B/2/1").shape == (1, 48, 56)
    assert [row["well"] for row in rows_of(out / "fields.csv")] == ["A1", "A1", "B2", "B2"]
    shutil.rmtree(plate / "B/2/1/0")
    assert "A1" in json.loads((out / ".fields/A1_0.json").read_text())["field"]["well"]


def test_of_many_fields_tables_are_written_and_pages_one_by_one(
    tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(write_module, "MANY", 2)
    monkeypatch.setattr("posterior_trees.pictures.results.MANY", 2)
    made = tmp_path / "in"
    made.mkdir()
    for site in range(3):
        write_ome_tiff(made / f"f{site}.ome.tif", paint_field(48, 56, site))
    predict(capsys, made, "--out", tmp_path / "tables")
    names = {p.name for p in (tmp_path / "tables").iterdir()}
    assert {"fields.csv", "nuclei.csv", "f0.nuclei.tif"} <= names
    assert not {"index.html", "f0"} & names
    predict(capsys, made, "--out", tmp_path / "pages", "--write", "page")
    index = (tmp_path / "pages/index.html").read_text(encoding="utf-8")
    assert len(index) < 1000
    for site in range(3):
        assert f'href="f{site}/index.html"' in index
        assert (tmp_path / f"pages/f{site}/index.html").stat().st_size > 50_000


def test_of_many_pictures_of_something_else_no_nuclei_are_counted(
    tmp_path: Path, monkeypatch
) -> None:
    """A folder of pictures becomes trees, however many they are."""
    monkeypatch.setattr(write_module, "MANY", 2)
    monkeypatch.setattr("posterior_trees.pictures.results.MANY", 2)
    (tmp_path / "in").mkdir()
    for name in "abc":
        Image.new("L", (28, 28), 40).save(tmp_path / "in" / f"{name}.png")
    cli.main(["predict", "digits", str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {"index.html", "a", "b", "c", "fields.csv", "job.json", ".fields"}


def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, folder: Path, capsys, monkeypatch
) -> None:
    calls = []

    def full(file: Path, *_: object, **__: object) -> None:
        calls.append(file)
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    monkeypatch.setattr(tifffile, "imwrite", full)
    said = predict(capsys, folder / "X_B01_s1.ome.tif", "--out", out, "--write", "tiff")
    assert "No space left on device" in said
    assert calls
    assert not out.exists() or not list(out.rglob("*.tif"))


def test_levels_of_a_batch_are_those_of_all_its_pixels(
    tmp_path: Path, folder: Path, capsys, monkeypatch
) -> None:
    """… of the planes that are meant, whatever file they are in; they are settings like others."""
    monkeypatch.setitem(globals(), "OPTIONS", ("--channel", "Actin", "--device", "cpu"))
    (folder / "X_B09_s9.ome.tif").write_bytes(b"II*\0")  # is named as failed, and counts nothing
    out, words = tmp_path / "out", (folder, "--write", "table")
    predict(capsys, *words, "--out", out, "--levels", "auto")
    pixels = np.concatenate([paint_field(160, 224, site)[1] for site in (1, 2, 3)])
    low, high = json.loads((out / "job.json").read_text())["levels"]
    assert (pixels < low).mean() < 0.001 <= (pixels <= low).mean()
    assert (pixels < high).mean() < 0.999 <= (pixels <= high).mean()
    predict(capsys, *words, "--out", tmp_path / "same", "--levels", low, high)
    assert (tmp_path / "same/nuclei.csv").read_text() == (out / "nuclei.csv").read_text()
    write_ome_tiff(folder / "X_B09_s9.ome.tif", 2 * paint_field(160, 224, 9))
    said = predict(capsys, *words, "--out", out, "--levels", "auto")
    assert f"was begun with levels {low} {high} (now {low}" in said
    assert "stands alone" in predict(capsys, *words, "--out", out, "--levels", "auto", "3")


def test_levels_of_other_numbers_are_nearly_exact(tmp_path: Path) -> None:
    values = np.random.default_rng(0).gamma(2, 300, (300, 400)).astype(np.float32)
    values[0, 0] = np.nan
    tifffile.imwrite(tmp_path / "a.tif", values)
    fields = [Field(tmp_path / "a.tif", "a")]
    found = choose_levels(OneProcess(), fields, Plane())
    np.testing.assert_allclose(found, np.nanquantile(values, [0.001, 0.999]), rtol=2e-3)
    tifffile.imwrite(tmp_path / "a.tif", np.full((9, 9), 7, np.uint16))
    with pytest.raises(InputError, match="nearly all pixels are 7"):
        choose_levels(OneProcess(), fields, Plane())


def test_a_dry_run_says_what_it_would_take_and_writes_nothing(
    tmp_path: Path, folder: Path, capsys, monkeypatch
) -> None:
    out = tmp_path / "out"
    words = (folder, "--out", out, "--write", "tiff,labels", "--dry-run", "--tile", 128)
    said = predict(capsys, *words, "--overlap", 32, "--workers", 2)
    size = 160 * 224 * (13 * 2 + 8)
    assert said.splitlines() == [
        "3 fields, 12 tiles",
        f"scratch {2 * size / 1e9:.2f} GB, result {3 * size / 1e9:.2f} GB before compression",
        f"memory per worker {(4e8 + 4 * 160 * 224 * 27) / 1e9:.2f} GB, beside what the network "
        "takes",
    ]
    assert not out.exists()
    free = SimpleNamespace(free=1.2 * 4 * size - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    need, there = (f"{number / 1e9:.1f} GB" for number in (4.8 * size, free.free))
    message = (f"scratch and result need {need}, {tmp_path} has {there} free: --work, "
               "--dtype uint8, or fewer fields")  # fmt: skip
    assert message in predict(capsys, *words)  # one worker: 1 + 3 fields
    assert message in predict(capsys, *(word for word in words if word != "--dry-run"))
    assert not list(tmp_path.rglob("*.tif*[!f]"))
    free.free += 2
    assert "scratch and result need" not in predict(capsys, *words)


def test_progress_is_a_line_for_each_field_or_nothing(tmp_path: Path, folder: Path, capsys) -> None:
    """Never one for each tile."""
    (folder / "X_B02_s2.ome.tif").write_bytes(b"II*\0")
    words = (folder, "--write", "table", "--tile", 64, "--progress")
    said = predict(capsys, *words, "plain", "--out", tmp_path / "a").splitlines()
    lines = [line for line in said if re.match(r"\d of 3  ", line)]
    assert [line.split()[3:5] for line in lines] == [["X_B01_s1", "done"], ["X_B02_s2", "failed"],
                                                     ["X_B03_s3", "done"]]  # fmt: skip
    assert all(re.search(r"  [\d.]+/s, \d+ s left$", line) for line in lines)
    said = predict(capsys, *words, "json", "--out", tmp_path / "b").splitlines()
    told = [json.loads(line) for line in said if line.startswith("{")]
    assert [(t["done"], t["total"], t["status"]) for t in told] == [
        (1, 3, "done"), (2, 3, "failed"), (3, 3, "done")
    ]  # fmt: skip
    assert told[-1]["seconds_left"] == 0
    assert " of 3  " not in predict(capsys, *words, "none", "--out", tmp_path / "c")


def test_results_of_another_machine_are_mixed_only_when_that_is_asked_for(
    tmp_path: Path, folder: Path, capsys
) -> None:
    out = tmp_path / "out"
    words = (folder, "--out", out, "--write", "table")
    predict(capsys, folder / "X_B01_s1.ome.tif", *words[1:])
    assert json.loads((out / "job.json").read_text())["threads"] == 1
    said = predict(capsys, *words, "--threads", 2)
    assert f"{out} was begun with threads 1 (now 2): go on with the same" in said
    predict(capsys, *words, "--threads", 2, "--allow-mixed")
    torch.set_num_threads(1)
    assert len(rows_of(out / "fields.csv")) == 3
    assert json.loads((out / "job.json").read_text())["threads"] == 1
    job = json.loads((out / "job.json").read_text()) | {"torch": "1.0", "device": "cuda"}
    (out / "job.json").write_text(json.dumps(job))
    assert "was begun with device cuda (now cpu)" in predict(capsys, *words)
    assert "3 of 3 fields were done before" in predict(capsys, *words, "--allow-mixed")
    assert "begun with tile" in predict(capsys, *words, "--allow-mixed", "--tile", 64)


@pytest.mark.parametrize(("words", "message"), [
    (["--array", "3/2"], "is 3/2; I is 0 to N"),
    (["--array", "1/2", "--overwrite"], "--overwrite with --array would remove what other jobs do"),
    (["--scheduler", "tcp://a:1"], "--scheduler tcp://a:1 is for --engine dask: add that"),
    (["--out", "/proc/none"], "cannot make the folder /proc/.none.stage"),
])  # fmt: skip
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, folder: Path, capsys, words: list[str], message: str
) -> None:
    said = predict(capsys, folder, "--out", tmp_path / "out", "--write", "table", *words)
    assert message in said
    assert "bug" not in said
    assert not (tmp_path / "out").exists()


def test_without_dask_the_message_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingError, match=re.escape('pip install "posterior-trees[dask]"')):
        make_engine("dask", 2)
