"""Grouped and enlarging convolutions written as others: what their weights and maps become."""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def block_diagonal(
    weight: Float[Tensor, "out in kh kw"], groups: int
) -> Float[Tensor, "out in2 kh kw"]:
    """The weight of the dense convolution that equals a grouped one."""
    blocks = weight.unflatten(0, (groups, -1)).movedim(0, -1)
    dense = torch.diag_embed(blocks, dim1=0, dim2=2)
    return dense.flatten(2, 3).flatten(0, 1)


def enlarging(weight: Float[Tensor, "out in 3 3"]) -> Float[Tensor, "in out 4 4"]:
    """The kernel of the transposed convolution (stride 2, padding 1) that equals nearest-neighbour
    enlargement followed by a convolution with `weight`: per axis (w₂, w₁+w₂, w₀+w₁, w₀), which is
    (w₂, w₁, w₀) in both of its places. All four corners at once are one kernel when compiled."""
    turned = weight.flip(2, 3).transpose(0, 1)
    places = [(left, 1 - left, top, 1 - top) for top in (0, 1) for left in (0, 1)]
    return reduce(torch.add, [F.pad(turned, place) for place in places])


def parted(weight: Float[Tensor, "out in 3 3"], groups: int) -> tuple[Tensor, Tensor]:
    """The weights of the features and of the skip maps, in the first layer of an `UpBlock`."""
    split = weight.shape[1] - len(weight) // groups  # a leaf's part of the skip maps is as wide
    return weight[:, :split], weight[:, split:]


def aligned_conv(
    maps: Float[Tensor, "b c h w"],
    weight: Float[Tensor, "c2 c 1 1"],
    bias: Float[Tensor, "c2"] | None,
) -> Float[Tensor, "b c2 h w"]:
    """A 1×1 convolution with outputs added to a multiple of eight, which GPUs are fast at, and cut
    off again: the result is not dense."""
    extra = -len(weight) % 8
    if extra:
        weight = F.pad(weight, (0, 0) * 3 + (0, extra))
        bias = None if bias is None else F.pad(bias, (0, extra))
    out = F.conv2d(maps, weight, bias)
    return out[:, : out.shape[1] - extra]


def room_for(channels: int, groups: int) -> int:
    """Channels with zeros added to a multiple of eight, if these fill normalisation groups of their
    own. Where GPUs convolve in half precision, cuDNN would otherwise add them to every map anew."""
    extra = -channels % 8
    return channels if extra % (channels // groups) else channels + extra


def power(number: int, least: int = 16) -> int:
    """The next power of two: of those the blocks of Triton are made."""
    return max(least, 1 << (number - 1).bit_length())


def ordered(weight: Float[Tensor, "a b kh kw"], maps: Float[Tensor, "n c h w"]) -> Tensor:
    """A weight with its channels last where those of the maps are: cuDNN would reorder it, on the
    way back once more."""
    is_last = maps.is_contiguous(memory_format=torch.channels_last)
    return weight.contiguous(memory_format=torch.channels_last) if is_last else weight


def widen(weight: Float[Tensor, "out in kh kw"], out: int, into: int) -> Tensor:
    """The weight of a convolution between maps with zeros added to their channels."""
    extra = 0, into - weight.shape[1], 0, out - len(weight)
    return F.pad(weight, (0, 0, 0, 0, *extra)) if any(extra) else weight
