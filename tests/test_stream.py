"""Trees to disk, tile by tile: the same to the bit, in little memory, from wherever it stopped."""

import contextlib
import csv
import functools
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from paint import paint_field, write_ome_tiff, write_ome_zarr
from test_tree_zarr import check_with_others
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import Downsample, Paired, Tree, TreePredictor
from posterior_trees.engine import OneProcess, make_engine
from posterior_trees.errors import InputError
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ome_zarr import attributes_of
from posterior_trees.imaging.size import block_means
from posterior_trees.imaging.source import Plane, open_source
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.networks import Leaves
from posterior_trees.networks.padding import pad
from posterior_trees.pictures.nuclei import blocks
from posterior_trees.pictures.nuclei.count import count_nuclei
from posterior_trees.pictures.stream import Stream, run_stream
from posterior_trees.pictures.stream import run as run_module
from posterior_trees.pictures.stream.disk import Marks
from posterior_trees.pictures.stream.layout import Window
from posterior_trees.pictures.stream.run import check_room, estimate
from posterior_trees.pictures.tables import describe_nuclei
from posterior_trees.pictures.tiles import predict_tiled

ALL = slice(None)
ACTIN = Plane(channel="Actin")


class Stub(nn.Module):
    """Leaves are filters of the input, whose bright places become as large as nuclei, and their
    probabilities depend on it; in each place they are numbered by its brightness, so that
    neighbouring tiles do not agree on a numbering."""

    def __init__(self, branching: tuple[int, ...] = (3, 3)) -> None:
        super().__init__()
        self.branching = branching
        generator = torch.Generator().manual_seed(0)
        leaves = math.prod(branching)
        self.filters = nn.Parameter(torch.randn(leaves, 1, 3, 3, generator=generator) / 9)
        self.filters.data[:, :, 1, 1] += 1

    def forward(self, y: Tensor) -> Leaves:
        images = F.conv2d(F.max_pool2d(y, 7, 1, 3), self.filters, padding=1).unsqueeze(2)
        log_probs = images.mean(dim=(2, 3, 4)).mul(9).log_softmax(1)
        turn = int(1e4 * y.mean()) % self.branching[0]
        siblings = len(self.filters) // self.branching[0]
        order = torch.arange(len(self.filters)).roll(turn * siblings)
        return Leaves(images[:, order], log_probs[:, order])


def make_stub(multiple: int = 8, padding: str = "reflect") -> TreePredictor:
    network = Stub()
    return TreePredictor(
        network, Paired(1, 1, is_residual=False), branching=network.branching, channels=1,
        multiple=multiple, padding=padding,
    ).eval()  # fmt: skip


def stream_of(tmp_path: Path, path: Path, **options) -> Stream:
    options = {"dtype": "float32", "tile": 48, "overlap": 16, "plane": ACTIN} | options
    make = options.pop("make", make_stub)
    field = Field(path, "x", well="A01")
    return Stream(make, field, tmp_path / "x.tree.ome.zarr", tmp_path / "work", **options)


class StopError(Exception):
    pass


class Counting(OneProcess):
    """An engine that notes which steps it did, and stops after so many."""

    def __init__(self, stop: int) -> None:
        super().__init__(1)
        self.stop, self.done = stop, list[str]()

    def run(self, function, items):
        for item in items:
            if len(self.done) == self.stop:
                raise StopError
            self.done.append(item[0])
            yield from super().run(function, [item])


def run(stream: Stream, stop: int = 10**9) -> list[str]:
    """All steps that are not done yet, or the first `stop` of them."""
    engine = Counting(stop)
    with contextlib.suppress(StopError):
        run_stream(stream, engine, stream.folder.parent)
    return engine.done


def whole(stream: Stream) -> tuple[Tree, tuple]:
    with open_source(stream.field.path, **stream.plane._asdict()) as source:
        stored = block_means(source.read_stored(ALL, ALL), stream.block)
    y = stream.adjustment.apply(stored)
    return predict_tiled(stream.make_predictor(), y, stream.tile, stream.overlap)


