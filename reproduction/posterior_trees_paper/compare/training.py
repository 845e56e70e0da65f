"""What the methods of a comparison learned from: none of the images that they are compared on, and
images that their samples should not repeat."""

import dataclasses
from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import torch

from posterior_trees.data import ImageSet, image_of, list_names, load_split
from posterior_trees.recipe.sections import DataSpec


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

    def find(
        self, run: str, theirs: DataSpec, ours: DataSpec, judged: Sequence[str]
    ) -> Training | None:
        """What the baseline `run` learned from, where that is another part of our images; None
        where it is the same, or another data set. One that has seen what it is `judged` on is
        refused."""
        parts = [
            (s.name, s.split, s.validation, s.test, "flip" in s.augment) for s in (theirs, ours)
        ]
        if parts[0] == parts[1] or theirs.name != ours.name:
            return None
        trained = set(list_names(theirs, self.folder, "train"))
        if seen := trained & {image_of(name) for name in judged}:
            raise ValueError(
                f"{run} was trained on {len(seen)} of the {len(judged)} images that it would be "
                f"judged on (first {min(seen)}): its recipe has data.validation = "
                f"{theirs.validation} and data.test = {theirs.test}, the model's "
                f"{ours.validation} and {ours.test}. Train one of them again with the other's"
            )
        rule = {"split": theirs.split, "validation": theirs.validation, "test": theirs.test}
        return self.load(dataclasses.replace(ours, **rule, augment=theirs.augment))
