"""OME-Zarr images in a local folder, of NGFF 0.4 (Zarr 2) and 0.5 (Zarr 3).

Choice: a chunk that is missing is an error and not zeros, which Zarr allows: a copy that stopped
half-way looks exactly like that, and black pixels would be taken for cells that are not there.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from posterior_trees.errors import DataError
from posterior_trees.imaging.stack import Stack, check_chunk, damage_named, need, pixel_of

METADATA = ("zarr.json", ".zattrs", ".zgroup", ".zarray")


def is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in METADATA)


def attributes_of(path: Path) -> dict[str, Any]:
    """The attributes of a group or array, those of OME taken out of `ome` (0.5)."""
    with damage_named(str(path)):
        if (path / "zarr.json").is_file():
            found = json.loads((path / "zarr.json").read_text("utf-8")).get("attributes") or {}
        elif (path / ".zattrs").is_file():
            found = json.loads((path / ".zattrs").read_text("utf-8"))
        else:
            found = {}
        return {**found, **(found.get("ome") or {})}


def stamp_of(path: Path) -> dict[str, Any]:
    """A digest of what describes a group."""
    files = [path / name for name in METADATA if (path / name).is_file()]
    return {"sha256": hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()}


def open_zarr(path: Path, series: int = 0) -> Stack:
    """The full resolution of an image; nothing is read yet but its description."""
    facts = attributes_of(path)
    if "bioformats2raw.layout" in facts and "multiscales" not in facts:
        path = path / str(series)
        if not is_zarr(path):
            raise DataError(f"{path.parent} has no series {series}: choose another --series")
        facts = attributes_of(path)
    elif series:
        raise DataError(f"{path} has 1 series, from 0: there is no --series {series}")
    if "posterior_trees" in facts:
        raise DataError(f"{path} holds a tree, not a picture: open it by Tree.load or open_tree")
    if "image-label" in facts:
        raise DataError(f"{path} holds labels, not an image")
    if not facts.get("multiscales"):
        raise DataError(f"{path} has no multiscales: not OME-Zarr 0.4 or 0.5")
    zarr = need("zarr")
    with damage_named(str(path)):
        return _describe(path, facts, zarr)


def _describe(path: Path, facts: dict[str, Any], zarr: ModuleType) -> Stack:
    image = facts["multiscales"][0]
    first = image["datasets"][0]
    array = zarr.open_array(path / first["path"], mode="r")
    axes = [axis if isinstance(axis, dict) else {"name": axis} for axis in image["axes"]]
    letters = "".join(axis["name"].upper() for axis in axes)
    if len(letters) != array.ndim:
        raise DataError(f"{path} names {len(axes)} axes, its array has {array.ndim}")
    check_chunk(str(path), array)

    def read(index: tuple[int | slice, ...]) -> np.ndarray:
        with damage_named(str(path)):
            for key in missing_chunks(path / first["path"], array, index):
                raise DataError(
                    f"{path} lacks the chunk {first['path']}/{key}: copy it again. If its pixels "
                    "are 0 and were not written for that, write them (write_empty_chunks)"
                )
            return np.asarray(array[index])

    steps = [*first.get("coordinateTransformations", ()),
             *image.get("coordinateTransformations", ())]  # fmt: skip
    factors = np.prod([step["scale"] for step in steps if step["type"] == "scale"], axis=0)
    factors = np.broadcast_to(factors, len(axes)).tolist()
    sides = ((factors[i], axes[i].get("unit")) for i in map(letters.index, "YX"))
    names = tuple(str(c.get("label", "")) for c in (facts.get("omero") or {}).get("channels", ()))
    version = facts.get("version") or image.get("version") or "0.4"
    return Stack(
        str(path), f"OME-Zarr {version}", letters, tuple(array.shape), np.dtype(array.dtype),
        read, lambda: None, stamp_of(path), names,
        pixel_of(*sides), len(image["datasets"]),
    )  # fmt: skip


def missing_chunks(folder: Path, array: Any, index: tuple[int | slice, ...]) -> Iterator[str]:
    """Files of chunks, or of shards, that these pixels need and that are not there."""
    sides = array.shards or array.chunks
    spans = []
    for place, length, side in zip(index, array.shape, sides, strict=True):
        found = range(length)[place] if isinstance(place, slice) else range(place, place + 1)
        spans.append(range(found.start // side, -(-found.stop // side)))
    for chunk in itertools.product(*spans):
        key = array.metadata.encode_chunk_key(chunk)
        if not (folder / key).is_file():
            yield key
