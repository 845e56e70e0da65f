r"""Where a growing network is asked while it learns: some pictures as a whole, others in a part.

`loss.regions` is the share of the others. A part is a box, a blob or a brush stroke of any size,
around a point inside what $y$ leaves open, and never leaves it. Its sizes are log-uniform, up to
the side of a square as large as all that is open. Numbers are drawn before (`DICE` of them for each
picture, uniform), so that drawing the parts is a function of tensors, in one recorded step.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

DICE = 8
"""Numbers for a picture: whether a part, which kind, where, and five for its form."""
SMALLEST = 1 / 12
"""Of a part's sides, in those of the largest."""


def draw_regions(
    dice: Float[Tensor, "b 8"], is_open: Float[Tensor, "b 1 h w"], share: float | int
) -> Float[Tensor, "b 1 h w"]:
    """A mask for each picture with at least one open pixel; a `share` of them are parts."""
    chance, kind, place, *form = dice.T[..., None, None]
    rows, columns = _from_a_point(place, is_open[:, 0])
    extent = is_open.sum(dim=(2, 3)).sqrt()[..., None]
    box = (rows.abs() <= _size(extent, form[0]) / 2) & (columns.abs() <= _size(extent, form[1]) / 2)
    part = torch.where(kind < 1 / 3, box, _blob(rows, columns, extent, form))
    part = torch.where(kind < 2 / 3, part, _stroke(rows, columns, extent, form))
    return is_open * ((chance >= share) | part).unsqueeze(1)


def _from_a_point(
    place: Float[Tensor, "b 1 1"], is_open: Float[Tensor, "b h w"]
) -> tuple[Float[Tensor, "b h 1"], Float[Tensor, "b 1 w"]]:
    """Rows and columns, counted from one of the pixels that are open."""
    height, width = is_open.shape[-2:]
    count = is_open.flatten(1).cumsum(dim=1)
    index = torch.searchsorted(count, place[:, 0] * count[:, -1:], right=True)[..., None]
    row, column = index.div(width, rounding_mode="floor"), index % width
    down = torch.arange(height, device=place.device)[:, None]
    return (down - row).to(place), (torch.arange(width, device=place.device) - column).to(place)


def _size(extent: Float[Tensor, "b 1 1"], number: Float[Tensor, "b 1 1"]) -> Tensor:
    return extent * torch.exp(math.log(SMALLEST) * number)


def _blob(rows: Tensor, columns: Tensor, extent: Tensor, form: list[Tensor]) -> Tensor:
    """A disc whose rim waves."""
    angle = torch.atan2(rows, columns)
    waves = torch.sin(2 * angle + math.tau * form[1]) + torch.sin(3 * angle + math.tau * form[2])
    return (rows**2 + columns**2).sqrt() <= _size(extent, form[0]) / 2 * (1 + 0.3 * waves)


def _stroke(rows: Tensor, columns: Tensor, extent: Tensor, form: list[Tensor]) -> Tensor:
    """Three straight pieces, one after the other."""
    length, brush = _size(extent, form[0]) / 2, 0.5 + _size(extent, form[1]) / 8
    near = torch.zeros_like(rows + columns, dtype=torch.bool)
    for turn in form[2:]:
        down, across = torch.sin(math.tau * turn), torch.cos(math.tau * turn)
        along = (rows * down + columns * across).clamp(min=0).minimum(length)
        off = (rows - along * down) ** 2 + (columns - along * across) ** 2
        near = near | (off <= brush**2)
        rows, columns = rows - length * down, columns - length * across
    return near