@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((96, 112), {}),  # on the network's grid
        ((93, 107), {}),  # padded on all sides
        ((101, 91), {"make": functools.partial(make_stub, 16, "zeros"), "tile": 64}),
        ((40, 44), {}),  # one tile
        ((40, 300), {}),  # one row
        ((300, 40), {"overlap": 24}),  # one column, each tile overlaps two others
        ((600, 530), {"tile": 160, "overlap": 32}),  # several chunks, which are not the tiles
        ((97, 110), {"block": 2, "tile": 32}),
        ((1100, 40), {"tile": 400, "overlap": 32}),  # a pyramid
        ((90, 100), {"adjustment": Adjustment.of((7000, 50000), 0.5, True)}),
        ((5, 60), {"make": functools.partial(make_stub, 16)}),  # padding wider than the picture
    ],
)
def test_streaming_is_predict_tiled_to_the_bit(tmp_path: Path, monkeypatch, size, options) -> None:
    """Every file is the same: nodes, pyramid, probabilities, labels, tables and metadata."""
    monkeypatch.setattr(blocks, "BLOCK", 512)
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(*size))
    stream = stream_of(tmp_path, path, is_counted=True, **options)
    run(stream)
    tree, parts = whole(stream)
    count = count_nuclei(tree, parts=parts)
    assert len(count.nuclei) > {600: 50, 5: -1}.get(size[0], 0)
    at_once = write_tree(
        tmp_path / "once" / "x.tree.ome.zarr", tree, dtype="float32", frame=stream.frame,
        tiles=stream.described_tiles(), local=[part.probs for part in parts],
        nuclei=describe_nuclei(stream.field, count, stream.frame, count.labels.numpy()),
    )  # fmt: skip
    assert digest(stream.folder) == digest(at_once)
    assert stream.counted()._replace(labels=None) == count._replace(labels=None)
    numbering = stream.ordered["numbering"]
    if len(numbering) > 3:
        assert len({tuple(order) for order in numbering}) > 1, "nothing had to be renumbered"


def test_a_window_is_a_part_of_the_padded_picture(tmp_path: Path) -> None:
    path = write_ome_tiff(tmp_path / "in.ome.tif", paint_field(53, 71))
    for multiple, padding in ((16, "reflect"), (16, "zeros"), (128, "reflect"), (1, "reflect")):
        with open_source(path, channel=1) as source:
            window = Window(source, Adjustment(), 1, multiple, padding)
            y = Adjustment().apply(source.read_stored(ALL, ALL))
            wide = pad(y, multiple, padding)
            assert window.padded == wide.shape[-2:]
            end = slice(40, wide.shape[2]), slice(60, wide.shape[3])
            for rows, columns in ((slice(0, 16), slice(0, 9)), (slice(20, 41), slice(30, 60)), end):
                assert torch.equal(window.read(rows, columns), wide[..., rows, columns])


def test_blocks_become_their_means() -> None:
    values = np.array([[[1, 2, 9], [3, 5, 9], [9, 9, 9]]])
    assert block_means(values.astype(np.uint16), 2).tolist() == [[[3]]]
    assert block_means(values.astype(np.float32), 2).tolist() == [[[2.75]]]
    assert block_means(values.astype(np.uint8), 3).shape == (1, 1, 1)


