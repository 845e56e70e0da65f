r"""GroupNorm and LeakyReLU where a program can hold a group of one image: one kernel each way.

Small maps are bound by launches, not by bytes. Here a program reads its group once, and nothing is
left to be added up but, on the way back, the parameters' gradients over the images.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.kernels.plan import channels_last, like
from posterior_trees.fast.packing import power

SLOPE = tl.constexpr(0.2)
HELD = 32768
"""Values that a program can hold: a group of one map, on the way back of two."""


@triton.jit
@no_type_check
def _own_group(
    area, CHANNELS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """A program's image, group and channels, and where its values begin, with their places from
    there: 32 bits each, for of 64 the registers would be full."""
    groups: tl.constexpr = CHANNELS // GROUP
    image, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    pixel, k = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    channel = group * GROUP + k
    begin = image * area * CHANNELS + group * GROUP
    places = pixel[:, None] * CHANNELS + k[None, :]
    exists, inside = k < GROUP, (pixel < area)[:, None]
    return image, image * groups + group, channel, exists, begin, places, inside & exists[None, :]


@triton.jit
@no_type_check
def _group_norm(
    maps, gamma, beta, out, moments, area, count, epsilon, CHANNELS: tl.constexpr,
    KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    _, group, channel, exists, begin, places, mask = _own_group(area, CHANNELS, GROUP, BLOCK, ROWS)
    maps, out = maps + begin, out + begin
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
    known = exists & (channel < KNOWN)
    weight = tl.load(gamma + channel, mask=known, other=0.0)
    level = tl.load(beta + channel, mask=known, other=0.0)
    mean = tl.sum(tl.sum(x, axis=0), axis=0) / count
    centred = tl.where(mask, x - mean, 0.0)
    factor = tl.rsqrt(tl.sum(tl.sum(centred * centred, axis=0), axis=0) / count + epsilon)
    x = centred * (factor * weight)[None, :] + level[None, :]
    x = tl.where(x > 0, x, SLOPE * x)
    tl.store(out + places, x.to(out.dtype.element_ty), mask=mask)
    tl.store(moments + group * 2, mean)
    tl.store(moments + group * 2 + 1, factor)


@triton.jit
@no_type_check
def _gradients(
    maps, grads, moments, gamma, beta, out, of_parameters, area, count, CHANNELS: tl.constexpr,
    KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    image, group, channel, exists, begin, places, mask = _own_group(
        area, CHANNELS, GROUP, BLOCK, ROWS
    )
    maps, grads, out = maps + begin, grads + begin, out + begin
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grads + places, mask=mask, other=0.0).to(tl.float32)
    mean, factor = tl.load(moments + group * 2), tl.load(moments + group * 2 + 1)
    known = exists & (channel < KNOWN)
    weight = tl.load(gamma + channel, mask=known, other=0.0)
    level = tl.load(beta + channel, mask=known, other=0.0)
    x = (x - mean) * factor
    grad = tl.where(x * weight[None, :] + level[None, :] > 0, grad, SLOPE * grad)
    total, with_x = tl.sum(grad, axis=0), tl.sum(grad * x, axis=0)
    first = tl.sum(weight * total, axis=0) / count
    second = tl.sum(weight * with_x, axis=0) / count
    grad = factor * (weight[None, :] * grad - first - x * second)
    tl.store(out + places, grad.to(out.dtype.element_ty), mask=mask)
    place = of_parameters + image * 2 * CHANNELS + channel
    tl.store(place, with_x, mask=exists)
    tl.store(place + CHANNELS, total, mask=exists)


def fits(maps: Float[Tensor, "b c h w"], groups: int, count: int) -> bool:
    """Whether a program can hold a group of so many maps."""
    block, rows = _tile(maps, groups)
    return count * block * rows <= HELD


def small_norm(
    maps: Float[Tensor, "b c h w"],
    gamma: Float[Tensor, "known"],
    beta: Float[Tensor, "known"],
    groups: int,
    epsilon: float,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b groups 2"]]:
    """LeakyReLU of the normalised maps, and mean and inverse deviation of every group."""
    maps = channels_last(maps)
    batch, channels, height, width = maps.shape
    out = like(maps, channels, height, width)
    moments = maps.new_empty(batch, groups, 2, dtype=torch.float32)
    (block, rows), group, area = _tile(maps, groups), channels // groups, height * width
    _group_norm[(batch * groups,)](
        maps, gamma, beta, out, moments, area, float(group * area), epsilon,
        channels, len(gamma), group, block, rows, num_warps=_warps(block * rows),
    )  # fmt: skip
    return out, moments


def small_gradients(
    grads: Float[Tensor, "b c h w"],
    maps: Float[Tensor, "b c h w"],
    moments: Float[Tensor, "b groups 2"],
    gamma: Float[Tensor, "known"],
    beta: Float[Tensor, "known"],
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b 2 c"]]:
    """Of the maps, and of every image of gamma and beta; the formula is in `gradients.py`."""
    grads, maps = channels_last(grads), channels_last(maps)
    batch, channels, height, width = maps.shape
    groups, area = moments.shape[1], height * width
    out = like(maps, channels, height, width)
    of_parameters = moments.new_empty(batch, 2, channels)
    (block, rows), group = _tile(maps, groups), channels // groups
    _gradients[(batch * groups,)](
        maps, grads, moments, gamma, beta, out, of_parameters, area, float(group * area),
        channels, len(gamma), group, block, rows, num_warps=_warps(2 * block * rows),
    )  # fmt: skip
    return out, of_parameters


def _tile(maps: Tensor, groups: int) -> tuple[int, int]:
    """Channels of a group and pixels, each filled up to a power of two."""
    _, channels, height, width = maps.shape
    return power(channels // groups, least=1), power(height * width, least=1)


def _warps(values: int) -> int:
    """A thread holds 32 values or, of large groups, up to 64."""
    return min(16, max(1, power(values // 1024, least=1)))
