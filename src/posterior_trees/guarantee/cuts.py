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
from itertools import chain, product
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
    covers = torch.cat([torch.eye(n).repeat_interleave(sizes[-1] // n, dim=1) for n in sizes])
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
    levels = (product(*map(range, branching[:level])) for level in range(len(sizes)))
    return Layout(list(chain(*levels)), covers.bool(), torch.cat(found))


def leaf_masses(tree: Tree) -> Int[Tensor, "b leaves"]:
    """The leaves' probabilities in whole numbers of `1 / WHOLE`, which they add up to."""
    probs = tree.log_probs[-1].detach().cpu().double().exp()
    masses = (probs * WHOLE).round().long()
    largest = masses.argmax(dim=1, keepdim=True)
    return masses.scatter_add(1, largest, WHOLE - masses.sum(dim=1, keepdim=True))


def sieve(
    tree: Tree, layout: Layout
) -> tuple[Int[Tensor, "b antichains"], Int[Tensor, "b antichains"]]:
    """The antichains of each tree in its order: their places in the layout, and their masses."""
    covers, members = layout.covers.double(), layout.members.double()
    # whole numbers below 2^53: exact
    mass = (leaf_masses(tree).double() @ covers.T @ members.T).long()
    leaves = (~tree.is_absent(tree.depth)).cpu().double() @ covers.T
    key = (leaves @ members.T).long() * 2 * WHOLE + WHOLE - mass
    is_void = (leaves == 0).double() @ members.T > 0  # with an absent node: as good without it
    key = key.masked_fill(is_void, torch.iinfo(torch.long).max)
    place = key.argsort(dim=1, stable=True)
    return place, mass.masked_fill(is_void, 0).gather(1, place)


def score(tree: Tree, x: Float[Tensor, "b *shape"], nodes: int | None) -> Float[Tensor, "b"]:
    """The $S$ of every image, a share of 1."""
    path = tree.descend(x).cpu()
    if nodes is None:
        masses = leaf_masses(tree)
        likelier = masses > masses.gather(1, path[:, -1:])
        return (masses * likelier).sum(dim=1).float() / WHOLE
    layout = antichains(tree.branching, nodes)
    sizes = torch.tensor(level_sizes(tree.branching)).cumsum(0)
    on_path = torch.zeros(len(tree), len(layout.paths))
    on_path.scatter_(1, path + (sizes - sizes.diff(prepend=sizes.new_zeros(1))), 1.0)
    place, mass = sieve(tree, layout)
    before = torch.cat([mass.new_zeros(len(mass), 1), mass.cummax(dim=1).values[:, :-1]], dim=1)
    holds = (on_path @ layout.members.float().T > 0).gather(1, place)
    return (mass * ((mass > before) & ~holds)).amax(dim=1).float() / WHOLE


def cut(tree: Tree, threshold: float, nodes: int | None) -> list[tuple[list[Path], list[float]]]:
    """Paths and probabilities of $C_t$ for every tree of a batch."""
    if nodes is None:
        return [_likeliest(one, threshold) for one in tree]
    layout, found = antichains(tree.branching, nodes), []
    for one, place, mass in zip(tree, *sieve(tree, layout), strict=True):
        enough = (mass > threshold * WHOLE).nonzero()[:, 0].tolist()
        members = layout.members[place[enough[0]]] if enough else layout.members[0]
        paths = [layout.paths[i] for i in members.nonzero()[:, 0].tolist()]
        found.append((paths, _probs(one, paths)))
    return found


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
