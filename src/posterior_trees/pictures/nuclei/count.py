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

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.imaging.otsu import otsu
from posterior_trees.imaging.regions import FAINTEST, SMALLEST, find_regions
from posterior_trees.pictures.nuclei.regions import Regions, owners_of
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
    labels: Int64[Tensor, "h w"]
    """The number of each pixel's nucleus, from 1 in the order of `nuclei`; 0 outside."""

    @property
    def uncertain(self) -> list[Nucleus]:
        """Nuclei that some of the leaves do not show."""
        return [n for n in self.nuclei if len(n.leaves) < len(self.leaves)]


def count_nuclei(
    tree: Tree,
    threshold: float | int | None = None,
    smallest: int = SMALLEST,
    parts: Sequence[Part] = (),
    watch: Callable = iter,
) -> Count:
    """Count the nuclei in the tree of one picture; without a `threshold` it is Otsu's. `parts` are
    those of a picture in tiles, and `watch` wraps the loop over the leaves."""
    if len(tree) != 1 or len(tree.shape) != 3 or tree.shape[0] != 1:
        raise InputError(
            f"nuclei are counted in one tree of grey images; this is {tree}: take tree[i], and a "
            "model that predicts one channel"
        )
    everywhere = tree.log_probs[-1][0].double().exp()
    whole = Part(slice(0, tree.shape[1]), slice(0, tree.shape[2]), everywhere)
    parts = parts or [whole]
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
    nuclei, labels = _inventory(found, order, local, parts, paths)
    return Count(threshold, smallest, len(parts), mean, spread, together, leaves, nuclei, labels)


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


def _inventory(
    found: Sequence[Regions],
    order: Sequence[int],
    local: Float[Tensor, "t n"],
    parts: Sequence[Part],
    paths: Sequence[tuple[int, ...]],
) -> tuple[list[Nucleus], Int64[Tensor, "h w"]]:
    is_bright = torch.stack([regions.numbers > 0 for regions in found])
    listing = Listing(is_bright.shape[1:])
    for leaf in order:
        for number, box in enumerate(found[leaf].boxes):
            pixels = found[leaf].numbers[box] == number + 1
            if same := listing.find(box, pixels):
                listing.shown[same - 1][leaf] = True
                continue
            size = int(found[leaf].pixels[number])
            shown = 2 * is_bright[:, *box][:, pixels].sum(dim=1) >= size
            listing.add(box, pixels, (leaf, number), shown)
    nuclei = []
    for (leaf, number), shown in zip(listing.regions, listing.shown, strict=True):
        centre = found[leaf].centres[number]
        (tile,) = owners_of(centre[None], parts).tolist()
        probability = min(local[tile, shown].sum().item(), 1.0)
        showing = tuple(path for path, is_in in zip(paths, shown, strict=True) if is_in)
        size = int(found[leaf].pixels[number])
        nuclei.append(Nucleus(*centre.tolist(), size, probability, showing))
    return nuclei, listing.owner


class Listing:
    """The inventory as it grows: whose each pixel is, and of each nucleus the leaf and region it
    came from, how many pixels it owns, and which leaves show it."""

    def __init__(self, size: Sequence[int]) -> None:
        self.owner = torch.zeros(*size, dtype=torch.long)
        self.regions: list[tuple[int, int]] = []
        self.owned: list[int] = []
        self.shown: list[Bool[Tensor, "n"]] = []

    def find(self, box: tuple[slice, slice], pixels: Bool[Tensor, "h w"]) -> int:
        """The number, from 1, of the nucleus that a region of these pixels is; 0 if it is new."""
        numbers, shares = self.owner[box][pixels].unique(return_counts=True)
        overlaps = {n: s for n, s in zip(numbers.tolist(), shares.tolist(), strict=True) if n}
        is_inside = 2 * sum(overlaps.values()) >= int(pixels.sum())
        is_over = any(2 * share >= self.owned[n - 1] for n, share in overlaps.items())
        return max(overlaps, key=overlaps.__getitem__) if is_inside or is_over else 0

    def add(
        self,
        box: tuple[slice, slice],
        pixels: Bool[Tensor, "h w"],
        region: tuple[int, int],
        shown: Bool[Tensor, "n"],
    ) -> None:
        """List a region as a nucleus, with the leaves that show it."""
        is_own = pixels & (self.owner[box] == 0)
        self.regions.append(region)
        self.owned.append(int(is_own.sum()))
        self.shown.append(shown)
        self.owner[box][is_own] = len(self.regions)
