"""Triton kernels for the way back through GroupNorm and LeakyReLU, on channels-last maps."""

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.kernels.norm import (
    add_parts,
    load_line,
    load_moments,
    own_pixels,
    store_part,
)
from posterior_trees.fast.kernels.plan import PARTS, Pass, by_group, channels_last, deal_out, like
from posterior_trees.fast.kernels.small import SLOPE, fits, small_gradients

GRAD_SUMS, GRAD_MAPS = Pass(4096, 2, 8, PARTS), Pass(2048, 2, 8)


@triton.jit
@no_type_check
def _sloped(maps, grads, places, mask, a, b):
    """x, and the gradient with respect to a·x + b."""
    x = tl.load(maps + places, mask=mask, other=0.0).to(tl.float32)
    grad = tl.load(grads + places, mask=mask, other=0.0).to(tl.float32)
    return x, tl.where(x * a[None, :] + b[None, :] > 0, grad, SLOPE * grad)


@triton.jit
@no_type_check
def _grad_sums(
    maps, grads, moments, gamma, beta, sums, area, parts, per_part,
    CHANNELS: tl.constexpr, KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, KNOWN, GROUP)
    first = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    second = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        x, grad = _sloped(maps, grads, places, (pixel < end)[:, None] & exists[None, :], a, b)
        first += grad
        second += grad * x
    store_part(sums, first, second, channel, exists, CHANNELS)


@triton.jit
@no_type_check
def _grad_plan(
    sums, moments, gamma, plan, of_parameters, parts, count, CHANNELS: tl.constexpr,
    KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """From the sums to s and t of every group, and to the parameters' gradients."""
    groups: tl.constexpr = CHANNELS // GROUP
    image, group = (tl.program_id(0) // groups).to(tl.int64), tl.program_id(0) % groups
    k = tl.arange(0, BLOCK)
    channel, exists = group * GROUP + k, k < GROUP
    place = (image * groups + group) * 2
    mean, factor = tl.load(moments + place), tl.load(moments + place + 1)
    weight = tl.load(gamma + channel, mask=exists & (channel < KNOWN), other=0.0)
    total, with_x = add_parts(sums, image, channel, exists, parts, CHANNELS, PARTS, BLOCK)
    with_x = factor * (with_x - mean * total)  # now with the normalised x
    first = tl.sum(weight * total, axis=0) / count
    second = tl.sum(weight * with_x, axis=0) / count
    steep = -factor * factor * second
    tl.store(plan + place, steep)
    tl.store(plan + place + 1, -steep * mean - factor * first)
    places = of_parameters + image * 2 * CHANNELS + channel
    tl.store(places, with_x, mask=exists)
    tl.store(places + CHANNELS, total, mask=exists)


@triton.jit
@no_type_check
def _grad_maps(
    maps, grads, moments, gamma, beta, plan, out, area, parts, per_part,
    CHANNELS: tl.constexpr, KNOWN: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
    ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    image, begin, end, channel, exists = own_pixels(area, parts, per_part, CHANNELS, BLOCK)
    a, b = load_line(moments, gamma, beta, image, channel, exists, CHANNELS, KNOWN, GROUP)
    steep, level = load_moments(plan, image, channel, exists, CHANNELS, GROUP)
    for start in tl.range(begin, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * CHANNELS + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x, grad = _sloped(maps, grads, places, mask, a, b)
        grad = a[None, :] * grad + steep[None, :] * x + level[None, :]
        tl.store(out + places, grad.to(out.dtype.element_ty), mask=mask)


def gradients(
    grads: Float[Tensor, "b c h w"],
    maps: Float[Tensor, "b c h w"],
    moments: Float[Tensor, "b groups 2"],
    gamma: Float[Tensor, "known"],
    beta: Float[Tensor, "known"],
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b 2 c"]]:
    r"""Of the maps, from that of what `group_norm` returned; and those of gamma and beta, of every
    image by itself.

    With $g$ the gradient before the LeakyReLU, $r$ the inverse deviation, $\hat x = r (x - \mu)$
    and means over pixels and channels of a group,

    $$ \partial x = r \big( \gamma g - \overline{\gamma g}
       - \hat x \, \overline{\gamma g \hat x} \big), $$

    which is $a g + s x + t$ with one $a$ per image and channel, and one $s$ and $t$ per image and
    group. All of it follows from the sums of $g$ and of $g x$.
    """
    grads, groups = grads.to(maps.dtype), moments.shape[1]
    if fits(maps, groups, 2):
        return small_gradients(grads, maps, moments, gamma, beta)
    grads, maps = channels_last(grads), channels_last(maps)
    batch, channels, height, width = maps.shape
    area, group, norm = height * width, channels // groups, (moments, gamma, beta)
    share = deal_out(batch, channels, area, GRAD_SUMS)
    sums = moments.new_empty(batch, share.parts, 2, channels)
    _grad_sums[share.grid](
        maps, grads, *norm, sums, area, share.parts, share.per_part, channels, len(gamma), group,
        share.block, share.rows, GRAD_SUMS.stages, num_warps=GRAD_SUMS.warps,
    )  # fmt: skip
    plan, of_parameters = moments.new_empty(moments.shape), moments.new_empty(batch, 2, channels)
    _grad_plan[(groups * batch,)](
        sums, moments, gamma, plan, of_parameters, share.parts, float(group * area), channels,
        len(gamma), group, *by_group(channels, groups, share.parts), num_warps=8,
    )  # fmt: skip
    out, share = like(maps, channels, height, width), deal_out(batch, channels, area, GRAD_MAPS)
    _grad_maps[share.grid](
        maps, grads, *norm, plan, out, area, share.parts, share.per_part, channels, len(gamma),
        group, share.block, share.rows, GRAD_MAPS.stages, num_warps=GRAD_MAPS.warps,
    )  # fmt: skip
    return out, of_parameters
