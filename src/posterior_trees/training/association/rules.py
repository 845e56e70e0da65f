"""What every rule can do, and those that a recipe asks for."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from posterior_trees.recipe.sections import LossSpec
from posterior_trees.training.association.conscience import Conscience
from posterior_trees.training.association.starts import Starts
from posterior_trees.training.association.surprise import Surprise
from posterior_trees.tree import Tree

Errors = Sequence[Float[Tensor, "b _"]]
"""Of the nodes of every level; children are compared by them."""


@runtime_checkable
class Rule(Protocol):
    @property
    def leads(self) -> bool:
        """Whether the truth reaches the children that it teaches, so that probabilities follow."""
        ...

    def adjust(self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Errors) -> Errors: ...


def rules_of(spec: LossSpec, conscience: Conscience, starts: Starts) -> tuple[Rule, ...]:
    """In the order in which they apply: what is compared, at which price, and who leads."""
    asked: tuple[tuple[object, Rule], ...] = (
        (spec.focus or spec.features != "pixels", starts.part),
        (spec.conscience, conscience),
        (any(spec.surprise), Surprise(spec.surprise)),
        (spec.guided_epochs, starts),
    )
    return tuple(rule for is_on, rule in asked if is_on)
