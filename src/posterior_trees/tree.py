r"""The tree of answers: the only currency after the network.

A tree of branching $K$ and depth $d$ holds $K^\ell$ nodes at level $\ell$. Every node is an image
(the conditional mean of a cluster of plausible answers) and the probability of that cluster. Level
0 is the root, the posterior mean; the children of node $i$ are nodes $Ki, \dots, Ki+K-1$ of the
next level. This file decides that order.

A node may be *absent* (clustered samples leave some): its log-probability is $-\infty$, its image a
copy of its parent's, and no path ever goes through it.
"""

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees import store
from posterior_trees.errors import GuaranteeError, InputError, StoreError, plural
from posterior_trees.schema import SchemaError, check

if TYPE_CHECKING:
    from posterior_trees.guarantee.answers import Ball, Cut, Interval

SCHEMA = 1


class Node(NamedTuple):
    """One node of each image's tree: its prototype `image` and the `log_prob` of its cluster.

    >>> tree = grow(torch.tensor([[[0.0], [1.0]]]), torch.tensor([[0.25, 0.75]]).log(), branching=2)
    >>> tree.node((1,)).image.item(), tree.node((1,)).prob.item()
    (1.0, 0.75)
    """

    image: Float[Tensor, "b *shape"]
    log_prob: Float[Tensor, "b"]

    @property
    def prob(self) -> Float[Tensor, "b"]:
        return self.log_prob.exp()


