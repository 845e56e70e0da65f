r"""How many pictures does a user look at before the right one?

The right picture is leaf $\ell$. **Scanning a list**: leaves are shown one after the other, the
most probable first, and the user stops at $\ell$:

$$ \text{scan}(\ell) = \text{rank of } \ell \text{ among all leaves by } \alpha . $$

**Walking the tree**: at each node the user looks at its children one after the other, the most
probable first, until the one that leads to $\ell$, and goes on from there:

$$ \text{walk}(\ell) = \sum_{n \text{ on the path to } \ell} \text{rank of } n
   \text{ among its siblings by } \alpha . $$

Ranks start at 1 and ties go to the lowest index. The root is on show from the start and is not
counted; an only remaining sibling is counted, because the aim is to see the picture, not to guess
where it is. In a tree of depth 1 both are the same. With equal probabilities nine leaves take 5
looks in a list and, three by three, $2 + 2 = 4$ in a tree. Absent nodes come last.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.tree import Tree


def scan(tree: Tree, leaf: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Looks until leaf number `leaf` in a list of all leaves, most probable first."""
    return _ranks(tree.log_probs[-1]).gather(1, leaf.unsqueeze(1)).squeeze(1)


def walk(tree: Tree, leaf: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Looks until leaf number `leaf` when walking down from the root."""
    looks, node = torch.zeros_like(leaf), leaf
    for level in range(tree.depth, 0, -1):
        k = tree.branching[level - 1]
        ranks = _ranks(tree.log_probs[level].unflatten(1, (-1, k))).flatten(1)
        looks = looks + ranks.gather(1, node.unsqueeze(1)).squeeze(1)
        node = node // k
    return looks


def expected(tree: Tree, looks) -> Float[Tensor, "b"]:
    r"""What the tree itself expects, $\sum_\ell \alpha_\ell \, \text{looks}(\ell)$, for `scan` or
    `walk`: right if its probabilities are."""
    every = torch.arange(tree.leaves.shape[1], device=tree.device)
    counts = torch.stack([looks(tree, leaf.expand(len(tree))) for leaf in every], dim=1)
    return (tree.probs[-1] * counts).sum(dim=1)


def _ranks(log_probs: Float[Tensor, "*b k"]) -> Int[Tensor, "*b k"]:
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1) + 1
