r"""Which child of a node the truth goes to, in training, where that is not just the nearest.

The paper's association is by squared error alone. What departs from it, each off by default: the
handicaps of a conscience (`training/conscience.py`), a rate for what is unexpected (`costs`), a
part of the picture that decides (`training/focus.py`), and the centres that leaves begin at
(`training/seeds.py`). The truth *reaches* a child, which the probabilities learn, and *teaches*
one, whose image learns; only a guide moves both.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.tree import Tree

Winners = Sequence[Int[Tensor, "b _"]]


class Association(NamedTuple):
    """With `handicaps` (a factor for the nodes of each level) the truth teaches along the path of
    the smallest error times handicap; with a `rate` along that of the smallest `costs`, `usual`
    being theirs. What is smallest is told by `apart`, errors of the nodes in a part of the picture,
    where they are given. While the number of a `guide` is above 0, everything follows the path of
    its smallest distances."""

    handicaps: Sequence[Float[Tensor, "_"]] | None = None
    rate: float | int | Sequence[float] = 0.0
    usual: Sequence[Float[Tensor, "_"]] | None = None
    guide: tuple[Sequence[Float[Tensor, "b _"]], Tensor] | None = None
    apart: Sequence[Float[Tensor, "b _"]] | None = None

    def choose(
        self, tree: Tree, errors: Sequence[Float[Tensor, "b _"]], nearest: Winners
    ) -> tuple[Winners, Winners]:
        """The children that the truth reaches, and those that it teaches."""
        reached = taught = nearest
        if self.guide is not None:
            reached = _either(self.guide[1] > 0, tree.winners(self.guide[0]), reached)
        weighed = errors if self.apart is None else self.apart
        has_rate = any(per_level(self.rate, tree.depth))
        if self.handicaps is not None:
            weighed = [e * h for e, h in zip(weighed, self.handicaps, strict=True)]
        if has_rate:
            weighed = costs(tree, weighed, self.rate, self.usual)
        if has_rate or self.handicaps is not None or self.apart is not None:
            taught = tree.winners(weighed)
        if self.guide is not None:
            taught = _either(self.guide[1] > 0, reached, taught)
        return reached, taught


def costs(
    tree: Tree,
    errors: Sequence[Float[Tensor, "b _"]],
    rate: float | int | Sequence[float],
    usual: Sequence[Float[Tensor, "_"]] | None = None,
) -> list[Float[Tensor, "b _"]]:
    r"""What it takes to describe the truth by a child: its squared error, and how unexpected it is,

    $$ e_{nk} - \lambda \, e_{\text{root}} \ln \frac{\alpha_{nk}}{\alpha_n} . $$

    Deviation: the paper's association is by squared error alone, $\lambda = 0$. With a small
    $\lambda$ children take over from their siblings what y already makes them expect: the tree
    becomes more predictable, in first order at no cost in squared error (entropy-constrained vector
    quantisation, Chou, Lookabaugh & Gray, 1989).

    A child that is rare for every y loses images this way, and becomes rarer. With `usual`, the
    probabilities $\bar\alpha$ of the nodes of every level averaged over many y, only what y itself
    says counts: $\ln (\alpha_{nk} / \alpha_n) - \ln (\bar\alpha_{nk} / \bar\alpha_n)$, the
    information that y has on the child. Probabilities that do not depend on y then change nothing.

    $\lambda$ may differ from level to level: deep siblings are more alike, so that the same one
    changes more choices there.
    """
    surprises = surprise(tree.branching, tree.log_probs)
    if usual is not None:
        expected = surprise(tree.branching, [level.log().unsqueeze(0) for level in usual])
        surprises = [s - e for s, e in zip(surprises, expected, strict=True)]
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


def _either(is_first: Tensor, first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(is_first, a, b) for a, b in zip(first, second, strict=True)]
