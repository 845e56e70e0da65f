r"""One plane of a picture, whatever the file: `open_source`.

A picture of a microscope has more axes than a model takes. One channel is chosen by its name or
number, one plane of T and of Z by its number, and a file that does not say what an axis is has to
be told (`axes`): nothing is guessed. `Source.read` then gives the camera's values of any part, and
touches only the tiles or chunks that hold it.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Shaped

from posterior_trees.errors import DataError
from posterior_trees.imaging.guarded import decode_picture, picture_header
from posterior_trees.imaging.ome_zarr import is_zarr, open_zarr
from posterior_trees.imaging.stack import Stack, refuse_network, stamp_of
from posterior_trees.imaging.tiff import is_tiff, open_tiff

LETTERS = "TCZYXS"
UNEVEN = 0.01
"""How far the height of a pixel may be from its width."""


class Plane(NamedTuple):
    """Which plane of a file is meant: the options of the command line."""

    axes: str | None = None
    channel: str | int | None = None
    series: int = 0
    at: Mapping[str, int] | None = None
    pixel_size: float | int | None = None
    hint: str = ""
    """What the model calls its input; it suggests a channel and never chooses one."""


class Source(AbstractContextManager):
    """One plane `(h, w)`; a context manager, because the file stays open."""

    def __init__(
        self, stack: Stack, index: Sequence[int | slice], pixel: float | int | None,
        channel: int = 0,
    ) -> None:  # fmt: skip
        self.stack, self.name, self.index = stack, stack.name, tuple(index)
        self.channel, self.channels = channel, name_channels(stack)
        y, x = stack.axes.index("Y"), stack.axes.index("X")
        self.shape = (stack.shape[y], stack.shape[x])
        self.is_turned = x < y
        self.pixel_size = None if pixel is None else (pixel, pixel, "µm")
        self.dtype = stack.dtype

    def read(self, rows: slice, columns: slice) -> Shaped[np.ndarray, "h w"]:
        """The values of a part, as the camera counted them."""
        parts = {"Y": rows, "X": columns}
        index = (parts.get(a, i) for a, i in zip(self.stack.axes, self.index, strict=True))
        values = self.stack.read(tuple(index))
        values = values.T if self.is_turned else values
        return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))

    def read_stored(self, rows: slice, columns: slice) -> np.ndarray:
        """The same `(1, h, w)`, with 8 or 16 bits or as float32: what `Adjustment` takes."""
        values = self.read(rows, columns)
        is_plain = values.dtype in (np.uint8, np.uint16)
        return (values if is_plain else values.astype(np.float32))[None]

    def close(self) -> None:
        self.stack.close()

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_source(path: str | PathLike[str], **options: Any) -> Source:
    """One plane of a picture file or an OME-Zarr folder; the options are those of `Plane`."""
    plane = Plane(**options)
    stack = open_any(path, plane)
    try:
        return choose_plane(stack, plane)
    except BaseException:
        stack.close()
        raise


def open_any(path: str | PathLike[str], plane: Plane) -> Stack:
    """All planes of a file, of a photograph the grey one."""
    stack = open_stack(path, plane.series)
    if stack is None or (is_photograph(stack) and plane.axes is None):
        return _open_photograph(Path(path))
    return stack


def open_stack(path: str | PathLike[str], series: int = 0) -> Stack | None:
    """What tifffile or zarr read of a path; None if it is a photograph, and Pillow's."""
    refuse_network(path)
    path = Path(path)
    if is_zarr(path):
        return open_zarr(path, series)
    if path.is_dir():
        raise DataError(f"{path} is a folder, and no OME-Zarr. Name the pictures in it")
    if not path.exists():
        raise DataError(f"{path} does not exist. Check the name")
    return open_tiff(path, series) if is_tiff(path) else None


def is_photograph(stack: Stack) -> bool:
    """Whether a file is one picture in colours, which become grey as in every other photograph."""
    return stack.axes == "YXS" and stack.dtype == np.uint8


def choose_plane(stack: Stack, plane: Plane) -> Source:
    """The plane that is meant, or an error that says what there is to choose."""
    stack = with_axes(stack, plane.axes)
    at = {letter.upper(): number for letter, number in (plane.at or {}).items()}
    if unknown := [letter for letter in at if letter not in stack.axes or letter not in "TZ"]:
        why = f"--at {unknown[0].lower()} does not fit"
        raise DataError(f"{stack.name} has axes {stack.axes}: {why}")
    lengths = dict(zip(stack.axes, stack.shape, strict=True))
    _check_letters(stack, lengths)
    if open_axes := [a for a in stack.axes if a in "TZ" and lengths[a] > 1 and a not in at]:
        listed = " and ".join(f"{lengths[a]} planes along {a}" for a in open_axes)
        example = " ".join(f"{a.lower()}=0" for a in open_axes)
        raise DataError(f"{stack.name} has {listed}; the model takes one: add --at {example}")
    for letter, number in at.items():
        if not 0 <= number < lengths[letter]:
            raise DataError(
                f"{stack.name} has {lengths[letter]} planes along {letter}, from 0: there is no "
                f"--at {letter.lower()}={number}"
            )
    channel = choose_channel(stack, plane)
    chosen = {"Y": slice(None), "X": slice(None), "C": channel} | at
    index = [chosen.get(a, 0) for a in stack.axes]
    return Source(stack, index, _pixel_size(stack, plane.pixel_size), channel)


