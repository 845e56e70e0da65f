"""Compile our Triton kernels for a GPU that need not be there: `compile_kernels.py CAPABILITY`.

Each problem of `kernels/check.py` is posed, and each kernel that it launches is compiled down to
machine code, not run. Prints a JSON table: kernel → the most bytes of shared memory of a block.
"""

import json
import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", int(sys.argv[1]), 32)


class Pretended:
    """What Triton asks a driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


shared: dict[str, int] = {}
launch = JITFunction.run


def compile_only(self, *arguments, grid, warmup, **options):
    kernel = launch(self, *arguments, grid=grid, warmup=True, **options)
    name = self.fn.__name__
    shared[name] = max(shared.get(name, 0), kernel.metadata.shared)
    return kernel


def draw(*shape: int) -> torch.Tensor:
    order = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.randn(shape).bfloat16().contiguous(memory_format=order)


driver.set_active(Pretended())
JITFunction.run = compile_only

from posterior_trees.fast.kernels.check import PROBLEMS  # noqa: E402

for problem in PROBLEMS:
    for _ in problem(draw):
        pass
print(json.dumps(shared))
