r"""Counting nuclei in the answers of a tree: how many, how sure, and which of them are in doubt.

A leaf is a plausible stain. In each of them nuclei are the connected bright regions: pixels above a
threshold, the same for all leaves, in regions of at least `smallest` pixels. With the leaves'
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

The *inventory* is every nucleus that some leaf shows, from the likeliest leaf down: a region joins
if nuclei that are in it already cover less than half of it. A leaf shows a nucleus of the inventory
if at least half of its pixels are bright there; its probability is the sum of $\alpha_{tl}$ over
the leaves that show it, $t$ being its tile. Nuclei below 1 come and go between the leaves.

Choice: threshold and label, nothing cleverer; nuclei that overlap widely count as one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.label import label, sizes
from posterior_trees.pictures.tiles import Part, TiledTree
from posterior_trees.tree import Tree

SMALLEST = 25
"""Pixels of the smallest nucleus; in our BBBC022 fields the median nucleus has about 180."""
BRIDGE = 3
"""Nuclei that touch along fewer than about twice as many pixels count as two."""
FAINTEST = 0.2
"""No threshold of Otsu's below this: a field without nuclei is split at its noise."""


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

    @property
    def uncertain(self) -> list[Nucleus]:
        """Nuclei that some of the leaves do not show."""
        return [n for n in self.nuclei if len(n.leaves) < len(self.leaves)]


def count_nuclei(
    tree: Tree,
    threshold: float | int | None = None,
    smallest: int = SMALLEST,
    watch: Callable = iter,
) -> Count:
    """Count the nuclei in the tree of one picture; without a `threshold` it is Otsu's. `watch`
    wraps the loop over the leaves."""
    if len(tree) != 1 or len(tree.shape) != 3 or tree.shape[0] != 1:
        raise ValueError(
            f"nuclei are counted in one tree of grey images; this is {tree}: take tree[i], and a "
            "model that predicts one channel"
        )
    everywhere = tree.log_probs[-1][0].double().exp()
    whole = Part(slice(0, tree.shape[1]), slice(0, tree.shape[2]), everywhere)
    parts = tree.parts if isinstance(tree, TiledTree) else [whole]
    present = (~tree.is_absent(tree.depth)[0]).nonzero()[:, 0].tolist()
    images, probs = tree.leaves[0, present, 0].cpu(), everywhere[present].cpu()
    local = torch.stack([part.probs[present].cpu().double() for part in parts])
    if threshold is None:
        threshold = max(otsu(images), FAINTEST)
    found = [
        Regions.of(find_regions(images[leaf].double() > threshold, smallest))
        for leaf in watch(range(len(present)))
    ]
    counts = torch.stack([regions.per_part(parts) for regions in found], dim=1)
    mean, spread = _moments(local, counts)
    _, together = _moments(probs[None], counts.sum(dim=0, keepdim=True))
    paths = [tree.paths(tree.depth)[leaf] for leaf in present]
    leaves = [
        Leaf(path, p, len(regions.pixels), int(regions.pixels.sum()))
        for path, p, regions in zip(paths, probs.tolist(), found, strict=True)
    ]
    order = probs.argsort(descending=True, stable=True).tolist()
    nuclei = _inventory(found, order, local, parts, paths)
    return Count(threshold, smallest, len(parts), mean, spread, together, leaves, nuclei)


def _moments(probs: Float[Tensor, "t n"], counts: Float[Tensor, "t n"]) -> tuple[float, float]:
    """Mean and standard deviation of the sum over tiles that choose their leaves on their own."""
    means = (probs * counts).sum(dim=1)
    squares = (probs * (counts - means[:, None]).square()).sum()
    return means.sum().item(), squares.sqrt().item()


class Regions(NamedTuple):
    """The regions of one leaf: their numbers pixel by pixel, from 1, and for each its pixels, its
    centre, and the rows and columns that hold it."""

    numbers: Int64[Tensor, "h w"]
    pixels: Int64[Tensor, "n"]
    centres: Float[Tensor, "n 2"]
    boxes: list[tuple[slice, slice]]

    @classmethod
    def of(cls, numbers: Int64[Tensor, "h w"]) -> "Regions":
        places = numbers.nonzero()
        region = (numbers[places[:, 0], places[:, 1]] - 1)[:, None].expand(-1, 2)
        pixels = sizes(numbers)
        empty = torch.zeros(len(pixels), 2, dtype=torch.long)
        centres = empty.double().scatter_add(0, region, places.double()) / pixels[:, None]
        first, last = (
            empty.scatter_reduce(0, region, places, way, include_self=False).tolist()
            for way in ("amin", "amax")
        )
        boxes = [
            (slice(top, bottom + 1), slice(left, right + 1))
            for (top, left), (bottom, right) in zip(first, last, strict=True)
        ]
        return cls(numbers, pixels, centres, boxes)

    def per_part(self, parts: Sequence[Part]) -> Float[Tensor, "t"]:
        """How many of the regions have their centre in each part of the picture."""
        return _owners(self.centres, parts).bincount(minlength=len(parts)).double()


