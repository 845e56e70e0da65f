r"""The one way from a picture to what a model takes: `read`.

A picture is a file, the bytes of one, an array or a tensor; grey or colour, of 8 or 16 bits or with
numbers in [0, 1]. It becomes a float32 batch `(b, c, h, w)` in [0, 1] with the channels of the
model's measurement. Files and arrays are converted: grey is copied into the channels of a colour
model, and colour becomes grey by luma, exactly as when training files are read. A tensor says by
its shape which channels it has, so wrong ones are an error.

What is done to a file's values, and whether they then fit the model, is in `imaging/adjust.py`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from posterior_trees.data.memory import refuse_what_cannot_fit
from posterior_trees.errors import DataError, InputError, MissingError
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.decode import Stored, fit_values, has_more_images
from posterior_trees.imaging.guarded import decode_picture, picture_header
from posterior_trees.imaging.ome_zarr import is_zarr
from posterior_trees.imaging.size import (
    block_means,
    block_of,
    caption_resize,
    check_scale,
    scale_size,
    times,
)
from posterior_trees.imaging.source import (
    Plane,
    choose_plane,
    is_photograph,
    open_source,
    open_stack,
)
from posterior_trees.imaging.source import Source as PlaneOfFile
from posterior_trees.imaging.stack import stamp_of
from posterior_trees.imaging.tiff import is_tiff
from posterior_trees.pictures.arrays import from_memory
from posterior_trees.pictures.digit import takes_digits
from posterior_trees.pictures.eyes import Eyes
from posterior_trees.pictures.importers import Importer, choose_importer, doubt_picture
from posterior_trees.predictor import Predictor
from posterior_trees.tree import level_sizes

Source = str | PathLike[str] | bytes | np.ndarray | Tensor | PlaneOfFile

PLANE = Plane()


class Reading(NamedTuple):
    """What is done to a picture before it is predicted; by default nothing.

    `resize` cuts the centre of a file and brings it to the size of a model that takes one only,
    `importer` makes the model's kind of picture of it (the digit of a photograph, say), and
    `scale` makes it larger or smaller for a model that takes any size. `is_clean` says whether
    the picture is the clean image, to be measured by the model's own measurement, or the
    measurement; None: what such a model usually gets. `plane` is which of a file's planes is
    meant, and a `scale` of None comes from the size of its pixels and of the model's. `is_cut` says
    that a portrait is cut around its eyes.
    """

    resize: bool = False
    importer: Importer | None = None
    scale: float | int | None = 1.0
    adjustment: Adjustment = Adjustment()
    is_clean: bool | None = None
    plane: Plane = Plane()
    is_cut: bool = False

    @classmethod
    def of(
        cls,
        *,
        resize: bool = False,
        digit: bool = False,
        align: Sequence[float | int] | None = None,
        lines: bool = False,
        scale: float | int | None = 1.0,
        levels: Sequence[float | int] | None = None,
        gamma: float | int = 1.0,
        invert: bool = False,
        is_clean: bool | None = None,
        plane: Plane = PLANE,
    ) -> "Reading":
        r"""`levels` are the stored values (0 to 255, or to 65535) that become black and white, and
        `gamma` bends what is between:
        $v \mapsto \operatorname{clip}(\tfrac{v - lo}{hi - lo}, 0, 1)^\gamma$. A camera's 12 bits in
        a 16-bit file need them, and floating-point values beyond [0, 1]. `invert` then exchanges
        black and white.

        `digit` finds the handwritten digit of a photograph, `align` cuts a portrait around its eyes
        (x and y of both), and `lines` makes thin black lines of a drawing."""
        importer = choose_importer(digit, align, lines)
        return cls(resize, importer, scale, Adjustment.of(levels, gamma, invert), is_clean, plane)

    def check(self, predictor: Predictor, count: int = 1) -> None:
        """Refuse what contradicts itself, the model or the `count` of pictures."""
        measurement = predictor.measurement
        if self.importer:
            self._refuse_beside(self.importer)
            self.importer.check(predictor)
        if count > 1 and isinstance(self.importer, Eyes):
            raise InputError(
                f"--align says where the eyes of one picture are, and {count} pictures are given: "
                "make one call for each, with its own --align and --out"
            )
        if self.scale is not None:
            check_scale(self.scale, measurement)
        if self.is_clean and not measurement.is_computable:
            raise InputError(
                "this model was trained on pairs and cannot measure a clean picture: give it the "
                "measurement itself"
            )

    def _refuse_beside(self, importer: Importer) -> None:
        """Refuse options that an importer leaves nothing to do."""
        is_given = {
            "--measured": self.is_clean is False,
            "--resize": self.resize,
            "--scale": self.scale != 1,
            "--levels": self.adjustment.levels is not None,
            "--gamma": self.adjustment.gamma != 1,
            "--invert": self.adjustment.is_inverted,
        }
        if found := [name for name in sorted(importer.excludes) if is_given[name]]:
            raise InputError(f"{importer.option} {importer.does}: leave {' and '.join(found)} out")


class Origin(NamedTuple):
    """Where a picture comes from: the side of a pixel of the file in µm, if that is known, how many
    of them a pixel of the picture is high and wide, and what changes when the file does."""

    pixel_size: float | int | None
    shrink: float
    stamp: Mapping[str, Any]
    channel: str = ""


class Picture(NamedTuple):
    """A picture as the model takes it. `stored` are the values of a file (of a digit, what was
    found), `resized` says in words what became of its size, `origin` is where it was read, and
    `importer_doubt` what its importer says of it."""

    name: str
    pixels: Float[Tensor, "b _ h w"]
    reading: Reading = Reading()
    stored: Stored | None = None
    resized: str = ""
    origin: Origin | None = None
    importer_doubt: str = ""

    def doubts(self, predictor: Predictor) -> str:
        """Why it, or what was made of it, may be none of the model's."""
        if self.importer_doubt or self.stored is None:
            return self.importer_doubt
        is_resized, told = bool(self.resized), self.reading
        return doubt_picture(self.stored, told.importer, is_resized, predictor, told.is_cut)


