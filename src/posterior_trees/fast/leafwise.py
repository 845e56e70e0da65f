"""Convolutions grouped by leaf as operations of torch, with a way back, on Triton kernels.

For decoders of at least 16 channels a leaf in half precision; thinner ones run as dense
convolutions (`unet.py`). Forward, and back to the maps, each leaf's
channels meet only its own weights (`kernels/conv.py`); gradients of the weights are read off the
diagonal of a dense one. Both operations also return the sums of what they wrote, which the
normalisation that follows needs (`norm.py`).

An operation is nothing but its kernel. What weights become for it, and what becomes of gradients,
is plain torch, which the compiler fuses: inside an operation each step would be a launch.
"""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.fast.grouped import block_diagonal, enlarging, parted
from posterior_trees.fast.norm import HALF, on_its_device
from posterior_trees.fast.packing import pack, pack_up

LEAST = 16
"""Channels of a leaf, before and after: thinner ones idle the matrix unit,"""
MOST = 256
"""and of wider ones a tile does not fit into a GPU's shared memory."""


def is_worth_it(weight: Tensor, groups: int, *maps: Float[Tensor, "b _ _ _"]) -> bool:
    """Whether these operations can convolve the maps, joined, and are faster than others."""
    thinnest, widest = sorted((weight.shape[0] // groups, weight.shape[1]))
    fits = groups > 1 and thinnest >= LEAST and widest <= MOST and weight.shape[2] == 3
    fits = fits and sum(m.shape[1] for m in maps) == weight.shape[1] * groups
    return fits and maps[-1].dtype in HALF


def convolve(maps: Tensor, weight: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """The grouped convolution of the maps, and its sums."""
    packed = pack(weight.detach().to(maps.dtype), groups)
    return leaf_conv(maps, packed, weight, len(weight), groups)


def convolve_up(
    features: Tensor, skip: Tensor, weight: Tensor, groups: int
) -> tuple[Tensor, Tensor]:
    """The same of enlarged features joined with skip maps, leaf by leaf."""
    of_features, of_skip = parted(weight.detach().to(skip.dtype), groups)
    packed = pack_up(of_features, groups), pack(of_skip, groups)
    return leaf_up(features, skip, *packed, weight, groups)


@torch.library.custom_op("posterior_trees::leaf_conv", mutates_args=())
@on_its_device
def leaf_conv(
    maps: Tensor, packed: Tensor, weight: Tensor | None, channels: int, groups: int
) -> tuple[Tensor, Tensor]:
    """A convolution by a packed weight; gradients go to the `weight` it was made of."""
    from posterior_trees.fast.kernels import conv

    return conv.leaf_conv(maps, packed, channels, groups)


@leaf_conv.register_fake
def _(maps, packed, weight, channels, groups):
    from posterior_trees.fast.kernels.conv import parts_of

    return _out(maps, channels), _sums(maps, parts_of(maps), channels)


@torch.library.custom_op("posterior_trees::leaf_up", mutates_args=())
@on_its_device
def leaf_up(
    features: Tensor,
    skip: Tensor,
    of_features: Tensor,
    of_skip: Tensor,
    weight: Tensor,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """The same of enlarged features and skip maps."""
    from posterior_trees.fast.kernels import conv

    return conv.leaf_up(features, of_features, skip, of_skip, groups)


@leaf_up.register_fake
def _(features, skip, of_features, of_skip, weight, groups):
    from posterior_trees.fast.kernels.conv import parts_of

    return _out(skip, len(weight)), _sums(skip, 4 * parts_of(features), len(weight))


def _keep(ctx, inputs, output) -> None:
    maps, _, weight, _, ctx.groups = inputs
    ctx.save_for_backward(maps, weight)


def _go_back(ctx, grads, _):
    """Gradients of maps and weight."""
    maps, weight = ctx.saved_tensors
    grads = _last(grads.to(maps.dtype))
    of_maps = _back_to_maps(grads, weight.to(maps.dtype), ctx.groups)
    of_weight = _weight_gradient(grads, _last(maps), ctx.groups)
    return of_maps, None, _laid_out(of_weight, weight), None, None


def _keep_up(ctx, inputs, output) -> None:
    features, skip, _, _, weight, ctx.groups = inputs
    ctx.save_for_backward(features, skip, weight)


def _go_back_up(ctx, grads, _):
    """Gradients of features, skip maps and weight."""
    features, skip, weight = ctx.saved_tensors
    groups, grads = ctx.groups, _last(grads.to(skip.dtype))
    first, second = parted(weight.to(skip.dtype), groups)
    kernel = _last(enlarging(block_diagonal(first, groups)))
    of_features = F.conv2d(grads, kernel, stride=2, padding=1)
    of_skip = _back_to_maps(grads, second, groups)
    of_kernel = _backward(grads, _last(features), kernel, stride=2, is_transposed=True)
    of_first = _shrinking(_diagonal(of_kernel, groups)).unflatten(0, (groups, -1))
    of_first = of_first.transpose(1, 2).flatten(0, 1)
    of_weight = torch.cat([of_first, _weight_gradient(grads, _last(skip), groups)], dim=1)
    return of_features, of_skip, None, None, _laid_out(of_weight, weight), None


leaf_conv.register_autograd(_go_back, setup_context=_keep)
leaf_up.register_autograd(_go_back_up, setup_context=_keep_up)


def _back_to_maps(grads: Tensor, weight: Tensor, groups: int) -> Tensor:
    """The gradient of the maps: a convolution by the turned weight."""
    packed = pack(_turned(weight, groups), groups)
    return leaf_conv(grads, packed, None, weight.shape[1] * groups, groups)[0]


def _turned(weight: Float[Tensor, "out in 3 3"], groups: int) -> Float[Tensor, "in2 out2 3 3"]:
    """The weight of the convolution that takes gradients back."""
    leaves = weight.unflatten(0, (groups, -1)).transpose(1, 2)
    return leaves.flatten(0, 1).flip(2, 3)


def _weight_gradient(grads: Tensor, maps: Tensor, groups: int) -> Tensor:
    out, into = grads.shape[1], maps.shape[1]
    like = maps.new_empty_strided((out, into, 3, 3), (9 * into, 1, 3 * into, into))
    return _diagonal(_backward(grads, maps, like, stride=1, is_transposed=False), groups)


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


def _laid_out(gradient: Tensor, weight: Tensor) -> Tensor:
    """In the dtype and the order of its weight, or autograd would copy it once more."""
    is_last = weight.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if is_last else torch.contiguous_format
    return gradient.to(weight.dtype).contiguous(memory_format=order)


def _shrinking(kernel: Float[Tensor, "a b 4 4"]) -> Float[Tensor, "a b 3 3"]:
    """The gradient of `enlarging`: per axis (e₂+e₃, e₁+e₂, e₀+e₁)."""
    rows = kernel[:, :, :3], kernel[:, :, 1:]
    return reduce(torch.add, [part[..., i : i + 3] for part in rows for i in (0, 1)]).flip(2, 3)


def _last(maps: Tensor) -> Tensor:
    return maps.contiguous(memory_format=torch.channels_last)


def _out(maps: Tensor, channels: int) -> Tensor:
    batch, _, height, width = maps.shape
    out = maps.new_empty(batch, channels, height, width)
    return torch.empty_like(out, memory_format=torch.channels_last)


def _sums(maps: Tensor, parts: int, channels: int) -> Tensor:
    return maps.new_empty((len(maps), parts, 2, channels), dtype=torch.float32)
