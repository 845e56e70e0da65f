"""`torch.compile` as we use it: without the padding of strides that can make results wrong.

The compiler may lengthen the rows of what it keeps on a GPU to a multiple of 128 bytes. In torch
2.11 a kernel may then read with the longer rows what another wrote with the shorter ones (pytorch
issue 194281, mended later): nothing fails, the numbers are wrong. Rows of 28×28 pixels are
lengthened, those of 64×64 are not: digits with a shared decoder diverged of it.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch._functorch.config as tracing

SAFE: dict[str, Any] = {"comprehensive_padding": False}
FEW_LAUNCHES: dict[str, Any] = {
    "realize_opcount_threshold": 1000,
    "realize_reads_threshold": 16,
    "split_reductions": False,
}
"""Of little data a number is computed again sooner than a launch of its own can keep it."""


def compiled(
    function: Callable, *, is_dynamic: bool | None = None, has_little_data: bool = False
) -> Any:
    """The function or network, compiled for the sizes it meets; `is_dynamic` as in torch."""
    options = SAFE | (FEW_LAUNCHES if has_little_data else {})
    return torch.compile(function, dynamic=is_dynamic, options=options)


def plain_way_back() -> AbstractContextManager:
    """For the time a network is compiled under autocast: its gradients get the types of the way
    there, as without the compiler. It would let autocast choose once more (pytorch issue 179804),
    and what is to stay in float32, like our probability head, would go back in bfloat16. Torch
    before 2.9 cannot be told."""
    has_choice = hasattr(tracing, "backward_pass_autocast")
    return tracing.patch(backward_pass_autocast="off") if has_choice else nullcontext()
