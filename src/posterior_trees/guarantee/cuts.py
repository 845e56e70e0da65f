r"""The cut: a few nodes of a tree that hold the truth's path.

$\mathcal A_b$ are the antichains of at most $b$ nodes: none of them an ancestor of another. Each
tree puts its own in order, by how many leaves they cover and then by mass, and the cut for a
threshold $t$ is the first that holds more than $t$:

$$ C_t = \text{the first of } \mathcal A_b \text{ with } \alpha(C) > t, \quad
   \text{the root for } t \ge 1 . $$

An antichain is *ever chosen* if it is $C_t$ for some $t$. They are not nested, so the score is the
largest mass among those ever chosen which miss the greedy path of the truth, 0 if none does. Then
$S \le q$ means that $C_q$ holds the path: whatever is chosen above $S$ does. A conformal quantile
$q$ of $S$ thus gives a cut that holds the path of a new truth with the level's probability.

With $b = \infty$ (`nodes=None`) the cuts are the likeliest leaves, as many as it takes, complete
siblings written as their parent; they are nested, and $S$ is the mass of the leaves likelier than
the truth's (adaptive prediction sets of Romano, Sesia & Candès, 2020, without randomness).

Choice: masses are whole numbers of $2^{-23}$, so that sums are exact, in any order: permuting
children permutes the cut, and what a float32 stores is what was compared.
"""

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.errors import GuaranteeError
from posterior_trees.tree import Tree, level_sizes

WHOLE = 2**23
MOST = 200_000
"""Antichains to sieve; 13 nodes have 377 of at most three, 40 nodes have 10,700."""

Path = tuple[int, ...]


class Layout(NamedTuple):
    """The nodes of a tree, all levels in one row, and its antichains."""

    paths: list[Path]
    covers: Bool[Tensor, "nodes leaves"]
    members: Bool[Tensor, "antichains nodes"]


