"""Whom the truth teaches, in training, where that is not just the nearest child: one rule a file.

The paper's association is by squared error alone. What departs from it, each off by default, is a
rule: it adjusts the errors by which children are compared. Each is a small part of one compiled
step, and reads what changes from step to step from a tensor.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from posterior_trees.tree import Tree

Errors = Sequence[Float[Tensor, "b _"]]
"""Of the nodes of every level; children are compared by them."""


class Rule:
    """What every rule can do."""

    leads = False
    """Whether the truth reaches the children that it teaches, so that probabilities follow."""

    def adjust(self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Errors) -> Errors:
        raise NotImplementedError