def _owners(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Int64[Tensor, "n"]:
    """The part in which each place lies."""
    edges = torch.tensor([[(p.rows.start, p.columns.start), (p.rows.stop, p.columns.stop)]
                          for p in parts])  # fmt: skip
    places = (centres + 0.5).floor()[:, None]
    inside = (edges[:, 0] <= places) & (places < edges[:, 1])
    return inside.all(dim=2).long().argmax(dim=1)


def otsu(values: Float[Tensor, "..."], bins: int = 256) -> float:
    r"""The threshold $t$ in [0, 1] that parts values best into two classes (Otsu, 1979).

    It maximises the variance between them,
    $\omega(t) \, (1 - \omega(t)) \, (\mu_1(t) - \mu_0(t))^2$, $\omega$ the share below $t$.
    """
    clipped = values.detach().double().clamp(0, 1).flatten()
    share = torch.histc(clipped, bins, 0, 1) / len(clipped)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below, mass = share.cumsum(0), (share * centres).cumsum(0)
    between = (mass[-1] * below - mass).square() / (below * (1 - below)).clamp(min=1e-12)
    best = (between >= between.max() * (1 - 1e-9)).nonzero()[:, 0].double()
    return (best.mean().item() + 1) / bins  # the middle, where an empty gap makes many the best


def find_regions(
    bright: Bool[Tensor, "h w"], smallest: int, bridge: int = BRIDGE
) -> Int64[Tensor, "h w"]:
    """Bright regions of at least `smallest` pixels, numbered from 1; 0 elsewhere.

    Their edges are taken off `bridge` times, what is then still connected is one region, and it
    grows back over the bright pixels around it.
    """
    cores = bright
    for _ in range(bridge):
        cores = ~_grow(~cores)
    labels = _spread(label(cores), bright)
    is_large = torch.cat([torch.tensor([False]), sizes(labels) >= smallest])
    return (is_large.cumsum(0) * is_large)[labels]


def _grow(marked: Bool[Tensor, "h w"]) -> Bool[Tensor, "h w"]:
    """These pixels and their four neighbours; nothing comes in from outside."""
    wide = marked.float()[None, None]
    down = F.max_pool2d(wide, (3, 1), stride=1, padding=(1, 0))
    across = F.max_pool2d(wide, (1, 3), stride=1, padding=(0, 1))
    return torch.maximum(down, across)[0, 0].bool()


def _spread(labels: Int64[Tensor, "h w"], bright: Bool[Tensor, "h w"]) -> Int64[Tensor, "h w"]:
    """Labels spread over the bright pixels around them, step by step to the four neighbours; where
    two meet the larger number wins."""
    wide = F.pad(labels, (1, 1, 1, 1))
    flat, width = wide.view(-1), wide.shape[1]
    rest = F.pad(bright & (labels == 0), (1, 1, 1, 1)).view(-1).nonzero()[:, 0]
    while len(rest):
        around = torch.stack([flat[rest + step] for step in (-width, -1, 1, width)]).amax(dim=0)
        if not around.any():
            break
        flat[rest] = around
        rest = rest[around == 0]
    return wide[1:-1, 1:-1].contiguous()


def _inventory(
    found: Sequence[Regions],
    order: Sequence[int],
    local: Float[Tensor, "t n"],
    parts: Sequence[Part],
    paths: Sequence[tuple[int, ...]],
) -> list[Nucleus]:
    is_bright = torch.stack([regions.numbers > 0 for regions in found])
    covered = torch.zeros(is_bright.shape[1:], dtype=torch.bool)
    nuclei = []
    for regions in (found[leaf] for leaf in order):
        owners = _owners(regions.centres, parts).tolist()
        for number, (rows, columns) in enumerate(regions.boxes):
            pixels = regions.numbers[rows, columns] == number + 1
            size, there = int(regions.pixels[number]), covered[rows, columns]
            if 2 * int((there & pixels).sum()) >= size:
                continue
            there |= pixels
            shown = 2 * is_bright[:, rows, columns][:, pixels].sum(dim=1) >= size
            row, column = regions.centres[number].tolist()
            probability = min(local[owners[number], shown].sum().item(), 1.0)
            showing = tuple(path for path, is_in in zip(paths, shown, strict=True) if is_in)
            nuclei.append(Nucleus(row, column, size, probability, showing))
    return nuclei
