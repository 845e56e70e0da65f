"""A set of image files, in a folder or in one tar file, behind one face: sorted names, and bytes.

Names are relative paths with forward slashes. What is not an image by its ending is ignored, and so
is everything hidden (`.DS_Store`, `._x.png`). A tar file is indexed once and read in place, from
several threads if need be; it must not be compressed, as images are already.
"""

from io import BufferedReader, BytesIO
from pathlib import Path, PurePosixPath
from typing import Protocol, runtime_checkable

from posterior_trees.data.tar import FILES, index_tar
from posterior_trees.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp")


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
