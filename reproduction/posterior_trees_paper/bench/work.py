r"""What a network has to do for one image: operations, parameters, and bytes moved.

Counted with tensors that have a shape and no content, at every operation that torch dispatches:
nothing is computed, and any network can be counted. A convolution of
$c_{in} \to c_{out}$ channels in $g$ groups with $k \times k$ weights on $h \times w$ pixels has

$$ \text{multiply-adds} = h\,w\,k^2\, c_{out}\, c_{in} / g $$

and two floating-point operations in each. Every operation reads its inputs and writes its output:
their sum is what a plain, unfused run moves through memory. The output of every operation that a
backward pass will want is about what training keeps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posterior_trees.predictor import evaluating


class Work(NamedTuple):
    """Of one image in float32."""

    parameters: int
    flops: int
    """Floating-point operations of convolutions and matrix products."""
    bytes_moved: int
    """Read and written if every operation is a pass of its own."""
    bytes_written: int
    """Of all intermediate results together."""


def count_work(network: nn.Module, shape: Sequence[int]) -> Work:
    """Count one image of `shape` (c, h, w) through a network of plain torch operations."""
    mode = FakeTensorMode()
    state = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    with mode:  # shapes only: neither memory nor time
        hollow = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in state.items()}
    with torch.no_grad(), evaluating(network), mode, _Counter() as counter:
        functional_call(network, hollow, (torch.empty(1, *shape),))
    parameters = sum(weight.numel() for weight in network.parameters())
    return Work(parameters, 2 * counter.macs, counter.moved, counter.written)


class _Counter(TorchDispatchMode):
    """Adds up shapes as operations go by; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = self.moved = self.written = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or func.namespace != "aten" or name in ("empty", "_unsafe_view", "detach"):
            return result
        wrote = _bytes(result)
        self.moved += _bytes((args, kwargs)) + wrote
        if not name.endswith("_"):  # in place: nothing new is kept
            self.written += wrote
        self.macs += _macs(name, args, result)
        return result


def _macs(name: str, args: tuple, result: Any) -> int:
    if name == "convolution":
        return result.numel() * args[1][0].numel()  # a weight is (out, in / groups, kh, kw)
    if name in ("addmm", "mm"):
        left, right = args[-2:]
        return left.shape[0] * left.shape[1] * right.shape[1]
    return 0


def _bytes(values: Any) -> int:
    return sum(value.nbytes for value in tree_leaves(values) if isinstance(value, Tensor))