@lru_cache(maxsize=8)
def antichains(branching: tuple[int, ...], nodes: int) -> Layout:
    """All antichains of at most so many nodes: fewer nodes first, then those higher up."""
    sizes = level_sizes(branching)
    parts = [torch.eye(n).repeat_interleave(sizes[-1] // n, dim=1) for n in sizes]
    covers = torch.cat(parts)
    count = len(covers)
    apart = covers @ covers.T == 0
    chains, found = torch.arange(count)[:, None], []
    for _ in range(nodes):
        found.append(torch.zeros(len(chains), count, dtype=torch.bool).scatter(1, chains, True))
        further = apart[chains].all(dim=1) & (torch.arange(count) > chains[:, -1:])
        if sum(map(len, found)) + int(further.sum()) > MOST:
            raise GuaranteeError(
                f"a tree of {count} nodes has over {MOST:,} cuts of at most {nodes} nodes; ask for "
                "fewer, or nodes=None for as many leaves as it takes"
            )
        one, other = further.nonzero(as_tuple=True)
        chains = torch.cat([chains[one], other[:, None]], dim=1)
    return Layout(paths_of(branching), covers.bool(), torch.cat(found))


def paths_of(branching: tuple[int, ...]) -> list[Path]:
    """The path of every node, level by level."""
    levels: list[list[Path]] = [[()]]
    for k in branching:
        levels.append([(*path, child) for path in levels[-1] for child in range(k)])
    return [path for level in levels for path in level]


def leaf_masses(tree: Tree) -> Int[Tensor, "b leaves"]:
    """The leaves' probabilities in whole numbers of `1 / WHOLE`, which they add up to."""
    probs = tree.log_probs[-1].detach().cpu().double().exp()
    masses = (probs * WHOLE).round().long()
    largest = masses.argmax(dim=1, keepdim=True)
    return masses.scatter_add(1, largest, WHOLE - masses.sum(dim=1, keepdim=True))


class Sieve(NamedTuple):
    """The antichains of each tree in its order: `place` in the layout, and their mass; `is_chosen`
    says which of them some threshold chooses."""

    place: Int[Tensor, "b antichains"]
    mass: Int[Tensor, "b antichains"]
    is_chosen: Bool[Tensor, "b antichains"]


def sieve(tree: Tree, layout: Layout) -> Sieve:
    masses, covers = leaf_masses(tree), layout.covers.double()
    present = ~tree.is_absent(tree.depth).cpu()
    members = layout.members.double()
    mass = (masses.double() @ covers.T @ members.T).long()  # whole numbers below 2^53: exact
    leaves = present.double() @ covers.T
    key = (leaves @ members.T).long() * 2 * WHOLE + WHOLE - mass
    is_void = (leaves == 0).double() @ members.T > 0  # with an absent node: as good without it
    key = key.masked_fill(is_void, torch.iinfo(torch.long).max)
    place = key.argsort(dim=1, stable=True)
    mass = mass.masked_fill(is_void, 0).gather(1, place)
    before = torch.cat([mass.new_zeros(len(mass), 1), mass.cummax(dim=1).values[:, :-1]], dim=1)
    return Sieve(place, mass, mass > before)


def score(tree: Tree, x: Float[Tensor, "b *shape"], layout: Layout | None) -> Float[Tensor, "b"]:
    """The $S$ of every image, a share of 1; without a layout that of the likeliest leaves."""
    path = tree.descend(x).cpu()
    if layout is None:
        masses = leaf_masses(tree)
        likelier = masses > masses.gather(1, path[:, -1:])
        return (masses * likelier).sum(dim=1).float() / WHOLE
    sizes = torch.tensor(level_sizes(tree.branching)).cumsum(0)
    on_path = torch.zeros(len(tree), len(layout.paths))
    on_path.scatter_(1, path + (sizes - sizes.diff(prepend=sizes.new_zeros(1))), 1.0)
    found = sieve(tree, layout)
    holds = (on_path @ layout.members.float().T > 0).gather(1, found.place)
    return (found.mass * (found.is_chosen & ~holds)).amax(dim=1).float() / WHOLE


def cut(
    tree: Tree, threshold: float, layout: Layout | None
) -> list[tuple[list[Path], list[float]]]:
    """Paths and probabilities of $C_t$ for every tree of a batch."""
    if layout is None:
        return [_likeliest(tree[i], threshold) for i in range(len(tree))]
    found = sieve(tree, layout)
    cuts = []
    for place, mass in zip(found.place, found.mass, strict=True):
        enough = (mass > threshold * WHOLE).nonzero()[:, 0].tolist()
        nodes = layout.members[place[enough[0]]] if enough else layout.members[0]
        cuts.append([layout.paths[i] for i in nodes.nonzero()[:, 0].tolist()])
    return [(paths, _probs(tree[i], paths)) for i, paths in enumerate(cuts)]


def _likeliest(tree: Tree, threshold: float) -> tuple[list[Path], list[float]]:
    """The likeliest leaves that hold more than the threshold, siblings together as their parent."""
    (masses,) = leaf_masses(tree)
    # All leaves as likely as the last one: then no order of the children decides.
    by_mass = masses.sort(descending=True).values
    enough = (by_mass.cumsum(0) > threshold * WHOLE).nonzero()[:, 0].tolist()
    least = by_mass[enough[0]] if enough else by_mass[-1]
    absent = tree.is_absent(tree.depth)[0].cpu()
    taken, paths = (masses >= least) & ~absent, []
    for level in range(tree.depth + 1):
        whole = (taken | absent).unflatten(0, (level_sizes(tree.branching)[level], -1))
        some = taken.unflatten(0, whole.shape).any(dim=1)
        for node in (whole.all(dim=1) & some).nonzero()[:, 0].tolist():
            paths.append(tree.paths(level)[node])
            width = whole.shape[1]
            taken[node * width : (node + 1) * width] = False
            absent[node * width : (node + 1) * width] = False
    return paths, _probs(tree, paths)


def _probs(tree: Tree, paths: list[Path]) -> list[float]:
    return [tree.node(path).prob[0].item() for path in paths]
