"""A set of image files, in a folder or in one tar file, behind one face: sorted names, and bytes.

Names are relative paths with forward slashes. What is not an image by its ending is ignored, and so
is everything hidden (`.DS_Store`, `._x.png`). A tar file is indexed once and read in place, from
several threads if need be; it must not be compressed, as images are already.

A tar is blocks of 512 bytes: a header with a checksum, then its file's bytes, then the next header;
a block of zeros ends it. Python's `tarfile` stops without a word at the first header that is none,
as one does that follows a wrong size, and sizes below 0 lead it back for ever. Here each step goes
forward, every header is right or an error, and none may hide inside a picture or behind the end.
"""

from collections.abc import Iterator
from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from posterior_trees.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")
BLOCK = 512
FILES, SPARSE, NAMES, DATALESS = b"\0" + b"07", b"S", b"LKxg", b"123456"
"""Kinds of members: files, files with holes, what is said of the next one, and those of no data."""
LONGEST = 2**20
"""Bytes that may be said of one member."""


@runtime_checkable
class Archive(Protocol):
    """Where the files are, their sorted names, and a way to open one of them."""

    where: Path
    names: list[str]

    def open(self, name: str) -> BufferedReader | BytesIO: ...


def open_archive(folder: Path, name: str) -> Archive | None:
    """`folder/name/` if there is such a folder, else `folder/name.tar`, else None."""
    if (folder / name).is_dir():
        archive = FolderArchive(folder / name)
    elif (folder / f"{name}.tar").is_file():
        archive = TarArchive(folder / f"{name}.tar")
    else:
        return None
    if not archive.names:
        raise DataError(
            f"no images in {archive.where}. Put {', '.join(ENDINGS)} files there; "
            f"`ptrees data` lists what is found"
        )
    return archive


class FolderArchive:
    """All images below a folder."""

    def __init__(self, where: Path) -> None:
        self.where = where
        files = (file for file in where.rglob("*") if file.is_file())
        self.names = sorted(
            name for file in files if is_image(name := file.relative_to(where).as_posix())
        )

    def open(self, name: str) -> BufferedReader | BytesIO:
        try:
            return (self.where / name).open("rb")
        except OSError as error:
            raise DataError(
                f"{self.where / name} cannot be read ({error.strerror or error})"
            ) from error


class TarArchive:
    """All images of a tar file. A leading `./`, or a top folder named like the tar, is dropped."""

    def __init__(self, where: Path) -> None:
        self.where = where
        places = {
            name: (member.start, member.size)
            for member in index_tar(where)
            if member.kind in FILES and is_image(name := PurePosixPath(member.name).as_posix())
        }
        if all(name.startswith(f"{where.stem}/") for name in places):
            places = {name.removeprefix(f"{where.stem}/"): at for name, at in places.items()}
        self._places = places
        self.names = sorted(places)

    def open(self, name: str) -> BufferedReader | BytesIO:
        start, size = self._places[name]
        with self.where.open("rb") as file:
            file.seek(start)
            return BytesIO(file.read(size))


def is_image(name: str) -> bool:
    """Does this relative path look like an image, by its ending, that is not hidden?"""
    parts = PurePosixPath(name).parts
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and name.lower().endswith(ENDINGS)


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
