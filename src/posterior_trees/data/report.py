"""What is in the data folder, what is missing, and what to put where: `ptrees data`."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from posterior_trees.data.archive import open_archive
from posterior_trees.data.idx import read_idx_images
from posterior_trees.data.pictures import list_pairs
from posterior_trees.data.registry import KNOWN, KnownSet, find_known, layout
from posterior_trees.errors import DataError

NAME = 20
"""Characters of a set's name in a line; longer names are folded, as paths are."""
COLOURS = {"found": "green", "missing": "yellow", "broken": "red", "yours": "cyan"}


@dataclass(frozen=True)
class Row:
    """One set: its state is "found", "missing", "broken", or "yours" (found, but not one of ours).

    `images` counts pictures (a pair is one); `todo` says what to do about a set that is not found.
    """

    name: str
    state: str
    what: str
    images: int = 0
    where: str = ""
    todo: str = ""
    terms: str = ""


def status(folder: str | os.PathLike[str]) -> list[Row]:
    """A row for each set the recipes know, then one for each other set in the folder."""
    folder = Path(folder)
    rows = [_known_row(folder, known) for known in KNOWN]
    entries = folder.iterdir() if folder.is_dir() else ()
    names = {e.name.removesuffix(".tar") for e in entries if e.is_dir() or e.suffix == ".tar"}
    own = (name for name in sorted(names) if not (find_known(name) or name.startswith(".")))
    return rows + [row for name in own if (row := _own_row(folder, name))]


def report(folder: str | os.PathLike[str]) -> Table:
    """`status` as a table for the terminal."""
    title = Text(f"data in {folder}", overflow="fold")
    table = Table(title=title, title_justify="left", show_lines=True)
    table.add_column("set", overflow="fold", max_width=NAME)
    for column in ("state", "images"):
        table.add_column(column, no_wrap=True)
    table.add_column("what, where", overflow="fold")
    for row in status(folder):
        lines = [row.what, row.where, row.todo, f"terms: {row.terms}" if row.terms else ""]
        text = Text("\n".join(line for line in lines if line))
        count = f"{row.images:,}" if row.images else "–"
        table.add_row(Text(row.name), Text(row.state, COLOURS[row.state]), count, text)
    return table


def _known_row(folder: Path, known: KnownSet) -> Row:
    place = layout(known.name, folder, known.kind, known.channels)
    missing = f"{known.obtain}; it goes here: {place}"
    row = Row(known.name, "missing", known.what, todo=missing, terms=known.terms)
    try:
        images, where = _count(folder, known)
    except DataError as error:
        return replace(row, state="broken", todo=str(error))
    return replace(row, state="found", images=images, where=where, todo="") if where else row


def _count(folder: Path, known: KnownSet) -> tuple[int, str]:
    """Number of images and where they are; (0, "") if the set is not there."""
    if known.kind == "idx":
        place = folder / known.name
        if not place.is_dir():
            return 0, ""
        parts = [len(read_idx_images(place, part)) for part in ("train", "t10k")]
        return sum(parts), str(place)
    archive = open_archive(folder, known.name)
    if archive is None:
        return 0, ""
    images = list_pairs(archive, *known.channels) if known.kind == "pairs" else archive.names
    return len(images), str(archive.where)


def _own_row(folder: Path, name: str) -> Row | None:
    try:
        archive = open_archive(folder, name)
    except DataError as error:
        if (folder / name).is_dir():
            return None  # a folder without images is nobody's set
        return Row(name=name, state="broken", what="not one of the sets here", todo=str(error))
    if archive is None:
        return None
    tops = sorted({file.split("/")[0] for file in archive.names if "/" in file})
    what = f"folders {', '.join(tops[:6])}{' …' if len(tops) > 6 else ''}" if tops else "images"
    return Row(name, "yours", what, len(archive.names), str(archive.where))
