"""The bank: calibration images and their leaves, for functions that nobody foresaw.

It answers for a function only as an honest user asks it: one that was not chosen by looking at the
answers to this picture. It holds a user's images, so it is a file of its own and never ships.
"""

from os import PathLike
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8, jaxtyped
from torch import Tensor

from posterior_trees import store
from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.answers import Interval, Terms
from posterior_trees.guarantee.conformal import quantile
from posterior_trees.guarantee.numbers import (
    Measure,
    choose_form,
    limits_of,
    measure_each,
    measure_leaves,
)
from posterior_trees.schema import check
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

    def interval(self, tree: Tree, measure: Measure, level: float) -> Interval:
        """Where a measure of the truth lies. All is measured in 8 bits, as the bank keeps images;
        trees of the same predictor are."""
        name = getattr(measure, "__name__", "the measure")
        of = [f"image {i} of the bank" for i in range(len(self.truths))]
        truth = measure_each(self.truths / 255, measure, name, of)
        known = grow(self.leaves / 255, self.probs.log(), self.leaves.shape[1])
        values, probs = measure_leaves(known, measure, name, of), self.probs.double()
        is_alone = len(self.groups.unique()) == len(self.groups)
        fit, kept = (None if is_alone else self.groups[part] for part in (self.fits, ~self.fits))
        form = choose_form(values[self.fits], probs[self.fits], truth[self.fits], fit)
        scores = form.score(values[~self.fits], probs[~self.fits], truth[~self.fits])
        shown = tree.map_images(lambda images: to_bytes(images).to(tree.root) / 255)
        q, asked = quantile(scores, level, kept), measure_leaves(shown, measure, name)
        low, high = form.interval(asked, tree.probs[-1].double().cpu(), q, limits_of(measure))
        terms = Terms(level, len(scores), None if kept is None else len(kept.unique()))
        return Interval(**vars(terms), low=low, high=high, of=name)

    def save(self, file: str | PathLike[str]) -> None:
        tensors = {name: tensor for name, tensor in self._asdict().items() if name != "prints"}
        store.write(file, tensors, {"bank": 1, "prints": self.prints})

    @classmethod
    def load(cls, file: str | PathLike[str]) -> "Bank":
        tensors, facts = store.read(file)
        if "bank" not in facts:
            raise GuaranteeError(f"{file} is not a bank: ptrees calibrate MODEL --bank N makes one")
        check(facts, {"bank": int, "prints": str}, f"the facts of {file}", ("bank", "prints"))
        forms = {name: form for name, form in cls.__annotations__.items() if name != "prints"}
        with jaxtyped("context"):
            is_one = forms.keys() == tensors.keys() and all(
                isinstance(tensors[name], form) for name, form in forms.items()
            )
        if not (is_one and tensors["probs"].isfinite().all() and (tensors["probs"] >= 0).all()):
            raise GuaranteeError(f"{file} is not a bank of leaves and truths; make it again")
        return cls(**tensors, prints=facts["prints"])
