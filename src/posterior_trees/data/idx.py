"""The IDX format, in which MNIST and its relatives come.

A file is a magic number (two zero bytes, the type of the values, the number of dimensions), the
size of every dimension as a big-endian 32-bit number, and the values, row by row. Here the type is
always 8, unsigned bytes. Files may be gzipped.
"""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from posterior_trees.data.memory import free_bytes
from posterior_trees.errors import DataError
from posterior_trees.imaging.size import times

UNSIGNED_BYTE = 8
MOST_PACKED = 100
"""How much smaller gzip makes pictures at most; MNIST's become a fifth."""


def read_idx(file: str | Path) -> UInt8[np.ndarray, "..."]:
    """The array stored in an IDX file of unsigned bytes, gzipped or not."""
    file = Path(file)
    try:
        with file.open("rb") as stored:
            stream = unpacked(stored)
            shape = _read_shape(stream, file)
            _check_room(math.prod(shape), shape, file)
            values = np.empty(math.prod(shape), np.uint8)
            have = stream.readinto(values.data)
            more = len(stream.read(1))
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror or error})") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{file} is truncated or damaged ({error}). Fetch it again") from error
    if have + more != values.size:
        raise DataError(
            f"{file} should hold {values.size} values ({times(shape)}) "
            f"but holds {f'more than {have}' if more else have}. Fetch it again"
        )
    return values.reshape(shape)


def unpacked(stream: BufferedReader) -> BufferedReader:
    """The contents of what may be gzipped, as they are read."""
    is_packed = stream.peek(2)[:2] == b"\x1f\x8b"
    return BufferedReader(gzip.open(stream)) if is_packed else stream


def _read_shape(stream: BufferedReader, file: Path) -> tuple[int, ...]:
    """What the header says, if it is one."""
    raw = stream.read(4)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTE or not 1 <= raw[3] <= 4:
        raise DataError(
            f"{file} is not an IDX file of bytes: it starts with 0x{raw.hex()} where "
            "0x00000801 to 0x00000804 belongs. Replace it with the original file"
        )
    sizes = stream.read(4 * raw[3])
    if len(sizes) < 4 * raw[3]:
        raise DataError(f"{file} ends inside its header. Fetch it again")
    shape = struct.unpack(f">{raw[3]}I", sizes)
    if not all(shape):
        raise DataError(f"{file} says it holds {times(shape)} values: none. Fetch it again")
    return shape


def _check_room(values: int, shape: Sequence[int], file: Path) -> None:
    """Refuse what cannot be in the file, or not in memory, before any of it is unpacked."""
    stored, room = file.stat().st_size, free_bytes() // 2
    if values > MOST_PACKED * stored + 2**20:
        raise DataError(
            f"{file} has {stored} bytes and says it unpacks to {values} ({times(shape)}), more "
            f"than {MOST_PACKED} times as many: no pictures do. Fetch it again"
        )
    if values > room:
        raise DataError(
            f"{file} holds {values / 1e9:.3g} GB ({times(shape)}), and half of the free memory is "
            f"{room / 1e9:.3g} GB. Split it, or store its pictures as files"
        )


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
