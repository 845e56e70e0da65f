"""Pictures that are in memory already, as arrays or tensors: which shapes and numbers are taken."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError, plural
from posterior_trees.imaging.adjust import SLACK, to_float
from posterior_trees.predictor import Predictor

LUMA = (0.299, 0.587, 0.114)
"""ITU-R 601, as Pillow and so `imaging.decode` have it."""


def from_memory(picture: np.ndarray | Tensor, predictor: Predictor) -> Float[Tensor, "b c h w"]:
    """An array `(h, w)` or `(h, w, c)`, which is converted to the model's channels, or a tensor
    `(h, w)`, `(c, h, w)` or `(b, c, h, w)`, whose channels must be right."""
    if isinstance(picture, Tensor):
        return _from_tensor(picture, predictor)
    return _from_array(picture, predictor)


def _from_tensor(tensor: Tensor, predictor: Predictor) -> Tensor:
    allowed, shape = predictor.measurement.picture_channels(predictor.channels), tuple(tensor.shape)
    if tensor.ndim not in (2, 3, 4) or not tensor.numel():
        raise InputError(f"the tensor has shape {shape}; give (h, w), (c, h, w) or (b, c, h, w)")
    pixels = _to_unit(tensor, predictor)
    if tensor.ndim == 2:
        return _convert(pixels.expand(1, 1, *shape), allowed)
    pixels = pixels if tensor.ndim == 4 else pixels.unsqueeze(0)
    if pixels.shape[1] not in allowed:
        raise InputError(
            f"the tensor of shape {shape} has {plural(pixels.shape[1], 'channel')}, this "
            f"model takes {' or '.join(map(str, allowed))}; channels come before height and width"
        )
    return pixels


def _from_array(array: np.ndarray, predictor: Predictor) -> Tensor:
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
    return _convert(pixels, predictor.measurement.picture_channels(predictor.channels))


def _convert(pixels: Tensor, allowed: Sequence[int]) -> Tensor:
    """Grey copied into colour, or colour made grey, unless the channels are welcome as they are."""
    have, want = pixels.shape[1], allowed[0]
    if have in allowed:
        return pixels
    if have == 1:
        return pixels.expand(-1, want, -1, -1)
    if want == 1:
        return (pixels * pixels.new_tensor(LUMA)[:, None, None]).sum(dim=1, keepdim=True)
    raise InputError(
        f"the picture has {plural(have, 'channel')}, this model takes {want}: give a tensor"
    )


def _to_unit(values: Tensor, predictor: Predictor) -> Tensor:
    """Pixels as float32 in [0, 1]; a measurement with noise may leave it as far as noise goes."""
    if values.dtype in (torch.uint8, torch.uint16):
        return to_float(values)
    if not values.is_floating_point():
        raise InputError(f"the pixels are {values.dtype}; give uint8, uint16 or float in [0, 1]")
    values = values.detach().float()
    if bad := int(values.numel() - values.isfinite().sum()):
        raise InputError(
            f"{bad} of {values.numel()} pixels are NaN or infinite; replace them by numbers in "
            "[0, 1]"
        )
    noise = 8 * float(predictor.measurement.noise)
    low, high = values.min().item(), values.max().item()
    if low < -SLACK - noise or high > 1 + SLACK + noise:
        raise InputError(
            f"pixels go from {low:g} to {high:g}, the limits are {0 - noise:g} and {1 + noise:g}: "
            "divide by 255 (16-bit: by 65535), or bring [-1, 1] to [0, 1] by (x + 1) / 2"
        )
    return values if noise else values.clamp(0, 1)
