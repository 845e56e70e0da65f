r"""The size that a picture is brought to for a model, in pixels, and how that is said.

A model with a hole takes pictures of its mask's size, and others are cut to that shape and resized.
All other models take any size, but one of pairs knows its things at one magnification: a picture of
another one is to be scaled first,

$$ (h, w) \mapsto (\operatorname{round}(s h), \operatorname{round}(s w)), $$

before anything else is done to its values (`adjust.py`), so that a camera's pixels are averaged as
it counted them.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.errors import DataError, InputError
from posterior_trees.measure import Measurement

SCALES = (1 / 16, 16.0)
"""The least and the greatest scale: beyond, a picture has no more to show."""
ROUNDED = 0.002
"""How far a scale may be from 1/2, 1/3 …: 0.333 is a third."""
MEGAPIXELS = 178
"""Of a scaled picture; Pillow opens no file of more."""


def check_scale(scale: float | int, measurement: Measurement) -> None:
    """Refuse a scale that no picture or not this model can have; 1 is none."""
    least, most = SCALES
    if not (math.isfinite(scale) and least <= scale <= most):
        raise InputError(
            f"the scale is {scale:g}; it must be from {least:g} to {most:g} (0.5: half as high and "
            "wide)"
        )
    if scale != 1 and measurement.size:
        raise InputError(
            f"the model takes {times(measurement.size)} pixels and nothing else: leave --scale out "
            "(--resize brings pictures to that size)"
        )


def block_of(size: Sequence[int], scale: float | int) -> int:
    """The side of the blocks whose means a picture at 1/2, 1/3 … of its size is made of, as cameras
    bin; 0 at other scales, and of pictures without a whole block."""
    block = round(1 / scale)
    is_whole = block > 1 and abs(block * scale - 1) < ROUNDED and min(size) >= block
    return block if is_whole else 0


def block_means(stored: Shaped[np.ndarray, "c h w"], block: int) -> Shaped[np.ndarray, "c _ _"]:
    """Means of whole blocks; integers are rounded, and what is left over at the ends is cut off."""
    c, (h, w) = len(stored), (side // block * block for side in stored.shape[1:])
    parts = stored[:, :h, :w].reshape(c, h // block, block, w // block, block)
    means = parts.mean(axis=(2, 4), dtype=np.float64)
    means = means if stored.dtype == np.float32 else np.floor(means + 0.5)
    return means.astype(stored.dtype)


def scale_size(size: Sequence[int], scale: float | int, name: str) -> tuple[int, int]:
    """Height and width of the picture `name` after scaling."""
    if block := block_of(size, scale):
        return size[0] // block, size[1] // block
    height, width = (max(1, round(side * scale)) for side in size)
    if scale > 1 and height * width > 1e6 * MEGAPIXELS:
        raise DataError(
            f"{name} would have {times((height, width))} pixels at {scale:g} of its size, the "
            f"limit is {MEGAPIXELS} million. Choose a smaller --scale, or cut it"
        )
    return height, width


def caption_resize(have: Sequence[int], want: Sequence[int]) -> str:
    """What was done to a picture of `have` = (h, w) that became `want`; empty if nothing was.
    `decode.fit` cuts where the shapes differ."""
    if tuple(have) == tuple(want):
        return ""
    zooms = [h / w for h, w in zip(have, want, strict=True)]
    cut = [h / min(zooms) - w for h, w in zip(have, want, strict=True)]  # less than 1 is rounding
    how = "cut to its centre and resized" if max(cut) >= 1 else "resized"
    return f"{how} from {times(have)} to {times(want)} (height×width)"


def shrink(images: Float[Tensor, "*b h w"], side: int) -> Float[Tensor, "*b h2 w2"]:
    """Images whose longer side is above `side` pixels, at that size, by averages of areas."""
    zoom = side / max(images.shape[-2:])
    if zoom >= 1:
        return images
    size = [max(1, round(length * zoom)) for length in images.shape[-2:]]
    small = F.interpolate(images.reshape(-1, 1, *images.shape[-2:]), size=size, mode="area")
    return small.reshape(*images.shape[:-2], *size)


def times(size: Sequence[int]) -> str:
    """A size in words."""
    return "×".join(map(str, size))
