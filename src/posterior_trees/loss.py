r"""What a tree is trained with: the hierarchical oracle loss and its annealing.

The truth walks down the tree from the root, at each level to the child nearest to it, and every
node it meets pays its squared error. Losers pay $\varepsilon$ of theirs; $\varepsilon$ falls from 1
(plain MSE for all nodes, so that all leaves start near the mean) to 0 (only the path).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.tree import Tree


def tree_loss(
    tree: Tree, x: Float[Tensor, "b *shape"], epsilon: float | int | Tensor = 0.0
) -> Float[Tensor, "b"]:
    r"""The hierarchical oracle loss of every image (Sec. 3.2, annealed as in Sec. 3.4).

    $$ L(x) = \sum_{\text{nodes } n} w_n \, \overline{(x_n - x)^2}, \qquad
       w_{\text{root}} = 1, \quad
       w_{nk} = w_n \cdot \begin{cases} 1 & k \text{ nearest to } x \text{ among its siblings} \\
                                      \varepsilon & \text{else} \end{cases} $$

    The bar is the mean over pixels. Ties go to the lowest index, absent nodes weigh nothing.
    Choice: the winner keeps weight 1 at every $\varepsilon$, so that $\varepsilon = 1$ is plain
    MSE; elsewhere in the multiple-choice literature it has weight $1 - \varepsilon$.

    `tree` holds one tree for each truth of `x`; `epsilon` is the losers' weight, from `epsilon_at`.

    >>> tree = grow(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[0.5, 0.5]]).log(), branching=2)
    >>> tree_loss(tree, torch.tensor([[2.0]]))  # the root is 1 off, the nearest leaf 0
    tensor([1.])
    """
    errors = tree.errors(x)
    return weigh(tree, errors, tree.winners(errors), epsilon)


def probability_loss(tree: Tree, x: Float[Tensor, "b *shape"]) -> Float[Tensor, "b"]:
    r"""Cross-entropy of the leaf probabilities on the leaf that the truth reaches,
    $-\ln \alpha_{\text{path}(x)}$.

    Deviation: the paper trains $\alpha$ only through the squared errors of the parents, which says
    little about it where leaves are alike. This is a proper score, and exactly the reported NLL.
    The choice of the leaf carries no gradient. `tree` holds one tree for each truth of `x`.

    >>> tree = grow(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[0.75, 0.25]]).log(), branching=2)
    >>> round(probability_loss(tree, torch.tensor([[2.0]])).item(), 3)  # -ln 0.25
    1.386
    """
    return path_nll(tree, tree.descend(x))


def epsilon_at(
    epoch: float | int,
    start: float | int = 5.0,
    scale: float | int = 2.0,
    *,
    epochs: float | int | None = None,
) -> float:
    r"""Weight of the losers after `epoch` epochs: $\varepsilon_t = \exp(-[t - t_0]_+ / s)$ (Eq. 8).

    `epoch` counts completed epochs and may be fractional; `start` is $t_0$, `scale` is $s$. Up to
    `start` this is plain MSE: of a loop of another length than the paper's give its `epochs`, of
    which a quarter is $t_0$ and a tenth $s$.

    >>> epsilon_at(3), round(epsilon_at(7), 3), round(epsilon_at(3, epochs=4), 3)
    (1.0, 0.368, 0.007)
    """
    if epochs is not None:
        start, scale = epochs / 4, epochs / 10
    if scale <= 0:
        raise InputError(f"scale is {scale}; the annealing needs a positive number of epochs")
    return math.exp(-max(epoch - start, 0.0) / scale)


def weigh(
    tree: Tree, errors: Sequence[Tensor], winners: Sequence[Tensor], epsilon: float | int | Tensor
) -> Float[Tensor, "b"]:
    """The errors of all nodes, each by its weight for these `winners` of every level."""
    weight = torch.ones_like(errors[0])
    loss = errors[0].sum(dim=1)
    for k, error, winner in zip(tree.branching, errors[1:], winners, strict=True):
        won = (winner.unsqueeze(2) == torch.arange(k, device=winner.device)).to(weight.dtype)
        weight = (weight.unsqueeze(2) * (won + (1 - won) * epsilon)).flatten(1)
        loss = loss + (weight * error).sum(dim=1)
    return loss


def path_nll(tree: Tree, path: Tensor) -> Float[Tensor, "b"]:
    """The surprise of the leaf at which a path ends."""
    return -tree.log_probs[-1].gather(1, path[:, -1:]).squeeze(1)
