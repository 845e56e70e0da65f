"""The toy's world, and its network: one MLP for the leaves, one for their probabilities (App. "Toy
Example")."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees.errors import InputError
from posterior_trees.networks.head import Leaves
from posterior_trees.toys import GaussianMixture

MIXTURE, SIGMA = GaussianMixture(), 2.0
"""What is measured, and the noise of a measurement."""


class TreeMLP(nn.Module):
    r"""Leaves and log-probabilities of a point $y$ of a low-dimensional world.

    Two MLPs of five linear layers with 256 hidden units and SiLU between them, on a standardised
    input; a softmax turns the second one's output into probabilities:

    $$ z = g\,\frac{y - m}{s}, \qquad x_n = m + s\,\ell_n, \quad \ell = \mathrm{MLP}_x(z), \qquad
       \ln \alpha = \ln \mathrm{softmax}\,\mathrm{MLP}_\alpha(z, g\,\ell). $$

    `center` and `scale` are $m$ and $s$, the mean and standard deviation of $y$. The best tree
    jumps from one way to split to another at some $y$. Two choices let the network follow sharply:

    Choice: the `gain` $g$ stretches the input, so that slopes start steeper.
    Choice: $\mathrm{MLP}_\alpha$ also sees the leaves, without gradient, as the head of the image
    networks sees the decoder. The mass of a cell is smooth in $y$ and the leaves, so only one of
    the two has to learn a jump, and both jump at the same $y$. `sees_leaves=False` is the paper's.
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
        sees_leaves: bool = True,
    ) -> None:
        super().__init__()
        if layers < 1 or scale <= 0:
            raise InputError(f"{layers} layers and scale {scale}; need at least 1, and above 0")
        self.num_leaves, self.dim, self.scale, self.gain = num_leaves, dim, scale, gain
        self.sees_leaves = sees_leaves
        middle = torch.as_tensor(center, dtype=torch.float32).expand(dim).clone()
        self.register_buffer("center", middle)
        hidden = [width] * (layers - 1)
        self.leaves = _mlp([dim, *hidden, num_leaves * dim])
        seen = dim + num_leaves * dim if sees_leaves else dim
        self.probabilities = _mlp([seen, *hidden, num_leaves])

    def forward(self, y: Float[Tensor, "b d"]) -> Leaves:
        z = self.gain / self.scale * (y - self.center)
        offsets = self.leaves(z)
        seen = torch.cat([z, self.gain * offsets.detach()], dim=1) if self.sees_leaves else z
        images = self.center + self.scale * offsets.unflatten(1, (self.num_leaves, self.dim))
        return Leaves(images, self.probabilities(seen).log_softmax(dim=1))


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    modules: list[nn.Module] = []
    for before, after in pairwise(widths):
        modules += [nn.Linear(before, after), nn.SiLU()]
    return nn.Sequential(*modules[:-1])
