r"""Where leaves begin: at clusters of what the root leaves open.

While $\varepsilon = 1$ all leaves learn the same mean, and where each of them goes once it falls is
an accident of first weights and first batches. A rare answer, the sunglasses that one face in a
hundred wears, then has no leaf near it and never gets one. K-means has a cure, to begin with good
centres, and so has a network: when $\varepsilon$ starts to fall, what the root misses,
$r = x - x_{\text{root}}(y)$, is clustered over training images into a tree of centres $c_n$
(`clustering.py`). For the next `loss.guided_epochs` epochs the truth goes down this tree, at each
level to the child with the smallest

$$ \overline{(r - c_{nk})^2}, $$

whatever the network's children show, and they learn what it brings. Then the nearest child takes
over, as Lloyd's steps follow the choice of centres. $r$ is averaged over squares of pixels: a
centre is a mean, and knows no detail. With `loss.focus` it is that of a part (`features.py`).

Deviation: the paper leaves it to the annealing. Off unless `loss.guided_epochs` is above 0.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.training.association import Errors, Rule
from posterior_trees.training.association.features import Part
from posterior_trees.tree import Tree, level_sizes

SIDE = 32
"""Pixels along a side that a centre has at most."""
IMAGES = 4096
"""Images that are clustered at most."""


class Starts(Rule):
    """The centres, and where they are asked for, whom they lead: while `is_guided` is above 0 the
    truth goes down their tree. `part` says what of images is clustered."""

    leads = True

    def __init__(
        self, branching: Sequence[int], is_guided: Float[Tensor, ""], part: Part | None = None
    ) -> None:
        self.branching, self.is_guided = tuple(branching), is_guided
        self.part = part or Part(())
        self.centres: list[Tensor] = []
        self.is_found = False

    def adjust(self, tree: Tree, x: Float[Tensor, "b *shape"], errors: Errors) -> Errors:
        far = distances(coarse(self.part.of(x - tree.root)), self.centres)
        return [torch.where(self.is_guided > 0, f, e) for f, e in zip(far, errors, strict=True)]

    def make_room(self, image: Float[Tensor, "*shape"]) -> None:
        """Places for the centres of every level, before any are found."""
        if not self.centres:
            size = coarse(self.part.of(image).unsqueeze(0)).shape[1]
            sizes = level_sizes(self.branching)
            self.centres = [torch.zeros(nodes, size, device=image.device) for nodes in sizes]

    def take(self, centres: Sequence[Float[Tensor, "_ d"]]) -> None:
        """Begin at these centres; they go where a recorded step reads them."""
        self.centres = self.centres or list(centres)
        for place, level in zip(self.centres, centres, strict=True):
            place.copy_(level)
        self.is_found = True


def coarse(residuals: Float[Tensor, "b *shape"]) -> Float[Tensor, "b d"]:
    """Residuals as rows of numbers, images averaged over squares."""
    residuals = residuals.detach().float()
    if residuals.ndim == 4:
        factor = -(-max(residuals.shape[-2:]) // SIDE)
        residuals = F.avg_pool2d(residuals, factor, ceil_mode=True)
    return residuals.flatten(1)


def find_centres(
    rows: Float[Tensor, "n d"], branching: Sequence[int], generator: torch.Generator
) -> list[Float[Tensor, "_ d"]]:
    """A tree of centres, by hierarchical K-means; an absent one is infinitely far."""
    tree = hierarchical_kmeans(rows.unsqueeze(0), branching, generator=generator)
    return [
        images[0].masked_fill(log_probs[0].isneginf().unsqueeze(1), torch.inf)
        for images, log_probs in zip(tree.images, tree.log_probs, strict=True)
    ]


def distances(
    rows: Float[Tensor, "b d"], centres: Sequence[Float[Tensor, "_ d"]]
) -> list[Float[Tensor, "b _"]]:
    """Mean squares of rows minus the centres of every level."""
    return [(rows.unsqueeze(1) - level).square().mean(dim=2) for level in centres]
