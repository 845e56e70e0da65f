"""Which fields there are: the pictures of a folder, the wells of a plate, or single files."""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.ome_zarr import attributes_of, is_zarr
from posterior_trees.imaging.stack import damage_named, refuse_network
from posterior_trees.schema import check

WELL_PATTERN = r"_(?P<well>[A-P]\d\d)_s(?P<site>\d+)"
"""How the files of BBBC022 name their wells."""
ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".webp",
           ".btf", ".tf2", ".tf8", ".tif", ".tiff"}  # fmt: skip


PART = r"[^/\\.][^/\\]*"
PLACES = {"wells": f"{PART}/{PART}", "images": PART}
"""Row and column of a well, and the name of a field in it."""


class Field(NamedTuple):
    """One field of view; `name` is that of its results."""

    path: Path
    name: str
    plate: str = ""
    well: str = ""
    site: str = ""


def list_fields(
    inputs: Sequence[str | PathLike[str]], only: str | None = None, pattern: str = WELL_PATTERN
) -> list[Field]:
    """The fields of files, folders (whose pictures match `only`) and OME-Zarr plates, in natural
    order; `pattern` finds well and site in the names of files."""
    try:
        names = re.compile(pattern)
    except re.error as error:
        raise InputError(f"--well-pattern {pattern}: {error}") from error
    if "well" not in names.groupindex:
        raise InputError(
            f"--well-pattern {pattern} has no group (?P<well>…), and may have (?P<site>…)"
        )
    return [field for path in inputs for field in _fields_of(Path(path), only, names)]


def stem_of(path: Path) -> str:
    """The name of a picture's results: without `.tif`, `.ome.tif`, `.ome.zarr` …"""
    return re.sub(r"\.ome$", "", path.stem, flags=re.IGNORECASE)


def _fields_of(path: Path, only: str | None, names: re.Pattern[str]) -> Iterator[Field]:
    refuse_network(path)
    if is_zarr(path):
        yield from _fields_of_zarr(path, names)
    elif not path.is_dir():
        yield _named(path, names)
    else:
        files = (p for p in path.iterdir() if not p.name.startswith("."))
        found = [p for p in files if is_zarr(p) or (p.is_file() and p.suffix.lower() in ENDINGS)]
        chosen = [p for p in found if only is None or fnmatchcase(p.name, only)]
        if not chosen:
            why = f"; none of {len(found)} fits --filter {only}" if found else ""
            raise DataError(f"{path} is a folder without pictures{why}. Name another")
        for picture in sorted(chosen, key=_natural):
            yield from _fields_of(picture, only, names)


def _fields_of_zarr(path: Path, names: re.Pattern[str]) -> Iterator[Field]:
    """A plate's fields, a well's, or the one image."""
    facts = attributes_of(path)
    wells = [path / well for well in _inside(path, facts, "plate", "wells")]
    plate = path
    if "well" in facts:
        wells, plate = [path], path.parent.parent
    for well in wells:
        name = f"{well.parent.name}{well.name}"
        inside = attributes_of(well)
        if "well" not in inside:
            raise DataError(f"{path} names the well {name}, which is not there. Copy it again")
        for site in _inside(well, inside, "well", "images"):
            yield Field(well / site, f"{name}_{site}", stem_of(plate), name, site)
    if not wells:
        yield _named(path, names)


def _inside(path: Path, facts: dict[str, Any], kind: str, key: str) -> list[str]:
    """The folders that the metadata of a plate or a well name, all of them inside it."""
    if kind not in facts:
        return []
    with damage_named(str(path)):
        check(facts[kind], {key: list[dict]}, f"its {kind}", (key,))
        found = [str(check(e, {}, f"its {key}", ("path",))["path"]) for e in facts[kind][key]]
        if wrong := [name for name in found if not re.fullmatch(PLACES[key], name)]:
            raise ValueError(f"its {key} lie in {wrong[0]!r}")
    return found


def _named(path: Path, names: re.Pattern[str]) -> Field:
    found = names.search(path.name)
    groups = found.groupdict(default="") if found else {}
    return Field(path, stem_of(path), "", groups.get("well", ""), groups.get("site", ""))


def _natural(path: Path) -> list[tuple[int, str]]:
    """`s10` after `s9`."""
    parts = re.split(r"(\d+)", path.name.casefold())
    return [(int(part) if part.isdigit() else -1, part) for part in parts]
