"""Fields on workers: the same bytes whoever does them, and whatever becomes of who does."""

import contextlib
import functools
import hashlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tifffile
from paint import paint_field, write_ome_tiff, write_ome_zarr, write_plate
from test_stream import Stub
from torch import Tensor

from posterior_trees import Paired, TreePredictor
from posterior_trees.engine import MOST_DEATHS, Engine, make_engine
from posterior_trees.imaging.fields import Field, list_fields
from posterior_trees.networks import Leaves
from posterior_trees.pictures.reading import Reading
from posterior_trees.pictures.results import Outputs, Results
from posterior_trees.pictures.write import PictureError, predict_files

READING = Reading.of(levels=(7000, 37000))
WORDS = ("page", "zarr", "tiff", "labels", "table")


class Deadly(Stub):
    """Ends its process at pictures of 56 pixels, so many times."""

    def __init__(self, folder: Path, times: int) -> None:
        super().__init__()
        self.folder, self.times = folder, times

    def forward(self, y: Tensor) -> Leaves:
        if y.shape[-1] == 56 and len(list(self.folder.iterdir())) < self.times:
            (self.folder / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(y)


def make_stub(folder: Path | None = None, times: int = 0) -> TreePredictor:
    network = Deadly(folder, times) if folder else Stub()
    return TreePredictor(
        network, Paired(1, 1, is_residual=False), branching=network.branching, channels=1,
        multiple=8, padding="reflect",
    ).eval()  # fmt: skip


@pytest.fixture(scope="module", params=["local", "dask"])
def engine(request) -> Iterator[Engine]:
    with contextlib.closing(make_engine(request.param, 2)) as made:
        yield made


@pytest.fixture(scope="module")
def fields(tmp_path_factory) -> list[Field]:
    """A plate of two fields and three files, the second of which is 56 pixels wide."""
    folder = tmp_path_factory.mktemp("in")
    plate = write_plate(folder / "p.ome.zarr", sites=1, size=(24, 32))
    files = [write_ome_tiff(folder / f"X_B01_s{i}.ome.tif", paint_field(24, width, i)[1:],
                            names=("Actin",)) for i, width in enumerate((32, 56, 40))]  # fmt: skip
    return list_fields([plate, *files])


@pytest.fixture(scope="module")
def one(fields: list[Field], tmp_path_factory) -> dict[str, str]:
    """What one process writes."""
    out = tmp_path_factory.mktemp("one")
    predict(fields, out)
    return digests(out)


def predict(fields: list[Field], out: Path, make=make_stub, **options) -> list[Path]:
    reading = READING._replace(plane=READING.plane._replace(channel="Actin"))
    results = Results(out, Outputs(WORDS), {"levels": [7000, 37000]},
                      is_shared="share" in options)  # fmt: skip
    return predict_files(make_stub(), fields, out, reading, results=results, make_predictor=make,
                         warn=lambda _: None, **options)  # fmt: skip


def digests(out: Path) -> dict[str, str]:
    """Of every file, but for the seconds that a field took and the checksums of those."""
    found = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        content = file.read_bytes()
        if file.name == "fields.csv":
            content = re.sub(rb",[\d.]+\n", b"\n", content)
        if file.parent.name == ".fields":
            content = re.sub(rb'"(seconds|checksum)": [\d.]+', b"", content)
        if not file.name.startswith((".lock", ".holder")):
            found[str(file.relative_to(out))] = hashlib.sha256(content).hexdigest()
    return found


def test_engines_write_the_same_bytes(
    engine: Engine, fields: list[Field], one: dict, tmp_path: Path
) -> None:
    written = predict(fields, tmp_path, engine=engine)
    assert [path.name for path in written] == ["index.html", *(f.name for f in fields),
                                               "fields.csv", "nuclei.csv"]  # fmt: skip
    assert len(one) > 199
    assert digests(tmp_path) == one


def test_a_killed_worker_changes_no_byte(
    engine: Engine, fields: list[Field], one: dict, tmp_path: Path
) -> None:
    (tmp_path / "deaths").mkdir()
    deadly = functools.partial(make_stub, tmp_path / "deaths", 1)
    predict(fields, tmp_path / "out", deadly, engine=engine)
    assert len(list((tmp_path / "deaths").iterdir())) == 1
    assert digests(tmp_path / "out") == one


def test_a_field_that_ends_its_workers_is_given_up(
    engine: Engine, fields: list[Field], one: dict, tmp_path: Path
) -> None:
    (tmp_path / "deaths").mkdir()
    out, poison = tmp_path / "out", fields[3]
    deadly = functools.partial(make_stub, tmp_path / "deaths", 99)
    with pytest.raises(PictureError) as error:
        predict(fields, out, deadly, engine=engine)
    message = f"field {poison.path} ended its worker 3 times (out of memory?)"
    assert str(error.value) == f"1 of 5 pictures could not be predicted:\n  {message}"
    assert len(list((tmp_path / "deaths").iterdir())) == MOST_DEATHS
    rows = (out / "fields.csv").read_text().splitlines()
    assert [",failed," in row for row in rows] == [False] * 4 + [True, False]
    assert message in rows[4]
    found, tables = digests(out), {"index.html", "fields.csv", "nuclei.csv"}
    others = {n: d for n, d in one.items() if poison.name not in n and n not in tables}
    assert others.items() <= found.items()
    assert found.keys() - others.keys() == {*tables, f".fields/{poison.name}.json"}


def test_who_is_stopped_leaves_what_is_done_and_nothing_in_part(
    engine: Engine, fields: list[Field], one: dict, tmp_path: Path
) -> None:
    def stop(outcomes):
        yield next(iter(outcomes))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(fields, tmp_path, engine=engine, watch=stop)
    assert list((tmp_path / ".fields").glob("*.json"))
    assert not list(tmp_path.rglob("*.stage"))
    predict(fields, tmp_path, engine=engine)
    assert digests(tmp_path) == one


def test_array_jobs_share_a_folder(fields: list[Field], one: dict, tmp_path: Path) -> None:
    """In any order, without a scheduler; the last one has the tables and the page of all."""
    seen = []
    for part in (3, 1, 2):
        predict(fields, tmp_path, share=(part, 3), watch=lambda o: seen.append(len(o)) or o)
    assert seen == [2, 2, 1]
    assert digests(tmp_path) == one


def test_bad_files_are_named_and_the_others_are_done(tmp_path: Path) -> None:
    """Truncated, with strips beyond its end, without a chunk, with a broken one, or removed while
    the others are read: nothing is left of them."""
    field, folder, out = paint_field(24, 32)[1:], tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    files = [write_ome_tiff(folder / f"{name}.ome.tif", field, names=("Actin",))
             for name in ("first", "cut", "lying", "last")]  # fmt: skip
    stores = [write_ome_zarr(folder / f"{name}.ome.zarr", field, names=("Actin",))
              for name in ("missing", "corrupt", "removed")]  # fmt: skip
    files[1].write_bytes(files[1].read_bytes()[:-600])
    with tifffile.TiffFile(files[2]) as tiff:
        at = tiff.pages[0].tags["StripOffsets"].valueoffset
    content = bytearray(files[2].read_bytes())
    content[at : at + 4] = (10**9).to_bytes(4, "little")
    files[2].write_bytes(content)
    (stores[0] / "0/c/0/0/0").unlink()
    (stores[1] / "0/c/0/0/0").write_bytes(b"no chunk")

    def remove(outcomes):
        for outcome in outcomes:
            shutil.rmtree(stores[2], ignore_errors=True)
            yield outcome

    inputs = [*files[:3], *stores, files[3]]
    with pytest.raises(PictureError) as error:
        predict(list_fields(inputs), out, watch=remove)
    first, *told = str(error.value).splitlines()
    assert first == "5 of 7 pictures could not be predicted:"
    words = ("is truncated or damaged", "is truncated or damaged", "lacks the chunk 0/c/0/0/0",
             "is truncated or damaged", "does not exist")  # fmt: skip
    for line, path, reason in zip(told, inputs[1:6], words, strict=True):
        assert line.startswith(f"  {path} {reason}"), line
    rows = (out / "fields.csv").read_text().splitlines()[1:]
    assert [",failed," in row for row in rows] == [False] + [True] * 5 + [False]
    assert {path.name.split(".")[0] for path in out.iterdir()} == {
        "", "first", "last", "fields", "nuclei", "job", "index"
    }  # fmt: skip
    assert not list(tmp_path.rglob("*.part")) + list(tmp_path.rglob("*.stage"))


def test_each_process_may_have_a_device_of_its_own() -> None:
    with contextlib.closing(make_engine("local", 2, devices=("cpu", "meta"))) as engine:
        found = {outcome.value for outcome in engine.run(device_here, range(4))}
    assert found == {"cpu", "meta"}


def device_here(_: int) -> str | None:
    from posterior_trees import engine

    time.sleep(1)
    return engine.device