def choose_channel(stack: Stack, plane: Plane) -> int:
    """The number of the channel that is meant; several are never chosen from silently:
    one whose name is in the model's words for its input is suggested, else the last."""
    names = name_channels(stack)
    listed = ", ".join(f"{i} {name}".strip() for i, name in enumerate(names))
    if plane.channel is None:
        if len(names) == 1:
            return 0
        words = plane.hint.casefold()
        known = [
            n for n in names if words and n and (n.casefold() in words or words in n.casefold())
        ]
        advice = (known or [names[-1]])[0] or str(len(names) - 1)
        other = "a number" if advice in names and advice else "another number"
        raise DataError(
            f"{stack.name} has {len(names)} channels ({listed}); the model takes one: add "
            f"--channel {advice}, or {other}"
        )
    wanted = str(plane.channel)
    for same in (str, str.casefold):
        found = [i for i, name in enumerate(names) if same(name) == same(wanted)]
        if len(found) == 1:
            return found[0]
    if wanted.isdecimal() and int(wanted) < len(names):
        return int(wanted)
    raise DataError(f"{stack.name} has no channel {wanted}: it has {listed}")


def name_channels(stack: Stack) -> tuple[str, ...]:
    """A name for each channel, empty where the file has none."""
    count = stack.shape[stack.axes.index("C")] if "C" in stack.axes else 1
    return (*stack.channels, *[""] * count)[:count]


def with_axes(stack: Stack, axes: str | None) -> Stack:
    """The stack with other letters for its axes."""
    if axes is None:
        return stack
    letters = axes.upper()
    if set(letters) - set(LETTERS) or len(set(letters)) < len(letters):
        raise DataError(f"--axes is {axes}; it has letters of {LETTERS}, each at most once")
    if not {"Y", "X"} <= set(letters):
        raise DataError(f"--axes is {axes}; it needs Y and X")
    if len(letters) != len(stack.shape):
        size = "×".join(map(str, stack.shape))
        raise DataError(
            f"{stack.name} has {len(stack.shape)} axes ({stack.axes}, {size}), --axes {axes} names "
            f"{len(letters)}"
        )
    return replace(stack, axes=letters)


def _check_letters(stack: Stack, lengths: Mapping[str, int]) -> None:
    for letter in stack.axes:
        if letter in "TCZYX" or lengths[letter] == 1:
            continue
        options = [stack.axes.replace(letter, a) for a in "ZC" if a not in stack.axes]
        raise DataError(
            f"{stack.name} has axes {stack.axes} and does not say what {letter} is "
            f"({lengths[letter]} planes): add --axes {' or '.join(options)}, then --at or --channel"
        )
    if not {"Y", "X"} <= set(stack.axes):
        raise DataError(f"{stack.name} has axes {stack.axes}: there is no picture of Y and X in it")


def _pixel_size(stack: Stack, given: float | int | None) -> float | None:
    """The side of a pixel in µm; None if nobody knows."""
    if given is not None:
        if not (given > 0 and math.isfinite(given)):
            raise DataError(f"the pixel size is {given:g} µm; it must be positive")
        return given
    if stack.pixel_size is None:
        return None
    y, x = stack.pixel_size
    if abs(y - x) > UNEVEN * min(y, x):
        raise DataError(
            f"{stack.name} has pixels of {y:g} × {x:g} µm (height × width); they must be square: "
            "resample it, or say --pixel-size"
        )
    return y


def _open_photograph(path: Path) -> Stack:
    """A picture that Pillow reads, in grey; decoded whole when a part of it is first read."""
    header = picture_header(path.read_bytes(), str(path))
    pixels: np.ndarray | None = None

    def read(index: tuple[int | slice, ...]) -> np.ndarray:
        nonlocal pixels
        if pixels is None:
            pixels = decode_picture(path.read_bytes(), str(path), 1)[0]
        return pixels[index]

    return Stack(
        str(path), path.suffix[1:].upper() or "picture", "YX", (header.height, header.width),
        np.dtype(np.uint16 if header.is_deep else np.uint8), read, lambda: None, stamp_of(path),
    )  # fmt: skip
