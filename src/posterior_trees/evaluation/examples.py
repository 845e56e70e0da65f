"""Trees of a few images of a set, chosen by a fixed rule, as one figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from posterior_trees.data import ImageSet, evenly_spaced, measured_batch
from posterior_trees.errors import InputError
from posterior_trees.predictor import Growth, Predictor, evaluating, grow_each
from posterior_trees.tree import Tree


@dataclass(frozen=True)
class Grown:
    """Trees of at most so many `nodes`, best first, instead of a whole layout: `begin` is the
    predictor's `begin_each`, `region` the box (top, left, height, width) that is asked about."""

    begin: Callable[..., list[Growth]]
    nodes: int
    region: Sequence[int] | None = None

    def __call__(self, y: Tensor) -> Tree:
        """Of one layout, that of the deepest and widest."""
        growths = self.begin(y, self.region)
        grow_each(growths, self.nodes)
        layouts = [growth.layout for growth in growths]
        depth = max(map(len, layouts))
        widths = [max(row[level] for row in layouts if level < len(row)) for level in range(depth)]
        trees = [growth.tree(widths) for growth in growths]
        levels = zip(*(tree.images for tree in trees), strict=True)
        log_probs = zip(*(tree.log_probs for tree in trees), strict=True)
        return Tree([torch.cat(level) for level in levels], [torch.cat(p) for p in log_probs],
                    widths)  # fmt: skip


@torch.inference_mode()
def predict_examples(
    predictor: Predictor,
    images: ImageSet,
    indices: Sequence[int],
    seed: int = 0,
    grown: Grown | None = None,
) -> tuple[Tree, Tensor, Tensor]:
    """Trees, measurements and truths of some images, on the CPU."""
    wrong = [i for i in indices if not 0 <= i < len(images)]
    if wrong:
        raise InputError(f"image {wrong[0]} is not among 0…{len(images) - 1}")
    index = torch.as_tensor(indices)
    x, y = measured_batch(images, index, predictor.measurement, seed, predictor.device)
    return (grown or predictor)(y).to("cpu"), y.cpu(), x.cpu()


def around_hole(predictor: Predictor) -> tuple[slice, slice]:
    """Rows and columns of the hole that a model fills, and a margin: a sixteenth of the picture's
    longer side."""
    hole = predictor.measurement.hole
    if hole is None or hole.ndim != 2:
        raise InputError(
            f"{predictor.name or 'this model'} fills no hole that a figure could come closer to; "
            "leave out --closer"
        )
    places, margin = hole.nonzero(), max(hole.shape) // 16
    firsts = (places.amin(dim=0) - margin).clamp_min(0).tolist()
    lasts = (places.amax(dim=0) + margin + 1).tolist()
    rows, columns = (slice(a, min(b, n)) for a, b, n in zip(firsts, lasts, hole.shape, strict=True))
    return rows, columns


def save_examples(
    file: Path,
    predictor: Predictor,
    images: ImageSet,
    *,
    indices: Sequence[int] | None = None,
    count: int = 3,
    seed: int = 0,
    dpi: int = 200,
    is_closer: bool = False,
    grown: Grown | None = None,
) -> None:
    """Draw the trees of some images, evenly spaced unless `indices` says which; if `is_closer` only
    the hole, the one place where answers differ, and its surroundings. Trees that are `grown` for a
    region have it outlined."""
    from posterior_trees.figure import save_figure

    around = around_hole(predictor) if is_closer else (slice(None), slice(None))
    part = (..., *around)
    chosen = indices or evenly_spaced(len(images), count)
    with evaluating(predictor):
        tree, y, x = predict_examples(predictor, images, chosen, seed, grown)
    shown = tree.map_images(lambda images: images[part])
    box = None
    if grown is not None and grown.region:
        top, left, *sides = grown.region
        box = [top - (around[0].start or 0), left - (around[1].start or 0), *sides]
    save_figure(shown, file, y=y[part], x=x[part], dpi=dpi, box=box)
