"""Which form of a network is fast here: the only place that asks for CUDA and for Triton.

Checkpoints, averages of weights and ONNX know the plain network alone. Our kernels, for prediction,
need Triton, which CUDA builds of torch bring along, a C compiler, and a GPU with 160 KiB of shared
memory for a block (`ROOMY`); without them plain torch does the same. `PTREES_KERNELS=0` in the
environment forbids them.
"""

import copy
import os
import shutil
import warnings
from importlib.util import find_spec

import torch
from torch import nn

from posterior_trees.errors import InputError
from posterior_trees.fast.fold import FoldedUNet
from posterior_trees.fast.grouped import power
from posterior_trees.fast.unet import HALF, FastUNet
from posterior_trees.networks.unet import UNet
from posterior_trees.predictor import Predictor, TreePredictor

ROOMY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs with bfloat16 and 160 KiB of shared memory for a block (A100, Orin,
H100, B200, B300). Those of desktops have 99, which the widest matrix does not fit into."""
LAYERS = (nn.Conv2d, nn.GroupNorm, nn.LeakyReLU, nn.Dropout2d)
"""Of a U-Net that nobody has changed."""
MATRIX = 2**15
"""Numbers of a matrix that `kernels.predict.to_leaves` can hold, beside its tiles, in the shared
memory of a GPU: 160 KiB for 1024×32."""

_works: bool | None = None


def accelerate(network: nn.Module) -> nn.Module:
    """On CUDA a twin of our U-Net that computes the same, there and back, from the very Parameters
    of the `network`; elsewhere, and of other networks, the network itself."""
    is_ours = type(network) is UNet and all(
        isinstance(layer, LAYERS)
        for block in (*network.encoder, *network.decoder)
        for layer in block.children()
    )
    return FastUNet(network) if is_ours and _is_on_cuda(network) else network


def accelerated(predictor: Predictor) -> Predictor:
    """The same predictor on the twin of its network."""
    if type(predictor) is not TreePredictor:
        return predictor
    twin = accelerate(predictor.network)
    if twin is predictor.network:
        return predictor
    other = predictor.with_measurement(predictor.measurement)
    other.network = twin
    return other


def for_prediction(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in the form and the precision that predicts fastest; its head keeps float32."""
    if not _is_on_cuda(network):
        return copy.deepcopy(network).to(dtype).eval().requires_grad_(False)
    if not isinstance(network, UNet):
        fast = part = copy.deepcopy(network).to(dtype).eval().requires_grad_(False)
    else:
        if dtype in HALF and is_narrow(network) and has_kernels():
            from posterior_trees.fast.fused import FusedUNet

            return FusedUNet(network, dtype)
        fast = FoldedUNet(network).to(dtype)
        part = fast.plain
    if isinstance(head := getattr(part, "head", None), nn.Module):
        head.to(torch.float32)
    return fast.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]


def is_narrow(network: UNet) -> bool:
    """Whether the matrix that makes leaves of the last map fits into a tile."""
    into, out = network.to_image.in_channels, network.to_image.out_channels
    return into <= 1024 and power(into) * power(out) <= MATRIX


def has_kernels() -> bool:
    """Whether our kernels run on this computer, with NVIDIA GPUs that are all `ROOMY`, where they
    have proved themselves (`kernels/check.py`), and the user has not forbidden them."""
    global _works
    wish = os.environ.get("PTREES_KERNELS") or "1"
    if wish not in ("0", "1"):
        raise InputError(f"PTREES_KERNELS is {wish!r}; it is 0 (never) or 1 (where they run)")
    if wish == "0":
        return False
    if _works is None:
        _works = _find_out()
    return _works


def _is_on_cuda(network: nn.Module) -> bool:
    return next(network.parameters()).device.type == "cuda"


def _find_out() -> bool:
    if torch.version.hip is not None:
        return False
    has_compiler = any(map(shutil.which, (os.environ.get("CC") or "gcc", "clang")))  # as Triton
    if find_spec("triton") is None or not has_compiler:
        return False
    found = _capabilities()
    return bool(found) and all(gpu in ROOMY for gpu in found) and _prove_themselves()


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
