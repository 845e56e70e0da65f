r"""What a tree is trained with: the hierarchical oracle loss and its annealing.

The truth walks down the tree from the root, at each level to the child nearest to it, and every
node it meets pays its squared error. Losers pay $\varepsilon$ of theirs; $\varepsilon$ falls from 1
(plain MSE for all nodes, so that all leaves start near the mean) to 0 (only the path).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
    """
    errors = tree.errors(x)
    return _weigh(tree, errors, tree.winners(errors), epsilon)


def probability_loss(tree: Tree, x: Float[Tensor, "b *shape"]) -> Float[Tensor, "b"]:
    r"""Cross-entropy of the leaf probabilities on the leaf that the truth reaches,
    $-\ln \alpha_{\text{path}(x)}$.

    Deviation: the paper trains $\alpha$ only through the squared errors of the parents, which says
    little about it where leaves are alike. This is a proper score, and exactly the reported NLL.
    The choice of the leaf carries no gradient.
    """
    return _path_nll(tree, tree.descend(x))


class Objective(NamedTuple):
    """The parts of the training loss of every image, and what the trainer logs about them."""

    squared: Float[Tensor, "b"]
    nll: Float[Tensor, "b"]
    entropy: Float[Tensor, "b"]
    root: Float[Tensor, "b"]
    leaf: Int[Tensor, "b"]
    taught: Int[Tensor, "b"] | None = None

    def total(self, beta: float, scale: Float[Tensor, ""]) -> Float[Tensor, "b"]:
        """Squared errors plus `beta` times the probability loss in units of `scale`, the batch mean
        of the root's squared error, which makes `beta` free of the data's scale. `beta` = 0 is the
        paper's training."""
        return self.squared + beta * scale.detach() * self.nll


def objective(
    tree: Tree,
    x: Float[Tensor, "b *shape"],
    epsilon: float | int | Tensor = 0.0,
    handicaps: Sequence[Float[Tensor, "_"]] | None = None,
    rate: float | int | Sequence[float] = 0.0,
    usual: Sequence[Float[Tensor, "_"]] | None = None,
    guide: tuple[Sequence[Float[Tensor, "b _"]], Tensor] | None = None,
    apart: Sequence[Float[Tensor, "b _"]] | None = None,
) -> Objective:
    """Both losses in one pass over the nodes.

    With `handicaps` (a factor for the nodes of each level) the squared errors follow the path of
    the smallest error times handicap; see `training/conscience.py`. With a `rate` they follow the
    path of the smallest `costs`, `usual` being theirs. What is smallest is told by `apart`, errors
    of the nodes in a part of the picture, where they are given; see `training/focus.py`. All else
    follows the path as it is. While the number of a `guide` is above 0, everything follows the path
    of its smallest distances; see `training/seeds.py`.
    """
    errors = tree.errors(x)
    winners = taught = tree.winners(errors)
    if guide is not None:
        winners = _either(guide[1] > 0, tree.winners(guide[0]), winners)
    path = tree.follow(winners)
    has_rate = any(per_level(rate, tree.depth))
    weighed = errors if apart is None else apart
    if handicaps is not None:
        weighed = [e * h for e, h in zip(weighed, handicaps, strict=True)]
    if has_rate:
        weighed = costs(tree, weighed, rate, usual)
    if has_rate or handicaps is not None or apart is not None:
        taught = tree.winners(weighed)
    if guide is not None:
        taught = _either(guide[1] > 0, winners, taught)
    log_probs = tree.log_probs[-1]
    return Objective(
        squared=_weigh(tree, errors, taught, epsilon),
        nll=_path_nll(tree, path),
        entropy=-(log_probs.exp() * log_probs.clamp(min=-1e30)).sum(dim=1).detach(),
        root=errors[0][:, 0].detach(),
        leaf=path[:, -1],
        taught=None if handicaps is None else tree.follow(taught)[:, -1],
    )


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
        raise ValueError(
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


def epsilon_at(epoch: float | int, start: float | int = 5.0, scale: float | int = 2.0) -> float:
    r"""Weight of the losers after `epoch` epochs: $\varepsilon_t = \exp(-[t - t_0]_+ / s)$ (Eq. 8).

    `epoch` counts completed epochs and may be fractional.
    """
    if scale <= 0:
        raise ValueError(f"scale is {scale}; the annealing needs a positive number of epochs")
    return math.exp(-max(epoch - start, 0.0) / scale)


def _weigh(tree: Tree, errors: Sequence[Tensor], winners: Sequence[Tensor], epsilon) -> Tensor:
    weight = torch.ones_like(errors[0])
    loss = errors[0].sum(dim=1)
    for k, error, winner in zip(tree.branching, errors[1:], winners, strict=True):
        won = (winner.unsqueeze(2) == torch.arange(k, device=winner.device)).to(weight.dtype)
        weight = (weight.unsqueeze(2) * (won + (1 - won) * epsilon)).flatten(1)
        loss = loss + (weight * error).sum(dim=1)
    return loss


def _either(is_first: Tensor, first: Sequence[Tensor], second: Sequence[Tensor]) -> list[Tensor]:
    return [torch.where(is_first, a, b) for a, b in zip(first, second, strict=True)]


def _path_nll(tree: Tree, path: Tensor) -> Tensor:
    return -tree.log_probs[-1].gather(1, path[:, -1:]).squeeze(1)
