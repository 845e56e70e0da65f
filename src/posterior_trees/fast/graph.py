"""A training step as one CUDA graph: one launch instead of a thousand.

The kernels of a small network run faster than Python can launch them one by one. After a few plain
calls the step is recorded once, and then replayed: new inputs are copied into the places the
recording reads from, and what it returns is overwritten by the next call.
"""

from collections.abc import Callable, Sequence
from itertools import compress

import torch
from torch import Tensor

WARM_UP = 4
"""Plain calls before recording: lazy set-up (optimiser state, compilation) must be over by then."""
LARGE = 2**17
"""Numbers of a tensor that is better copied by itself: the kernel that copies many tensors gives
65,536 numbers to a block, and leaves most of a GPU idle."""


class Capture:
    """A function of CUDA tensors that keeps no reference to what it made, replayed as a graph.

    From the first call on the function sees the same places, so that nothing it prepares for their
    layout in the plain calls is prepared anew while recording.
    """

    def __init__(self, function: Callable) -> None:
        self.function = function
        self.calls = 0
        self.places: tuple[Tensor, ...] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, *inputs: Tensor):
        with torch.cuda.device_of(inputs[0]):  # streams and graphs are those of the current device
            return self._call(*inputs)

    def _call(self, *inputs: Tensor):
        if self.places is None:
            self.places = tuple(tensor.clone() for tensor in inputs)
        copy_into(self.places, inputs)
        if self.calls < WARM_UP:
            self.calls += 1
            return self._call_aside(*self.places)
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.outputs = self.function(*self.places)
        self.graph.replay()
        return self.outputs

    def _call_aside(self, *inputs: Tensor):
        """Run on another stream, as recording will."""
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            outputs = self.function(*inputs)
        here.wait_stream(aside)
        return outputs


def copy_into(places: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
    """Copy small tensors by one launch, where they are alike, and large ones by one each."""
    small = [tensor.numel() < LARGE for tensor in tensors]
    for place, tensor, is_small in zip(places, tensors, small, strict=True):
        if not is_small:
            place.copy_(tensor)
    if any(small):
        torch._foreach_copy_(list(compress(places, small)), list(compress(tensors, small)))
