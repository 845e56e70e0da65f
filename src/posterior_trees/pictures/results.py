"""What `ptrees predict` writes beside the folders of `folder.py`, field by field.

    STEM.tree.ome.zarr            zarr: the tree, see `imaging/tree_zarr.py`; fields of a plate lie
                                  in PLATE.tree.ome.zarr/ROW/COLUMN/FIELD
    STEM.tree.ome.tif             tiff: a channel for each node, 65535 = 1 or float32
    STEM.nuclei.tif               labels: the number of each pixel's nucleus, 0 outside
    STEM.nuclei_probability.tif   … and the probability of that nucleus
    nuclei.csv                    table: a row for each nucleus of all fields
    fields.csv                    a row for each field, with the reason where it failed
    job.json                      the settings: everything that changes pixels

A field is done when its record in `out/.fields` is written, which is last; what is done is not done
again unless its file or the settings change. Tables grow as fields end, and are put in order at the
end. Of array jobs (`is_shared`) each writes its fields, and at its end the tables of all that are
done.
"""

import csv
import dataclasses
import json
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterior_trees.errors import InputError, StoreError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame, write_plate
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import Tiles
from posterior_trees.imaging.tree_tiff import write_labels_tiff, write_tree_tiff, write_values_tiff
from posterior_trees.imaging.tree_zarr import put_in_place, write_tree
from posterior_trees.lock import hold
from posterior_trees.pictures import tables
from posterior_trees.pictures.answer import Answer
from posterior_trees.pictures.nuclei.count import Count, count_nuclei
from posterior_trees.pictures.reading import Origin
from posterior_trees.pictures.stream.run import refuse_changed
from posterior_trees.schema import parse_json
from posterior_trees.store import to_json, write_json

WORDS = ("page", "zarr", "tiff", "labels", "table")
MANY = 20
"""Fields above which a page of all is too large: it grows by 0.7 MB a field."""
MACHINE = ("device", "torch", "threads")
"""Settings that change only the last bits."""
PATIENCE = 60.0
"""Seconds that an array job waits for another one, which writes the tables."""


class Task(NamedTuple):
    """A field, and the name of its results."""

    field: Field
    name: str


class Outputs(NamedTuple):
    """What to write: words of `WORDS`; None is the page, or tables and labels of many fields if
    their model predicts a stain."""

    words: tuple[str, ...] = ("page",)
    dtype: str = "uint8"
    ngff: str = "0.5"

    @classmethod
    def of(cls, words: str | None, fields: int, dtype: str, ngff: str, is_stain: bool) -> "Outputs":
        usual = "table,labels" if fields > MANY and is_stain else "page"
        chosen = tuple((words or usual).split(","))
        if unknown := [word for word in chosen if word not in WORDS]:
            raise InputError(f"--write {unknown[0]}: write words of {','.join(WORDS)}")
        if set(chosen) & {"zarr", "tiff", "labels"}:
            need("tifffile" if "zarr" not in chosen else "zarr")
        return cls(chosen, dtype, ngff)


