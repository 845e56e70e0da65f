r"""Connected components of a picture's marked pixels, in torch alone.

Every marked pixel starts with a number of its own, then takes the largest in its 3×3 neighbourhood,

$$ L_p \leftarrow \max_{q \in N(p)} L_q, \qquad L_p \leftarrow L_{L_p}, $$

until nothing changes. The second step (a number is the place of a pixel, whose number is at least
as large) lets numbers jump along a line instead of walking it.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor
from torch.nn import functional as F


def label(mask: Bool[Tensor, "h w"]) -> Int64[Tensor, "h w"]:
    """The number of each pixel's component, 1, 2, … by first pixel in reading order; 0 outside.

    Pixels that touch at a side or a corner belong together.
    """
    h, w = mask.shape
    own = torch.arange(h * w, 0, -1, device=mask.device).reshape(h, w)
    numbers = torch.where(mask, own, 0)
    while True:
        spread = _largest_near(numbers) * mask
        # number v belongs to the pixel in place h·w − v; 0 stays 0
        jumped = torch.where(mask, spread.flatten()[(h * w - spread).clamp(max=h * w - 1)], 0)
        if torch.equal(jumped, numbers):
            break
        numbers = jumped
    kept = numbers.unique()
    kept = kept[kept > 0].flip(0)  # the largest number is the first pixel in reading order
    ranks = torch.zeros(h * w + 1, dtype=torch.long, device=mask.device)
    ranks[kept] = torch.arange(1, len(kept) + 1, device=mask.device)
    return ranks[numbers]


def sizes(labels: Int64[Tensor, "h w"]) -> Int64[Tensor, "n"]:
    """Number of pixels of components 1, 2, …"""
    return labels.flatten().bincount()[1:]


def _largest_near(numbers: Int64[Tensor, "h w"]) -> Int64[Tensor, "h w"]:
    """The maximum over 3×3 pixels, in the floats that hold these whole numbers exactly."""
    floats = torch.float32 if numbers.numel() < 2**24 else torch.float64
    return F.max_pool2d(numbers[None, None].to(floats), 3, stride=1, padding=1)[0, 0].long()
