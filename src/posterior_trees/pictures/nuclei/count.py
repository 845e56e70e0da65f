r"""Counting nuclei in the answers of a tree: how many, how sure, and which of them are in doubt.

A leaf is a plausible stain. In each of them nuclei are the connected bright regions: pixels above a
threshold, the same for all leaves, in regions of at least `SMALLEST` pixels. With the leaves'
probabilities $\alpha_l$ and counts $n_l$, the count of the tree and its spread are

$$ \bar n = \sum_l \alpha_l n_l, \qquad s^2 = \sum_l \alpha_l (n_l - \bar n)^2 . $$

A field too large for one pass is a mosaic of tiles $t$, and each chooses among its leaves with
probabilities $\alpha_{tl}$ of its own (`tiles.py`). Nuclei are found in the whole picture of a
leaf, so none is cut, and belong to the tile that their centre is in: $n_{tl}$ in leaf $l$. Then

$$ \bar n = \sum_t \bar n_t, \quad \bar n_t = \sum_l \alpha_{tl} n_{tl}, \qquad
   s^2 = \sum_t s_t^2, \quad s_t^2 = \sum_l \alpha_{tl} (n_{tl} - \bar n_t)^2 . $$

The mean is right whatever tiles have to do with each other. Choice: the spread is that of tiles
which vary on their own, because that is how they err where the truth is known (`docs/cells.md`). If
all of them took the same leaf $l$ at once, the count would be $n_l = \sum_t n_{tl}$, with the mean
$\alpha_l$ over the field, and its spread the `spread_together`.

The *inventory* is every nucleus that some leaf shows, from the likeliest leaf down. A region $r$ is
listed unless it is in it already: at least half of $r$ lies in listed nuclei, or $r$ covers at
least half of one of them (a nucleus that is larger in this leaf, or several that are one region
here). A pixel belongs to the first nucleus that has it. A leaf shows a nucleus if at least half of
the nucleus is bright there, or if one of its regions was already listed as this nucleus, the one
that it overlaps most; so every region of every leaf is in the inventory. A nucleus has the sum of
$\alpha_{tl}$ over the leaves that show it as its probability, $t$ being its tile. Those below 1
come and go between the leaves.

Choice: threshold and label, nothing cleverer; nuclei that overlap widely count as one.
"""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.imaging.regions import FAINTEST, SMALLEST, find_regions, histogram, otsu, part
from posterior_trees.pictures.nuclei.blocks import Found, Odds, blocks_of, count_block, paint
from posterior_trees.pictures.tiles import Part
from posterior_trees.predictor import Predictor
from posterior_trees.tree import Tree


class Nucleus(NamedTuple):
    """A nucleus of the inventory: its centre and size in pixels, and the leaves that show it."""

    row: float
    column: float
    pixels: int
    probability: float
    leaves: tuple[tuple[int, ...], ...]


class Leaf(NamedTuple):
    """What one leaf shows."""

    path: tuple[int, ...]
    probability: float
    nuclei: int
    bright_pixels: int


class Count(NamedTuple):
    """The table of one tree."""

    threshold: float
    smallest: int
    tiles: int
    mean: float
    spread: float
    spread_together: float
    leaves: list[Leaf]
    nuclei: list[Nucleus]
    owned: list[int]
    """Pixels of each nucleus in `labels`, fewer than its own where others were first."""
    labels: Any
    """The number of each pixel's nucleus, from 1 in the order of `nuclei`; 0 outside: a tensor, or
    an array on disk."""

    @property
    def uncertain(self) -> list[Nucleus]:
        """Nuclei that some of the leaves do not show."""
        return [n for n in self.nuclei if len(n.leaves) < len(self.leaves)]


