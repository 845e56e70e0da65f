"""Trees to disk, tile by tile: the same to the bit, in little memory, from wherever it stopped."""

import functools
import hashlib
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr
from paint import paint_field, write_ome_tiff, write_ome_zarr
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import Downsample, Paired, Tree, TreePredictor
from posterior_trees.errors import InputError
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.size import block_means
from posterior_trees.imaging.source import Plane, open_source
from posterior_trees.imaging.stored import open_tree
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.networks import Leaves
from posterior_trees.networks.padding import pad
from posterior_trees.pictures.stream import KEPT, Stream, perform
from posterior_trees.pictures.tiles import predict_tiled
from posterior_trees.pictures.window import Window

ALL = slice(None)
ACTIN = Plane(channel="Actin")


class Stub(nn.Module):
    """Leaves are filters of the input and their probabilities depend on it; in each place they are
    numbered by its brightness, so that neighbouring tiles do not agree on a numbering."""

    def __init__(self, branching: tuple[int, ...] = (3, 3)) -> None:
        super().__init__()
        self.branching = branching
        generator = torch.Generator().manual_seed(0)
        leaves = math.prod(branching)
        self.filters = nn.Parameter(torch.randn(leaves, 1, 3, 3, generator=generator) / 3)

    def forward(self, y: Tensor) -> Leaves:
        images = F.conv2d(y, self.filters, padding=1).unsqueeze(2)
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
    return Stream(make, path, tmp_path / "x.tree.ome.zarr", tmp_path / "work", **options)


def run(stream: Stream, stop: int = 10**9) -> list[str]:
    """All steps that are not done yet, or the first `stop` of them."""
    done: list[str] = []
    KEPT.clear()
    stream.begin()
    for step, items in stream.steps():
        for item in items:
            if len(done) == stop:
                return done
            if not stream.is_done(step, item):
                perform(stream, step, item)
                done.append(step)
    return done


def whole(stream: Stream) -> tuple[Tree, tuple]:
    with open_source(stream.path, **stream.plane._asdict()) as source:
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
def test_streaming_is_predict_tiled_to_the_bit(tmp_path: Path, size, options) -> None:
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(*size))
    stream = stream_of(tmp_path, path, **options)
    run(stream)
    (tree, parts), back = whole(stream), Tree.load(stream.folder)
    for level in range(3):
        assert torch.equal(back.images[level], tree.images[level]), level
        torch.testing.assert_close(back.log_probs[level], tree.log_probs[level], rtol=0, atol=1e-6)
    at_once = write_tree(tmp_path / "at_once.zarr", tree, dtype="float32")
    for level in range(len(stream.writer.sizes)):
        one, other = (
            zarr.open_array(f / str(level), mode="r")[:] for f in (stream.folder, at_once)
        )
        np.testing.assert_array_equal(one, other)
    stored = open_tree(stream.folder).parts
    for mine, part in zip(stored, parts, strict=True):
        assert mine[:2] == part[:2]
        torch.testing.assert_close(mine[2], part.probs)
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


def test_every_step_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """Killed after each number of items, and with what was being written lost or half there, the
    result is bytewise the same and nothing is done twice."""
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(60, 70))
    reference = stream_of(tmp_path / "a", path, dtype="uint8", tile=40, overlap=8)
    steps = run(reference)
    assert set(steps) == {"predict", "gram", "order", "blend", "finish"}
    for stop in range(1, len(steps)):
        stream = stream_of(tmp_path / str(stop), path, dtype="uint8", tile=40, overlap=8)
        assert run(stream, stop) == steps[:stop]
        assert not stream.folder.exists()
        (stream.work / "tiles" / ".9.leaves.part").write_bytes(b"half")
        again = stream_of(tmp_path / str(stop), path, dtype="uint8", tile=40, overlap=8)
        assert run(again) == steps[stop:], stop
        assert digest(again.folder) == digest(reference.folder)


def test_marks_without_their_files_are_not_believed(tmp_path: Path) -> None:
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(90, 100))
    reference = stream_of(tmp_path / "a", path)
    total = len(run(reference))
    stream = stream_of(tmp_path / "b", path)
    run(stream, total - 1)
    leaves = stream.work / "tiles" / "1.leaves"
    leaves.write_bytes(leaves.read_bytes()[:100])
    (stream.work / "grams" / "2.json").unlink()
    assert run(stream_of(tmp_path / "b", path)) == ["predict", "gram", "finish"]
    assert digest(stream.folder) == digest(reference.folder)


PROGRAM = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_stream import make_stub, run, stream_of
work, source, tile = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
stream = stream_of(work, source, dtype="uint8", tile=tile, overlap=tile // 4)
run(stream)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def spawn(work: Path, source: Path, tile: int) -> subprocess.Popen:
    program = PROGRAM.format(tests=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(work), str(source), str(tile)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """SIGKILL in the middle; the next run goes on, and every byte is the same."""
    path = write_ome_zarr(tmp_path / "in.ome.zarr", paint_field(160, 168))
    reference = stream_of(tmp_path / "a", path, dtype="uint8", tile=32, overlap=8)
    total = len(run(reference))
    (tmp_path / "b").mkdir()
    process = spawn(tmp_path / "b", path, 32)
    marks = tmp_path / "b" / "work" / "done"
    while process.poll() is None:
        if marks.is_dir() and len(os.listdir(marks)) > total // 3:
            process.send_signal(signal.SIGKILL)
            break
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    stream = stream_of(tmp_path / "b", path, dtype="uint8", tile=32, overlap=8)
    assert 0 < len(run(stream)) <= total - total // 3
    assert digest(stream.folder) == digest(reference.folder)


@pytest.mark.parametrize(
    ("small", "large"), [(1024, 2048), pytest.param(2048, 4096, marks=pytest.mark.slow)]
)
def test_memory_does_not_grow_with_the_picture(tmp_path: Path, small: int, large: int) -> None:
    peaks = {}
    for side in (small, large):
        field = np.tile(paint_field(256, 256)[1], (side // 256, side // 256))
        path = write_ome_zarr(tmp_path / f"{side}.ome.zarr", field, names=("Actin",), axes="yx",
                              chunk=512)  # fmt: skip
        (tmp_path / str(side)).mkdir()
        process = spawn(tmp_path / str(side), path, 256)
        printed, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
        peaks[side] = int(printed)
    print(peaks)
    assert peaks[large] <= 1.2 * peaks[small] + 16, peaks


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
    scratch, result = stream.estimate()
    assert scratch == 9 * 4 * sum(t.down.numel() * t.across.numel() for t in stream.tiles)
    assert result == 13 * 4 * 600 * 530
    usage = type("Usage", (), {"free": 1.9e6})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=rf"^scratch and result need 0\.0 GB, {tmp_path} has 0\.0 "
                       "GB free: --work, --dtype uint8, or fewer fields$"):  # fmt: skip
        stream.check_room()
    usage.free = 1.3 * (scratch + result)
    stream.check_room()
