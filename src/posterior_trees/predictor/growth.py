r"""A tree that grows where it is asked to: as deep and as unbalanced as one picture deserves.

A `Growth` knows the root and how to find the children of a node. It grows best first, by what a
split is worth inside the region $M$ that the question is about,

$$ \text{gain}(n) = \alpha_n \sum_k p_k \, \overline{(x_{nk} - x_n)^2}^{\,M} , $$

the squared error that the children are expected to take off their node's. They are predicted to
know it, so it is known before they are shown. Finished trees grow in the same way, by showing what
they hold (`Growth.of`): whoever shows trees knows one way to ask.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError, ModelError
from posterior_trees.tree import Tree

Path = tuple[int, ...]
MOST_NODES = 4096
"""Of a growth, and of the dense tree that is made of one."""


class Siblings(NamedTuple):
    """The children of one node: images, and log-probabilities given the node."""

    images: Float[Tensor, "k *shape"]
    log_probs: Float[Tensor, "k"]


Branch = Callable[[Sequence[tuple["Growth", Path]]], Sequence[Siblings | None]]
"""What finds the children of nodes of several growths, in one batch; None: it has none."""


class Growth:
    """A lazily grown tree of one picture, begun by `predictor.begin`.

    `root` is the image of its root, `branch` finds children (of `y`, if it has to know what was
    measured), `region` (a mask in [0, 1]) is what the question is about, everything if it is None.

    >>> tree = grow(torch.rand(1, 9, 1, 4, 4), torch.zeros(1, 9).log_softmax(dim=1), branching=3)
    >>> growth = Growth.of(tree).grow(nodes=7)
    >>> len(growth.nodes), len(growth.leaves), growth.tree().depth
    (7, 5, 2)
    """

    def __init__(
        self,
        root: Float[Tensor, "*shape"],
        branch: Branch,
        region: Float[Tensor, "1 h w"] | None = None,
        y: Float[Tensor, "1 *shape2"] | None = None,
    ) -> None:
        check_finite(root, "the root is")
        self.branch, self.region, self.y = branch, region, y
        self.nodes: dict[Path, tuple[Tensor, float]] = {(): (root, 0.0)}
        self.children: dict[Path, int] = {}
        self._ahead: dict[Path, Siblings | None] = {}

    @classmethod
    def of(cls, tree: Tree, region: Float[Tensor, "1 h w"] | None = None) -> "Growth":
        """A finished tree of one image, to be shown step by step; region or not, its nodes are
        those that it has."""
        if len(tree) != 1:
            raise InputError(f"a growth is of one image, these are {len(tree)} trees: give tree[i]")

        def branch(asked: Sequence[tuple[Growth, Path]]) -> list[Siblings | None]:
            return [children_in(tree, path) for _, path in asked]

        return cls(tree.root[0], branch, region)

    @property
    def leaves(self) -> list[Path]:
        """What is shown and not split, absent nodes apart."""
        return [
            path
            for path, (_, log_prob) in self.nodes.items()
            if path not in self.children and log_prob > -math.inf
        ]

    def prob(self, path: Path) -> float:
        """The absolute probability of a node that is shown."""
        return math.exp(self.nodes[path][1])

    def gain(self, path: Path) -> float:
        """What splitting a node that is shown takes off the squared error, by its own account."""
        look_ahead([(self, path)])
        siblings = self._ahead[path]
        if siblings is None:
            return 0.0
        squares = (siblings.images - self.nodes[path][0]).square()
        if self.region is not None:
            weight = self.region.expand(squares.shape[1:])
            squares = squares * (weight / weight.mean())
        return self.prob(path) * float(siblings.log_probs.exp() @ squares.flatten(1).mean(dim=1))

    def expand(self, *paths: Sequence[int]) -> bool:
        """Split these nodes, all in one batch; False if none of them can be split."""
        asked = [tuple(path) for path in paths]
        for path in asked:
            if path not in self.nodes:
                raise InputError(f"path {path} is not shown: split {path[:-1]} first")
        look_ahead([(self, path) for path in asked])
        return sum(self._show(path) for path in asked) > 0

    def _show(self, path: Path, nodes: float | int = math.inf) -> bool:
        """Show the children of a node, if it has any and these leave no more than so many nodes."""
        siblings = self._ahead[path]
        if path in self.children or siblings is None:
            return False
        if len(self.nodes) + len(siblings.images) > nodes:
            return False
        base = self.nodes[path][1]
        for child, log_prob in enumerate(siblings.log_probs.tolist()):
            self.nodes[(*path, child)] = (siblings.images[child], base + log_prob)
        self.children[path] = len(siblings.images)
        return True

    def fold(self, path: Sequence[int]) -> None:
        """Take back a split, and all below it; what was predicted is kept for the next time."""
        top = tuple(path)
        for below in [p for p in self.nodes if p[: len(top)] == top]:
            self.children.pop(below, None)
            if below != top:
                del self.nodes[below]

    def grow(
        self,
        nodes: int | None = None,
        *,
        gain: float | None = None,
        probability: float | None = None,
        by: str = "gain",
    ) -> "Growth":
        """Split the best leaf again and again: by its gain, by its `probability`, or from the top
        down (`by="level"`, which is the balanced tree). It ends where there would be more than
        `nodes` nodes, root and all (13 if nothing is asked), or where the best leaf has a smaller
        `gain` or `probability` than these."""
        grow_each([self], nodes, gain=gain, probability=probability, by=by)
        return self

    @property
    def layout(self) -> tuple[int, ...]:
        """The branching of the smallest dense tree that holds it."""
        widths = [2] * max(map(len, self.nodes))
        for path, k in self.children.items():
            widths[len(path)] = max(widths[len(path)], k)
        return tuple(widths)

    def tree(self, branching: Sequence[int] | None = None) -> Tree:
        """A dense tree, for metrics, figures and files; where nothing was split a node has one
        child, itself, and absent ones. `branching` is for trees that are to be compared."""
        mine = self.layout
        layout = mine if branching is None else tuple(branching)
        if len(layout) < len(mine) or any(a < b for a, b in zip(layout, mine, strict=False)):
            raise InputError(f"a growth of layout {mine} does not fit into {layout}")
        if math.prod(layout) > MOST_NODES:
            raise InputError(
                f"a dense tree of this growth has {math.prod(layout)} leaves (it is {len(mine)} "
                f"levels deep), at most {MOST_NODES} are made: take its `nodes`, or grow it less "
                "deep"
            )
        rows: list[list[tuple[Path | None, Path]]] = [[((), ())]]  # what is there, whose image
        for k in layout:
            rows.append([self._child(*above, c) for above in rows[-1] for c in range(k)])
        root = self.nodes[()][0]
        wide = torch.promote_types(root.dtype, torch.float32)
        logs = [[-math.inf if p is None else self.nodes[p][1] for p, _ in row] for row in rows]
        return Tree(
            [torch.stack([self.nodes[source][0] for _, source in row])[None] for row in rows],
            [torch.tensor([level], dtype=wide, device=root.device) for level in logs],
            layout,
        )

    def _child(self, path: Path | None, source: Path, child: int) -> tuple[Path | None, Path]:
        """Of a place in a dense tree its child's: what is there, and whose image it shows."""
        if path in self.children and path is not None:
            below = (*path, child)
            return (below, below) if child < self.children[path] else (None, path)
        return (path if child == 0 else None), source


