r"""Trees of pictures too large for one pass: overlapping tiles, matched and blended.

The network sees one tile at a time. Three things make one tree of the tiles' trees:

- *Matching.* Nothing ties child 2 of one tile to child 2 of the next. Each tile's children are
  renumbered to agree with what is there already where they overlap: top-down, at every node the
  permutation $\pi$ of its $K$ children that minimises

  $$ \sum_k \sum_u w(u)\, (x_{\pi(k)}(u) - \hat x_k(u))^2, $$

  $w(u)$ being the weight of earlier tiles at pixel $u$: exactly (the assignment problem), and the
  whole subtree moves with its child.
- *Blending.* Every node is $\sum_t w_t(u)\, x_t(u)$ with smooth windows, $\sum_t w_t(u) = 1$ at
  every pixel $u$: where tiles agree they are reproduced exactly, and there is no seam elsewhere.
- *Probabilities.* Choice: the mean of the tiles' probabilities, each weighted by its window's area:
  how probable a branch is at a random place of the picture. Tiles are far apart and vary on their
  own, so the probability that *one* branch is right everywhere at once, about the product of the
  tiles', is practically zero and would say nothing. The mean keeps each level's sum at 1 and each
  parent's probability the sum of its children's. Where a place matters, as it does for a single
  nucleus (`count.py`), each `Part` has the probabilities of its own tile.

Choice: parents are blended too, and not grown anew from the blended leaves: each tile's parents are
its own conditional means, with its own probabilities, so the root is the posterior mean at every
place. A tile's normalisation layers see the tile and not the whole picture, so a tiled tree is not
the tree of one pass, even far from the borders.

Memory: the picture, the nodes' images (on the CPU) and one tile's work, whatever the picture.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError, plural
from posterior_trees.guarantee.answers import Withdrawn
from posterior_trees.imaging.stored import Tiles
from posterior_trees.networks.padding import pad
from posterior_trees.predictor import Predictor, evaluating
from posterior_trees.tree import Tree

WHOLE = 1024 * 1024
"""Pixels up to which a picture is predicted in one pass unless a tile is asked for."""
TILE, OVERLAP = 512, 64
WITHDRAWN = Withdrawn(
    "promises about pictures in one piece are none about a field of tiles: calibrate on "
    "fields that were predicted in tiles (guarantee.certify.calibrate_trees, with groups)"
)


class Tile(NamedTuple):
    """A part of the picture, and its weights in the blend along each axis."""

    rows: slice
    columns: slice
    down: Float[Tensor, "h"]
    across: Float[Tensor, "w"]

    @property
    def window(self) -> Float[Tensor, "h w"]:
        return self.down[:, None] * self.across


class Part(NamedTuple):
    """The pixels of a picture that one tile tells most about, and its leaves' probabilities."""

    rows: slice
    columns: slice
    probs: Float[Tensor, "n"]


Map = Callable[[Callable[[Tile], Tree], Iterable[Tile]], Iterable[Tree]]
"""As the built-in `map`: that of a thread pool, say, or one with a progress bar."""


@torch.inference_mode()
def predict_tiled(
    predictor: Predictor,
    y: Float[Tensor, "1 c h w"],
    tile: int = TILE,
    overlap: int = OVERLAP,
    map: Map = map,
) -> tuple[Tree, tuple[Part, ...]]:
    """The tree of one large measurement, on the CPU, and its parts, which cover the picture without
    overlap. Trees are predicted by `map` and matched in the order of the tiles.

    `tile` and `overlap` are in pixels of `y` and rounded up to what the network's grid asks (16 for
    the U-Net): tiles then lie on the grid on which a single pass would pool.
    """
    step = predictor.multiple
    tile, overlap = grid_sizes(predictor, tile, overlap)
    padded, canvas = pad(y, step, predictor.padding), None

    @torch.inference_mode()  # also in another thread
    def predict(part: Tile) -> Tree:
        return predictor(padded[..., part.rows, part.columns].to(predictor.device)).to("cpu")

    tiles = list(cut(padded.shape[-2:], tile, overlap, step))
    with evaluating(predictor):
        for part, tree in zip(tiles, map(predict, tiles), strict=True):
            if canvas is None:
                zoom = tree.shape[-1] // (part.columns.stop - part.columns.start)
                canvas = Canvas(tree, y.shape[-2:], padded.shape[-2:], zoom)
            canvas.add(tree, part)
    assert canvas is not None
    whole, parts = canvas.finish()
    if tree.guarantee is not None:  # that of the last tile
        whole.guarantee = WITHDRAWN
    return whole, parts