class Tree:
    """A batch of trees of one layout.

    `images[level]` is `(b, nodes, *shape)` and `log_probs[level]` is `(b, nodes)`, root first.
    Probabilities are absolute: each level sums to 1. Build one with `grow`. `branching` holds the
    children per node of each level.

    >>> tree = grow(torch.rand(5, 9, 1, 8, 8), torch.zeros(5, 9).log_softmax(dim=1), branching=3)
    >>> tree
    Tree(5 images of (1, 8, 8), 3×3, cpu)
    >>> tree.root.shape, tree[0].leaves.shape, tree.descend(torch.rand(5, 1, 8, 8)).shape
    (torch.Size([5, 1, 8, 8]), torch.Size([1, 9, 1, 8, 8]), torch.Size([5, 3]))
    """

    def __init__(
        self,
        images: Sequence[Float[Tensor, "b _ *shape"]],
        log_probs: Sequence[Float[Tensor, "b _"]],
        branching: Sequence[int],
    ) -> None:
        self.images = tuple(images)
        self.log_probs = tuple(log_probs)
        self.branching = tuple(int(k) for k in branching)
        self.guarantee: Any = None
        self.p_values: Tensor | None = None
        if not len(self.images) == len(self.log_probs) == self.depth + 1:
            raise InputError(
                f"a tree of depth {self.depth} has {self.depth + 1} levels, got "
                f"{len(self.images)} of images and {len(self.log_probs)} of log_probs"
            )
        for level, nodes in enumerate(level_sizes(self.branching)):
            shapes = tuple(self.images[level].shape[:2]), tuple(self.log_probs[level].shape)
            if shapes[0] != shapes[1] or shapes[0][1] != nodes:
                raise InputError(
                    f"level {level} of a tree with branching {self.branching} has {nodes} nodes; "
                    f"got images of {shapes[0]} and log_probs of {shapes[1]}"
                )

    @property
    def depth(self) -> int:
        return len(self.branching)

    @property
    def root(self) -> Float[Tensor, "b *shape"]:
        """The prediction of the posterior mean."""
        return self.images[0][:, 0]

    @property
    def leaves(self) -> Float[Tensor, "b n *shape"]:
        return self.images[-1]

    @property
    def probs(self) -> tuple[Float[Tensor, "b _"], ...]:
        return tuple(level.exp() for level in self.log_probs)

    @property
    def shape(self) -> torch.Size:
        """Shape of one node's image."""
        return torch.Size(self.images[0].shape[2:])

    @property
    def device(self) -> torch.device:
        return self.images[0].device

    def __len__(self) -> int:
        return self.images[0].shape[0]

    def __getitem__(self, index: SupportsIndex | slice | Tensor) -> "Tree":
        """The tree of one image (a batch of one), or of several."""
        if hasattr(index, "__index__") and getattr(index, "ndim", 0) == 0:
            index = operator.index(index)  # of Python, numpy or torch
            if not -len(self) <= index < len(self):
                raise IndexError(f"image {index} of a batch of {len(self)} trees")
            index = slice(index, index + 1 or None)
        return self._map(lambda level: level[index])

    def __iter__(self) -> Iterator["Tree"]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        layout = "×".join(map(str, self.branching)) or "root only"
        return f"Tree({plural(len(self), 'image')} of {tuple(self.shape)}, {layout}, {self.device})"

    def _repr_html_(self) -> str | None:
        """The explorer, as the output of a notebook's cell."""
        from posterior_trees.explore import repr_html

        return repr_html(self)

    def node(self, path: Sequence[int] = ()) -> Node:
        """The node reached from the root by these child numbers; `()` is the root."""
        index, level = self.index(path), len(path)
        return Node(self.images[level][:, index], self.log_probs[level][:, index])

    def index(self, path: Sequence[int]) -> int:
        """The number, within its level, of the node at a path."""
        if len(path) > self.depth:
            raise IndexError(f"path {tuple(path)} is longer than the tree is deep ({self.depth})")
        index = 0
        for child, k in zip(path, self.branching, strict=False):
            if not 0 <= child < k:
                raise IndexError(f"child {child} in path {tuple(path)}: a node has {k} children")
            index = index * k + child
        return index

    def paths(self, level: int) -> list[tuple[int, ...]]:
        """The path of every node of a level, in node order."""
        return list(itertools.product(*map(range, self.branching[:level])))

    def is_absent(self, level: int) -> Tensor:
        return self.log_probs[level].isneginf()

    def is_split(self, level: int) -> Tensor:
        """Of every node of a level, whether more than one leaf below it is present; where a tree is
        unbalanced a node that was not split has one child, itself."""
        present = ~self.is_absent(self.depth)
        nodes = self.log_probs[level].shape[1]
        return present.unflatten(1, (nodes, -1)).sum(dim=2) > 1

    def errors(self, x: Float[Tensor, "b *shape"]) -> tuple[Float[Tensor, "b _"], ...]:
        """Mean squared error of every node, level by level; 0 where the node is absent."""
        if x.shape != (len(self), *self.shape):
            raise InputError(
                f"x has shape {tuple(x.shape)}; one truth for each tree has "
                f"{(len(self), *self.shape)}"
            )
        target = x.unsqueeze(1)
        return tuple(
            (nodes - target).square().flatten(2).mean(2).masked_fill(self.is_absent(level), 0.0)
            for level, nodes in enumerate(self.images)
        )

    def winners(self, errors: Sequence[Float[Tensor, "b _"]]) -> tuple[Int[Tensor, "b _"], ...]:
        """For every parent, the number of its nearest present child; ties to the lowest."""
        numbers = []
        for level, k in enumerate(self.branching, start=1):
            distance = errors[level].detach().masked_fill(self.is_absent(level), math.inf)
            numbers.append(distance.unflatten(1, (-1, k)).argmin(dim=2))
        return tuple(numbers)

    def descend(self, x: Float[Tensor, "b *shape"]) -> Int[Tensor, "b levels"]:
        """Node indices of the greedy path of `x`: at each level the nearest child (Sec. 4.1)."""
        return self.follow(self.winners(self.errors(x)))

    def follow(self, winners: Sequence[Int[Tensor, "b _"]]) -> Int[Tensor, "b levels"]:
        """Node indices of the path that always goes to the winning child, root first."""
        index = torch.zeros(len(self), 1, dtype=torch.long, device=self.device)
        path = [index]
        for k, number in zip(self.branching, winners, strict=True):
            index = index * k + number.gather(1, index)
            path.append(index)
        return torch.cat(path, dim=1)

    def cut(self, level: float = 0.9, nodes: int | None = 3) -> "list[Cut]":
        """Of each image: at most `nodes` nodes (None: as many leaves as it takes) that hold the
        path of the truth, with this probability over images like the calibration's."""
        return self._promises().cut(self, level, nodes)

    def ball(self, level: float = 0.9) -> "Ball":
        """Within which radius of some leaf the truth lies, with this probability."""
        return self._promises().ball(self, level)

    def interval(self, of: Any, level: float = 0.9, chosen: str = "before") -> "Interval":
        """Where a number of the truth lies, with this probability: a measure that was named when
        calibrating, a function if there is a bank, or the mean of a box (top, left, height, width)
        that was `chosen` "before" looking, which must have been named, or "after"."""
        return self._promises().interval(self, of, level, chosen)

    def _promises(self) -> Any:
        if self.guarantee is None:
            raise GuaranteeError(
                "nothing is promised about this tree: promises are about whole trees as a "
                "calibrated predictor gives them, predictor.eval()(y), not about what was grown, "
                "cropped or loaded. To have them: run ptrees calibrate MODEL --data DIR, or set "
                "predictor.guarantee = calibrate(predictor, images)"
            )
        return self.guarantee

    def to(self, *args, **kwargs) -> "Tree":
        return self._map(lambda level: level.to(*args, **kwargs))

    def detach(self) -> "Tree":
        return self._map(Tensor.detach)

    def map_images(self, function: Callable[[Tensor], Tensor]) -> "Tree":
        """The same tree of other images: a part of them, or another size; promises are lost."""
        return Tree([function(level) for level in self.images], self.log_probs, self.branching)

    def _map(self, function) -> "Tree":
        mapped = Tree(
            [function(level) for level in self.images],
            [function(level) for level in self.log_probs],
            self.branching,
        )
        mapped.guarantee = self.guarantee
        mapped.p_values = None if self.p_values is None else function(self.p_values)
        return mapped

    def save(self, file: str | PathLike[str]) -> None:
        """Write one safetensors file; `Tree.load` reads it back bit for bit. What that would
        refuse, NaN say, is not written."""
        tensors = {f"images.{i}": level for i, level in enumerate(self.images)}
        tensors |= {f"log_probs.{i}": level for i, level in enumerate(self.log_probs)}
        try:
            check_levels(tensors, self.branching)
        except SchemaError as error:
            raise StoreError(f"{file} is not written, it could not be read: {error}") from error
        store.write(file, tensors, {"tree": SCHEMA, "branching": self.branching})

    @classmethod
    def load(
        cls,
        file: str | PathLike[str],
        device: str | torch.device = "cpu",
        limit: int = 4_000_000_000,
    ) -> "Tree":
        """Read a file that `save` wrote, or OME-Zarr of no more than `limit` bytes; what cannot be
        a tree is refused, and so is NaN."""
        if Path(file).is_dir():
            from posterior_trees.imaging.stored import open_tree

            return open_tree(file).load(limit).to(device)
        tensors, facts = store.read(file)
        if "tree" not in facts:
            raise StoreError(f"{file} holds tensors but not a tree; was it saved by Tree.save?")
        try:
            check(facts, {"tree": int, "branching": list[int]}, "its facts", ("branching",))
            if facts["tree"] > SCHEMA:
                raise SchemaError(
                    f"its tree schema is {facts['tree']}, this version reads up to {SCHEMA}: "
                    "upgrade posterior-trees"
                )
            check_levels(tensors, facts["branching"])
            levels = range(len(facts["branching"]) + 1)
            images = [tensors[f"images.{i}"] for i in levels]
            log_probs = [tensors[f"log_probs.{i}"] for i in levels]
            return cls(images, log_probs, layout(facts["branching"])).to(device)
        except ValueError as error:
            raise StoreError(f"{file} is not a readable tree file: {error}") from error


