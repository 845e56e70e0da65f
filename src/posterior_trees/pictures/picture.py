r"""A user's own pictures: what the model takes of them, and whether they fit it.

`as_picture` takes a file, an array or a tensor, grey or colour, of 8 or 16 bits or with numbers in
[0, 1], and makes of it a float32 batch `(b, c, h, w)` in [0, 1] with the channels of the model's
measurement. Files and arrays are converted: grey is copied into the channels of a colour model, and
colour becomes grey by luma, exactly as when training files are read (`data.decode`). A tensor says
by its shape which channels it has, so wrong ones are an error.

What is done to a file's values, and whether they then fit the model, is in `adjust.py`.
"""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.adjust import SLACK, Adjustment, refuse_with_digit
from posterior_trees.imaging.decode import Stored, decode_raw, read_header
from posterior_trees.imaging.pixels import to_float
from posterior_trees.imaging.size import check_scale, scale_size, times
from posterior_trees.pictures.digits.find import check_takes_digits, find_digit, takes_digits
from posterior_trees.predictor import TreePredictor

LUMA = (0.299, 0.587, 0.114)
"""ITU-R 601, as Pillow and so `data.decode` have it."""


def as_picture(
    picture: str | PathLike[str] | np.ndarray | Tensor, predictor: TreePredictor
) -> Float[Tensor, "b c h w"]:
    """A file, an array `(h, w)` or `(h, w, c)`, or a tensor `(h, w)`, `(c, h, w)` or `(b, c, h, w)`
    as a batch that `predictor.measurement.observe` takes."""
    if isinstance(picture, Tensor):
        pixels = _from_tensor(picture, predictor)
    elif isinstance(picture, np.ndarray):
        pixels = _from_array(picture, predictor)
    else:
        return read_picture(picture, predictor)
    _check_size(pixels, predictor, "the picture")
    return pixels


def read_picture(
    file: str | PathLike[str],
    predictor: TreePredictor,
    resize: bool = False,
    levels: Sequence[float | int] | None = None,
    gamma: float | int = 1.0,
    digit: bool = False,
    scale: float | int = 1.0,
    invert: bool = False,
) -> Float[Tensor, "1 c h w"]:
    r"""The picture in a file; `resize` cuts its centre and brings it to the size of the mask of a
    model that has one, `digit` finds the handwritten digit in it (`digit.py`), and `scale` makes it
    larger or smaller for a model that takes any size (`size.py`).

    `levels` are the stored values (0 to 255, or to 65535) that become black and white, and `gamma`
    bends what is between: $v \mapsto \operatorname{clip}(\tfrac{v - lo}{hi - lo}, 0, 1)^\gamma$.
    A camera's 12 bits in a 16-bit file need them, and floating-point values beyond [0, 1]. `invert`
    then exchanges black and white.
    """
    adjustment = Adjustment.of(levels, gamma, invert)
    if digit:
        refuse_with_digit(adjustment, resize, scale=scale)
    stored = read_stored(file, predictor, resize, digit, scale)
    return adjustment.apply(stored, str(file))


def read_stored(
    file: str | PathLike[str],
    predictor: TreePredictor,
    resize: bool = False,
    digit: bool = False,
    scale: float | int = 1.0,
) -> Stored:
    """The values in a picture file `(c, h, w)`, as many channels and pixels as the model takes."""
    check_scale(scale, predictor.measurement)
    if digit:
        check_takes_digits(predictor.measurement, predictor.channels, predictor.name)
    path, wanted = Path(file), _channels(predictor)[0]
    if wanted not in (1, 3):
        raise DataError(f"this model takes {wanted} channels, a file has 1 or 3: give a tensor")
    if path.is_dir():
        raise DataError(f"{path} is a folder. Name the pictures in it")
    if not path.exists():
        raise DataError(f"{path} does not exist. Check the name")
    with path.open("rb") as opened:
        size = predictor.measurement.size if resize else ()
        if scale != 1:
            size = scale_size(read_header(opened, str(path))[:2], scale, str(path))
            opened.seek(0)
        stored = decode_raw(opened, str(path), wanted, size, is_cut=scale == 1)
    if digit:
        return find_digit(stored, str(path))
    _check_size(stored, predictor, str(path))
    return stored


