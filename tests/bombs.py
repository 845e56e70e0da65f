"""Pictures that ask for far more time or memory than they are worth, made by hand."""

import io
import struct
import zlib

import numpy as np
from PIL import Image


def tiff(entries: list[tuple[int, int, int, int]], rest: bytes, after: int = 0) -> bytes:
    """A little-endian TIFF of one directory at byte 8, and what comes behind it."""
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<H", len(entries))
    return head + body + struct.pack("<I", after) + rest


def page(at: int, following: int) -> bytes:
    """A directory of a 1×1 picture, whose only pixel is the file's first byte."""
    entries = ((256, 3, 1, 1), (257, 3, 1, 1), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1),
               (273, 4, 1, 0), (278, 3, 1, 1), (279, 4, 1, 1))  # fmt: skip
    body = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return struct.pack("<H", len(entries)) + body + struct.pack("<I", following)


def many_pages(count: int) -> bytes:
    """A TIFF of so many pages of 102 bytes."""
    size = len(page(0, 0))
    pages = [page(0, 8 + (i + 1) * size if i + 1 < count else 0) for i in range(count)]
    return struct.pack("<2sHI", b"II", 42, 8) + b"".join(pages)


def many_frames(count: int) -> bytes:
    """A GIF of so many frames of one pixel."""
    stream = io.BytesIO()
    Image.new("L", (1, 1)).save(stream, "GIF")
    whole = stream.getvalue()
    start = whole.index(b",", 13 + 3 * 2 ** ((whole[10] & 7) + 1))
    return whole[:start] + whole[start:-1] * count + b";"


def shared_tags(count: int, megabytes: int) -> bytes:
    """A TIFF whose tags all name the same megabytes, which reading copies for each."""
    at = 8 + 2 + 12 * (count + 4) + 4
    plain = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 1, 8), (262, 3, 1, 1)]
    size = megabytes * 1_000_000
    return tiff([*plain, *((40000 + i, 7, size, at) for i in range(count))], bytes(size))


def many_scans(count: int, side: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again; each pass is over all pixels."""
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (side, side), np.uint8)
    Image.fromarray(noise // 64).save(stream, "JPEG", progressive=True, quality=5)
    whole = stream.getvalue()
    last = whole.rindex(b"\xff\xda")
    tables = whole.rindex(b"\xff\xc4", 0, last)
    return whole[:last] + whole[tables:-2] * count + b"\xff\xd9"


def hidden_text(kind: bytes, megabytes: int) -> bytes:
    """A PNG with a chunk of so many zeros."""
    stream = io.BytesIO()
    Image.new("L", (2, 2)).save(stream, "PNG")
    whole, size = stream.getvalue(), megabytes * 1_000_000
    text = kind + (b"a\0\0" + zlib.compress(bytes(size)) if kind == b"zTXt" else bytes(size))
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return whole[:33] + chunk + whole[33:]


def large(width: int, height: int) -> bytes:
    """A small PNG of many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((1 + -(-width // 8)) * min(height, 2000)))
    chunks = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body
