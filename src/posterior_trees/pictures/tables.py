"""Tables of many fields, which grow: `nuclei.csv` (`nuclei/table.py`) and `fields.csv`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from posterior_trees.imaging.fields import Field
from posterior_trees.pictures.nuclei.count import Count
from posterior_trees.pictures.nuclei.report import promised_nuclei
from posterior_trees.pictures.nuclei.table import to_csv
from posterior_trees.store import whole

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


def write_csv(file: Path, names: Sequence[str], groups: Iterable[Iterable[Row]]) -> None:
    """A new table, of rows that need not all be in memory."""
    with whole(file) as part, part.open("w", encoding="utf-8", newline="") as stream:
        stream.write(to_csv(names, ()))
        for rows in groups:
            stream.write(to_csv(names, rows, has_head=False))


def append_csv(file: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """More rows, all of them or none."""
    size = file.stat().st_size
    try:
        with file.open("a", encoding="utf-8", newline="") as stream:
            stream.write(to_csv(names, rows, has_head=False))
    except OSError:
        os.truncate(file, size)
        raise
