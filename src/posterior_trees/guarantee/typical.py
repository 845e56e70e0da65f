r"""Typicality: is this input like those that a promise was made for?

The score is the distance to the 10th neighbour among images that fit the scales, in what the
probability head reads (feature maps averaged over space), standardised and whitened along its
`DIMENSIONS` widest directions. Its p-value is exact: of inputs like the calibration's a share of at
most $u$ has $p \le u$. A high p is no certificate: mild noise and a shift between the channels go
unseen.

Choice: neighbours are among held-out images, not the trained ones: of shoe photos, as digits,
0.98 are told apart instead of 0.31, and a certificate needs no training data.
"""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.networks.head import ProbabilityHead
from posterior_trees.predictor import TreePredictor

NEIGHBOUR = 10
DIMENSIONS = 32
MOST = 1000
"""Images to have as neighbours."""


class Familiar(NamedTuple):
    """Images as points: `points = pooled @ map - shift`."""

    map: Float[Tensor, "features d"]
    shift: Float[Tensor, "d"]
    points: Float[Tensor, "n d"]

    @classmethod
    def of(cls, fitted: dict[str, Tensor]) -> "Familiar":
        return cls(*(fitted[f"familiar.{part}"] for part in cls._fields))

    def distance(self, pooled: Float[Tensor, "b features"]) -> Float[Tensor, "b"]:
        """To the 10th neighbour, or the farthest of fewer."""
        places = pooled.double() @ self.map.double() - self.shift.double()
        k = min(NEIGHBOUR, len(self.points))
        return torch.cdist(places, self.points.double()).topk(k, largest=False).values[:, -1]


def fit_familiar(pooled: Float[Tensor, "n features"]) -> Familiar:
    """The widest directions of standardised features, one for every three images at most."""
    chosen = pooled[:MOST].double()
    centre, spread = chosen.mean(dim=0), chosen.std(dim=0, correction=0).clamp_min(1e-6)
    count = max(min(DIMENSIONS, len(chosen) // 3, chosen.shape[1]), 1)
    _, widths, axes = torch.linalg.svd((chosen - centre) / spread, full_matrices=False)
    widths = (widths[:count] / len(chosen) ** 0.5).clamp_min(1e-3)
    # Half precision is what a file keeps; what is compared with it must use the same numbers.
    matrix = (axes[:count].T / widths / spread[:, None]).float()
    shift = centre.float() @ matrix
    return Familiar(matrix, shift, (chosen.float() @ matrix - shift).half())


@contextmanager
def pooled_features(predictor: TreePredictor) -> Generator[list[Tensor]]:
    """What the probability head of a network reads while trees are predicted; stays empty if the
    network has none, or is compiled."""
    seen: list[Tensor] = []
    modules = () if predictor.is_compiled else predictor.network.modules()
    heads = [module for module in modules if isinstance(module, ProbabilityHead)]
    with ExitStack() as hooks:
        for head in heads[-1:]:
            hooks.enter_context(head.layers.register_forward_pre_hook(
                lambda _, given: seen.append(given[0].detach())
            ))  # fmt: skip
        yield seen