def count_nuclei(
    tree: Tree,
    threshold: float | int | None = None,
    parts: Sequence[Part] = (),
    block: int | None = None,
) -> Count:
    """Count the nuclei in the tree of one picture; without a `threshold` it is Otsu's. `parts` are
    those of a picture in tiles, and a large one is looked at block by block."""
    if len(tree) != 1 or len(tree.shape) != 3 or tree.shape[0] != 1:
        raise InputError(
            f"nuclei are counted in one tree of grey images; this is {tree}: take tree[i], and a "
            "model that predicts one channel"
        )
    size = tree.shape[1], tree.shape[2]
    odds = Odds.of(tree.log_probs[-1][0], tree.branching, size, parts)
    images = tree.leaves[0, odds.present, 0].cpu()
    if threshold is None:
        threshold = choose_threshold([histogram(image) for image in images])
    found = [
        count_block(images[:, place.tall, place.wide], place, odds, threshold)
        for place in blocks_of(size, block)
    ]
    before = itertools.accumulate((len(one.pixels) for one in found), initial=0)
    labels = paint(zip(before, found, strict=False), slice(0, size[0]), slice(0, size[1]))
    owned = labels.flatten().bincount()[1:].tolist()
    owned += [0] * (sum(len(one.pixels) for one in found) - len(owned))
    return sum_up(found, odds, threshold, owned, labels)


def choose_threshold(histograms: Sequence[Float[Tensor, "bins"]]) -> float:
    """Otsu's, of all leaves and places at once."""
    return max(part(torch.stack(list(histograms)).double().sum(dim=0)), FAINTEST)


def sum_up(
    found: Iterable[Found], odds: Odds, threshold: float | int, owned: list[int], labels: Any
) -> Count:
    """The table of all blocks."""
    counts, bright = torch.zeros_like(odds.local), torch.zeros(len(odds.paths)).long()
    nuclei: list[Nucleus] = []
    shows: dict[tuple[bool, ...], tuple[tuple[int, ...], ...]] = {}
    for one in found:
        counts += one.counts
        bright += one.bright
        for place, pixels, p, shown in zip(*(v.tolist() for v in one[:4]), strict=True):
            paths = shows.setdefault(tuple(shown), tuple(itertools.compress(odds.paths, shown)))
            nuclei.append(Nucleus(*place, pixels, p, paths))
    mean, spread = _moments(odds.local, counts)
    _, together = _moments(odds.probs[None], counts.sum(dim=0, keepdim=True))
    leaves = [
        Leaf(path, p, int(number), pixels)
        for path, p, number, pixels in zip(
            odds.paths, odds.probs.tolist(), counts.sum(dim=0).tolist(), bright.tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return Count(threshold, SMALLEST, len(odds.parts), mean, spread, together, leaves, nuclei,
                 owned, labels)  # fmt: skip


def count_in(image: Float[Tensor, "1 h w"], threshold: float | int | None = None) -> int:
    """The nuclei of one image by itself: the measure `nuclei` of a guarantee, whose threshold is
    Otsu's in each leaf and in the truth."""
    bright = max(otsu(image), FAINTEST) if threshold is None else threshold
    return int(find_regions(image[0].double() > bright, SMALLEST).max())


def describe_counting(predictor: Predictor) -> str:
    """What to think of the nuclei that are counted in a model's answers; empty for a model of
    pairs, as all models of a missing stain are."""
    if not predictor.measurement.is_computable:
        return ""
    task = f"the task {predictor.name!r}" if predictor.name else "this model"
    return (
        f"--count takes bright regions of at least {SMALLEST} pixels, none of them thin, for "
        f"nuclei; {task} does not predict a stain, so they may be something else"
    )


def _moments(probs: Float[Tensor, "t n"], counts: Float[Tensor, "t n"]) -> tuple[float, float]:
    """Mean and standard deviation of the sum over tiles that choose their leaves on their own."""
    means = (probs * counts).sum(dim=1)
    squares = (probs * (counts - means[:, None]).square()).sum()
    return means.sum().item(), squares.sqrt().item()
