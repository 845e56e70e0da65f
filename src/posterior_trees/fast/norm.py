"""GroupNorm followed by LeakyReLU: what stands between the convolutions of the U-Net.

In half precision both are one operation, forward (`kernels/norm.py`) and backward
(`kernels/gradients.py`): fewer passes over the map than plain torch makes, and the same to
rounding.
"""

import functools
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.networks.unet import SLOPE

HALF = (torch.bfloat16, torch.float16)

Rows = tuple[Float[Tensor, "b _"], Float[Tensor, "b _"]]
"""Weight and bias of a normalisation, for every image of a batch."""


def normalize_and_activate(
    norm: nn.GroupNorm,
    maps: Float[Tensor, "b c h w"],
    sums: Float[Tensor, "b parts 2 c"] | None = None,
    rows: Rows | None = None,
) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of the normalised maps, by our kernels where the norm's `rows_of` are given;
    `sums`, if the convolution left some, save a pass.

    Channels that `grouped.room_for` has added are groups of their own, and stay zero.
    """
    extra = maps.shape[1] - norm.num_channels
    groups = norm.num_groups + extra * norm.num_groups // norm.num_channels
    if rows is not None:
        return fused(maps, sums, *rows, groups, norm.eps)[0]
    if not extra:
        return F.leaky_relu(norm(maps), SLOPE, inplace=True)
    parameters = F.pad(torch.stack([norm.weight, norm.bias]), (0, extra)).unbind()
    return F.leaky_relu(F.group_norm(maps, groups, *parameters, norm.eps), SLOPE, inplace=True)


def rows_of(norms: Iterable[nn.GroupNorm], images: int) -> list[Rows]:
    """Weight and bias of every normalisation, the same for all images.

    On the way back each image has its own gradients of them. Those of all normalisations are then
    joined before they are summed over the images: one kernel when compiled, not one for each.
    """
    parameters: list[Tensor] = [part for norm in norms for part in (norm.weight, norm.bias)]
    joined = torch.cat(parameters)
    joined = joined.to(torch.promote_types(joined.dtype, torch.float32))  # sums are not in half
    rows = joined.expand(images, -1).split([len(p) for p in parameters], dim=1)
    return list(zip(rows[::2], rows[1::2], strict=True))


def on_its_device(function: Callable) -> Callable:
    """Launch on the GPU of the first argument: Triton would take the current one."""

    @functools.wraps(function)
    def guarded(first: Tensor, *rest):
        with torch.cuda.device_of(first):
            return function(first, *rest)

    return guarded


@torch.library.custom_op("posterior_trees::normalize_and_activate", mutates_args=())
@on_its_device
def fused(
    maps: Tensor, sums: Tensor | None, weight: Tensor, bias: Tensor, groups: int, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The activated maps, and mean and inverse deviation of every group. Weight and bias are given
    for every image, and alike."""
    from posterior_trees.fast.kernels.norm import group_norm

    return group_norm(maps, weight[0].contiguous(), bias[0].contiguous(), groups, epsilon, sums)


@fused.register_fake
def _(maps, sums, weight, bias, groups, epsilon):
    moments = maps.new_empty((len(maps), groups, 2), dtype=torch.float32)
    return _as_channels_last(maps), moments


@torch.library.custom_op("posterior_trees::normalize_and_activate_backward", mutates_args=())
@on_its_device
def fused_backward(
    grads: Tensor, maps: Tensor, moments: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of the maps, and of every image of weight and bias."""
    from posterior_trees.fast.kernels.gradients import gradients

    return gradients(grads, maps, moments, weight[0].contiguous(), bias[0].contiguous())


@fused_backward.register_fake
def _(grads, maps, moments, weight, bias):
    return _as_channels_last(maps), moments.new_empty((len(maps), 2, maps.shape[1]))


def _keep(ctx, inputs, output) -> None:
    maps, _, weight, bias, *_ = inputs
    ctx.save_for_backward(maps, output[1], weight, bias)


def _go_back(ctx, grads, _):
    """What is not a kernel of ours is plain torch, which the compiler fuses."""
    weight = ctx.saved_tensors[2]
    of_maps, of_parameters = fused_backward(grads, *ctx.saved_tensors)
    of_known = of_parameters[..., : weight.shape[1]].to(weight.dtype)
    return of_maps, None, *of_known.unbind(dim=1), None, None


fused.register_autograd(_go_back, setup_context=_keep)


def _as_channels_last(maps: Tensor) -> Tensor:
    return torch.empty_like(maps, memory_format=torch.channels_last)
