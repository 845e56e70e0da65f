"""The explorer of all pictures of one `ptrees predict`, as one page.

Every picture is shown as the tree that was predicted of it, shrunk for the page. Those of other
sizes are fitted into one frame, on white. Where a picture shows what the model hid of it, the page
has it as the truth, which it keeps from the reader until asked. What is to be said of it (a doubt,
another size) stands beside it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F

from posterior_trees.explore.content import describe_trees
from posterior_trees.explore.export import frame_content, inline_page
from posterior_trees.predictor import TreePredictor
from posterior_trees.serve.start import model_card
from posterior_trees.tree import Tree

SHOWN = 512
"""Pixels of the longer side in figures and pages; node files and `tree.safetensors` have all."""


LeafNumbers = Mapping[str, Sequence[float | int | None]]
"""Numbers of a tree's leaves by their names; None for an absent leaf."""


class Shown(NamedTuple):
    """What figures and the page show of one picture: `x` is the picture where it shows what was
    hidden, else None. `remarks` are those of `explore/content.py`, `note` and `resized`, and
    `measures` are numbers of the leaves."""

    name: str
    tree: Tree
    y: Tensor
    x: Tensor | None
    remarks: Mapping[str, str]
    measures: LeafNumbers

    @classmethod
    def of(
        cls, name: str, tree: Tree, y: Tensor, x: Tensor | None, remarks: Mapping[str, str]
    ) -> "Shown":
        """Shrunk to what a page can hold."""
        small = tree.map_images(_shrink)
        return cls(name, small, _shrink(y), None if x is None else _shrink(x), remarks, {})


def make_album(shown: Sequence[Shown], predictor: TreePredictor) -> str:
    """The page as one HTML text."""
    size = tuple(max(s.tree.shape[axis] for s in shown) for axis in (1, 2))
    examples = []
    for s in shown:
        (example,) = describe_trees(
            s.tree.map_images(lambda images: _frame(images, size)),
            inputs=_frame(s.y, size),
            truths=None if s.x is None else _frame(s.x, size),
            names=[s.name],
        )
        measures = {title: list(values) for title, values in s.measures.items()}
        examples.append(example | {"measures": measures, **s.remarks})
    content = frame_content(predictor.branching, size, "Posterior trees", model_card(predictor))
    return inline_page(content | {"examples": examples})


def _shrink(images: Tensor) -> Tensor:
    zoom = SHOWN / max(images.shape[-2:])
    return _zoom(images, zoom) if zoom < 1 else images


def _frame(images: Tensor, size: Sequence[int]) -> Tensor:
    """Images of `(h, w)` as large as they fit into `size`, in the middle of white."""
    images = _zoom(images, min(w / h for w, h in zip(size, images.shape[-2:], strict=True)))
    high, wide = (want - have for want, have in zip(size, images.shape[-2:], strict=True))
    sides = (wide // 2, wide - wide // 2, high // 2, high - high // 2)
    return F.pad(images, sides, value=1.0)


def _zoom(images: Tensor, zoom: float) -> Tensor:
    if zoom == 1:
        return images
    size = [max(1, round(side * zoom)) for side in images.shape[-2:]]
    mode = "area" if zoom < 1 else "nearest"
    return F.interpolate(images.flatten(0, -4), size=size, mode=mode).unflatten(
        0, images.shape[:-3]
    )
