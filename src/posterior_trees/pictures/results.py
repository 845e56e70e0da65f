"""What `ptrees predict` writes beside the folders of `write.py`, field by field.

    out/STEM.tree.ome.zarr            zarr: the tree, see `imaging/tree_zarr.py`; fields of a plate
                                      lie in out/PLATE.tree.ome.zarr/ROW/COLUMN/FIELD
    out/STEM.tree.ome.tif             tiff: a channel for each node, 65535 = 1 or float32
    out/STEM.nuclei.tif               labels: the number of each pixel's nucleus, 0 outside
    out/STEM.nuclei_probability.tif   … and the probability of that nucleus
    out/nuclei.csv                    table: a row for each nucleus of all fields
    out/fields.csv                    a row for each field, with the reason where it failed

Rows and columns of `nuclei.csv` are pixels of the input, from the centre of its first one; pixels
are those of the label's image. A field is done when its record in `out/.fields` is written, which
is last; what is done is not done again unless its file or the settings (`out/job.json`) change.
"""

import csv
import io
import json
import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posterior_trees.errors import InputError, StoreError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame, write_plate
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import Tiles, name_of, paths_of
from posterior_trees.imaging.tree_zarr import Nuclei, write_tree
from posterior_trees.pictures.answer import Answer
from posterior_trees.pictures.nuclei.count import Count, count_nuclei
from posterior_trees.pictures.reading import Picture
from posterior_trees.schema import parse_json
from posterior_trees.store import to_json, write_bytes, write_json

WORDS = ("page", "zarr", "tiff", "labels", "table")
MANY = 20
"""Fields above which a page of all is too large: it grows by 0.7 MB a field."""
NUCLEI = [
    "plate", "well", "site", "file", "label", "row", "column", "y_um", "x_um", "pixels", "area_um2",
    "probability", "leaves", "threshold",
]  # fmt: skip
FIELDS = ["file", "well", "site", "mean", "spread", "tiles", "note", "status", "seconds"]
HUGE = 2**31
"""Bytes above which a TIFF has to be a BigTIFF."""


class Outputs(NamedTuple):
    """What to write: words of `WORDS`; None is the page, or tables and labels of many fields."""

    words: tuple[str, ...] = ("page",)
    dtype: str = "uint8"
    ngff: str = "0.5"

    @classmethod
    def of(cls, words: str | None, fields: int, dtype: str, ngff: str) -> "Outputs":
        usual = "page" if fields <= MANY else "table,labels"
        chosen = tuple((words or usual).split(","))
        if unknown := [word for word in chosen if word not in WORDS]:
            raise InputError(f"--write {unknown[0]}: write words of {','.join(WORDS)}")
        if set(chosen) & {"zarr", "tiff", "labels"}:
            need("tifffile" if "zarr" not in chosen else "zarr")
        return cls(chosen, dtype, ngff)

    @property
    def counts(self) -> bool:
        return bool({"labels", "table"} & set(self.words))


