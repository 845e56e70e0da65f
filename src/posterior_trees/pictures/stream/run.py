"""All steps of one picture by an engine, from wherever they were left."""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from posterior_trees.engine import Engine
from posterior_trees.errors import InputError
from posterior_trees.imaging.stored import VOLATILE
from posterior_trees.imaging.tree_zarr import put_in_place
from posterior_trees.lock import HOLDER, LOCK, hold
from posterior_trees.pictures.stream.layout import Layout
from posterior_trees.pictures.stream.stream import Stream
from posterior_trees.schema import parse_json
from posterior_trees.store import write_json

ROOM = 1.2
"""How much more of the disk must be free than is expected to be used."""


def run_stream(
    stream: Stream, engine: Engine, out: Path, *, free: Sequence[str] = (),
    watch: Callable[[range], Iterable] = iter,
) -> None:  # fmt: skip
    """The result in its folder; what is done already is not done again. Settings that are not
    `free` must be those of before. `watch` wraps the loop over all that is done."""
    with hold(stream.work, out):
        begin(stream, out, free)
        todo = [[(step, item) for item in items if not stream.is_done(step, item)]
                for step, items in stream.steps()]  # fmt: skip
        ticks = iter(watch(range(sum(map(len, todo)))))
        for items in todo:
            with closing(engine.run(stream.perform, items)) as outcomes:
                for outcome in outcomes:
                    if outcome.error:
                        raise outcome.error
                    next(ticks)
        if stream.part.is_dir():
            put_in_place(stream.part, stream.folder)


def begin(stream: Stream, out: Path, free: Sequence[str] = ()) -> None:
    """Take up what is there, if it is of the same picture and settings; else from the start."""
    now = json.loads(json.dumps(dict(stream.provenance)))
    before = _read_job(stream.work / "job.json")
    if before is not None and before.get("stamp") == now.get("stamp"):
        refuse_changed(out, before, now, {*VOLATILE, *free})
        stream.provenance = before
    is_finished = stream.marks.has("finish", ())
    has_result = stream.part.is_dir() or (is_finished and stream.folder.is_dir())
    if before is None or before.get("stamp") != now.get("stamp") or not has_result:
        _clear(stream)
        is_finished = False
    check_room(stream)
    if not is_finished:
        stream.part.mkdir(parents=True, exist_ok=True)
        for left in stream.part.rglob("*.partial"):  # zarr was killed as it wrote it
            left.unlink()
        stream.begin()
    write_json(stream.work / "job.json", stream.provenance)


def refuse_changed(
    place: Path, before: Mapping[str, Any], now: Mapping[str, Any], free: Iterable[str]
) -> None:
    """Refuse to go on with other settings than before, but for those that are `free`."""
    for name in sorted({*before, *now} - {*free}):
        if before.get(name) != now.get(name):
            old, new = (_say(settings.get(name)) for settings in (before, now))
            raise InputError(
                f"{place} was begun with {name} {old} (now {new}): go on with the same, "
                "choose another --out, or --overwrite"
            )


def estimate(layout: Layout) -> tuple[int, int]:
    """Bytes of what is kept meanwhile, and of the result without compression."""
    area = sum(tile.down.numel() * tile.across.numel() for tile in layout.tiles)
    scratch = 4 * layout.raw.leaves * area
    pixels = [h * w for h, w in layout.writer.sizes]
    scratch += 2 * pixels[0] * layout.writer.nodes if layout.is_deep else 0
    labels = 4 * pixels[0] if layout.is_counted else 0
    return scratch, np.dtype(layout.dtype).itemsize * sum(pixels) * layout.writer.nodes + labels


def check_room(layout: Layout) -> None:
    """Refuse what the disks cannot hold beside what is there already."""
    needs: dict[int, tuple[Path, float]] = {}
    for place, size in zip((layout.work, layout.part), estimate(layout), strict=True):
        home = home_of(place)
        here = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
        device = home.stat().st_dev
        needs[device] = home, needs.get(device, (home, 0.0))[1] + max(ROOM * size - here, 0)
    for home, size in needs.values():
        refuse_full_disk(home, size)


def home_of(place: Path) -> Path:
    """The folder that is there already, of a place and those that hold it."""
    return next(p for p in (place, *place.absolute().parents) if p.exists())


def refuse_full_disk(home: Path, size: float) -> None:
    if (free := shutil.disk_usage(home).free) < size:
        raise InputError(
            f"scratch and result need {size / 1e9:.1f} GB, {home} has {free / 1e9:.1f} GB "
            "free: --work, --dtype uint8, or fewer fields"
        )


def _read_job(file: Path) -> dict[str, Any] | None:
    try:
        return parse_json(file.read_text("utf-8"), dict[str, Any], "its settings")
    except (OSError, ValueError):
        return None


def _clear(stream: Stream) -> None:
    shutil.rmtree(stream.part, ignore_errors=True)
    for entry in stream.work.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name not in (LOCK, HOLDER):
            entry.unlink()


def _say(value: Any) -> str:
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words if len(words) < 40 else f"{words[:12]}…"