def _from_tensor(tensor: Tensor, predictor: TreePredictor) -> Tensor:
    allowed, shape = _channels(predictor), tuple(tensor.shape)
    if tensor.ndim not in (2, 3, 4) or not tensor.numel():
        raise InputError(f"the tensor has shape {shape}; give (h, w), (c, h, w) or (b, c, h, w)")
    pixels = _to_unit(tensor, predictor)
    if tensor.ndim == 2:
        return _convert(pixels.expand(1, 1, *shape), allowed)
    pixels = pixels if tensor.ndim == 4 else pixels.unsqueeze(0)
    if pixels.shape[1] not in allowed:
        raise InputError(
            f"the tensor of shape {shape} has {pixels.shape[1]} channels, this model takes "
            f"{' or '.join(map(str, allowed))}; channels come before height and width"
        )
    return pixels


def _from_array(array: np.ndarray, predictor: TreePredictor) -> Tensor:
    layers = array[:, :, None] if array.ndim == 2 else array
    if layers.ndim != 3 or layers.shape[2] not in (1, 3, 4) or not array.size:
        raise InputError(
            f"the array has shape {array.shape}; give (h, w), or (h, w, c) with 1, 3 or 4 channels"
        )
    if array.dtype.kind not in "fu":
        raise InputError(f"the pixels are {array.dtype}; give uint8, uint16 or float in [0, 1]")
    layers = layers.astype(np.float32 if array.dtype.kind == "f" else array.dtype.newbyteorder("="))
    pixels = _to_unit(torch.from_numpy(np.ascontiguousarray(layers)), predictor)
    pixels = pixels.permute(2, 0, 1).unsqueeze(0)
    if pixels.shape[1] == 4:  # transparent pixels are laid on white
        colour, opacity = pixels[:, :3], pixels[:, 3:]
        pixels = colour * opacity + (1 - opacity)
    return _convert(pixels, _channels(predictor))


def _convert(pixels: Tensor, allowed: Sequence[int]) -> Tensor:
    """Grey copied into colour, or colour made grey, unless the channels are welcome as they are."""
    have, want = pixels.shape[1], allowed[0]
    if have in allowed:
        return pixels
    if have == 1:
        return pixels.expand(-1, want, -1, -1)
    if want == 1:
        return (pixels * pixels.new_tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)
    raise InputError(f"the picture has {have} channels, this model takes {want}: give a tensor")


def _channels(predictor: TreePredictor) -> tuple[int, ...]:
    """The numbers of channels that a picture may have, the first for files."""
    return predictor.measurement.picture_channels(predictor.channels)


def _to_unit(values: Tensor, predictor: TreePredictor) -> Tensor:
    """Pixels as float32 in [0, 1]; a measurement with noise may leave it as far as noise goes."""
    if values.dtype in (torch.uint8, torch.uint16):
        return to_float(values)
    if not values.is_floating_point():
        raise InputError(f"the pixels are {values.dtype}; give uint8, uint16 or float in [0, 1]")
    values = values.detach().float()
    bad = int(values.numel() - values.isfinite().sum())
    if bad:
        total = values.numel()
        raise InputError(
            f"{bad} of {total} pixels are NaN or infinite; replace them by numbers in [0, 1]"
        )
    noise = 8 * float(predictor.measurement.noise)
    low, high = values.min().item(), values.max().item()
    if low < -SLACK - noise or high > 1 + SLACK + noise:
        raise InputError(
            f"pixels go from {low:g} to {high:g}, the limits are {0 - noise:g} and {1 + noise:g}: "
            "divide by 255 (16-bit: by 65535), or bring [-1, 1] to [0, 1] by (x + 1) / 2"
        )
    return values if noise else values.clamp(0, 1)


def _check_size(pixels: Tensor | np.ndarray, predictor: TreePredictor, what: str) -> None:
    size = predictor.measurement.size
    if size and tuple(pixels.shape[-2:]) != size:
        have, want = times(pixels.shape[-2:]), times(size)
        takes = takes_digits(predictor.measurement, predictor.channels)
        find = "for a photograph or a scan of a digit use `ptrees predict --digit`; else "
        raise InputError(
            f"{what} is {have} (height×width), the model takes {want}: {find if takes else ''}"
            f"resize it to {want}, or let `ptrees predict --resize` do it (in Python: "
            f"`predictor.predict(read_picture(file, predictor, {'digit' if takes else 'resize'}="
            "True))`, from posterior_trees.pictures.picture)"
        )
