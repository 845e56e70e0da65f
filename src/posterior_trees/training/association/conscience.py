r"""A conscience for winners: while training, siblings share their parent's images fairly.

Where the answers differ little, the child whose decoder learns a bit faster wins everywhere, and
its siblings never learn. So in training the truth goes to the child with the smallest

$$ e^{\tau b_{nk}} \; \overline{(x_{nk} - x)^2}, \qquad
   b_{nk} \leftarrow b_{nk} + \eta N_\ell \big( s_{nk} - s_n / K \big), $$

with $s$ the share of the batch that a node won this way and $N_\ell$ the number of nodes of its
level. A child that wins more than its $K$-th part pays more and more for it, and a dying one is
handed images until it can win them by itself (the conscience of DeSieno, 1988; $b$ climbs to the
dual of an assignment with equal shares). $\tau$ fades out: the last quarter of the training knows
no handicap, so the tree it ends with is that of the plain loss, with the shares of the data.

Deviation: the paper has the weighted sampler only. Off unless `loss.conscience` is above 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.training.association import Errors, Rule
from posterior_trees.tree import Tree, level_sizes

RATE = 0.03
r"""$\eta$: a child that wins nothing is e times cheaper after about thirty batches."""
LIMIT = 5.0
"""Of $|b|$: what is a hundred times worse than its siblings needs another cure."""


class Conscience(Rule):
    """$b$ of all nodes, level by level, root first; `strength` is where $\tau$ is read from."""

    def __init__(self, branching: Sequence[int], strength: Float[Tensor, ""]) -> None:
        self.branching, self.strength = tuple(branching), strength
        self.sizes = level_sizes(branching)
        self.bias = torch.zeros(sum(self.sizes), device=strength.device)

    def adjust(self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Errors) -> Errors:
        r"""$e^{\tau b}$ times the errors."""
        handicaps = (self.strength * self.bias).exp().split(self.sizes)
        return [e * h for e, h in zip(errors, handicaps, strict=True)]

    def note(self, taught: Int[Tensor, "b"]) -> None:
        """Learn from the leaves that a batch was given to, in place."""
        levels = self.bias.split(self.sizes)
        share = torch.zeros_like(levels[-1])
        share.index_add_(0, taught, torch.ones_like(share[taught]) / len(taught))
        for level in range(len(self.branching), 0, -1):
            siblings = share.unflatten(0, (-1, self.branching[level - 1]))
            excess = siblings - siblings.mean(dim=1, keepdim=True)
            levels[level].add_(RATE * self.sizes[level] * excess.flatten()).clamp_(-LIMIT, LIMIT)
            share = siblings.sum(dim=1)


def strength_at(progress: float | int, strength: float | int) -> float:
    r"""$\tau$ after a share of the training: whole up to a half, 0 from three quarters on."""
    return strength * min(max(3 - 4 * progress, 0.0), 1.0)