@dataclasses.dataclass
class Results:
    """The results of one folder `out`, as fields end. `settings` are everything that changes
    pixels; with `is_mixed` those of `MACHINE` may differ from what was done before. `origin` is
    what else a result should say of how it was made."""

    out: Path
    outputs: Outputs
    settings: Mapping[str, Any]
    threshold: float | int | None = None
    is_counted: bool = False
    is_overwritten: bool = False
    is_mixed: bool = False
    is_shared: bool = False
    origin: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_new = not self.out.exists()
        self.is_counted = self.is_counted or not {"labels", "table"}.isdisjoint(self.outputs.words)
        self.settings = json.loads(json.dumps({**self.settings, **self.outputs._asdict()}))
        self.told = self.settings
        self.last: tuple[Answer, Count] | None = None

    @property
    def free(self) -> tuple[str, ...]:
        """Settings that may be others than before."""
        return MACHINE if self.is_mixed else ()

    @property
    def is_tabled(self) -> bool:
        return "table" in self.outputs.words

    def begin(self) -> None:
        """Take up what is there, if it was made with the same settings. Of other settings tables
        and files are refused; pages alone are made anew, as whoever takes their advice expects."""
        job, records = self.out / "job.json", self.out / ".fields"
        if self.is_overwritten:
            shutil.rmtree(records, ignore_errors=True)
        elif job.is_file() and self._has_done():
            try:
                self.told = parse_json(job.read_text("utf-8"), dict[str, Any], "its settings")
            except ValueError as error:
                raise StoreError(f"{job} is damaged ({error}): --overwrite begins anew") from error
            try:
                refuse_changed(self.out, self.told, self.settings, self.free)
            except InputError:
                if not self.outputs.words == ("page",) == tuple(self.told.get("words", ())):
                    raise
                shutil.rmtree(records, ignore_errors=True)
                self.told = self.settings

    def start(self, done: Sequence[Task]) -> None:
        """What is there from now on: the settings, and the tables of what is done."""
        write_json(self.out / "job.json", self.told)
        if not self.is_shared:
            self.tell(done)

    def find(self, task: Task, stamp: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a field that is done, of the same file; a changed one is none."""
        record = self.recorded(task) or {}
        is_same = record.get("status") == "done" and record.get("stamp") == dict(stamp)
        return record if is_same else None

    def recorded(self, task: Task) -> dict[str, Any] | None:
        """What is known of a field."""
        file = self.out / ".fields" / f"{task.name}.json"
        try:
            record = parse_json(file.read_text("utf-8"), dict[str, Any], "its facts")
        except (OSError, ValueError):
            return None
        if record.pop("checksum", None) != _checksum(record):
            return None
        return record if record.get("path") == str(task.field.path) else None

    def count(self, made: Answer) -> Count:
        """The nuclei of an answer, counted once."""
        if self.last is None or self.last[0] is not made:
            self.last = made, count_nuclei(made.tree, self.threshold, parts=made.parts)
        return self.last[1]

    def write(
        self, task: Task, part: Path, origin: Origin, made: Answer, tiles: Tiles, seconds: float,
        example: dict | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Everything of one field in the folder `part`, from there to its place, then its
        record."""
        frame = Frame(origin.pixel_size, origin.shrink)
        count = self.count(made) if self.is_counted else None
        places = self._write_files(task, part, origin, made, tiles, frame, count)
        said = made.tree.guarantee.for_page(made.tree) if made.tree.guarantee else {}
        row = tables.field_row(task.field, "done", seconds, count=count, said=said,
                               tiles=max(len(made.parts), 1),
                               note=made.remarks.get("note", ""))  # fmt: skip
        kept = [*tables.nucleus_rows(task.field, count, frame)] if count and self.is_tabled else []
        facts = {"field": row, "nuclei": kept, "example": example}
        return self.put(task, part, places, origin, facts)

    def _write_files(
        self, task: Task, part: Path, origin: Origin, made: Answer, tiles: Tiles, frame: Frame,
        count: Count | None,
    ) -> list[str]:  # fmt: skip
        """Returns their names."""
        (field, name), (words, dtype, ngff), tree = task, self.outputs, made.tree
        places, provenance = [], self.provenance(task, origin)
        if "zarr" in words:
            places.append(zarr_name(field, name))
            (part / places[0]).parent.mkdir(parents=True, exist_ok=True)
            nuclei = count and tables.describe_nuclei(field, count, frame, count.labels.numpy())
            write_tree(
                part / places[0], tree, dtype=dtype, ngff=ngff, frame=frame, tiles=tiles,
                is_pyramid=not field.plate, local=[part.probs for part in made.parts],
                provenance=provenance, nuclei=nuclei,
            )  # fmt: skip

        def nodes() -> np.ndarray:
            if tree.shape[0] != 1:
                raise InputError("--write tiff is for models of one channel")
            return np.concatenate([level[0, :, 0].numpy() for level in tree.images])

        images = self.write_images(task, part, nodes, tree.branching, frame, provenance, count)
        return places + images

    def write_images(
        self, task: Task, part: Path, nodes: Callable[[], Any], branching: Sequence[int],
        frame: Frame, provenance: Mapping[str, Any], count: Count | None,
    ) -> list[str]:  # fmt: skip
        """The TIFFs of a field, of `nodes()` in memory or on disk; returns their names."""
        places, (words, dtype, _) = [], self.outputs
        if "tiff" in words:
            places.append(f"{task.name}.tree.ome.tif")
            write_tree_tiff(part / places[0], nodes(), branching, frame, provenance,
                            is_float=dtype == "float32")  # fmt: skip
        if "labels" in words:
            assert count is not None
            places += [f"{task.name}.nuclei.tif", f"{task.name}.nuclei_probability.tif"]
            write_labels_tiff(part / places[-2], count.labels, len(count.nuclei))
            probs = [nucleus.probability for nucleus in count.nuclei]
            write_values_tiff(part / places[-1], count.labels, probs)
        return places

    def put(
        self, task: Task, part: Path, places: Sequence[str], origin: Origin,
        facts: Mapping[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Files and folders from `part` to their places, then the field's record."""
        for place in places:
            put_in_place(part / place, self.out / place)
        return self._record(task, {"stamp": dict(origin.stamp), "status": "done", **facts})

    def provenance(self, task: Task, origin: Origin) -> dict[str, Any]:
        """What a result was made of, and how."""
        return {
            **self.settings, **self.origin, "path": str(task.field.path),
            "stamp": dict(origin.stamp), "channel": origin.channel or self.settings.get("channel"),
            "scale": 1 / origin.shrink, "pixel_size": origin.pixel_size,
        }  # fmt: skip

    def fail(self, task: Task, reason: str, seconds: float) -> dict[str, Any]:
        """A field that could not be done; it is tried again the next time."""
        row = tables.field_row(task.field, "failed", seconds, note=reason)
        return self._record(task, {"status": "failed", "field": row, "nuclei": []})

    def tell(self, tasks: Sequence[Task]) -> None:
        """The tables of what is known of these."""
        for name, columns, rows_of in self._tables():
            records = filter(None, map(self.recorded, tasks))
            tables.write_csv(self.out / name, columns, map(rows_of, records))

    def add(self, record: Mapping[str, Any]) -> None:
        """Rows of one more field; where the disk is full they come at the end, or that fails."""
        if self.is_shared:
            return
        with suppress(OSError):
            for name, columns, rows_of in self._tables():
                tables.append_csv(self.out / name, columns, rows_of(record))

    def _tables(self) -> Iterator[tuple[str, Sequence[str], Callable[[Mapping], Iterable]]]:
        """Names, columns, and which rows of a record they have."""
        yield "fields.csv", tables.FIELDS, lambda record: [record["field"]]
        if self.is_tabled:
            yield "nuclei.csv", tables.NUCLEI, self._nuclei

    def finish(self, tasks: Sequence[Task], show: Callable[[], object]) -> None:
        """The tables in order, the metadata of plates, whose fields are all there that will be, and
        the page. Where no field was done nothing stays: the next try may be with other settings."""
        if not self._has_done():
            if not self.is_shared:
                self._clear()
            return
        with hold(self.out / ".fields", self.out, PATIENCE):
            self.tell(tasks)
            if "zarr" in self.outputs.words:
                self._finish_plates(tasks)
            show()

    def _finish_plates(self, tasks: Sequence[Task]) -> None:
        for plate in sorted({task.field.plate for task in tasks if task.field.plate}):
            folder = self.out / f"{plate}.tree.ome.zarr"
            done = [p for p in sorted(folder.glob("*/*/*")) if (p / "0").is_dir()]
            if done:
                write_plate(folder, plate, done, self.outputs.ngff)

    def _clear(self) -> None:
        shutil.rmtree(self.out / ".fields", ignore_errors=True)
        for name in ("job.json", "fields.csv", "nuclei.csv"):
            (self.out / name).unlink(missing_ok=True)
        if self.is_new:
            with suppress(OSError):  # other people's files
                self.out.rmdir()

    def _nuclei(self, record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The rows of a field: in its record, or of a huge one in a file beside that."""
        yield from record["nuclei"]
        if record.get("table"):
            file = self.out / ".fields" / record["table"]
            with file.open(encoding="utf-8", newline="") as stream:
                yield from csv.DictReader(stream)

    def _has_done(self) -> bool:
        files = sorted((self.out / ".fields").glob("*.json"))
        return any(b'"status": "done"' in file.read_bytes() for file in files)

    def _record(self, task: Task, facts: Mapping[str, Any]) -> dict[str, Any]:
        record = {"path": str(task.field.path), **facts}
        write_json(
            self.out / ".fields" / f"{task.name}.json", record | {"checksum": _checksum(record)}
        )
        return record


def _checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(to_json(record).encode())


def zarr_name(field: Field, name: str) -> str:
    """Where the tree of a field lies: in a plate, or by itself."""
    if not field.plate:
        return f"{name}.tree.ome.zarr"
    return "/".join((f"{field.plate}.tree.ome.zarr", *field.path.parts[-3:]))
