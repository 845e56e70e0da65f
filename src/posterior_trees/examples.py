"""Trees of a few images of a set, chosen by a fixed rule, as one figure."""

from collections.abc import Sequence
from pathlib import Path

import torch

from posterior_trees.data import ImageSet
from posterior_trees.measure import measure_each
from posterior_trees.predictor import TreePredictor
from posterior_trees.tree import Tree


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` image numbers spread over a set: nobody picks the pretty ones."""
    count = min(count, total)
    return [i * total // count for i in range(count)]


@torch.inference_mode()
def predict_examples(
    predictor: TreePredictor, images: ImageSet, indices: Sequence[int], seed: int = 0
) -> tuple[Tree, torch.Tensor, torch.Tensor]:
    """Trees, measurements and truths of some images, on the CPU."""
    wrong = [i for i in indices if not 0 <= i < len(images)]
    if wrong:
        raise ValueError(f"image {wrong[0]} is not among 0…{len(images) - 1}")
    index = torch.as_tensor(indices)
    x, y = images.batch(index)
    x = x.to(predictor.device)
    y = measure_each(predictor.measurement, x, index, seed) if y is None else y
    tree = predictor(y.to(predictor.device))
    return tree.to("cpu"), y.cpu(), x.cpu()


def save_examples(
    file: Path,
    predictor: TreePredictor,
    images: ImageSet,
    *,
    indices: Sequence[int] | None = None,
    count: int = 3,
    seed: int = 0,
    dpi: int = 200,
) -> None:
    """Draw the trees of some images, evenly spaced unless `indices` says which."""
    from posterior_trees.figure import save_figure

    chosen = indices or evenly_spaced(len(images), count)
    was_training = predictor.training
    tree, y, x = predict_examples(predictor.eval(), images, chosen, seed)
    predictor.train(was_training)
    save_figure(tree, file, y=y, x=x, dpi=dpi)
