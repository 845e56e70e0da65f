"""Where in a picture a question is asked: a mask or a box, inside what y leaves open."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.measure import Measurement

Region = Tensor | Sequence[int]
"""A mask in [0, 1], (h, w) or one for each picture, or a box: top, left, height, width."""


def open_part(
    measurement: Measurement, image: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b 1 h w"]:
    """1 where the measurement leaves something open."""
    share = measurement.open_share
    share = share.to(image) if isinstance(share, Tensor) else image.new_full((), share)
    is_open = (share > 0).to(image.dtype).expand(*image.shape[-3:])
    return is_open.amax(dim=0)[None, None].expand(len(image), -1, -1, -1)


def look_at(
    region: Region | None, image: Float[Tensor, "b c h w"], measurement: Measurement
) -> Float[Tensor, "b 1 h w"]:
    """The region of each picture, as a mask inside what is open; refuses one that is not there."""
    is_open = open_part(measurement, image)
    if region is None:
        return is_open
    height, width = image.shape[-2:]
    mask = region if isinstance(region, Tensor) else _mask_of(region, height, width)
    mask = mask.to(image)
    if mask.shape[-2:] != (height, width):
        raise InputError(
            f"the region is a mask of {'×'.join(map(str, mask.shape[-2:]))}, the picture "
            f"{height}×{width}: give a mask of the picture's size, or a box (top, left, height, "
            "width)"
        )
    if not bool(((mask >= 0) & (mask <= 1)).all()):
        raise InputError(f"the region goes from {mask.min():g} to {mask.max():g}; a mask is in "
                         "[0, 1], 1 where something is asked")  # fmt: skip
    mask = mask.reshape(-1, 1, height, width)
    if len(mask) not in (1, len(image)):
        raise InputError(f"{len(mask)} regions for {len(image)} pictures: give one, or one each")
    inside = mask * is_open
    empty = (inside.flatten(1).sum(dim=1) == 0).nonzero().flatten().tolist()
    if empty:
        rows = is_open[0, 0].amax(dim=1).nonzero().flatten().tolist()
        columns = is_open[0, 0].amax(dim=0).nonzero().flatten().tolist()
        what = "is empty" if not bool(mask.any()) else "shows only what is known already"
        raise InputError(
            f"the region {what}: ask inside what the measurement leaves open, rows {rows[0]} to "
            f"{rows[-1]}, columns {columns[0]} to {columns[-1]}"
        )
    return inside


def _mask_of(box: Sequence[int], height: int, width: int) -> Tensor:
    if not isinstance(box, Sequence) or len(box) != 4:
        raise InputError(f"the region is {box!r:.60}; a box is (top, left, height, width)")
    top, left, tall, wide = (int(number) for number in box)
    if not (0 <= top < top + tall <= height and 0 <= left < left + wide <= width):
        raise InputError(
            f"the box {list(box)} (top, left, height, width) does not lie inside the picture of "
            f"{height}×{width}, or is empty"
        )
    mask = torch.zeros(height, width)
    mask[top : top + tall, left : left + wide] = 1.0
    return mask
