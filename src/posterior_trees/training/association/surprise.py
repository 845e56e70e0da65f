r"""What y makes us expect is nearer: a price for children that come as a surprise.

Deviation: the paper's association is by squared error alone. With a small rate children take over
from their siblings what y already makes them expect: the tree becomes more predictable, in first
order at no cost in squared error (entropy-constrained vector quantisation, Chou, Lookabaugh & Gray,
1989). Off unless `loss.surprise` is above 0.
"""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.training.association import Errors, Rule
from posterior_trees.tree import Tree


class Surprise(Rule):
    r"""What it takes to describe the truth by a child: its squared error, and how unexpected it is,

    $$ e_{nk} - \lambda \, e_{\text{root}} \ln \frac{\alpha_{nk}}{\alpha_n} . $$

    A child that is rare for every y loses images this way, and becomes rarer.

    $\lambda$, the `rate`, may differ from level to level: deep siblings are more alike, so that the
    same one changes more choices there.
    """

    def __init__(self, rate: float | int | Sequence[float]) -> None:
        self.rates = tuple(rate) if isinstance(rate, Sequence) else (rate,)

    def adjust(self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Errors) -> Errors:
        one_for_all = len(self.rates) == 1 or not tree.depth
        rates = self.rates[:1] * tree.depth if one_for_all else self.rates
        if len(rates) != tree.depth:
            raise InputError(
                f"{len(rates)} rates for a tree of depth {tree.depth}; give one, or one for each "
                "level"
            )
        levels = zip(tree.branching, tree.log_probs, tree.log_probs[1:], strict=False)
        surprises = [(above.repeat_interleave(k, dim=1) - own).detach() for k, above, own in levels]
        below = zip(errors[1:], rates, surprises, strict=True)
        return [errors[0], *(e + float(rate) * errors[0] * s for e, rate, s in below)]