class Results:
    """The results of one folder `out`, as fields end. `settings` are everything that changes
    pixels."""

    def __init__(
        self,
        out: Path,
        outputs: Outputs,
        settings: Mapping[str, Any],
        *,
        threshold: float | int | None = None,
        is_counted: bool = False,
        is_overwritten: bool = False,
    ) -> None:
        self.out, self.outputs, self.threshold = out, outputs, threshold
        self.is_counted = is_counted or outputs.counts
        self.settings = json.loads(json.dumps({**settings, **outputs._asdict()}))
        self.is_overwritten, self.is_tabled = is_overwritten, "table" in outputs.words
        self.known: list[dict[str, Any]] = []
        self.is_new, self.has_begun = not out.exists(), False
        self.last: tuple[Answer, Count] | None = None

    def begin(self) -> None:
        """Take up what is there, if it was made with the same settings. Of other settings tables
        and files are refused; pages alone are made anew, as whoever takes their advice expects."""
        job, records = self.out / "job.json", self.out / ".fields"
        if self.is_overwritten:
            shutil.rmtree(records, ignore_errors=True)
        elif job.is_file() and self._has_done():
            try:
                before = parse_json(job.read_text("utf-8"), dict[str, Any], "its settings")
            except ValueError as error:
                raise StoreError(f"{job} is damaged ({error}): --overwrite begins anew") from error
            for name in sorted({*before, *self.settings}):
                old, new = before.get(name), self.settings.get(name)
                if old != new and self.outputs.words == ("page",) == tuple(before.get("words", ())):
                    shutil.rmtree(records, ignore_errors=True)
                elif old != new:
                    raise InputError(
                        f"{self.out} was begun with {name} {_say(old)} (now {_say(new)}): go on "
                        "with the same, choose another --out, or --overwrite"
                    )

    def find(self, field: Field, name: str, stamp: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a field that is done, of the same file; a changed one is none."""
        file = self.out / ".fields" / f"{name}.json"
        try:
            record = parse_json(file.read_text("utf-8"), dict[str, Any], "its facts")
        except (OSError, ValueError):
            return None
        if record.pop("checksum", None) != _checksum(record):
            return None
        is_same = record.get("path") == str(field.path) and record.get("stamp") == dict(stamp)
        return record if is_same and record.get("status") == "done" else None

    def count(self, made: Answer) -> Count:
        """The nuclei of an answer, counted once."""
        if self.last is None or self.last[0] is not made:
            self.last = made, count_nuclei(made.tree, self.threshold, parts=made.parts)
        return self.last[1]

    def write(
        self, field: Field, name: str, picture: Picture, made: Answer, seconds: float,
        example: dict | None, provenance: Mapping[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Everything of one field, then its record."""
        assert picture.origin is not None
        self.out.mkdir(parents=True, exist_ok=True)
        frame = Frame(picture.origin.pixel_size, picture.origin.shrink)
        count = self.count(made) if self.is_counted else None
        rows = _nucleus_rows(field, count, frame) if count else []
        words = self.outputs.words
        if "zarr" in words:
            self._write_zarr(field, name, made, frame, count, rows, provenance)
        if "tiff" in words:
            self._write_tiff(name, made, frame)
        if "labels" in words:
            assert count is not None
            self._write_labels(name, count)
        record = {
            "path": str(field.path), "stamp": dict(picture.origin.stamp), "status": "done",
            "field": _field_row(field, count, made, "done", seconds),
            "nuclei": rows if self.is_tabled else [], "example": example,
        }  # fmt: skip
        sum_of = {"checksum": _checksum(record)}
        write_json(self.out / ".fields" / f"{name}.json", record | sum_of)
        return record

    def fail(self, field: Field, name: str, reason: str, seconds: float) -> dict[str, Any]:
        """A field that could not be done; it is tried again the next time."""
        row = _field_row(field, None, None, "failed", seconds) | {"note": reason}
        record = {"path": str(field.path), "status": "failed", "field": row, "nuclei": []}
        write_json(self.out / ".fields" / f"{name}.json", record)
        return record

    def _has_done(self) -> bool:
        files = sorted((self.out / ".fields").glob("*.json"))
        return any(b'"status": "done"' in file.read_bytes() for file in files)

    def _tell(self) -> None:
        """The settings, and the tables of what is known already."""
        if self.has_begun:
            return
        self.has_begun, records = True, self.known
        self.out.mkdir(parents=True, exist_ok=True)
        write_json(self.out / "job.json", self.settings)
        _write_csv(self.out / "fields.csv", FIELDS, [r["field"] for r in records])
        if self.is_tabled:
            rows = [row for record in records for row in record["nuclei"]]
            _write_csv(self.out / "nuclei.csv", NUCLEI, rows)

    def add(self, record: Mapping[str, Any]) -> None:
        """Rows of one more field."""
        self._tell()
        _append_csv(self.out / "fields.csv", FIELDS, [record["field"]])
        if self.is_tabled:
            _append_csv(self.out / "nuclei.csv", NUCLEI, record["nuclei"])

    def finish(self, fields: Sequence[Field]) -> None:
        """The metadata of plates, whose fields are all there that will be. Where no field was done
        nothing stays: the next try may be with other settings."""
        if not self._has_done():
            shutil.rmtree(self.out / ".fields", ignore_errors=True)
            for name in ("job.json", "fields.csv", "nuclei.csv"):
                (self.out / name).unlink(missing_ok=True)
            if self.is_new:
                with suppress(OSError):  # other people's files
                    self.out.rmdir()
            return
        self._tell()
        if "zarr" not in self.outputs.words:
            return
        plates = {field.plate for field in fields if field.plate}
        for plate in sorted(plates):
            folder = self.out / f"{plate}.tree.ome.zarr"
            done = [p for p in sorted(folder.glob("*/*/*")) if (p / "0").is_dir()]
            if done:
                write_plate(folder, plate, done, self.outputs.ngff)

    def _write_zarr(
        self, field: Field, name: str, made: Answer, frame: Frame, count: Count | None,
        rows: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any],
    ) -> None:  # fmt: skip
        nuclei = None
        if count is not None:
            properties = [{"label-value": row["label"], "probability": row["probability"],
                           "pixels": row["pixels"]} for row in rows]  # fmt: skip
            labels = count.labels.numpy().astype(np.uint32)
            nuclei = Nuclei(labels, properties, _to_csv(NUCLEI, rows))
        folder = self.out / f"{name}.tree.ome.zarr"
        if field.plate:
            places = field.path.parts[-3:]
            folder = (self.out / f"{field.plate}.tree.ome.zarr").joinpath(*places)
            folder.parent.mkdir(parents=True, exist_ok=True)
        tiles = Tiles.whole(made.tree.shape[1:])
        if made.parts:
            h, w = made.tree.shape[1:]
            rows_at = sorted({part.rows.start for part in made.parts})
            columns_at = sorted({part.columns.start for part in made.parts})
            tiles = Tiles(self.settings.get("tile") or 512, self.settings.get("overlap") or 64,
                          (h, w), (0, 0), (*rows_at, h), (*columns_at, w))  # fmt: skip
        write_tree(
            folder, made.tree, dtype=self.outputs.dtype, ngff=self.outputs.ngff, frame=frame,
            is_pyramid=not field.plate, tiles=tiles, local=[part.probs for part in made.parts],
            provenance=provenance, nuclei=nuclei,
        )  # fmt: skip

    def _write_tiff(self, name: str, made: Answer, frame: Frame) -> None:
        tree = made.tree
        if tree.shape[0] != 1:
            raise InputError("--write tiff is for models of one channel")
        nodes = np.concatenate([level[0, :, 0].numpy() for level in tree.images])
        if self.outputs.dtype != "float32":
            nodes = np.rint(nodes.clip(0, 1) * 65535).astype(np.uint16)
        facts: dict[str, Any] = {"axes": "CYX"}
        facts["Channel"] = {"Name": [name_of(path) for path in paths_of(tree.branching)]}
        if frame.pixel:
            for side in "XY":
                facts |= {f"PhysicalSize{side}": frame.pixel * frame.shrink,
                          f"PhysicalSize{side}Unit": "µm"}  # fmt: skip
        _write_tiff(
            self.out / f"{name}.tree.ome.tif", nodes, metadata=facts, tile=(512, 512), ome=True
        )

    def _write_labels(self, name: str, count: Count) -> None:
        labels = count.labels.numpy()
        small = np.uint16 if len(count.nuclei) < 2**16 else np.uint32
        probs = np.array([0.0, *(n.probability for n in count.nuclei)], dtype=np.float32)
        _write_tiff(self.out / f"{name}.nuclei.tif", labels.astype(small))
        _write_tiff(self.out / f"{name}.nuclei_probability.tif", probs[labels])