def grow_each(
    growths: Sequence[Growth],
    nodes: int | None = None,
    *,
    gain: float | None = None,
    probability: float | None = None,
    by: str = "gain",
) -> None:
    """`Growth.grow` for several pictures: each round splits the best leaf of every one, and finds
    all their children in one batch."""
    value = VALUES.get(by)
    if value is None:
        raise InputError(f"by={by!r}: a growth grows by {', '.join(VALUES)}")
    if nodes is None:
        nodes = 13 if gain is None and probability is None else MOST_NODES
    if nodes < 1:
        raise InputError(f"nodes={nodes}: a tree has at least its root, 1 node")
    growing = list(growths)
    while growing := [growth for growth in growing if len(growth.nodes) < nodes]:
        if by == "gain" or gain is not None:
            look_ahead([(growth, path) for growth in growing for path in growth.leaves])
        best = [(growth, _best(growth, value)) for growth in growing]
        look_ahead([(growth, path) for growth, path in best if path is not None])
        growing = [
            growth
            for growth, path in best
            if path is not None
            and (gain is None or growth.gain(path) >= gain)
            and (probability is None or growth.prob(path) >= probability)
            and growth._show(path, nodes)
        ]


VALUES: dict[str, Callable[[Growth, Path], float]] = {
    "gain": Growth.gain,
    "probability": Growth.prob,
    "level": lambda growth, path: -len(path),
}
"""What makes a leaf the next to be split."""


def _best(growth: Growth, value: Callable[[Growth, Path], float]) -> Path | None:
    """The first of the best leaves that are not known to have no children."""
    open_leaves = [path for path in growth.leaves if growth._ahead.get(path, ()) is not None]
    return max(open_leaves, key=lambda path: value(growth, path), default=None)


def look_ahead(asked: Sequence[tuple[Growth, Path]]) -> None:
    """Find the children of nodes that are shown, unless they are known: one batch for all growths
    of one predictor."""
    missing: dict[Branch, list[tuple[Growth, Path]]] = {}
    for growth, path in asked:
        if path not in growth._ahead:
            missing.setdefault(growth.branch, []).append((growth, path))
    for branch, nodes in missing.items():
        for (growth, path), siblings in zip(nodes, branch(nodes), strict=True):
            if siblings is not None:
                check_finite(siblings.images, f"the children of node {path} are")
            growth._ahead[path] = siblings


def check_finite(images: Tensor, what: str) -> None:
    """Refuse what broken weights make."""
    if not bool(images.isfinite().all()):
        raise ModelError(
            f"{what} NaN or infinite: the model's weights are broken (its training diverged, or "
            "its file is damaged); load or train another"
        )


def children_in(tree: Tree, path: Path) -> Siblings | None:
    """The children that a node has in a finished tree; None where nothing is split below it."""
    if len(path) == tree.depth or not bool(tree.is_split(len(path))[0, tree.index(path)]):
        return None
    level, first = len(path) + 1, tree.index((*path, 0))
    children = slice(first, first + tree.branching[level - 1])
    log_probs = tree.log_probs[level][0, children] - tree.node(path).log_prob[0]
    return Siblings(tree.images[level][0, children], log_probs)
