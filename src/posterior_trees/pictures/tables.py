"""Tables of many fields, which grow: `fields.csv` has a row for each field, `nuclei.csv` one for
each label, in pixels of the input and in µm."""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import LABELS_LISTED, Frame
from posterior_trees.imaging.stored import name_of
from posterior_trees.imaging.tree_zarr import Nuclei
from posterior_trees.pictures.nuclei.count import Count
from posterior_trees.store import whole

NUCLEI = [
    "plate", "well", "site", "file", "label", "row", "column", "y_um", "x_um", "pixels", "area_um2",
    "probability", "leaves", "threshold",
]  # fmt: skip
FIELDS = ["file", "well", "site", "mean", "spread", "low", "high", "promise", "tiles", "note",
          "status", "seconds"]  # fmt: skip
"""From `low` to `high` are as many nuclei as the model's guarantee promises."""
Row = Mapping[str, Any]


def field_row(
    field: Field, status: str, seconds: float, *, count: Count | None = None,
    tiles: int | str = "", note: str = "", said: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:  # fmt: skip
    """`said` is what a guarantee says of the tree."""
    return {
        "file": str(field.path), "well": field.well, "site": field.site,
        "mean": count.mean if count else "", "spread": count.spread if count else "",
        **(promised_nuclei(said) if count else {}),
        "tiles": tiles, "note": note, "status": status, "seconds": round(seconds, 2),
    }  # fmt: skip


def promised_nuclei(said: Mapping[str, Any]) -> dict[str, Any]:
    """How many nuclei the guarantee of a model promises (`Guarantee.for_page`), as columns of a
    table; empty if it says nothing of nuclei."""
    if why := said.get("withdrawn"):
        return {"low": "", "high": "", "promise": f"no promise: {why}"}
    if "nuclei" not in said.get("intervals", {}):
        return {}
    low, high = said["intervals"]["nuclei"]
    least, most = math.ceil(low - 1e-6), math.floor(high + 1e-6)
    words = f"{least} to {most} nuclei {said['words']}"
    return {"low": least, "high": most, "promise": words}


def nucleus_rows(field: Field, count: Count, frame: Frame) -> Iterator[dict[str, Any]]:
    """Pixels are those of the label's image."""
    side = frame.pixel and frame.pixel * frame.shrink
    pairs = zip(count.nuclei, count.owned, strict=True)
    for label, (nucleus, owned) in enumerate(pairs, start=1):
        row, column = (frame.shrink * (place + 0.5) - 0.5 for place in nucleus[:2])
        yield {
            "plate": field.plate, "well": field.well, "site": field.site, "file": str(field.path),
            "label": label, "row": round(row, 3), "column": round(column, 3),
            "y_um": round(row * frame.pixel, 4) if frame.pixel else "",
            "x_um": round(column * frame.pixel, 4) if frame.pixel else "",
            "pixels": owned, "area_um2": round(owned * side**2, 4) if side else "",
            "probability": nucleus.probability,
            "leaves": " ".join(map(name_of, nucleus.leaves)), "threshold": count.threshold,
        }  # fmt: skip


def describe_nuclei(
    field: Field, count: Count, frame: Frame, labels: np.ndarray | None = None
) -> Nuclei:
    """What a stored tree keeps of them; `labels` if they are not written yet."""
    listed = count.nuclei if len(count.nuclei) <= LABELS_LISTED else []
    properties = [
        {"label-value": label, "probability": nucleus.probability, "pixels": owned}
        for label, (nucleus, owned) in enumerate(zip(listed, count.owned, strict=False), start=1)
    ]
    return Nuclei(labels, properties, to_csv(NUCLEI, nucleus_rows(field, count, frame)))


def to_csv(names: Sequence[str], rows: Iterable[Row], has_head: bool = True) -> str:
    """Lines end in a line feed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if has_head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_csv(file: Path, names: Sequence[str], groups: Iterable[Iterable[Row]]) -> None:
    """A new table, of rows that need not all be in memory."""
    with whole(file) as part, part.open("w", encoding="utf-8", newline="") as stream:
        stream.write(to_csv(names, ()))
        stream.writelines(to_csv(names, rows, has_head=False) for rows in groups)


def append_csv(file: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """More rows, all of them or none."""
    size = file.stat().st_size
    try:
        with file.open("a", encoding="utf-8", newline="") as stream:
            stream.write(to_csv(names, rows, has_head=False))
    except OSError:
        os.truncate(file, size)
        raise
