"""Do the kernels run on this GPU, and compute there what plain torch does?

Triton compiles a kernel where it is first used, and may fail there: on a GPU that nobody has tried,
with too little shared memory, in another version. So before the first use a small problem of each
kind is solved, the widest tile of the last layer among them. The answers are plain torch's, in
float32 on the CPU. `accelerate.has_kernels` asks, once in a process; compiled kernels stay in
Triton's cache on disk.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.fast.kernels.norm import Norm, group_norm, measure, normalize_and_average
from posterior_trees.fast.kernels.predict import normalize_and_halve, padded, to_leaves

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
    """Of groups that a program holds, and of larger ones."""
    for kind, side in (("small", 4), ("large", 64)):
        maps, (gamma, beta) = draw(2, 16, side, side), draw(2, 16).float()
        plain = F.group_norm(maps.float().cpu(), 1, gamma.cpu(), beta.cpu(), EPSILON)
        out = group_norm(maps, gamma, beta, 1, EPSILON)
        yield f"the {kind} normalisation", out, F.leaky_relu(plain, 0.2)


def _prediction(draw: Draw) -> Pairs:
    """What else is done in the pass that normalises, with the largest matrix there may be."""
    maps, (gamma, beta), matrix = draw(1, 1024, 4, 4), draw(2, 1024).float(), draw(27, 1024)
    how = Norm(measure(maps, 8, EPSILON), gamma, beta)
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


PROBLEMS = _normalisation, _prediction
