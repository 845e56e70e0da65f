"""Where the files lie in a tar file: an index that believes no header.

A tar is blocks of 512 bytes: a header with a checksum, then its file's bytes, then the next header;
a block of zeros ends it. Python's `tarfile` stops without a word at the first header that is none,
as one does that follows a wrong size, and sizes below 0 lead it back for ever. Here each step goes
forward, every header is right or an error, and none may hide inside a picture or behind the end.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posterior_trees.errors import DataError

BLOCK = 512
FILES, SPARSE, NAMES, DATALESS = b"\0" + b"07", b"S", b"LKxg", b"123456"
"""Kinds of members: files, files with holes, what is said of the next one, and those of no data."""
LONGEST = 2**20
"""Bytes that may be said of one member."""


class Member(NamedTuple):
    """One header, and the place of its data."""

    name: str
    kind: bytes
    at: int
    start: int
    size: int


def index_tar(where: Path) -> list[Member]:
    """The files of a tar, in order, once it is certain that there are no others."""
    try:
        length = where.stat().st_size
        if length < BLOCK:
            raise damaged(where, f"it has {length} bytes")
        blocks = np.memmap(where, np.uint8, "r", shape=(length // BLOCK, BLOCK))
        members = list(_walk(blocks, length, where))
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(where, str(error)) from error
    end = _end(members[-1]) if members else 0
    if length < end + BLOCK:
        raise damaged(where, "it lacks its end mark")
    if not members:
        return []
    heads = np.flatnonzero((blocks[:, 257:262] == np.frombuffer(b"ustar", np.uint8)).all(axis=1))
    starts = np.array([member.at for member in members])
    for head in np.setdiff1d(heads * BLOCK, starts):
        around = members[int(np.searchsorted(starts, head)) - 1]
        if head >= end:
            raise damaged(where, f"more files follow its end mark, from byte {head}")
        is_tar = around.name.endswith(".tar")
        if not is_tar and _sum_is_right(blocks[head // BLOCK].tobytes()):
            raise damaged(where, f"{around.name} has another file inside: its size is wrong")
    return members


def damaged(where: Path, what: str) -> DataError:
    return DataError(
        f"{where} is truncated, compressed or no tar file ({what}). Fetch it again, or unpack it "
        "into a folder of that name"
    )


def _walk(blocks: np.ndarray, length: int, where: Path) -> Iterator[Member]:
    """Header after header, up to a block of zeros; the true name and size may come before one."""
    at, said = 0, {}
    while at < length - length % BLOCK and blocks[at // BLOCK].any():
        head = blocks[at // BLOCK].tobytes()
        if not _sum_is_right(head):
            raise damaged(where, f"byte {at} should begin a header, and does not")
        kind, start = head[156:157], at + BLOCK
        size = 0 if kind in DATALESS else _number(head[124:136])
        if kind in FILES and "size" in said:
            size = int(said["size"])
        if kind in SPARSE or any(key.startswith("GNU.sparse") for key in said):
            raise damaged(where, "it holds files with holes: make it without --sparse")
        if not 0 <= size <= length - start or (kind in NAMES and size > LONGEST):
            raise damaged(where, f"the member at byte {at} says it has {size} bytes")
        text = blocks.reshape(-1)[start : start + size].tobytes() if kind in NAMES else b""
        name = said.get("path") or _name(head)
        if "\0" in name:
            raise ValueError(f"the name of the member at byte {at} has a zero in it")
        yield (member := Member(name, kind, at, start, size))
        said = said | _said(kind, text) if kind in NAMES else {}
        at = _end(member)


def _said(kind: bytes, text: bytes) -> dict[str, str]:
    """What an extension says of the next member: of GNU its name, of POSIX records of any key."""
    if kind == b"L":
        return {"path": text.rstrip(b"\0").decode("utf-8", "surrogateescape")}
    records = {}
    while kind == b"x" and text.strip(b"\0"):
        length = int(text.partition(b" ")[0][:9].strip(b"\0") or b"0")
        record, text = text[:length], text[length:]
        key, equals, value = record.partition(b" ")[2].partition(b"=")
        if not (length > 0 and equals and value.endswith(b"\n")):
            raise ValueError("what is said of a member has no end")
        records[key.decode()] = value[:-1].decode("utf-8", "surrogateescape")
    return records


def _name(head: bytes) -> str:
    """The name in a header; POSIX splits long ones."""
    name, prefix = (head[a:b].partition(b"\0")[0] for a, b in ((0, 100), (345, 500)))
    is_split = prefix and head[257:263] == b"ustar\0"
    return (prefix + b"/" + name if is_split else name).decode("utf-8", "surrogateescape")


def _number(field: bytes) -> int:
    """An octal number, or a large one in bytes."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256 ** len(field[1:]) if field[0] > 0x80 else 0)
    return int(field.strip(b" \0") or b"0", 8)


def _sum_is_right(head: bytes) -> bool:
    """The sum of all bytes but those of the sum."""
    try:
        total = sum(head[:148]) + sum(head[156:]) + 8 * ord(" ")
        signed = total - 256 * sum(byte > 127 for byte in head)  # as some old programs had it
        return _number(head[148:156]) in (total, signed)
    except ValueError:
        return False


def _end(member: Member) -> int:
    return member.start + -(-member.size // BLOCK) * BLOCK
