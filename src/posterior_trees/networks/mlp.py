"""The toy's network: one MLP for the leaves, one for their probabilities (App. "Toy Example")."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees.networks.head import Leaves


class TreeMLP(nn.Module):
    r"""Leaves and log-probabilities of a point $y$ of a low-dimensional world.

    Two MLPs of five linear layers with 256 hidden units and SiLU between them, on a standardised
    input; a softmax turns the second one's output into probabilities:

    $$ z = g\,\frac{y - m}{s}, \qquad x_n = m + s\,\mathrm{MLP}_x(z)_n, \qquad
       \ln \alpha = \ln \mathrm{softmax}\,\mathrm{MLP}_\alpha(z). $$

    `center` and `scale` are $m$ and $s$, the mean and standard deviation of $y$. Choice: the
    `gain` $g$ stretches the input further. The best tree jumps from one split to another at some
    $y$, and a network that starts with steeper slopes follows such jumps more sharply.
    """

    center: Tensor

    def __init__(
        self,
        num_leaves: int,
        dim: int = 2,
        *,
        width: int = 256,
        layers: int = 5,
        center: Sequence[float] | Float[Tensor, "d"] | float = 0.0,
        scale: float = 1.0,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        if layers < 2 or scale <= 0:
            raise ValueError(f"layers is {layers} and scale is {scale}; need at least 2, above 0")
        self.num_leaves, self.dim, self.gain, self.scale = num_leaves, dim, gain, scale
        self.register_buffer("center", torch.as_tensor(center, dtype=torch.float32).expand(dim))
        self.leaves = _mlp([dim, *[width] * (layers - 1), num_leaves * dim])
        self.probabilities = _mlp([dim, *[width] * (layers - 1), num_leaves])

    def forward(self, y: Float[Tensor, "b d"]) -> Leaves:
        z = self.gain / self.scale * (y - self.center)
        offsets = self.leaves(z).unflatten(1, (self.num_leaves, self.dim))
        log_probs = self.probabilities(z).log_softmax(dim=1)
        return Leaves(self.center + self.scale * offsets, log_probs)


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*modules[:-1])