def check_levels(tensors: Mapping[str, Tensor], branching: Sequence[int]) -> None:
    """Refuse stored levels that no tree of this branching has: others, or of other numbers."""
    names = [f"{part}.{i}" for part in ("images", "log_probs") for i in range(len(branching) + 1)]
    if sorted(names) != sorted(tensors):
        raise SchemaError(
            f"it has {len(tensors)} tensors; with branching {len(branching)} levels deep they are "
            f"{', '.join(names[:4])}, …"
        )
    first = tensors["images.0"]
    for name, level in tensors.items():
        is_image = name.startswith("images")
        want = (first.shape[0], *first.shape[2:]) if first.ndim > 1 else ()
        have = (level.shape[0], *level.shape[2:]) if level.ndim > 1 else ()
        if not (level.is_floating_point() and have and have == want[: None if is_image else 1]):
            raise SchemaError(f"{name} is {level.dtype} {tuple(level.shape)}, unlike images.0")
        bad = level.isnan() | level.isposinf() | (level.isneginf() if is_image else level > 1e-3)
        if count := int(bad.sum()):
            limits = "finite" if is_image else "log-probabilities"
            raise SchemaError(f"{count} of {level.numel()} numbers of {name} are not {limits}")


def level_sizes(branching: Sequence[int]) -> list[int]:
    """Number of nodes of each level, root first."""
    return [math.prod(branching[:level]) for level in range(len(branching) + 1)]


