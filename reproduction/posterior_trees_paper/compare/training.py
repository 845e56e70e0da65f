"""What the methods of a comparison learned from: none of the images that they are compared on, and
images that their samples should not repeat."""

import dataclasses
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import torch

from posterior_trees.data import ImageSet, files_of, image_of, list_names, load_split
from posterior_trees.errors import DataError, InputError
from posterior_trees.recipe.sections import DataSpec

RULE = ("extra", "split", "split_order", "validation", "test")
"""What decides which images of a set train."""


class Training(NamedTuple):
    """Images that a model has seen, and whether it has seen them mirrored, too."""

    images: ImageSet
    is_mirrored: bool


class Trainings:
    """What models learned from, each set loaded once."""

    def __init__(self, folder: str | PathLike[str] | None, device: torch.device) -> None:
        self.folder, self.device = folder, device
        self.loaded: dict[DataSpec, Training] = {}

    def load(self, spec: DataSpec) -> Training | None:
        """The training images of a recipe; none of windows, which have no nearest one."""
        if spec.patch:
            return None
        if spec not in self.loaded:
            images = load_split(spec, self.folder, "train").to(self.device)
            self.loaded[spec] = Training(images, "flip" in spec.augment)
        return self.loaded[spec]

    def count(self, about: dict[str, Any], spec: DataSpec) -> int | None:
        """How many images a model has learned from: as it says itself, or (older ones do not) as
        many as the folder has; None if that has none."""
        if "train_images" in about:
            return about["train_images"]
        try:
            return len(files_of(list_names(spec, self.folder, "train")))
        except DataError:
            return None

    def find(
        self, run: str, theirs: DataSpec, ours: DataSpec, judged: Sequence[str]
    ) -> Training | None:
        """What the baseline `run` learned from, where that is another part of our images, or has
        other extras; None where it is the same, or another data set. One that has seen what it is
        `judged` on is refused."""
        rules = [{key: getattr(spec, key) for key in RULE} for spec in (theirs, ours)]
        names = {image_of(name) for name in judged}
        if ours.name in theirs.extra:
            raise InputError(
                f"{run} was trained on all {len(judged)} images that it would be judged on: its "
                f"recipe has data.extra = {list(theirs.extra)}. Train it again without {ours.name}"
            )
        is_mirrored = ["flip" in spec.augment for spec in (theirs, ours)]
        if theirs.name != ours.name or (rules[0] == rules[1] and is_mirrored[0] == is_mirrored[1]):
            return None
        own = dataclasses.replace(theirs, extra=())
        if seen := names & set(list_names(own, self.folder, "train")):
            order = f" in the order {theirs.split_order!r}, the model's {ours.split_order!r}"
            raise InputError(
                f"{run} was trained on {len(seen)} of the {len(judged)} images that it would be "
                f"judged on (first {min(seen)}): its recipe has data.validation = "
                f"{theirs.validation} and data.test = {theirs.test}, the model's "
                f"{ours.validation} and {ours.test}"
                f"{order if theirs.split_order != ours.split_order else ''}. Train one of them "
                "again with the other's"
            )
        return self.load(dataclasses.replace(ours, **rules[0], augment=theirs.augment))
