"""The bank: calibration images and their leaves, for functions that nobody foresaw.

It answers for a function only as an honest user asks it: one that was not chosen by looking at the
answers to this picture. It holds a user's images, so it is a file of its own and never ships.
"""

from os import PathLike
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from posterior_trees import store
from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.answers import Scores, Terms
from posterior_trees.guarantee.numbers import (
    Form,
    Measure,
    choose_form,
    measure_each,
    measure_leaves,
)
from posterior_trees.tree import Tree, grow


def to_bytes(images: Float[Tensor, "*shape"]) -> UInt8[Tensor, "*shape"]:
    return (images.detach().cpu().clamp(0, 1) * 255).round().to(torch.uint8)


class Bank(NamedTuple):
    """Leaves and truths in 8 bits, and which of them fit the scales instead of being scored;
    `prints` is the fingerprint of the predictor."""

    leaves: UInt8[Tensor, "n leaves c h w"]
    probs: Float[Tensor, "n leaves"]
    truths: UInt8[Tensor, "n c h w"]
    groups: Int[Tensor, "n"]
    fits: Bool[Tensor, "n"]
    prints: str

    def score(self, measure: Measure, name: str) -> tuple[Form, Scores]:
        """The form of a measure's intervals, and the scores."""
        of = [f"image {i} of the bank" for i in range(len(self.truths))]
        truth = measure_each(self.truths / 255, measure, name, of)
        tree = grow(self.leaves / 255, self.probs.log(), self.leaves.shape[1])
        values = measure_leaves(tree, measure, name, of)
        probs, groups = self.probs.double(), self._groups
        fit = None if groups is None else groups[self.fits]
        form = choose_form(values[self.fits], probs[self.fits], truth[self.fits], fit)
        kept = ~self.fits
        scores = form.score(values[kept], probs[kept], truth[kept])
        return form, Scores.of(scores, None if groups is None else groups[kept])

    def terms(self, level: float) -> Terms:
        kept = self.groups[~self.fits]
        return Terms(level, len(kept), None if self._groups is None else len(kept.unique()))

    def shown(self, tree: Tree) -> Tree:
        """A tree as the bank keeps images: what is measured in 8 bits there is so here."""
        return tree.map_images(lambda level: to_bytes(level).to(tree.root) / 255)

    @property
    def _groups(self) -> Int[Tensor, "n"] | None:
        return None if len(self.groups.unique()) == len(self.groups) else self.groups

    def save(self, file: str | PathLike[str]) -> None:
        tensors = {name: tensor for name, tensor in self._asdict().items() if name != "prints"}
        store.write(file, tensors, {"bank": 1, "prints": self.prints})

    @classmethod
    def load(cls, file: str | PathLike[str]) -> "Bank":
        tensors, facts = store.read(file)
        if "bank" not in facts:
            raise GuaranteeError(f"{file} is not a bank: ptrees calibrate MODEL --bank N makes one")
        return cls(**tensors, prints=facts["prints"])