def _checksum(record: Mapping[str, Any]) -> int:
    return zlib.crc32(to_json(record).encode())


def _say(value: Any) -> str:
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    return words if len(words) < 40 else f"{words[:12]}…"


def _nucleus_rows(field: Field, count: Count, frame: Frame) -> list[dict[str, Any]]:
    """One row for each label, in pixels of the input."""
    owned = np.bincount(count.labels.numpy().ravel(), minlength=len(count.nuclei) + 1)
    rows = []
    for label, nucleus in enumerate(count.nuclei, start=1):
        row, column = (frame.shrink * (place + 0.5) - 0.5 for place in nucleus[:2])
        side = frame.pixel and frame.pixel * frame.shrink
        rows.append({
            "plate": field.plate, "well": field.well, "site": field.site, "file": str(field.path),
            "label": label, "row": round(row, 3), "column": round(column, 3),
            "y_um": round(row * frame.pixel, 4) if frame.pixel else "",
            "x_um": round(column * frame.pixel, 4) if frame.pixel else "",
            "pixels": int(owned[label]),
            "area_um2": round(int(owned[label]) * side**2, 4) if side else "",
            "probability": nucleus.probability,
            "leaves": " ".join(map(name_of, nucleus.leaves)), "threshold": count.threshold,
        })  # fmt: skip
    return rows


def _field_row(
    field: Field, count: Count | None, made: Answer | None, status: str, seconds: float
) -> dict[str, Any]:
    return {
        "file": str(field.path), "well": field.well, "site": field.site,
        "mean": count.mean if count else "", "spread": count.spread if count else "",
        "tiles": max(len(made.parts), 1) if made else "",
        "note": made.remarks.get("note", "") if made else "",
        "status": status, "seconds": round(seconds, 2),
    }  # fmt: skip


def _write_tiff(file: Path, values: np.ndarray, **options: Any) -> None:
    part = io.BytesIO()
    need("tifffile").imwrite(part, values, compression="zlib", photometric="minisblack",
                             bigtiff=values.nbytes > HUGE, **options)  # fmt: skip
    write_bytes(file, part.getvalue())


def _to_csv(names: Sequence[str], rows: Sequence[Mapping[str, Any]], has_head: bool = True) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if has_head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _write_csv(file: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    write_bytes(file, _to_csv(names, rows).encode())


def _append_csv(file: Path, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with file.open("a", encoding="utf-8", newline="") as stream:
        stream.write(_to_csv(names, rows, has_head=False))
