"""A training step as one CUDA graph: one launch instead of a thousand.

The kernels of a small network run faster than Python can launch them one by one. After a few plain
calls the step is recorded once, and then replayed: new inputs are copied into the places the
recording reads from, by one launch where they are alike, and what it returns is overwritten by the
next call.
"""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 4
"""Plain calls before recording: lazy set-up (optimiser state, compilation) must be over by then."""


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
        torch._foreach_copy_(self.places, inputs)
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
