"""Triton kernels for the way back through GroupNorm and LeakyReLU, on channels-last maps."""

from typing import no_type_check

import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from posterior_trees.networks.kernels.norm import SLOPE, add_parts, own_share, store_part
from posterior_trees.networks.kernels.plan import Pass, by_group, channels_last, deal_out, like

GRAD_SUMS, GRAD_MAPS = Pass(2048, 2, 8), Pass(2048, 2, 8)


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
    maps, grads, scale, shift, sums, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    part, image, channel, exists, a, b = own_share(scale, shift, channels, CHANNELS)
    first = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    second = tl.zeros((ROWS, CHANNELS), dtype=tl.float32)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        x, grad = _sloped(maps, grads, places, (pixel < end)[:, None] & exists[None, :], a, b)
        first += grad
        second += grad * x
    store_part(sums, first, second, part, image, channel, exists, channels)


@triton.jit
@no_type_check
def _grad_plan(
    sums, gamma, moments, slope, offset, of_gamma, of_beta, parts, channels, count,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    group, image = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, GROUP_BLOCK)
    channel = group * GROUP + k
    exists = k < GROUP
    total, with_x = add_parts(sums, image, channel, exists, parts, channels, PARTS, GROUP_BLOCK)
    place = (image * tl.num_programs(0) + group) * 2
    mean, factor = tl.load(moments + place), tl.load(moments + place + 1)
    with_x = factor * (with_x - mean * total)  # now with the normalised x
    weight = tl.load(gamma + channel, mask=exists, other=0.0)
    first = tl.sum(weight * total, axis=0) / count
    second = tl.sum(weight * with_x, axis=0) / count
    places = image * channels + channel
    tl.store(of_beta + places, total, mask=exists)
    tl.store(of_gamma + places, with_x, mask=exists)
    steep = -factor * factor * second
    tl.store(slope + places, tl.zeros_like(total) + steep, mask=exists)
    tl.store(offset + places, tl.zeros_like(total) - steep * mean - factor * first, mask=exists)


@triton.jit
@no_type_check
def _grad_maps(
    maps, grads, scale, shift, slope, offset, out, area, per_part, channels,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    part, image, channel, exists, a, b = own_share(scale, shift, channels, CHANNELS)
    steep = tl.load(slope + image * channels + channel, mask=exists, other=0.0)
    level = tl.load(offset + image * channels + channel, mask=exists, other=0.0)
    end = tl.minimum(area, (part + 1) * per_part)
    for start in tl.range(part * per_part, end, ROWS, num_stages=STAGES):
        pixel = start + tl.arange(0, ROWS)
        places = (image * area + pixel)[:, None] * channels + channel[None, :]
        mask = (pixel < end)[:, None] & exists[None, :]
        x, grad = _sloped(maps, grads, places, mask, a, b)
        grad = a[None, :] * grad + steep[None, :] * x + level[None, :]
        tl.store(out + places, grad.to(out.dtype.element_ty), mask=mask)


def gradients(
    grads: Float[Tensor, "b c h w"],
    maps: Float[Tensor, "b c h w"],
    gamma: Float[Tensor, "c"],
    scale: Float[Tensor, "b c"],
    shift: Float[Tensor, "b c"],
    moments: Float[Tensor, "b groups 2"],
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "c"], Float[Tensor, "c"]]:
    r"""Of the maps, gamma and beta, from that of what `normalize` returned.

    With $g$ the gradient before the LeakyReLU, $r$ the inverse deviation, $\hat x = r (x - \mu)$
    and means over pixels and channels of a group,

    $$ \partial x = r \big( \gamma g - \overline{\gamma g}
       - \hat x \, \overline{\gamma g \hat x} \big), $$

    which is $a g + s x + t$ with one $a$, $s$, $t$ per image and channel. All of it follows from
    the sums of $g$ and of $g x$.
    """
    grads, maps = channels_last(grads.to(maps.dtype)), channels_last(maps)
    batch, channels, height, width = maps.shape
    area = height * width
    grid, per_part, shape = deal_out(batch, channels, area, GRAD_SUMS)
    sums = scale.new_empty(batch, grid[0], 2, channels)
    _grad_sums[grid](
        maps, grads, scale, shift, sums, area, per_part, channels, *shape,
        num_warps=GRAD_SUMS.warps,
    )  # fmt: skip
    slope, offset, of_gamma, of_beta = scale.new_empty(4, batch, channels)
    group, group_block, held = by_group(channels, moments.shape[1], grid[0])
    _grad_plan[(moments.shape[1], batch)](
        sums, gamma, moments, slope, offset, of_gamma, of_beta, grid[0], channels,
        float(group * area), group, group_block, held,
    )  # fmt: skip
    out = like(maps, channels, height, width)
    grid, per_part, shape = deal_out(batch, channels, area, GRAD_MAPS)
    _grad_maps[grid](
        maps, grads, scale, shift, slope, offset, out, area, per_part, channels, *shape,
        num_warps=GRAD_MAPS.warps,
    )  # fmt: skip
    return out, of_gamma.sum(dim=0).to(gamma.dtype), of_beta.sum(dim=0).to(gamma.dtype)
