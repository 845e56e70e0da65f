"""Which files make one picture: a file of x, and in paired sets the file of y that belongs to it.

Pairs are two folders, one per channel. Files belong together when their paths inside the folders
are the same up to the ending: `actin/plate1/A01.png` and `dna/plate1/A01.tif`.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import PurePosixPath
from typing import NamedTuple

from posterior_trees.data.archive import Archive
from posterior_trees.data.stream import RawPair
from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import (
    Header,
    decode,
    decode_raw,
    looks_like_image,
    read_header,
)
from posterior_trees.recipe.sections import DataSpec


class Picture(NamedTuple):
    """The files of x and of y (None unless the set is paired) inside the archive."""

    x: str
    y: str | None = None


def list_pictures(names: Iterable[str]) -> dict[str, Picture]:
    """Every image of an archive, by name."""
    return {name: Picture(name) for name in names}


def list_pairs(archive: Archive, inputs: str, targets: str) -> dict[str, Picture]:
    """Every pair of the archive, by the name inside the folder of targets."""
    ys, xs = _channel(archive, inputs), _channel(archive, targets)
    for files, other, missing in ((ys, xs, targets), (xs, ys, inputs)):
        for key, file in files.items():
            if key not in other:
                raise DataError(
                    f"{archive.where}: {file} has no partner in {missing}/. "
                    "Add the file of that name, or remove this one"
                )
    return {xs[key].removeprefix(f"{targets}/"): Picture(xs[key], ys[key]) for key in xs}


def read_headers(archive: Archive, pictures: Sequence[Picture]) -> list[Header]:
    """Size of every picture, and whether x or y has 16 bits; x and y must be of one size."""
    return list(in_threads(lambda picture: _header(archive, picture), pictures))


def check_are_images(archive: Archive, pictures: Iterable[Picture]) -> None:
    """Refuse files that are no images by their first bytes, all of them by name: also in the splits
    that are not opened, where each would have taken an image's place."""

    def is_image(name: str) -> bool:
        with archive.open(name) as file:
            return looks_like_image(file.read(16))

    files = [name for picture in pictures for name in picture if name]
    wrong = [name for name, is_one in zip(files, in_threads(is_image, files), strict=True)
             if not is_one]  # fmt: skip
    if wrong:
        raise DataError(
            f"{archive.where}: {len(wrong)} of {len(files)} files are no images, whatever their "
            f"names: {', '.join(wrong[:5])}{', …' if wrong[5:] else ''}. Replace or remove "
            f"{'them' if wrong[1:] else 'it'}"
        )


def reader(
    archive: Archive, pictures: dict[str, Picture], spec: DataSpec
) -> Callable[[str], RawPair]:
    """A function that decodes the picture of a name."""
    as_stored = decode_raw if spec.levels else decode

    def pixels(file: str, channels: int):
        with archive.open(file) as opened:
            return as_stored(opened, f"{archive.where}: {file}", channels, tuple(spec.size))

    def read(name: str) -> RawPair:
        x, y = pictures[name]
        return pixels(x, spec.channels), None if y is None else pixels(y, spec.input_channels)

    return read


def in_threads(function: Callable, things: Iterable) -> list:
    """`function` of each thing, in order."""
    with ThreadPoolExecutor(min(cpu_count() or 1, 32)) as pool:
        return list(pool.map(function, things))


def _channel(archive: Archive, channel: str) -> dict[str, str]:
    """The files of a channel by their path inside it without the ending."""
    files: dict[str, str] = {}
    for name in archive.names:
        if name.startswith(f"{channel}/"):
            key = PurePosixPath(name.removeprefix(f"{channel}/")).with_suffix("").as_posix()
            if key in files:
                raise DataError(
                    f"{archive.where}: {files[key]} and {name} differ only in their ending. "
                    "Remove one of them"
                )
            files[key] = name
    if not files:
        found = sorted({name.split("/")[0] for name in archive.names if "/" in name})
        raise DataError(
            f"{archive.where} has no images in {channel}/ (folders there: "
            f"{', '.join(found) or 'none'}). Add it, or correct data.inputs and data.targets"
        )
    return files


def _header(archive: Archive, picture: Picture) -> Header:
    found = []
    for name in filter(None, picture):
        with archive.open(name) as file:
            found.append(read_header(file, f"{archive.where}: {name}"))
    x, y = found[0], found[-1]
    if (x.height, x.width) != (y.height, y.width):
        raise DataError(
            f"{archive.where}: {picture.y} is {y.height}×{y.width} but its target {picture.x} is "
            f"{x.height}×{x.width}. Make them the same size, pixel on pixel"
        )
    return x._replace(is_deep=x.is_deep or y.is_deep)
