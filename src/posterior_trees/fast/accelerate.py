"""Which form of a network is fast here: the only place that asks for CUDA and for Triton.

Checkpoints, averages of weights and ONNX know the plain network alone. Our kernels need Triton,
which CUDA builds of torch bring along, a C compiler, and a GPU with 160 KiB of shared memory for a
block (`ROOMY`); without them plain torch does the same. `PTREES_KERNELS=0` in the environment
forbids them, `PTREES_KERNELS=norm,leaf` all but these (`KERNELS`): `ptrees bench kernels` compares.
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
from posterior_trees.fast.leafwise import MOST
from posterior_trees.fast.norm import HALF
from posterior_trees.fast.packing import power
from posterior_trees.fast.unet import FastUNet
from posterior_trees.networks.unet import UNet
from posterior_trees.predictor import Predictor, TreePredictor

KERNELS = frozenset({"norm", "leaf", "fused"})
"""Normalisation with its activation; convolutions by leaf; a whole network for prediction."""
ROOMY = ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3))
"""Compute capabilities of GPUs with bfloat16 and 160 KiB of shared memory for a block (A100, Orin,
H100, B200, B300). Those of desktops have 99, which a tile of a wide leaf does not fit into."""
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
    return FastUNet(network, kernels()) if is_ours and _is_on_cuda(network) else network


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
        ours = kernels() if dtype in HALF else frozenset()
        if "fused" in ours and is_narrow(network):
            from posterior_trees.fast.fused import FusedUNet

            return FusedUNet(network, dtype, by_leaf="leaf" in ours)
        fast = FoldedUNet(network, ours).to(dtype)
        part = fast.plain
    if isinstance(head := getattr(part, "head", None), nn.Module):
        head.to(torch.float32)
    return fast.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]


def is_narrow(network: UNet) -> bool:
    """Whether the maps of a leaf, and the matrix that makes leaves of the last one, fit into the
    tiles of our kernels. A shared decoder is cuDNN's, and may be of any width."""
    by_leaf = [c for c in network.decoder.modules() if isinstance(c, nn.Conv2d) and c.groups > 1]
    widest = max((max(c.out_channels // c.groups, c.weight.shape[1]) for c in by_leaf), default=0)
    into, out = network.to_image.in_channels, network.to_image.out_channels
    return widest <= 2 * MOST and into <= 1024 and power(into) * power(out) <= MATRIX


def kernels() -> frozenset[str]:
    """Our kernels that run on this computer, on NVIDIA GPUs that are all `ROOMY`, where they have
    proved themselves (`kernels/check.py`), and that the user has not forbidden."""
    global _works
    wish = os.environ.get("PTREES_KERNELS") or "1"
    if wish == "0":
        return frozenset()
    asked = KERNELS if wish == "1" else frozenset(wish.split(","))
    if asked - KERNELS:
        names = ", ".join(sorted(KERNELS))
        raise InputError(f"PTREES_KERNELS is {wish!r}; it is 0, 1 or some of {names}")
    if _works is None:
        _works = _find_out()
    return asked if _works else frozenset()


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
