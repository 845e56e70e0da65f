"""The IDX format, in which MNIST and its relatives come.

A file is a magic number (two zero bytes, the type of the values, the number of dimensions), the
size of every dimension as a big-endian 32-bit number, and the values, row by row. Here the type is
always 8, unsigned bytes. Files may be gzipped.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from posterior_trees.errors import DataError

UNSIGNED_BYTE = 8


def read_idx(file: str | Path) -> UInt8[np.ndarray, "..."]:
    """The array stored in an IDX file of unsigned bytes, gzipped or not."""
    file = Path(file)
    try:
        raw = unpack(file.read_bytes(), str(file))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error})") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE or not 1 <= raw[3] <= 4:
        raise DataError(
            f"{file} is not an IDX file of bytes: it starts with 0x{raw[:4].hex()} where "
            "0x00000801 to 0x00000804 belongs. Replace it with the original file"
        )
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{file} ends inside its header. Fetch it again")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{file} should hold {math.prod(shape)} values ({'×'.join(map(str, shape))}) "
            f"but holds {len(raw) - start}. Fetch it again"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def read_idx_images(folder: Path, part: str) -> UInt8[np.ndarray, "n 1 h w"]:
    """The images of one part, "train" or "t10k", of an MNIST-like folder."""
    file = find_idx(folder, f"{part}-images", 3)
    if file is None:
        raise DataError(
            f"no {part}-images-idx3-ubyte.gz in {folder}. Put the original IDX files there "
            "(for MNIST: `ptrees data --data DIR --download mnist`, DIR being the data folder); "
            "`ptrees data --data DIR` lists what is found"
        )
    images = read_idx(file)
    if images.ndim != 3:
        raise DataError(
            f"{file} has {images.ndim} dimensions where images have 3 (number, rows, columns). "
            "Are labels and images exchanged? Replace it with the original file"
        )
    return images[:, None]


def find_idx(folder: Path, stem: str, dimensions: int) -> Path | None:
    """`stem`'s file under any of the names it is spread with, or None."""
    for separator in "-.":
        for ending in (".gz", ""):
            file = folder / f"{stem}{separator}idx{dimensions}-ubyte{ending}"
            if file.is_file():
                return file
    return None


def unpack(raw: bytes, name: str) -> bytes:
    """The contents of a file that may be gzipped."""
    try:
        return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name} is truncated or damaged ({error}). Fetch it again") from error
