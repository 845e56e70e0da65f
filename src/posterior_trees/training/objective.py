"""Both losses of a batch in one pass over the nodes of its trees, by the rules of its recipe."""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.loss import path_nll, weigh
from posterior_trees.recipe.sections import LossSpec
from posterior_trees.training.association import Errors, Rule
from posterior_trees.training.association.conscience import Conscience
from posterior_trees.training.association.starts import Starts
from posterior_trees.training.association.surprise import Surprise
from posterior_trees.tree import Tree


def rules_of(spec: LossSpec, conscience: Conscience, starts: Starts) -> tuple[Rule, ...]:
    """In the order in which they apply: what is compared, at which price, and who leads."""
    asked: tuple[tuple[object, Rule], ...] = (
        (spec.focus or spec.features != "pixels", starts.part),
        (spec.conscience, conscience),
        (any(spec.surprise), Surprise(spec.surprise)),
        (spec.guided_epochs, starts),
    )
    return tuple(rule for is_on, rule in asked if is_on)


class Objective(NamedTuple):
    """The parts of the training loss of every image, and what the trainer logs about them."""

    squared: Float[Tensor, "b"]
    nll: Float[Tensor, "b"]
    entropy: Float[Tensor, "b"]
    root: Float[Tensor, "b"]
    leaf: Int[Tensor, "b"]
    taught: Int[Tensor, "b"]

    def total(self, beta: float, scale: Float[Tensor, ""]) -> Float[Tensor, "b"]:
        """Squared errors plus `beta` times the probability loss in units of `scale`, the batch mean
        of the root's squared error, which makes `beta` free of the data's scale. `beta` = 0 is the
        paper's training."""
        return self.squared + beta * scale.detach() * self.nll


def objective(
    tree: Tree,
    x: Float[Tensor, "b *shape"],
    epsilon: float | int | Tensor = 0.0,
    rules: Sequence[Rule] = (),
    errors: Errors | None = None,
) -> Objective:
    """The truth *reaches* the nearest children, which the probabilities learn, and *teaches* those
    whose images learn: without `rules` the same ones. `errors` are what nodes pay, if not their
    squared errors."""
    errors = reached = taught = tree.errors(x) if errors is None else errors
    for rule in rules:
        taught = rule.adjust(tree, x, taught)
        reached = rule.adjust(tree, x, reached) if rule.leads else reached
    winners = learners = tree.winners(reached)
    if rules:
        learners = tree.winners(taught)
    path, log_probs = tree.follow(winners), tree.log_probs[-1]
    return Objective(
        squared=weigh(tree, errors, learners, epsilon),
        nll=path_nll(tree, path),
        entropy=-(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=1).detach(),
        root=errors[0][:, 0].detach(),
        leaf=path[:, -1],
        taught=tree.follow(learners)[:, -1],
    )
