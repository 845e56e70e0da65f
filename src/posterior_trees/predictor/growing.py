r"""A predictor that is asked node by node: where a tree splits next, and for which region.

$$ x_{nk} = x_n + P\Big(\delta_k - \sum_j p_j \delta_j\Big), \qquad
   p = \mathrm{softmax}(\text{logits}), \qquad \alpha_{nk} = \alpha_n p_k $$

Children average to their node whatever the network says, and every node agrees with $y$. The root
is $\mathrm{naive}(y) + P\,\overline{\delta}$ of a call at level 0, to which the region is all that
$y$ leaves open: it does not depend on what is asked.

Deviation: the paper's network emits all leaves at once, and its tree speaks for the whole picture.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.node import NodeNetwork
from posterior_trees.networks.padding import pad
from posterior_trees.predictor.growth import Growth, Path, Siblings
from posterior_trees.predictor.onepass import TreePredictor
from posterior_trees.predictor.region import open_part
from posterior_trees.tree import Tree, level_sizes

ROWS = 64
"""Nodes that are split in one batch, at most."""


class GrowingPredictor(TreePredictor):
    """A predictor whose network is a `NodeNetwork`: it predicts trees of its `branching`, as any
    other, and grows them further, for any region (`begin`)."""

    network: NodeNetwork

    def _growths(self, y: Tensor, masks: Tensor) -> list[Growth]:
        """The roots alone, each to be grown for its region."""
        things = zip(self.root(y), masks, y.split(1), strict=True)
        return [Growth(root, self._branch, mask, one) for root, mask, one in things]

    def compile(self, dtype: torch.dtype | None = None) -> NoReturn:
        raise InputError(
            "a growing predictor is not compiled: it answers one node at a time. Use it as it is"
        )

    def root(self, y: Float[Tensor, "b *shape"]) -> Float[Tensor, "b c h w"]:
        """The posterior mean."""
        naive = self.measurement.naive(y)
        level = torch.zeros(len(y), dtype=torch.long, device=y.device)
        whole = open_part(self.measurement, naive)
        return self.root_of(self.network(*self.question(y, naive, naive, whole, level)), naive)

    def split(
        self,
        y: Float[Tensor, "b *shape"],
        node: Float[Tensor, "b c h w"],
        parent: Float[Tensor, "b c h w"],
        region: Float[Tensor, "b 1 h w"],
        level: Int[Tensor, "b"],
    ) -> Leaves:
        """The children of nodes that lie on `level` (1: of roots, which are their own parents), and
        their log-probabilities given the node."""
        return self.children_of(self.network(*self.question(y, node, parent, region, level)), node)

    def question(self, y, node, parent, region, level) -> tuple[Tensor, ...]:
        """What the network is given, padded to a size it can take."""
        maps = (pad(m, self.multiple, self.padding) for m in (node, node - parent, region))
        return (self.view(y), *(m.to(self.dtype) for m in maps), level)

    def root_of(self, leaves: Leaves, naive: Float[Tensor, "b c h w"]) -> Tensor:
        return naive + self.measurement.project(self._inner(leaves, naive).mean(dim=1))

    def children_of(self, leaves: Leaves, node: Float[Tensor, "b c h w"]) -> Leaves:
        """Images that average to their node, by the probabilities that come with them."""
        delta, log_probs = self._inner(leaves, node), leaves.log_probs
        mean = (log_probs.exp()[:, :, None, None, None] * delta).sum(dim=1, keepdim=True)
        return Leaves(node.unsqueeze(1) + self.measurement.project(delta - mean), log_probs)

    def tree_of(self, y: Float[Tensor, "b *shape"]) -> Tree:
        """All nodes of the `branching`, level by level, for everything that is open."""
        naive = self.measurement.naive(y)
        region, sizes = open_part(self.measurement, naive), level_sizes(self.branching)
        images = [self.root(y).unsqueeze(1)]
        log_probs = [images[0].new_zeros(len(y), 1)]
        for level in range(1, self.depth + 1):
            nodes, parents = images[-1], images[max(level - 2, 0)]
            parents = parents.repeat_interleave(nodes.shape[1] // parents.shape[1], dim=1)
            number = torch.full((len(y),), level, dtype=torch.long, device=y.device)
            split = [  # one node of every picture at a time: a batch is as large as the root's
                self.split(y, nodes[:, i], parents[:, i], region, number)
                for i in range(sizes[level - 1])
            ]
            images.append(torch.cat([s.images for s in split], dim=1))
            given = torch.cat([s.log_probs for s in split], dim=1)
            above = log_probs[-1].repeat_interleave(self.branching[level - 1], dim=1)
            log_probs.append(above + given)
        return Tree(images, log_probs, self.branching)

    @property
    def _plain(self) -> type[TreePredictor]:
        return GrowingPredictor

    @torch.no_grad()
    def _branch(self, asked: Sequence[tuple[Growth, Path]]) -> list[Siblings | None]:
        level = max(len(path) for _, path in asked) + 1
        if level > self.network.levels and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"level {level} is deeper than the {self.network.levels} that the model was "
                "trained for (network.levels): it splits on as there, and knows less and less",
                stacklevel=6,
            )
        parts = (asked[first : first + ROWS] for first in range(0, len(asked), ROWS))
        return [siblings for part in parts for siblings in self._branch_few(part)]

    def _branch_few(self, asked: Sequence[tuple[Any, Path]]) -> list[Siblings]:
        y = torch.cat([growth.y for growth, _ in asked])
        nodes = torch.stack([growth.nodes[path][0] for growth, path in asked])
        parents = torch.stack([growth.nodes[path[:-1]][0] for growth, path in asked])
        regions = torch.stack([growth.region for growth, _ in asked])
        levels = torch.tensor([len(path) + 1 for _, path in asked], device=y.device)
        split = self.split(y, nodes, parents, regions, levels)
        return [Siblings(*pair) for pair in zip(split.images, split.log_probs, strict=True)]

    _has_warned = False
