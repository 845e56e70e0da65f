"""The table of nuclei, in pixels of the input and in µm: a row for each label."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import LABELS_LISTED, Frame
from posterior_trees.imaging.stored import name_of
from posterior_trees.imaging.tree_zarr import Nuclei
from posterior_trees.pictures.nuclei.count import Count

NUCLEI = [
    "plate", "well", "site", "file", "label", "row", "column", "y_um", "x_um", "pixels", "area_um2",
    "probability", "leaves", "threshold",
]  # fmt: skip


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


def to_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], has_head: bool = True) -> str:
    """UTF-8 with a head, lines end in a line feed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    if has_head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
