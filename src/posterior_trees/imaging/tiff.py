"""TIFF as microscopes write it: plain, BigTIFF, ImageJ hyperstacks, OME-TIFF and pyramids.

Read in tiles, by tifffile. A photograph (colours, a palette, turned by its camera) is none of
these, and is Pillow's.
"""

import itertools
import logging
import math
import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from posterior_trees.errors import DataError
from posterior_trees.imaging.guarded import check_series
from posterior_trees.imaging.stack import (
    Stack,
    check_chunk,
    damage_named,
    damaged,
    need,
    pixel_of,
    stamp_of,
)

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
ORIENTATION = 274
MOST_PAGES = 100_000
UNPACKED = (1, 8, 32946)
"""Compressions (none, deflate) that need no further package."""


def is_tiff(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) in MAGIC


def check_pages(path: Path) -> None:
    """Refuse a file of more pages than are looked at, which take seconds for each 20,000: by
    following their chain, which says nothing else of them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(16)
        order: Literal["little", "big"] = "little" if head[:2] == b"II" else "big"
        is_big = 43 in head[2:4]
        entry, wide, short = (20, 8, 8) if is_big else (12, 4, 2)
        at = int.from_bytes(head[8:16] if is_big else head[4:8], order)
        for _ in range(MOST_PAGES):
            if not 0 < at < size:
                return
            file.seek(at)
            file.seek(at + short + entry * int.from_bytes(file.read(short), order))
            at = int.from_bytes(file.read(wide), order)
    raise DataError(f"{path} has more than {MOST_PAGES} pages, or goes in a circle. Split it")


def open_tiff(path: Path, series: int = 0) -> Stack | None:
    """The `series`-th image of a file; None of a photograph."""
    tifffile = need("tifffile")
    check_pages(path)
    check_series(str(path))
    with damage_named(str(path)), _complaints() as complaints:
        file = tifffile.TiffFile(path)
        try:
            found = file.series
            if not 0 <= series < len(found):
                raise DataError(
                    f"{path} has {len(found)} series, from 0: there is no --series {series}"
                )
            stack = _describe(path, file, found[series], series)
            if lost := [text for text in complaints if "invalid value offset" in text]:
                raise ValueError(lost[0])  # its description, say, lies beyond the end
        except BaseException:
            file.close()
            raise
    if stack is None:
        file.close()
    return stack


@contextmanager
def _complaints() -> Generator[list[str], None, None]:
    """What tifffile logs as errors, and goes on without."""
    texts: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: texts.append(record.getMessage())
    log = logging.getLogger("tifffile")
    log.addHandler(handler)
    try:
        yield texts
    finally:
        log.removeHandler(handler)


def _describe(path: Path, file: Any, series: Any, number: int) -> Stack | None:
    page = series.keyframe
    photometric = getattr(page.photometric, "name", "")
    if photometric == "PALETTE" or page.tags.valueof(ORIENTATION, 1) != 1:
        return None
    channels, pixel_size = _ome(file.ome_metadata, number) if file.is_ome else _imagej(file)
    named = int((file.imagej_metadata or {}).get("images") or 1)
    if (there := math.prod(series.shape) // math.prod(page.shape)) < named:
        raise damaged(path, f"{there} of {named} planes are there")
    is_negative = photometric == "MINISWHITE" and series.dtype in (np.uint8, np.bool_)
    array: Any = None

    def read(index: tuple[int | slice, ...]) -> np.ndarray:
        nonlocal array
        zarr = need("zarr")
        if page.compression not in UNPACKED:
            need("imagecodecs")
        with damage_named(str(path)):
            if array is None:
                array = zarr.open_array(series.aszarr(level=0), mode="r")
                check_chunk(str(path), array)
            _check_plane(path, series, index)
            values = np.asarray(array[index])
            if series.dtype == np.bool_:
                values = values.astype(np.uint8) * 255
            return 255 - values if is_negative else values

    kind = "OME-TIFF" if file.is_ome else "ImageJ TIFF" if file.is_imagej else "TIFF"
    return Stack(
        str(path), kind, series.axes, tuple(series.shape),
        np.dtype(np.uint8) if series.dtype == np.bool_ else series.dtype, read, file.close,
        stamp_of(path), channels, pixel_size, len(series.levels), len(file.series),
    )  # fmt: skip


def _check_plane(path: Path, series: Any, index: tuple[int | slice, ...]) -> None:
    """Refuse a plane whose strips or tiles are not all in the file: tifffile reads zeros there."""
    size = path.stat().st_size
    if series.dataoffset is not None:
        if series.dataoffset + math.prod(series.shape) * series.dtype.itemsize > size:
            raise damaged(path, "its pixels go beyond its end")
        return
    leading = index[: len(series.shape) - len(series.keyframe.shape)]
    places = [range(n)[i] if isinstance(i, slice) else [i]
              for i, n in zip(leading, series.shape, strict=False)]  # fmt: skip
    for place in itertools.product(*places):
        shape = series.shape[: len(places)]
        page = series.pages[int(np.ravel_multi_index(place, shape)) if place else 0]
        if page is None:
            raise DataError(f"{path} lacks the plane {place} that its "
                            "description names. Replace or remove it")  # fmt: skip
        home = Path(page.parent.filehandle.path)
        room = size if home == path else home.stat().st_size
        segments = list(zip(page.dataoffsets, page.databytecounts, strict=False))
        wrong = sum(not (8 <= start < start + count <= room) for start, count in segments)
        if wrong or len(segments) < math.prod(page.chunked):
            some = f"{wrong or 'some'} of {len(segments)} strips or tiles"
            raise damaged(path, f"{some} lie outside of it")


def _ome(text: str, number: int) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """Names of the channels and size of a pixel, from the XML of an OME-TIFF."""
    images = [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("}Image")]
    pixels = next((e for e in images[number] if e.tag.endswith("}Pixels")), None)
    if pixels is None:
        return (), None
    names = tuple(e.get("Name") or "" for e in pixels if e.tag.endswith("}Channel"))
    sizes = (f"PhysicalSize{axis}" for axis in "YX")
    sides = ((float(pixels.get(s) or 0), pixels.get(f"{s}Unit", "µm")) for s in sizes)
    return names, pixel_of(*sides)


def _imagej(file: Any) -> tuple[tuple[str, ...], tuple[float, float] | None]:
    """The same of ImageJ, which writes labels of slices and pixels per unit of length."""
    facts = file.imagej_metadata if file.is_imagej else None
    if not facts:
        return (), None
    labels, channels = facts.get("Labels") or [], int(facts.get("channels") or 1)
    if isinstance(labels, str):
        labels = [labels]
    names = tuple(labels[:channels]) if channels > 1 and len(labels) >= channels else ()
    names = names if len(set(names)) == len(names) else ()
    unit = re.sub(r"\\u00[bB]5", "µ", str(facts.get("unit") or ""))
    ratios = (file.pages[0].tags.valueof(f"{side}Resolution", (0, 1)) for side in "YX")
    return names, pixel_of(*((below / above if above else 0, unit) for above, below in ratios))
