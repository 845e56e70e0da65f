"""Trees as fast as the machine can: `predictor.compile()`.

On CUDA, one call takes `y` to all levels of the tree, recorded as one CUDA graph for each shape of
`y`, in bfloat16 and channels-last. Networks are fused by `torch.compile`; our U-Net runs with its
weights written out (`fold.py`) or, where `accelerate.has_kernels`, on kernels of its own
(`fused.py`). The projection and the growing of the tree are always fused. The
leaves are rounded to bfloat16; what the measurement knows, the growing and the probabilities stay
in float32, so every node still agrees with the measurement to float precision.

Elsewhere the network is fused by `torch.compile` and stays in float32.
"""

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.fast.accelerate import for_prediction
from posterior_trees.fast.compiling import compiled
from posterior_trees.fast.graph import Capture, copy_into
from posterior_trees.predictor import TreePredictor, check_brightness, check_values
from posterior_trees.tree import Tree

RECORDINGS = 4
"""Shapes of `y` whose graphs are kept: each holds the memory of its activations."""


class FastPredictor(TreePredictor):
    """A predictor for prediction only, made of another; the first call of each shape compiles."""

    is_compiled = True

    def __init__(self, plain: TreePredictor, dtype: torch.dtype, *, is_recorded: bool) -> None:
        super().__init__(
            for_prediction(plain.network, dtype),
            plain.measurement,
            branching=plain.branching,
            channels=plain.channels,
            multiple=plain.multiple,
            padding=plain.padding,
            name=plain.name,
            about=plain.about,
        )
        self.eval()
        self.is_recorded = is_recorded
        self.is_fused = getattr(self.network, "is_fused", False) is True
        if self.is_fused:  # the network's kernels need no compiler
            self._begin: Callable = compiled(self._begin, is_dynamic=False)
            self._finish: Callable = compiled(self._finish, is_dynamic=False)
        else:
            self._levels: Callable = compiled(self._levels, is_dynamic=False)
        self._recordings: OrderedDict[tuple[int, ...], Capture] = OrderedDict()

    @torch.inference_mode()
    def forward(self, y: Float[Tensor, "b *shape"]) -> Tree:
        check_brightness(y)
        if not y.is_cuda:  # there a look would wait for all that was asked for before
            check_values(self.measurement.blank(y), self.measurement.noise)
        return self.tree_of(y) if self.guarantee is None else self.guarantee.promise(self, y)

    def tree_of(self, y: Float[Tensor, "b *shape"]) -> Tree:
        # the next call overwrites what a recording returns
        levels = copies(self._recording(y.shape)(y)) if self.is_recorded else self._run(y)
        nodes = self.depth + 1
        return Tree(levels[:nodes], levels[nodes:], self.branching)

    def _run(self, y: Tensor) -> tuple[Tensor, ...]:
        with tuned_convolutions():
            return self._levels(y)

    def _levels(self, y: Tensor) -> tuple[Tensor, ...]:
        if self.is_fused:
            network: Any = self.network
            return self._finish(*network.maps(self._begin(y)), y)
        tree = super().tree_of(self.measurement.blank(y))
        return (*tree.images, *tree.log_probs)

    def _begin(self, y: Tensor) -> Tensor:
        network: Any = self.network
        return network.prepared(self.view(self.measurement.blank(y)))

    def _finish(self, images: Tensor, means: list[Tensor], y: Tensor) -> tuple[Tensor, ...]:
        network: Any = self.network
        tree = self.assemble(network.leaves_of(images, means), self.measurement.blank(y))
        return (*tree.images, *tree.log_probs)

    def _recording(self, shape: tuple[int, ...]) -> Capture:
        if shape not in self._recordings:
            if len(self._recordings) == RECORDINGS:
                self._recordings.popitem(last=False)
            self._recordings[shape] = Capture(self._run)
        self._recordings.move_to_end(shape)
        return self._recordings[shape]


@contextmanager
def tuned_convolutions() -> Generator[None, None, None]:
    """Let cuDNN try its ways to convolve before a call is recorded, and keep the fastest; unless
    the user wants the same one every time."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.backends.cudnn.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Clones, made by few kernels."""
    clones = [torch.empty_like(tensor) for tensor in tensors]
    copy_into(clones, tensors)
    return clones