def layout(
    branching: int | Sequence[int], leaves: int | None = None, depth: int | None = None
) -> tuple[int, ...]:
    """The branching of every level as a tuple, from one number plus `leaves` or `depth`.

    A depth of 0 is legal: the tree is its root, and training it is plain MSE.
    """
    if not isinstance(branching, int):
        levels = tuple(int(k) for k in branching)
    elif branching < 2:
        raise InputError(f"branching is {branching}; a node needs at least 2 children")
    else:
        if depth is None:
            depth = next(d for d in itertools.count() if branching**d >= (leaves or 1))
        levels = (branching,) * depth
    if any(k < 2 for k in levels):
        raise InputError(f"branching is {levels}; every level needs at least 2 children per node")
    if leaves is not None and math.prod(levels) != leaves:
        raise InputError(f"{leaves} leaves do not fill a tree with branching {branching}")
    return levels


def grow(
    leaves: Float[Tensor, "b n *shape"],
    log_probs: Float[Tensor, "b n"],
    branching: int | Sequence[int],
) -> Tree:
    r"""Grow the tree from its leaves, bottom up (Eqs. 6 and 7).

    $$ \alpha_n = \sum_k \alpha_{nk}, \qquad x_n = \sum_k \frac{\alpha_{nk}}{\alpha_n} x_{nk} $$

    The root is the predicted posterior mean. Probabilities stay in log space, because a leaf that
    is never chosen may underflow, and in float32 even under autocast. A leaf of log-probability
    $-\infty$ is absent; a node whose leaves are all absent is absent too, and neither disturbs its
    ancestors' values or gradients.

    `leaves` are the images of the last level, `log_probs` their log-probabilities, `branching` the
    children per node, one number or one per level.

    >>> tree = grow(torch.tensor([[[0.0], [4.0]]]), torch.tensor([[0.25, 0.75]]).log(), branching=2)
    >>> round(tree.root.item(), 3)
    3.0
    """
    levels = layout(branching, leaves=leaves.shape[1])
    wide = torch.promote_types(torch.promote_types(leaves.dtype, log_probs.dtype), torch.float32)
    absent = _beside(log_probs.isneginf(), leaves)
    images, logs = [leaves.to(wide).masked_fill(absent, 0.0)], [log_probs.to(wide)]
    for k in reversed(levels):
        siblings = logs[0].unflatten(1, (-1, k))
        dead = siblings.isneginf().all(dim=2, keepdim=True)
        alive = siblings.masked_fill(dead, 0.0)
        share = alive.softmax(dim=2)
        children = images[0].unflatten(1, (-1, k))
        # Multiply and add, not einsum: autocast would send a matrix product to bfloat16.
        images.insert(0, (_beside(share, children) * children).sum(dim=2))
        logs.insert(0, alive.logsumexp(dim=2).masked_fill(dead.squeeze(2), -math.inf))
    for level, k in enumerate(levels, start=1):
        parents = images[level - 1].repeat_interleave(k, dim=1)
        absent = _beside(logs[level].isneginf(), parents)
        images[level] = torch.where(absent, parents, images[level])
    return Tree(images, logs, levels)


def _beside(numbers: Tensor, images: Tensor) -> Tensor:
    """One number for each image, with as many axes as the images have."""
    return numbers.reshape(*numbers.shape, *[1] * (images.ndim - numbers.ndim))