def read(
    source: Source, predictor: Predictor, reading: Reading | None = None, name: str = "the picture"
) -> Picture:
    """A file, the bytes of one, an open plane, an array `(h, w)` or `(h, w, c)`, or a tensor
    `(h, w)`, `(c, h, w)` or `(b, c, h, w)`, as `predictor` takes it. A path is its own name."""
    reading = reading or Reading()
    reading.check(predictor)
    if isinstance(source, Tensor | np.ndarray):
        if reading != Reading(is_clean=reading.is_clean):
            raise InputError("only files are resized or adjusted: do that to the numbers yourself")
        pixels = from_memory(source, predictor)
        _check_size(pixels, predictor, name)
        return Picture(name, pixels, reading)
    if isinstance(source, PlaneOfFile):
        plane: PlaneOfFile | None = source
    else:
        name = name if isinstance(source, bytes) else str(source)
        plane = None if isinstance(source, bytes) else open_plane(source, predictor, reading.plane)
    reading = reading._replace(scale=choose_scale(reading, plane, predictor))
    if plane is None:
        assert not isinstance(source, PlaneOfFile)
        content = _open(source, name)
        height, width, *_ = picture_header(content, name)
        have, decoded = (height, width), partial(decode_picture, content, name)
        stored, doubt = _fit(decoded, have, predictor, reading, name)
        stamp = {} if isinstance(source, bytes) else stamp_of(source)
        known, channel = reading.plane.pixel_size, ""
    else:

        def fitted(*how: Any, **options: Any) -> Stored:
            return fit_values(plane.read(slice(None), slice(None)), name, *how, **options)

        with plane:
            have = plane.shape
            stored, doubt = _fit(fitted, have, predictor, reading, name)
        known, stamp = plane.pixel_size and plane.pixel_size[0], plane.stack.stamp
        channel = plane.channels[plane.channel]
    importer, want = reading.importer, stored.shape[-2:]
    resized = importer.caption(have, predictor) if importer else caption_resize(have, want)
    scale = reading.scale or 1
    shrink = block_of(have, scale) or 1 / scale
    origin = Origin(known, shrink, stamp, channel)
    pixels = reading.adjustment.apply(stored, name)
    return Picture(name, pixels, reading, stored, resized, origin, doubt)


