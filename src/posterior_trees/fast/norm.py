"""GroupNorm followed by LeakyReLU: what stands between the convolutions of the U-Net.

On CUDA in half precision both are one operation, forward (`kernels/norm.py`) and backward
(`kernels/gradients.py`): fewer passes over the map than plain torch makes, and the same to
rounding. It needs Triton, which CUDA builds of torch bring along, a C compiler, and a GPU with
160 KiB of shared memory for a block (`ROOMY`); without them, everywhere else, and with
`PTREES_KERNELS=0` in the environment, plain torch does it.
"""

import functools
import os
import shutil
import warnings
from collections.abc import Callable, Iterable
from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.2
HALF = (torch.bfloat16, torch.float16)
ROOMY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs with bfloat16 and 160 KiB of shared memory for a block (A100, Orin,
H100, B200, B300). Those of desktops have 99, which a tile of a wide leaf does not fit into."""

Rows = tuple[Float[Tensor, "b _"], Float[Tensor, "b _"]]
"""Weight and bias of a normalisation, for every image of a batch."""

_found: bool | None = None


def has_kernels() -> bool:
    """Whether our kernels, these and those of `leafwise.py` and `fused.py`, run on this computer:
    with Triton and a C compiler, on NVIDIA GPUs that are all `ROOMY`, where they have proved
    themselves (`kernels/check.py`); unless `PTREES_KERNELS=0` forbids it.

    Found out once. Ask before compiling a network, so that the compiler meets a constant.
    """
    global _found
    if _found is None:
        _found = _find_out()
    return _found


def _find_out() -> bool:
    if os.environ.get("PTREES_KERNELS") == "0" or torch.version.hip is not None:
        return False
    has_compiler = any(map(shutil.which, (os.environ.get("CC") or "gcc", "clang")))  # as Triton
    if find_spec("triton") is None or not has_compiler:
        return False
    found = _capabilities()
    return bool(found) and all(gpu in ROOMY for gpu in found) and _prove_themselves()


# What torch.compiler.assume_constant_result does, which would import the whole compiler.
_find_out.__dict__["_dynamo_marked_constant"] = True


def _capabilities() -> list[tuple[int, int]]:
    return [torch.cuda.get_device_capability(gpu) for gpu in range(torch.cuda.device_count())]


def _prove_themselves() -> bool:
    """Let each kind of kernel solve a small problem: what fails must not fail in a training."""
    try:
        from posterior_trees.fast.kernels.check import check_kernels

        check_kernels("cuda", torch.bfloat16)
    except Exception as error:  # a compiler raises whatever it likes
        reason = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(
            "the Triton kernels do not work here, so plain torch is used, which is slower: "
            f"{reason[0]} (PTREES_KERNELS=0 in the environment says so without trying)",
            stacklevel=2,
        )
        return False
    return True


def normalize_and_activate(
    norm: nn.Module,
    maps: Float[Tensor, "b c h w"],
    sums: Float[Tensor, "b parts 2 c"] | None = None,
    rows: Rows | None = None,
) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of the normalised maps; `sums`, if the convolution left some, save a pass, and the
    norm's own of `rows_of` many save launches.

    Channels that `grouped.room_for` has added are groups of their own, and stay zero.
    """
    if not isinstance(norm, nn.GroupNorm):
        return F.leaky_relu(norm(maps), SLOPE, inplace=True)
    extra = maps.shape[1] - norm.num_channels
    groups = norm.num_groups + extra * norm.num_groups // norm.num_channels
    if maps.is_cuda and maps.dtype in HALF and has_kernels():
        weight, bias = rows or rows_of([norm], len(maps))[0]
        return fused(maps, sums, weight, bias, groups, norm.eps)[0]
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


def uses_kernels(maps: Tensor) -> bool:
    """Whether what a network makes of these maps is normalised by our kernels."""
    return is_half(maps) and has_kernels()


def is_half(maps: Tensor) -> bool:
    """Whether a convolution of these maps runs in half precision on CUDA."""
    return maps.is_cuda and (maps.dtype in HALF or torch.is_autocast_enabled("cuda"))


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
