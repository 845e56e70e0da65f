r"""What y makes us expect is nearer: a price for children that come as a surprise.

Deviation: the paper's association is by squared error alone. With a small rate children take over
from their siblings what y already makes them expect: the tree becomes more predictable, in first
order at no cost in squared error (entropy-constrained vector quantisation, Chou, Lookabaugh & Gray,
1989). Off unless `loss.surprise` is above 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.tree import Tree


class Surprise:
    """Prices errors by `costs`."""

    leads = False

    def __init__(self, rate: float | int | Sequence[float]) -> None:
        self.rate = rate

    def adjust(
        self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Sequence[Float[Tensor, "b _"]]
    ) -> list[Float[Tensor, "b _"]]:
        return costs(tree, errors, self.rate)


def costs(
    tree: Tree, errors: Sequence[Float[Tensor, "b _"]], rate: float | int | Sequence[float]
) -> list[Float[Tensor, "b _"]]:
    r"""What it takes to describe the truth by a child: its squared error, and how unexpected it is,

    $$ e_{nk} - \lambda \, e_{\text{root}} \ln \frac{\alpha_{nk}}{\alpha_n} . $$

    A child that is rare for every y loses images this way, and becomes rarer.

    $\lambda$ may differ from level to level: deep siblings are more alike, so that the same one
    changes more choices there.
    """
    surprises = surprise(tree.branching, tree.log_probs)
    rates = [0.0, *per_level(rate, tree.depth)]
    return [e + r * errors[0] * s for e, r, s in zip(errors, rates, surprises, strict=True)]


def per_level(rate: float | int | Sequence[float], depth: int) -> list[float]:
    """The rates of the levels below the root; one number is that of all of them."""
    rates = [float(r) for r in (rate if isinstance(rate, Sequence) else [rate])]
    if len(rates) == 1 or not depth:
        return rates[:1] * depth
    if len(rates) != depth:
        raise InputError(
            f"{len(rates)} rates for a tree of depth {depth}; give one, or one for each level"
        )
    return rates


def surprise(
    branching: Sequence[int], log_probs: Sequence[Float[Tensor, "b _"]]
) -> list[Float[Tensor, "b _"]]:
    r"""$-\ln (\alpha_{nk} / \alpha_n)$ of the nodes of every level, 0 for the root; no gradient."""
    below = [
        (parents.repeat_interleave(k, dim=1) - children).detach()
        for k, parents, children in zip(branching, log_probs[:-1], log_probs[1:], strict=True)
    ]
    return [torch.zeros_like(log_probs[0]), *below]
