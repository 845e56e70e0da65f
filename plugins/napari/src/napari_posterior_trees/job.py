"""What takes time, in a thread: predicting, counting, saving; between tiles it can be stopped."""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from napari_posterior_trees.plane import Seen
from napari_posterior_trees.reader import is_tree
from posterior_trees import Tree, TreePredictor, __version__, load
from posterior_trees.engine import OneProcess
from posterior_trees.errors import InputError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.size import ROUNDED, block_of
from posterior_trees.imaging.stored import StoredTree, Tiles, open_tree
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.pictures.answer import answer
from posterior_trees.pictures.nuclei.count import Count, count_nuclei
from posterior_trees.pictures.reading import Reading, choose_scale, read
from posterior_trees.pictures.stream import Stream, run_stream
from posterior_trees.pictures.stream.layout import Window
from posterior_trees.pictures.tables import describe_nuclei
from posterior_trees.pictures.tiles import OVERLAP, TILE, Part

ENDING = ".tree.ome.zarr"
HUGE = 4096 * 4096
"""Pixels above which a tree is better predicted to disk."""
AUTO = 0.0
"""The scale that the sizes of pixels say, where layer and model have them."""
MOST = 4_000_000_000
"""Bytes of a stored tree that is counted."""
RANGES = {"uint8": (0, 255), "uint16": (0, 65535)}
"""Black and white of a layer's numbers, if nothing else is said; of others 0 and 1."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class Stopped(Exception):  # noqa: N818
    """The job was cancelled."""


class Job:
    """What a thread and the window share: how much is done, and whether to stop."""

    def __init__(self) -> None:
        self.done, self.total, self.stop = 0, 0, threading.Event()
        self.worker: Any = None
        """What napari asks to stop when it is closed."""

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, counted as they are done."""
        listed = list(items)
        self.done, self.total = 0, len(listed)
        for item in listed:
            self.check()
            yield item
            self.done += 1
        self.check()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """As the built-in `map`."""
        for item in self.watch(items):
            yield function(item)

    def check(self) -> None:
        if self.stop.is_set() or getattr(self.worker, "abort_requested", False):
            raise Stopped


class Settings(NamedTuple):
    """What the window was asked for."""

    model: str
    device: str | None = None
    levels: tuple[float | int, float | int] | None = None
    gamma: float | int = 1.0
    scale: float | int = 1.0

    def reading(self, seen: Seen, predictor: TreePredictor) -> Reading:
        scale: float | int | None = self.scale
        if scale == AUTO:
            has_size = bool(predictor.about.get("pixel_size"))
            if has_size and seen.pixel_size is None:
                raise InputError(
                    f"{seen.name} counts in pixels, and the model knows its pixels in µm: give the "
                    "layer its scale and units, or choose a scale"
                )
            scale = None if has_size else 1.0
        own = RANGES.get(str(seen.values.dtype), (0, 1))
        levels = None if self.levels is None or tuple(self.levels) == own else self.levels
        return Reading.of(scale=scale, levels=levels, gamma=self.gamma)


class Predicted(NamedTuple):
    """A tree, and where its pixels lie."""

    tree: Tree | StoredTree
    parts: Sequence[tuple]
    place: dict[str, Any]
    provenance: dict[str, Any]
    note: str = ""


@lru_cache(maxsize=2)
def load_model(name: str, device: str | None) -> TreePredictor:
    predictor = load(name, device)
    predictor.about["called"] = Path(name).stem
    return predictor


def predict(seen: Seen, settings: Settings, job: Job) -> Predicted:
    """The tree of what is seen, in memory."""
    predictor = load_model(settings.model, settings.device)
    job.check()
    reading = settings.reading(seen, predictor)
    picture = read(seen.source(), predictor, reading, seen.name)
    made = answer(predictor, picture, map=job.map)
    job.check()
    scale = picture.reading.scale or 1.0
    block = block_of(seen.size, scale) or 1
    factors = [side // block * block / have for side, have in
               zip(seen.size, made.tree.shape[-2:], strict=True)]  # fmt: skip
    return Predicted(
        made.tree, made.parts, seen.place(factors), provenance_of(seen, settings, scale),
        made.remarks.get("note", ""),
    )  # fmt: skip


def predict_to_disk(seen: Seen, settings: Settings, folder: Path, job: Job) -> Predicted:
    """The same as a new OME-Zarr `folder`; no more than a few tiles are in memory."""
    predictor = load_model(settings.model, settings.device)
    reading, source = settings.reading(seen, predictor), seen.source()
    if isinstance(source, bytes):
        raise InputError(f"{seen.name} is in colour: only grey pictures are predicted to disk")
    scale = choose_scale(reading, source, predictor)
    block = block_of(seen.size, scale) or 1
    if abs(block * scale - 1) > ROUNDED:
        raise InputError(f"the scale is {scale:g}; to disk it is 1, 1/2, 1/3 …")
    refuse_to_replace(folder)
    work = folder.with_name(f".{folder.name}.work")
    stream = Stream(
        lambda: predictor, Field(Path(seen.name), seen.name), folder, work, block=block,
        adjustment=reading.adjustment, provenance=provenance_of(seen, settings, scale),
    )  # fmt: skip
    # It reads the layer in place of a file, and writes where the layer lies.
    stream.window = Window(source, reading.adjustment, block, predictor.multiple, predictor.padding)
    stream.frame = seen.frame(block)
    try:
        run_stream(stream, OneProcess(), folder.parent, watch=job.watch)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(stream.part, ignore_errors=True)
    tree = open_tree(folder)
    return Predicted(tree, tree.parts, seen.place((block, block)), tree.provenance)


def count(tree: Tree | StoredTree, parts: Sequence[tuple], picture: int, job: Job) -> Count:
    """The nuclei of the tree of one picture."""
    whole = tree.load(MOST) if isinstance(tree, StoredTree) else tree[picture]
    job.check()
    return count_nuclei(whole, parts=[Part(*part) for part in parts])


def save(
    folder: Path,
    tree: Tree,
    parts: Sequence[tuple],
    frame: Frame,
    dtype: str,
    provenance: Mapping[str, Any],
    counted: Count | None,
    job: Job,
) -> Path:
    """The tree of one picture as a new OME-Zarr folder, with its nuclei if they were counted."""
    refuse_to_replace(folder)
    job.check()
    h, w = tree.shape[-2:]
    rows, columns = (sorted({part[axis].start for part in parts}) for axis in (0, 1))
    tiles = Tiles(TILE, OVERLAP, (h, w), (0, 0), (*rows, h), (*columns, w)) if parts else None
    name = folder.name.removesuffix(ENDING)
    nuclei = counted and describe_nuclei(
        Field(Path(name), name), counted, frame, counted.labels.numpy()
    )
    return write_tree(
        folder, tree, dtype=dtype, frame=frame, tiles=tiles, local=[part[2] for part in parts],
        provenance=provenance, nuclei=nuclei,
    )  # fmt: skip


def refuse_to_replace(folder: Path) -> None:
    """Only a tree may be replaced by another one."""
    if folder.exists() and not is_tree(folder):
        raise InputError(f"{folder} exists, and is no tree: choose another name")


def provenance_of(seen: Seen, settings: Settings, scale: float | int) -> dict[str, Any]:
    return {"version": __version__, "input": seen.name, **settings._asdict(), "scale": scale}
