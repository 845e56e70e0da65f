"""Do the kernels run on this GPU, and compute there what plain torch does?

Triton compiles a kernel where it is first used, and may fail there: on a GPU that nobody has tried,
with too little shared memory, in another version. So before the first use a small problem of each
kind is solved, the widest tiles of the convolutions and of the last layer among them. The answers
are plain torch's, in float32 on the CPU. `accelerate.kernels` asks, once in a process; compiled
kernels stay in Triton's cache on disk.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.fast.grouped import parted
from posterior_trees.fast.kernels.conv import leaf_conv, leaf_up
from posterior_trees.fast.kernels.gradients import gradients
from posterior_trees.fast.kernels.norm import (
    Norm,
    channel_sums,
    group_norm,
    measure,
    normalize_and_average,
)
from posterior_trees.fast.kernels.predict import normalize_and_halve, padded, to_leaves
from posterior_trees.fast.packing import pack, pack_up
from posterior_trees.networks.unet import deal

NEAR = 0.02
"""Largest error, relative to the answer: five times what rounding to bfloat16 costs."""
EPSILON = 1e-5
Draw = Callable[..., Tensor]
Pairs = Iterator[tuple[str, Tensor, Tensor]]


def check_kernels(device: str | torch.device, dtype: torch.dtype) -> None:
    """Raise a RuntimeError that names a kernel whose answer is wrong, or let through what Triton
    raises. Neither the modes nor the random numbers of the caller matter, or change."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        numbers = torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")
        order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        return numbers.to(device, dtype).contiguous(memory_format=order)

    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            modes.enter_context(torch.autocast(kind, torch.bfloat16, enabled=False))
        for problem in PROBLEMS:
            for name, got, answer in problem(draw):
                _compare(name, got, answer)


def _compare(name: str, got: Float[Tensor, "*shape"], answer: Float[Tensor, "*shape"]) -> None:
    error = ((got.detach().float().cpu() - answer).norm() / answer.norm()).item()
    if not error <= NEAR:  # a NaN is not
        raise RuntimeError(f"{name} is off by {error:.2g} of itself, more than {NEAR}")


def _normalisation(draw: Draw) -> Pairs:
    """Of groups that a program holds, and of larger ones; there and back."""
    for kind, side in (("small", 4), ("large", 64)):
        maps, grads = draw(2, 16, side, side), draw(2, 16, side, side)
        gamma, beta = draw(2, 16).float()
        out, moments = group_norm(maps, gamma, beta, 1, EPSILON)
        of_maps, of_parameters = gradients(grads, maps, moments, gamma, beta)
        inputs = [tensor.float().cpu().requires_grad_() for tensor in (maps, gamma, beta)]
        answer = F.leaky_relu(F.group_norm(inputs[0], 1, *inputs[1:], EPSILON), 0.2)
        answer.backward(grads.float().cpu())
        yield f"the {kind} normalisation", out, answer.detach()
        got = of_maps, *of_parameters.sum(dim=0).unbind()
        for gradient, tensor in zip(got, inputs, strict=True):
            assert tensor.grad is not None
            yield f"the way back through the {kind} normalisation", gradient, tensor.grad


def _convolution(draw: Draw) -> Pairs:
    """By the widest leaf there may be, with its sums."""
    maps, weight = draw(1, 256, 32, 33), draw(256, 256, 3, 3)
    out, sums = leaf_conv(maps, pack(weight, 1), 256, 1)
    answer = F.conv2d(maps.float().cpu(), weight.float().cpu(), padding=1)
    yield "the convolution by leaf", out, answer
    squares = sums.sum(dim=1)[:, 1]
    yield "the sum of squares of a convolution", squares, answer.square().sum(dim=(2, 3))


def _enlargement(draw: Draw) -> Pairs:
    """Of the features of three leaves, two of which share a tile."""
    features, skip, weight = draw(1, 96, 4, 6), draw(1, 48, 8, 12), draw(48, 48, 3, 3)
    of_features, of_skip = parted(weight, 3)
    out, _ = leaf_up(features, pack_up(of_features, 3), skip, pack(of_skip, 3), 3)
    joined = deal(F.interpolate(features.float().cpu(), scale_factor=2), skip.float().cpu(), 3)
    answer = F.conv2d(joined, weight.float().cpu(), padding=1, groups=3)
    yield "the enlarging convolution", out, answer


def _prediction(draw: Draw) -> Pairs:
    """What else is done in the pass that normalises, with the largest matrix there may be."""
    maps, (gamma, beta), matrix = draw(1, 1024, 4, 4), draw(2, 1024).float(), draw(27, 1024)
    how = Norm(measure(channel_sums(maps), 8, 16, EPSILON), gamma, beta)
    plain = F.group_norm(maps.float().cpu(), 8, gamma.cpu(), beta.cpu(), EPSILON)
    answer = F.leaky_relu(plain, 0.2)
    out, half = normalize_and_halve(maps, how)
    yield "the halving normalisation", out, answer
    yield "the halving normalisation", half, F.avg_pool2d(answer, 2)
    out, means = normalize_and_average(maps, how)
    yield "the averaging normalisation", out, answer
    yield "the average", means.sum(dim=1), answer.mean(dim=(2, 3))
    packed = padded(matrix)
    leaves, _ = to_leaves(maps, how, packed, gamma.new_zeros(packed.shape[1]), 27)
    yield "the last layer", leaves, F.conv2d(answer, matrix.float().cpu()[:, :, None, None])


PROBLEMS = _normalisation, _convolution, _enlargement, _prediction
