r"""Connected components of a picture's marked pixels, in torch alone.

Every marked pixel $p$ starts with its own place as its number $L_p$. For all neighbours $p, q$ at
once, the larger of their numbers is joined to the smaller one, and then every number is followed to
its end:

$$ L_{\max(L_p, L_q)} \leftarrow \min(L_p, L_q), \qquad L_p \leftarrow L_{L_p}, $$

until neighbours agree (Shiloach & Vishkin, 1982). A component's number is then its first pixel. The
work grows with the marked pixels, and with the logarithm of how long their components are.
"""

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

NEIGHBOURS = ((0, 1), (1, -1), (1, 0), (1, 1))
"""Rows and columns to the neighbours that come later; the others have this one as theirs."""


def label(mask: Bool[Tensor, "h w"]) -> Int64[Tensor, "h w"]:
    """The number of each pixel's component, 1, 2, … by first pixel in reading order; 0 outside.

    Pixels that touch at a side or a corner belong together.
    """
    places = mask.nonzero()
    order = torch.full(mask.shape, -1, dtype=torch.long, device=mask.device)
    order[mask] = torch.arange(len(places), device=mask.device)
    one, other = _edges(order)
    number = torch.arange(len(places), device=mask.device)
    while not torch.equal(number[one], number[other]):
        ends = torch.stack([number[one], number[other]])
        number.scatter_reduce_(0, ends.amax(dim=0), ends.amin(dim=0), "amin")
        while not torch.equal(further := number[number], number):
            number = further
    labels = torch.zeros_like(order)
    labels[mask] = number.unique(return_inverse=True)[1] + 1
    return labels


def _edges(order: Int64[Tensor, "h w"]) -> tuple[Int64[Tensor, "e"], Int64[Tensor, "e"]]:
    """The pairs of marked neighbours, by their places in the list of marked pixels."""
    h, w = order.shape
    pairs = []
    for down, right in NEIGHBOURS:
        here = order[: h - down, max(-right, 0) : w - max(right, 0)]
        there = order[down:, max(right, 0) : w - max(-right, 0)]
        both = (here >= 0) & (there >= 0)
        pairs.append(torch.stack([here[both], there[both]]))
    one, other = torch.cat(pairs, dim=1)
    return one, other


def sizes(labels: Int64[Tensor, "h w"]) -> Int64[Tensor, "n"]:
    """Number of pixels of components 1, 2, …"""
    return labels.flatten().bincount()[1:]
