"""One image file → one array `(c, h, w)` of 8- or 16-bit numbers.

Files differ in what they store; arrays do not. Photographs are turned upright (EXIF), palettes are
looked up, transparent pixels are laid on white, and colour becomes grey, or grey colour, as asked.
A 16-bit grey file keeps its 16 bits; what else microscopes store (floating-point numbers, 32-bit
ones) only `decode_raw` gives, as it is, because nobody knows what is white. Choice: colour becomes
grey by Pillow's luma (ITU-R 601); the `Colorize` measurement, which uses the plain mean of the
channels, starts from colour images.
"""

import struct
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, UInt8, UInt16
from PIL import Image, ImageOps, UnidentifiedImageError

from posterior_trees.errors import DataError, plural

Pixels = UInt8[np.ndarray, "_ h w"] | UInt16[np.ndarray, "_ h w"]
Stored = Pixels | Float32[np.ndarray, "_ h w"]

SIDEWAYS = (5, 6, 7, 8)
"""EXIF orientations that exchange height and width."""

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What we open: pixels only. Others run a program (EPS) or decode before they tell a size (ICO)."""

Image.init()  # Pillow knows the less common of them only after this

UNREADABLE = (OSError, SyntaxError, ValueError, EOFError, LookupError, TypeError, OverflowError,
              struct.error)  # fmt: skip
"""What Pillow raises on damaged files."""


class Header(NamedTuple):
    """What a file says about its image before the pixels are decoded."""

    height: int
    width: int
    is_deep: bool
    """Whether it has 16 bits per pixel."""
    channels: int
    """As stored: 1 of a grey image, else 3."""


def looks_like_image(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a format that we open."""
    accepts = (Image.OPEN[name][1] for name in FORMATS)
    return any(accept(start) for accept in accepts if accept)


def has_more_images(path: Path) -> bool:
    """Whether Pillow sees more than one image in a file."""
    with path.open("rb") as file, errors_name(str(path)), Image.open(file, formats=FORMATS) as i:
        return _has_more(i)


def read_header(file: BufferedReader | BytesIO, name: str) -> Header:
    """Size and depth of an image as `decode` will give it."""
    with errors_name(name), Image.open(file, formats=FORMATS) as image:
        width, height = image.size
        if image.getexif().get(0x0112) in SIDEWAYS:
            width, height = height, width
        is_grey = image.mode in ("1", "L", "LA", "La") or image.mode[0] in "IF"
        _refuse_more(image, name)
        return Header(height, width, image.mode.startswith("I"), 1 if is_grey else 3)


def decode(
    file: BufferedReader | BytesIO, name: str, channels: int, size: tuple[int, ...] = ()
) -> Pixels:
    """The image in `file`, with 1 or 3 channels, brought to `size` = (h, w) if that is given."""
    stored = decode_raw(file, name, channels, size)
    if stored.dtype == np.float32:
        raise DataError(
            f"{name} has floating-point or 32-bit pixels, up to {stored.max():g}, and does not say "
            "which is white. Save it with 8 or 16 bits"
        )
    return stored


def decode_raw(
    file: BufferedReader | BytesIO, name: str, channels: int, size: tuple[int, ...] = (),
    is_cut: bool = True,
) -> Stored:  # fmt: skip
    """The same, but numbers that are not of 8 or 16 bits come as float32, whatever their range, and
    unless `is_cut` the whole image becomes `size`, not its centre."""
    with errors_name(name), Image.open(file, formats=FORMATS) as image:
        _refuse_more(image, name)
        image.load()
        upright = ImageOps.exif_transpose(image)
        if upright.mode[0] in "IF":
            return _deep(upright, name, channels, size, is_cut)
        if "A" in upright.mode.upper() or "transparency" in upright.info:
            white = Image.new("RGBA", upright.size, "white")
            upright = Image.alpha_composite(white, upright.convert("RGBA"))
        array = np.asarray(fit(upright.convert("L" if channels == 1 else "RGB"), size, is_cut))
    return np.ascontiguousarray(array.reshape(*array.shape[:2], channels).transpose(2, 0, 1))


def fit_values(
    values: np.ndarray, name: str, channels: int, size: tuple[int, ...] = (), is_cut: bool = True
) -> Stored:
    """The same of a plane `(h, w)` that was not read by Pillow."""
    if values.dtype == np.uint8:
        grey = np.asarray(fit(Image.fromarray(values), size, is_cut))
        return np.repeat(grey[None], channels, axis=0)
    if values.dtype != np.uint16:
        is_whole = values.dtype.kind in "iu" and abs(values.astype(np.int64)).max() < 2**31
        values = values.astype(np.int32 if is_whole else np.float32)
    return _deep(Image.fromarray(values), name, channels, size, is_cut)


def _has_more(image: Image.Image) -> bool:
    """Whether there is a second frame; counting them takes minutes where there are many."""
    if image.format not in ("GIF", "TIFF"):
        return getattr(image, "n_frames", 1) > 1  # which their headers say
    try:
        image.seek(1)
    except EOFError:
        return False
    return True


def _refuse_more(image: Image.Image, name: str) -> None:
    if image.format != "MPO" and _has_more(image):
        raise DataError(f"{name} holds more than one image. Save each as a file of its own")


def fit(image: Image.Image, size: tuple[int, ...], is_cut: bool = True) -> Image.Image:
    """Cut the centre to the shape of `size` = (h, w) and resize it, bicubic with antialiasing; or
    do not cut, where rounding alone makes the shapes differ."""
    if not size or (image.height, image.width) == tuple(size):
        return image
    h, w = size
    if not is_cut:
        return image.resize((w, h), Image.Resampling.BICUBIC)
    zoom = min(image.height / h, image.width / w)
    left, top = (image.width - w * zoom) / 2, (image.height - h * zoom) / 2
    # Rounding must not push the box beyond the edges.
    right, bottom = min(left + w * zoom, image.width), min(top + h * zoom, image.height)
    box = (max(left, 0.0), max(top, 0.0), right, bottom)
    return image.resize((w, h), Image.Resampling.BICUBIC, box=box)


def _deep(
    image: Image.Image, name: str, channels: int, size: tuple[int, ...], is_cut: bool
) -> Stored:
    """Grey of more than 8 bits: 16-bit integers where the numbers are such."""
    values = np.asarray(image).astype(np.float32)
    if bad := values.size - np.isfinite(values).sum():
        raise DataError(f"{name} has {plural(int(bad), 'pixel')} of NaN or infinity. Replace them")
    is_short = image.mode != "F" and values.min() >= 0 and values.max() <= 65535
    grey = np.asarray(fit(Image.fromarray(values), size, is_cut))
    if is_short:
        grey = grey.round().clip(0, 65535).astype(np.uint16)
    else:  # resizing rings at edges; numbers in [0, 1] stay there
        grey = grey.clip(values.min(), values.max())
    return np.repeat(grey[None], channels, axis=0)


@contextmanager
def errors_name(file: str) -> Generator[None, None, None]:
    """Turn what goes wrong inside Pillow into one clear error that names the file."""
    try:
        yield
    except DataError:
        raise
    except Image.DecompressionBombError as error:
        raise DataError(f"{file} is too large to decode safely ({error})") from error
    except UNREADABLE as error:
        why, fix = str(error), "Replace or remove it"
        if isinstance(error, UnidentifiedImageError):  # its words may name an object in memory
            why = "unknown format, as a phone's HEIC"
            fix = "Save or export it as JPEG or PNG, or remove it"
        raise DataError(
            f"{file} is truncated or not an image Pillow can read ({why}). {fix}"
        ) from error