def needs_tiles(predictor: Predictor, size: Sequence[int], tile: int | None) -> bool:
    """Whether a picture of this height and width is cut: if it is larger than the tile that was
    asked for (0: never), or than `WHOLE` where nobody asked and the model's mask allows it."""
    if tile is None:
        return size[0] * size[1] > WHOLE and not predictor.measurement.size
    return tile > 0 and max(size) > tile


def grid_sizes(predictor: Predictor, tile: int, overlap: int) -> tuple[int, int]:
    """Both rounded up to multiples of the network's grid; what cannot work is refused."""
    if predictor.measurement.size:
        size = "×".join(map(str, predictor.measurement.size))
        raise InputError(
            f"this model fills one hole in pictures of {size}, which cannot be cut into tiles; "
            "resize the picture (--resize)"
        )
    step = predictor.multiple
    tile, overlap = (-(-size // step) * step for size in (tile, overlap))
    most = tile // 2 // step * step
    if most < 1:
        raise InputError(
            f"tiles of {plural(tile, 'pixel')} are too small; choose at least {2 * step}"
        )
    if not 0 < overlap <= most:
        rounded = f" (sizes are rounded up to multiples of {step})" if step > 1 else ""
        raise InputError(
            f"tiles of {tile} pixels overlap by {overlap}{rounded}; choose an overlap from {step} "
            f"to {most}"
        )
    return tile, overlap


def describe_tiles(
    predictor: Predictor, size: Sequence[int], tile: int, overlap: int, rows: tuple[int, ...],
    columns: tuple[int, ...],
) -> Tiles:  # fmt: skip
    """What is stored of them with a tree of this size."""
    h, w = (-(-side // predictor.multiple) * predictor.multiple for side in size)
    offset = (h - size[0]) // 2, (w - size[1]) // 2
    return Tiles(*grid_sizes(predictor, tile, overlap), (h, w), offset, rows, columns)


def cut(size: Sequence[int], tile: int, overlap: int, step: int = 1) -> Iterator[Tile]:
    """Tiles in rows from the top left; each pixel's weights sum to 1."""
    down, across = (list(_cut_axis(side, tile, overlap, step)) for side in size)
    for (rows, tall), (columns, wide) in itertools.product(down, across):
        yield Tile(rows, columns, tall, wide)


def _cut_axis(side: int, tile: int, overlap: int, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Evenly spread intervals on a grid, overlapping by at least `overlap`, and their weights."""
    tile = min(tile, side)
    count = 1 + -(-(side - tile) // (tile - overlap)) if side > tile else 1
    free = (side - tile) // step
    starts = [step * (free * i // max(count - 1, 1)) for i in range(count)]
    weights = torch.zeros(count, side, dtype=torch.float64)
    for weight, start in zip(weights, starts, strict=True):
        weight[start : start + tile] = ramp(tile, overlap)
    weights /= weights.sum(dim=0)
    for weight, start in zip(weights, starts, strict=True):
        place = slice(start, start + tile)
        yield place, weight[place].clone()


def ramp(tile: int, overlap: int) -> Float[Tensor, "tile"]:
    r"""A smooth plateau: $\sin^2$ up over the overlap at one end, down at the other."""
    distance = torch.arange(tile, dtype=torch.float64) + 0.5
    nearest = torch.minimum(distance, distance.flip(0)).clamp(max=overlap)
    return (torch.pi / 2 * nearest / overlap).sin().square()


class Canvas:
    """Sums of weighted nodes, and of weights, as tiles come in.

    It has the picture's `size`; tiles are cut from the picture `padded` evenly on all sides. Nodes
    have `zoom` times as many pixels along each axis as the measurement.
    """

    def __init__(
        self, tree: Tree, size: Sequence[int], padded: Sequence[int], zoom: int = 1
    ) -> None:
        self.zoom, self.branching = zoom, tree.branching
        self.offset = [(have - want) // 2 for have, want in zip(padded, size, strict=True)]
        space = [side * zoom for side in size]
        self.images = [level.new_zeros(*level.shape[:-2], *space) for level in tree.images]
        self.probs = [torch.zeros_like(level) for level in tree.probs]
        self.weight = torch.zeros(space, dtype=tree.images[0].dtype)
        self.tiles: list[tuple[Tile, Tensor]] = []

    def add(self, tree: Tree, tile: Tile) -> None:
        """Match a tile's tree with what is here and lay it on."""
        here, (rows, columns) = place_tile(tile, self.offset, self.weight.shape, self.zoom)
        inner = tree.map_images(lambda images: images[..., rows, columns])
        tree = renumber(inner, self._match(inner, here))
        window = here.window.to(self.weight.dtype)
        for total, level in zip(self.images, tree.images, strict=True):
            total[..., here.rows, here.columns] += window * level
        area = here.window.sum().item() / self.weight.numel()
        for total, level in zip(self.probs, tree.probs, strict=True):
            total += area * level
        self.weight[here.rows, here.columns] += window
        self.tiles.append((here, tree.probs[-1][0]))

    def finish(self) -> tuple[Tree, tuple[Part, ...]]:
        """The whole picture's tree and its parts; the sums are used up."""
        for level in self.images:
            level.div_(self.weight)
        probs = [level / level.sum(dim=1, keepdim=True) for level in self.probs]
        tree = Tree(self.images, [level.log() for level in probs], self.branching)
        tiles, local = zip(*self.tiles, strict=True)
        return tree, parts_of(tiles, local)

    def _match(self, tree: Tree, tile: Tile) -> list[list[int]]:
        """The numbering of a tile's nodes that fits what is here; where nothing lies yet, all fit
        alike."""

        def product(level: int, there: slice, here: slice) -> Tensor:
            theirs = self.images[level][0, there, ..., tile.rows, tile.columns]
            mine = tree.images[level][0, here]
            return theirs.flatten(1).double() @ mine.flatten(1).double().T

        return match(product, self.branching)


def match(
    product: Callable[[int, slice, slice], Float[Tensor, "k k"]], branching: Sequence[int]
) -> list[list[int]]:
    """For every level, which of a tile's nodes goes to each place.

    The squares in the sum do not depend on the permutation, so that the inner `product` of siblings
    there, weighted, with those of the tile decides.
    """
    order = [[0]]
    for level, k in enumerate(branching, start=1):
        order.append([])
        for place, parent in enumerate(order[level - 1]):
            there, here = slice(k * place, k * place + k), slice(k * parent, k * parent + k)
            order[level] += [k * parent + i for i in assign(-product(level, there, here))]
    return order


def place_tile(
    tile: Tile, offset: Sequence[int], size: Sequence[int], zoom: int = 1
) -> tuple[Tile, list[slice]]:
    """Where a tile lies on a canvas of this `size`, and which part of the tile that is."""
    places, weights, parts = [], [], []
    for axis in (0, 1):
        start, stop = (zoom * (edge - offset[axis]) for edge in (tile[axis].start, tile[axis].stop))
        first, last = max(start, 0), min(stop, size[axis])
        parts.append(slice(first - start, last - start))
        places.append(slice(first, last))
        weights.append(tile[axis + 2].repeat_interleave(zoom)[parts[-1]])
    return Tile(*places, *weights), parts


def parts_of(tiles: Sequence[Tile], local: Sequence[Float[Tensor, "n"]]) -> tuple[Part, ...]:
    """What each tile tells most of, with its leaves' probabilities."""
    places = itertools.product(*(itertools.pairwise(edges) for edges in part_edges(tiles)))
    pairs = zip(places, local, strict=True)
    return tuple(Part(slice(*rows), slice(*columns), probs) for (rows, columns), probs in pairs)


def part_edges(tiles: Sequence[Tile]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Along each axis, the edges of what each row or column of tiles weighs most in. Windows are
    products of one for each axis, so that the largest at a pixel is that of the nearest of both."""
    edges = []
    for axis in (0, 1):
        lines = {tile[axis].start: tile for tile in tiles}
        stop = max(tile[axis].stop for tile in tiles)
        weights = torch.zeros(len(lines), stop, dtype=torch.float64)
        for weight, start in zip(weights, sorted(lines), strict=True):
            weight[lines[start][axis]] = lines[start][axis + 2]
        ends = weights.argmax(dim=0).bincount(minlength=len(lines)).cumsum(0)
        edges.append((0, *ends.tolist()))
    return edges[0], edges[1]


def renumber(tree: Tree, order: Sequence[Sequence[int]]) -> Tree:
    """The same tree with its nodes in another order; `order` must keep children together."""
    index = [torch.tensor(level, device=tree.device) for level in order]
    return Tree(
        [level[:, i] for level, i in zip(tree.images, index, strict=True)],
        [level[:, i] for level, i in zip(tree.log_probs, index, strict=True)],
        tree.branching,
    )


def assign(cost: Float[Tensor, "k k"]) -> list[int]:
    """The column of each row that minimises the total cost, every column taken once. Equal costs
    keep the order as it is."""
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(cost.numpy())[1].tolist()