def digest(folder: Path) -> str:
    """Of every byte and name of a folder."""
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    parts = [str(f.relative_to(folder)).encode() + f.read_bytes() for f in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


TALL = {"dtype": "uint8", "tile": 400, "overlap": 32, "is_counted": True, "is_deep": True}
"""Of a picture of 1030 × 40 pixels: several of everything."""
STEPS = ["predict", "gram", "order", "blend", "count", "label", "shrink", "finish"]


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A picture, all that is done to it, and the digest of its result."""
    folder = tmp_path_factory.mktemp("tall")
    path = write_ome_zarr(folder / "in.ome.zarr", paint_field(1030, 40))
    stream = stream_of(folder, path, **TALL)
    steps = run(stream)
    assert list(dict.fromkeys(steps)) == STEPS
    return path, steps, digest(stream.folder)


def test_every_item_goes_on_where_it_was_stopped(tmp_path: Path, tall) -> None:
    """Stopped after each number of items, and with what was being written half there, the result is
    bytewise the same and nothing is done twice."""
    path, steps, expected = tall
    for stop in range(1, len(steps), 3):
        stream = stream_of(tmp_path / str(stop), path, **TALL)
        assert run(stream, stop) == steps[:stop]
        assert not stream.folder.exists()
        (stream.work / "tiles" / ".9.leaves.part").write_bytes(b"half")
        (stream.part / "0/c").mkdir(parents=True, exist_ok=True)
        (stream.part / "0/c/0.1a.partial").write_bytes(b"half")
        again = stream_of(tmp_path / str(stop), path, **TALL)
        assert run(again) == steps[stop:], stop
        assert digest(again.folder) == expected
        assert run(again) == []


@pytest.mark.parametrize("step", [*STEPS, "before put", "after put"])
def test_a_process_killed_in_any_step_loses_nothing(tmp_path: Path, tall, step: str) -> None:
    """SIGKILL when the second item of a step is written and not marked yet, or as the result gets
    its name."""
    path, steps, expected = tall
    if not (child := os.fork()):
        mark, put = Marks.set, run_module.put_in_place
        killer = functools.partial(os.kill, os.getpid(), signal.SIGKILL)

        def set_mark(self: Marks, name: str, item: tuple[int, ...], files=()) -> None:
            if name == step and item[-1:] not in ((0,), (1,)[: name == "gram"]):
                killer()
            mark(self, name, item, files)

        def put_result(part: Path, folder: Path) -> None:
            if step == "before put":
                killer()
            put(part, folder)
            killer()

        Marks.set, run_module.put_in_place = set_mark, put_result
        run(stream_of(tmp_path, path, **TALL))
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    stream = stream_of(tmp_path, path, **TALL)
    done = len(list((stream.work / "done").iterdir()))
    assert run(stream) == steps[done:]
    assert digest(stream.folder) == expected


def test_several_processes_change_no_byte(tmp_path: Path, tall) -> None:
    path, _, expected = tall
    stream = stream_of(tmp_path, path, **TALL)
    engine = make_engine("local", 2)
    try:
        run_stream(stream, engine, tmp_path)
    finally:
        engine.close()
    assert digest(stream.folder) == expected


def test_marks_without_their_files_are_not_believed(tmp_path: Path, tall) -> None:
    path, steps, expected = tall
    stream = stream_of(tmp_path, path, **TALL, keeps_tiles=True)
    run(stream, len(steps) - 1)
    leaves = stream.work / "tiles" / "1.leaves"
    leaves.write_bytes(leaves.read_bytes()[:100])
    (stream.work / "grams" / "2.json").unlink()
    (stream.work / "done" / "order").write_bytes(b"\0")
    (stream.work / "done" / "count_0").write_text("[]")
    assert run(stream) == ["predict", "gram", "order", "count", "finish"]
    assert digest(stream.folder) == expected
    shutil.rmtree(stream.folder)  # nothing of it is left: from the start
    assert run(stream_of(tmp_path, path, **TALL)) == steps


def test_tiles_go_when_nobody_reads_them_again(tmp_path: Path, tall) -> None:
    path, steps, _ = tall
    for last, options in (("count", {}), ("blend", {"is_counted": False})):
        stream = stream_of(tmp_path / last, path, **TALL | options)
        run(stream, steps.index(last))
        files = stream.work / "tiles"
        assert len(list(files.iterdir())) == 2 * len(stream.tiles)
        run(stream, 1)
        assert 0 < len(list(files.iterdir())) < 2 * len(stream.tiles)
        run(stream)
        assert not list(files.iterdir())


def test_other_settings_are_refused_and_another_picture_begins_anew(tmp_path: Path, tall) -> None:
    path, steps, _ = tall
    facts = {"tile": 400, "stamp": {"sha256": "a"}, "date": "1"}
    stream = stream_of(tmp_path, path, **TALL, provenance=facts)
    run(stream, 5)
    with pytest.raises(InputError, match=rf"^{tmp_path} was begun with tile 400 \(now 256\): go on "
                       "with the same, choose another --out, or --overwrite$"):  # fmt: skip
        run(stream_of(tmp_path, path, **TALL, provenance=facts | {"tile": 256}))
    assert run(stream_of(tmp_path, path, **TALL, provenance=facts | {"date": "2"}), 2) == steps[5:7]
    assert json.loads((stream.work / "job.json").read_text())["date"] == "1"
    other = facts | {"stamp": {"sha256": "b"}}
    assert run(stream_of(tmp_path, path, **TALL, provenance=other)) == steps


PROGRAM = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_stream import run, stream_of
stream = stream_of(Path({work!r}), Path({path!r}), dtype="uint8", tile={tile}, overlap={tile} // 8,
                   is_counted=True, is_deep=True)
run(stream)
nuclei = len(stream.counted().nuclei)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, nuclei)
"""


def peak_of(folder: Path, side: int, tile: int) -> tuple[int, int]:
    """MB that a process takes for a picture of so many pixels a side, and its nuclei."""
    folder.mkdir()
    cell = paint_field(256, 256)[1:]
    array = zarr.open_array(
        write_ome_zarr(folder / "in.ome.zarr", cell, names=("Actin",)) / "0", mode="w",
        shape=(1, side, side), chunks=(1, 512, 512), dtype=cell.dtype,
    )  # fmt: skip
    for top in range(0, side, 512):
        array[:, top : top + 512] = np.tile(cell, (1, 512 // 256, side // 256))
    text = PROGRAM.format(tests=str(Path(__file__).parent), work=str(folder),
                          path=str(folder / "in.ome.zarr"), tile=tile)  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, nuclei = map(int, done.stdout.split())
    return peak, nuclei


@pytest.mark.parametrize(
    ("small", "large"), [(1024, 2048), pytest.param(2048, 4096, marks=pytest.mark.slow)]
)
def test_memory_does_not_grow_with_the_picture(tmp_path: Path, small: int, large: int) -> None:
    peaks = {side: peak_of(tmp_path / str(side), side, 512)[0] for side in (small, large)}
    print(peaks)
    assert peaks[large] <= 1.2 * peaks[small] + 16, peaks


@pytest.mark.slow
def test_a_picture_of_16384_pixels_a_side_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    peak, nuclei = peak_of(tmp_path / "huge", 16384, 512)
    print(peak, nuclei)
    assert nuclei > 10_000
    assert peak <= 1000


def make_plain() -> TreePredictor:
    """Every leaf is the input, and what is bright in it as large as a nucleus."""
    predictor = make_stub()
    predictor.network.filters.data.zero_()[:, :, 1, 1] = 1
    return predictor


def test_a_dot_lies_at_one_place_in_root_labels_pyramid_and_table(tmp_path: Path) -> None:
    """In µm from the centre of the input's first pixel, of which 2×2 are one of the result."""
    pixel, size = 0.65, (2080, 96)
    picture = np.full((1, *size), 1000, np.uint16)
    picture[0, 1600:1604, 40:44] = 60000
    path = write_ome_zarr(tmp_path / "in.ome.zarr", picture, pixel=pixel, names=("Actin",))
    stream = stream_of(tmp_path, path, make=make_plain, block=2, is_counted=True, tile=160)
    run(stream)
    want = [pixel * 1601.5, pixel * 41.5]
    for group, name in (("", "0"), ("", "1"), ("labels/nuclei", "0"), ("labels/nuclei", "1")):
        facts = attributes_of(stream.folder / group)["multiscales"][0]["datasets"][int(name)]
        steps = facts["coordinateTransformations"]
        scale, first = steps[0]["scale"][-2:], steps[1]["translation"][-2:]
        values = zarr.open_array(stream.folder / group / name, mode="r")[...]
        values = values.reshape(-1, *values.shape[-2:])[0].astype(float)
        values -= values.min()
        centre = np.stack(np.indices(values.shape)).reshape(2, -1) @ values.ravel() / values.sum()
        np.testing.assert_allclose(first + centre * scale, want, atol=1e-3, err_msg=group + name)
    (row,) = csv.DictReader((stream.folder / "tables/nuclei.csv").open(encoding="utf-8"))
    assert [float(row["y_um"]), float(row["x_um"])] == pytest.approx(want, abs=1e-3)
    assert [float(row["row"]), float(row["column"])] == [1601.5, 41.5]
    assert float(row["area_um2"]) == pytest.approx(int(row["pixels"]) * (2 * pixel) ** 2)
    assert float(row["probability"]) == pytest.approx(1)
    for group, kind in (("", "Image"), ("probabilities", "Image"), ("labels/nuclei", "ImageLabel")):
        check_with_others(stream.folder / group, "0.5", kind)


def test_models_that_change_the_size_are_refused(tmp_path: Path) -> None:
    def zoom() -> TreePredictor:
        class Zooming(Stub):
            def forward(self, y: Tensor) -> Leaves:
                made = super().forward(F.interpolate(y, scale_factor=2))
                return Leaves(made.images, made.log_probs)

        return TreePredictor(Zooming(), Downsample(2), branching=(3, 3), channels=1)

    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field())
    with pytest.raises(InputError, match="only models of one channel that keep the size"):
        run(stream_of(tmp_path, path, make=zoom))


def test_a_full_disk_is_noticed_before_the_work(tmp_path: Path, monkeypatch) -> None:
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(600, 530))
    stream = stream_of(tmp_path, path, tile=160, overlap=32)
    scratch, result = estimate(stream)
    assert scratch == 9 * 4 * sum(t.down.numel() * t.across.numel() for t in stream.tiles)
    assert result == 13 * 4 * 600 * 530
    usage = type("Usage", (), {"free": 1.9e6})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=rf"^scratch and result need 0\.0 GB, {tmp_path} has 0\.0 "
                       "GB free: --work, --dtype uint8, or fewer fields$"):  # fmt: skip
        check_room(stream)
    usage.free = 1.3 * (scratch + result)
    check_room(stream)