def choose_scale(reading: Reading, plane: PlaneOfFile | None, predictor: Predictor) -> float | int:
    """The scale that was asked for, or that which makes pixels as large as the model's."""
    if reading.scale is not None:
        return reading.scale
    have = plane.pixel_size and plane.pixel_size[0] if plane else reading.plane.pixel_size
    want = predictor.about.get("pixel_size")
    if have and want:
        scale = have / want
        check_scale(scale, predictor.measurement)
        return scale
    called = predictor.about.get("called") or predictor.name or "this model"
    lacks = [] if have else ["of the picture (none in the file: --pixel-size)"]
    lacks += [] if want else [f"of the model ({called} has none: --scale)"]
    raise InputError(f"--scale auto needs a pixel size {' and '.join(lacks)}")


def scaled_size(plane: PlaneOfFile, reading: Reading, predictor: Predictor) -> tuple[int, int]:
    """Height and width of a plane at the scale that is meant."""
    scale = choose_scale(reading, plane, predictor)
    return plane.shape if scale == 1 else scale_size(plane.shape, scale, plane.name)


def open_plane(path: str | PathLike[str], predictor: Predictor, plane: Plane) -> PlaneOfFile | None:
    """The plane of a microscope's file; None of a photograph, which Pillow reads."""
    file = Path(path)
    if not file.exists() or (file.is_dir() and not is_zarr(file)):
        return None
    plane = plane._replace(hint=str(predictor.about.get("input_channel") or "")
                           or predictor.name.partition("_to_")[0])  # fmt: skip
    is_told = plane._replace(hint="", pixel_size=None) != PLANE
    if file.is_file() and not is_tiff(file):
        return open_source(path, **plane._asdict()) if is_told else None
    try:
        stack = open_stack(path, plane.series)
    except MissingError:
        if is_told or file.is_dir() or has_more_images(file):
            raise
        return None  # Pillow reads plain TIFF without tifffile
    if stack is None or (is_photograph(stack) and not is_told):  # tells what does not fit
        return open_source(path, **plane._asdict()) if is_told else None
    try:
        return choose_plane(stack, plane)
    except BaseException:
        stack.close()
        raise


def _open(source: str | PathLike[str] | bytes, name: str) -> bytes:
    if isinstance(source, bytes):
        if not source:
            raise DataError(f"{name} is empty. Choose a picture file")
        return source
    path = Path(source)
    if path.is_dir():
        raise DataError(f"{path} is a folder. Name the pictures in it")
    if not path.exists():
        raise DataError(f"{path} does not exist. Check the name")
    return path.read_bytes()


def _fit(
    decoded: Callable[..., Stored], have: tuple[int, int], predictor: Predictor, reading: Reading,
    name: str,
) -> tuple[Stored, str]:  # fmt: skip
    """The stored values `(c, h, w)`, as many channels and pixels as the model takes, of a picture
    of the size `have`, and an importer's doubt: nothing is `decoded` before there is room."""
    wanted = predictor.measurement.picture_channels(predictor.channels)[0]
    if wanted not in (1, 3):
        raise DataError(
            f"this model takes {wanted or 'any number of'} channels, a file has 1 or 3: give a "
            "tensor"
        )
    if importer := reading.importer:
        return importer.make(decoded(1 if importer.is_grey else wanted), predictor, name)
    scale, size, block = reading.scale or 1, (), 0
    if scale != 1:
        size, block = scale_size(have, scale, name), block_of(have, scale)
    elif reading.resize:
        size = predictor.measurement.size or ()
    nodes = sum(level_sizes(predictor.branching)) * predictor.channels
    refuse_what_cannot_fit(  # all nodes are held at once, beside the picture's own values
        4 * (math.prod(have) + nodes * math.prod(size or have)),
        f"the tree of {name}, {times(size or have)} (height×width)",
        "cut the picture, make it smaller (--scale 1/2), or let it go to disk (--write zarr)",
    )
    stored = decoded(wanted, () if block else size, is_cut=scale == 1)
    stored = block_means(stored, block) if block else stored
    _check_size(stored, predictor, name)
    return stored, ""


def _check_size(pixels: Tensor | np.ndarray, predictor: Predictor, what: str) -> None:
    size = predictor.measurement.size
    if size and tuple(pixels.shape[-2:]) != size:
        have, want = times(pixels.shape[-2:]), times(size)
        takes = takes_digits(predictor)
        find = "for a photograph or a scan of a digit use --digit; else "
        raise InputError(
            f"{what} is {have} (height×width), the model takes {want}: {find if takes else ''}"
            f"resize it to {want}, or let --resize cut and resize it (on the page tick it; in "
            f"Python: predictor.predict(file, {'digit' if takes else 'resize'}=True))"
        )
