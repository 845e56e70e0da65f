"""What a microscope's file holds: an array whose axes have letters, and what is known of them.

Letters are T (time), C (channel), Z (depth), Y, X, and S (samples of a colour); a file that only
counts its pages has others, which nobody guesses.
"""

import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from posterior_trees import errors
from posterior_trees.errors import DataError

MICROMETRES = {"nm": 1e-3, "nanometer": 1e-3, "µm": 1.0, "μm": 1.0, "um": 1.0, "micron": 1.0,
               "microns": 1.0, "micrometer": 1.0, "micrometre": 1.0, "mm": 1e3, "millimeter": 1e3,
               "cm": 1e4, "centimeter": 1e4, "m": 1e6, "meter": 1e6, "Å": 1e-4, "angstrom": 1e-4,
               "pm": 1e-6, "picometer": 1e-6}  # fmt: skip
"""Units of length that files name, in µm. Inches are those of paper, and say nothing."""
MOST_BYTES = 2**30
"""Of a chunk or a tile, which is unpacked whole; one may also be as large as a plane."""
MICRO = {"zarr": "OME-Zarr", "numcodecs": "OME-Zarr", "tifffile": "stacks in TIFF",
         "imagecodecs": "compressed TIFF"}  # fmt: skip


@dataclass(frozen=True)
class Stack:
    """One array of a file. `read` takes an index or a slice for each axis."""

    name: str
    kind: str
    axes: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[tuple[int | slice, ...]], np.ndarray]
    close: Callable[[], object]
    stamp: dict[str, Any]
    """What changes when the file does: its size and time, or a digest of its metadata."""
    channels: tuple[str, ...] = ()
    pixel_size: tuple[float, float] | None = None
    """Height and width of a pixel, in µm."""
    levels: int = 1
    series: int = 1


def need(module: str) -> Any:
    """A package of the extra `micro`."""
    return errors.need(module, f"reading {MICRO[module]}", "micro")


def refuse_network(path: str | PathLike[str]) -> None:
    """Also of a path that was an address: paths have single slashes."""
    if re.match(r"\w{2,}:/", str(path)):
        raise DataError(f"{path}: pictures are not read over a network. Copy it to this computer")


def pixel_of(*sides: tuple[float, str | None]) -> tuple[float, float] | None:
    """Height and width in µm, from numbers and their units; None if one is no length."""
    y, x = (value * MICROMETRES.get((unit or "").strip(), 0.0) for value, unit in sides)
    return (y, x) if 0 < y < math.inf and 0 < x < math.inf else None


def stamp_of(path: str | PathLike[str]) -> dict[str, Any]:
    """What changes when a file does."""
    about = Path(path).stat()
    return {"bytes": about.st_size, "modified": about.st_mtime_ns}


def damaged(name: str | PathLike[str], why: object) -> DataError:
    return DataError(f"{name} is truncated or damaged ({why}). Replace or remove it")


def check_chunk(name: str, array: Any) -> None:
    """Refuse chunks that take far more memory than the pixels that are read: a small file can hold
    gigabytes of zeros."""
    one = array.dtype.itemsize
    size, plane = math.prod(array.chunks) * one, math.prod(array.shape[-2:]) * one
    if size > max(MOST_BYTES, plane):
        raise DataError(
            f"{name} has chunks or tiles of {size / 1e9:.3g} GB, the limit is "
            f"{MOST_BYTES / 1e9:.3g}: save it with smaller ones"
        )


@contextmanager
def damage_named(name: str) -> Generator[None, None, None]:
    """Whatever a reader of files raises on a damaged one, as one error that names the file."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:  # codecs raise what they like
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise damaged(name, why) from error
