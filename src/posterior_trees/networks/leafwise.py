"""Convolutions grouped by leaf as operations of torch, with a way back, on Triton kernels.

For decoders of at least 16 channels a leaf in half precision on CUDA; thinner ones run as dense
convolutions (`unet.LeafConv`). Forward, and back to the maps, each leaf's
channels meet only its own weights (`kernels/conv.py`); gradients of the weights are read off the
diagonal of a dense one. Both operations also return the sums of what they wrote, which the
normalisation that follows needs (`norm.py`).
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.networks.grouped import block_diagonal, enlarging, parted
from posterior_trees.networks.norm import HALF, has_kernels, on_its_device

LEAST = 16
"""Channels of a leaf, before and after: thinner ones idle the matrix unit,"""
MOST = 256
"""and of wider ones a tile does not fit into a GPU's shared memory."""


def is_worth_it(maps: Float[Tensor, "b c h w"], weight: Tensor, groups: int) -> bool:
    """Whether these operations can convolve the maps, and are faster than others."""
    thinnest, widest = sorted((weight.shape[0] // groups, weight.shape[1]))
    fits = groups > 1 and thinnest >= LEAST and widest <= MOST and weight.shape[2] == 3
    return fits and maps.is_cuda and maps.dtype in HALF and has_kernels()


@torch.library.custom_op("posterior_trees::leaf_conv", mutates_args=())
@on_its_device
def convolve(maps: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The grouped convolution of the maps, and its sums."""
    from posterior_trees.networks.kernels.conv import LeafWeight, leaf_conv

    packed = LeafWeight(weight.to(maps.dtype), groups)
    return leaf_conv(_last(maps), packed, len(weight))


@convolve.register_fake
def _(maps, weight, groups):
    from posterior_trees.networks.kernels.conv import parts_of

    return _out(maps, len(weight)), _sums(maps, parts_of(maps), len(weight))


@torch.library.custom_op("posterior_trees::leaf_up", mutates_args=())
@on_its_device
def convolve_up(
    features: Tensor, skip: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """The same of enlarged features joined with skip maps, leaf by leaf."""
    from posterior_trees.networks.kernels.conv import LeafWeight, UpWeight, leaf_up

    of_features, of_skip = parted(weight.to(skip.dtype), groups)
    up, across = UpWeight(of_features, groups), LeafWeight(of_skip, groups)
    return leaf_up(_last(features), up, _last(skip), across)


@convolve_up.register_fake
def _(features, skip, weight, groups):
    from posterior_trees.networks.kernels.conv import parts_of

    return _out(skip, len(weight)), _sums(skip, 4 * parts_of(features), len(weight))


@torch.library.custom_op("posterior_trees::leaf_conv_backward", mutates_args=())
@on_its_device
def convolve_backward(
    grads: Tensor, maps: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """Gradients of maps and weight."""
    from posterior_trees.networks.kernels.conv import LeafWeight, leaf_conv

    grads, maps = _last(grads.to(maps.dtype)), _last(maps)
    packed = LeafWeight(_turned(weight.to(maps.dtype), groups), groups)
    of_maps, _ = leaf_conv(grads, packed, maps.shape[1])
    return of_maps, _weight_gradient(grads, maps, groups).to(weight.dtype).contiguous()


@convolve_backward.register_fake
def _(grads, maps, weight, groups):
    return _out(maps, maps.shape[1]), weight.new_empty(weight.shape)


@torch.library.custom_op("posterior_trees::leaf_up_backward", mutates_args=())
@on_its_device
def convolve_up_backward(
    grads: Tensor, features: Tensor, skip: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of features, skip maps and weight."""
    from posterior_trees.networks.kernels.conv import LeafWeight, leaf_conv

    grads, features, skip = _last(grads.to(skip.dtype)), _last(features), _last(skip)
    first, second = parted(weight.to(skip.dtype), groups)
    kernel = _last(enlarging(block_diagonal(first, groups)))
    of_features = F.conv2d(grads, kernel, stride=2, padding=1)
    of_skip, _ = leaf_conv(grads, LeafWeight(_turned(second, groups), groups), skip.shape[1])
    of_kernel = _backward(grads, features, kernel, stride=2, is_transposed=True)
    of_first = _shrinking(_diagonal(of_kernel, groups)).unflatten(0, (groups, -1))
    of_first = of_first.transpose(1, 2).flatten(0, 1)
    of_weight = torch.cat([of_first, _weight_gradient(grads, skip, groups)], dim=1)
    return _last(of_features), of_skip, of_weight.to(weight.dtype).contiguous()


@convolve_up_backward.register_fake
def _(grads, features, skip, weight, groups):
    maps = _out(features, features.shape[1]), _out(skip, skip.shape[1])
    return *maps, weight.new_empty(weight.shape)


def _keep(ctx, inputs, output) -> None:
    *tensors, ctx.groups = inputs
    ctx.save_for_backward(*tensors)


def _go_back(ctx, grads, _):
    return *convolve_backward(grads, *ctx.saved_tensors, ctx.groups), None


def _go_back_up(ctx, grads, _):
    return *convolve_up_backward(grads, *ctx.saved_tensors, ctx.groups), None


convolve.register_autograd(_go_back, setup_context=_keep)
convolve_up.register_autograd(_go_back_up, setup_context=_keep)


def _turned(weight: Float[Tensor, "out in 3 3"], groups: int) -> Float[Tensor, "in2 out2 3 3"]:
    """The weight of the convolution that takes gradients back."""
    leaves = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    return leaves.flatten(0, 1).flip(2, 3)


def _weight_gradient(grads: Tensor, maps: Tensor, groups: int) -> Tensor:
    like = maps.new_empty(grads.shape[1], maps.shape[1], 3, 3)
    return _diagonal(_backward(grads, maps, _last(like), stride=1, is_transposed=False), groups)


def _backward(grads: Tensor, maps: Tensor, weight: Tensor, *, stride: int, is_transposed: bool):
    """The gradient of a dense convolution's weight; of `weight` only the shape matters."""
    geometry = [stride] * 2, [1, 1], [1, 1], is_transposed, [0, 0], 1
    _, gradient, _ = torch.ops.aten.convolution_backward(
        grads, maps, weight, None, *geometry, [False, True, False]
    )
    return gradient


def _diagonal(dense: Float[Tensor, "a b h w"], groups: int) -> Float[Tensor, "a b2 h w"]:
    """What of a dense weight a grouped one has."""
    blocks = dense.unflatten(1, (groups, -1)).unflatten(0, (groups, -1))
    return blocks.diagonal(dim1=0, dim2=2).movedim(-1, 0).flatten(0, 1)


def _shrinking(kernel: Float[Tensor, "a b 4 4"]) -> Float[Tensor, "a b 3 3"]:
    """The gradient of `enlarging`: per axis (e₂+e₃, e₁+e₂, e₀+e₁)."""
    for axis in (2, 3):
        e0, e1, e2, e3 = kernel.unbind(axis)
        kernel = torch.stack([e2 + e3, e1 + e2, e0 + e1], dim=axis)
    return kernel


def _last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _out(maps: Tensor, channels: int) -> Tensor:
    batch, _, height, width = maps.shape
    out = maps.new_empty(batch, channels, height, width)
    return torch.empty_like(out, memory_format=torch.channels_last)


def _sums(maps: Tensor, parts: int, channels: int) -> Tensor:
    return maps.new_empty((len(maps), parts, 2, channels), dtype=torch.float32)
