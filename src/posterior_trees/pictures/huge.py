"""Fields whose trees are too large for memory: to disk, by the steps of `stream`.

Pages show whole trees, so that only other results are streamed.
"""

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from posterior_trees.engine import Engine
from posterior_trees.errors import InputError, PosteriorTreesError
from posterior_trees.imaging.adjust import describe_misfit
from posterior_trees.imaging.regions import SIDE
from posterior_trees.imaging.size import block_means, block_of
from posterior_trees.imaging.source import Source, open_source
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import open_tree
from posterior_trees.pictures.nuclei.magnification import describe_magnification
from posterior_trees.pictures.reading import Origin, choose_scale, open_plane, scaled_size
from posterior_trees.pictures.results import Results, Task, zarr_name
from posterior_trees.pictures.stream import Stream, run_stream
from posterior_trees.pictures.tables import NUCLEI, field_row, nucleus_rows, write_csv
from posterior_trees.pictures.tiles import WITHDRAWN, needs_tiles
from posterior_trees.pictures.work import Made, Work
from posterior_trees.predictor import Predictor
from posterior_trees.tree import Tree, level_sizes

LIMIT = 2**30
"""Bytes of all nodes in float32 above which a tree is made on disk: 4,500 × 4,500 pixels of 13."""


def is_huge(work: Work, task: Task) -> bool:
    """By its size alone, so that every computer decides alike."""
    if work.results is None or work.has_page:
        return False
    with suppress(PosteriorTreesError, OSError), _open(work, task) as source:  # told by `read`
        size = scaled_size(source, work.reading, work.predictor)
        is_cut = needs_tiles(work.predictor, size, work.tiling.tile)
        return goes_to_disk(work.predictor, size, is_cut)
    return False


def goes_to_disk(predictor: Predictor, size: Sequence[int], is_cut: bool) -> bool:
    """Whether all nodes of a picture in tiles are too much for memory."""
    nodes = sum(level_sizes(predictor.branching)) * predictor.channels
    return is_cut and 4 * nodes * size[0] * size[1] > LIMIT


def stream_field(
    work: Work, results: Results, engine: Engine, watch: Callable[[range], Iterable], task: Task
) -> Made:
    """All results of a huge field."""
    start = time.monotonic()
    stream, origin = make_stream(work, results, task)
    if results.is_overwritten:
        shutil.rmtree(stream.work, ignore_errors=True)
    notes = [doubt(stream)]
    run_stream(stream, engine, work.out, watch=watch, free=results.free)
    count = stream.counted() if stream.is_counted else None
    node = open_tree(stream.folder).node()
    root = node[_middle(node.shape)][None, None, None]
    tree = Tree([root], [torch.zeros(1, 1)], ())
    notes.append(describe_magnification(tree, work.predictor, 1 / stream.block))
    note = ". ".join(filter(None, (*notes, work.remark)))
    part = work.place / task.name
    part.mkdir()

    def nodes() -> Any:
        folder = stream.deep.folder if stream.is_deep else stream.folder
        return need("zarr").open_array(folder / "0", mode="r")

    places = results.write_images(task, part, nodes, work.predictor.branching, stream.frame,
                                  stream.provenance, count)  # fmt: skip
    has_promises = getattr(work.predictor, "guarantee", None) is not None
    said = WITHDRAWN.for_page() if has_promises else {}
    row = field_row(task.field, "done", time.monotonic() - start, count=count,
                    tiles=len(stream.tiles), note=note, said=said)  # fmt: skip
    facts = {"field": row, "nuclei": [], "example": None}
    if count is not None and results.is_tabled:
        facts["table"] = f"{task.name}.csv"
        rows = nucleus_rows(task.field, count, stream.frame)
        (work.out / ".fields").mkdir(exist_ok=True)
        write_csv(work.out / ".fields" / facts["table"], NUCLEI, [rows])
    record = results.put(task, part, places, origin, facts)
    if not work.keeps_tiles:
        shutil.rmtree(stream.work)
    return Made(record, None, [f"{task.field.path}: {note}"] if note else [])


def scratch_of(work: Work, task: Task) -> Path:
    """Where a field's tiles lie meanwhile."""
    return (work.scratch or work.out) / f".{task.name}.work"


def make_stream(work: Work, results: Results, task: Task) -> tuple[Stream, Origin]:
    """The plan of a field, and where it comes from."""
    reading, outputs = work.reading, results.outputs
    with _open(work, task) as source:
        scale = choose_scale(reading, source, work.predictor)
        block = 1 if scale == 1 else block_of(source.shape, scale)
        if not block or reading.importer or reading.resize or reading.is_clean:
            raise InputError(
                f"{source.name} is too large for memory, and is predicted as it is or at --scale "
                "1/2, 1/3 …: leave other changes of its size out"
            )
        pixel = source.pixel_size and source.pixel_size[0]
        origin = Origin(pixel, block, source.stack.stamp, source.channels[source.channel])
    scratch = scratch_of(work, task)
    folder = work.out / zarr_name(task.field, task.name)
    stream = Stream(
        work.make_predictor, task.field, folder if "zarr" in outputs.words else scratch / "tree",
        scratch, reading.plane, reading.adjustment, block, *work.tiling.sizes, outputs.dtype,
        outputs.ngff, results.provenance(task, origin), results.is_counted, results.threshold,
        "tiff" in outputs.words and outputs.dtype == "uint8", work.keeps_tiles,
        not task.field.plate,
    )  # fmt: skip
    stream.predictor = work.predictor
    return stream, origin


def doubt(stream: Stream) -> str:
    """Why the picture may not be what the model was trained on, by its middle."""
    predictor: Predictor = stream.predictor
    middle = _middle([stream.block * side for side in stream.window.shape])
    stored = block_means(stream.window.source.read_stored(*middle), stream.block)
    return describe_misfit(stored, stream.adjustment, predictor, lambda pixels:
                           predictor.measurement.observe(pixels.to(predictor.device)))  # fmt: skip


def _open(work: Work, task: Task) -> Source:
    """The plane that is meant, of a photograph the grey one."""
    plane = open_plane(task.field.path, work.predictor, work.reading.plane)
    return plane or open_source(task.field.path, **work.reading.plane._asdict())


def _middle(size: Sequence[int]) -> tuple[slice, slice]:
    rows, columns = (slice(top, min(top + SIDE, side)) for side in size
                     for top in [max(0, (side - SIDE) // 2)])  # fmt: skip
    return rows, columns
