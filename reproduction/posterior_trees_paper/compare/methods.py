"""What is compared: methods that turn measurements into trees, and the images they all get.

Our network does so in one evaluation, a sampler by clustering its samples, and so can a folder of
anybody's samples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.data import ImageSet, find_groups, measured_batch
from posterior_trees.errors import InputError
from posterior_trees.measure import Measurement
from posterior_trees.predictor import Predictor
from posterior_trees.seeding import step_generator
from posterior_trees.tree import Tree
from posterior_trees_paper.baselines.folder import (
    choose_images,
    find_samples,
    read_samples,
    sample_files,
)
from posterior_trees_paper.baselines.sampling import Baseline
from posterior_trees_paper.compare.fingerprint import of_files, of_images
from posterior_trees_paper.compare.training import Training

USUAL = 100
"""How many images are compared unless somebody says."""
SAMPLING = 5
"""The purpose of a sampler's random numbers: others than those of the noise in the measurement."""


class Inputs(NamedTuple):
    """The test images of a comparison, the same for every method."""

    indices: Tensor  # numbers in the split
    names: list[str]
    x: Tensor
    y: Tensor
    measurement: Measurement
    groups: Tensor | None = None  # what is not independent, by number (`data.find_groups`)

    @property
    def hole(self) -> Tensor | None:
        """The hidden pixels, if the measurement hides some."""
        return self.measurement.hole


class Answer(NamedTuple):
    """What a method says about a group of images; `evaluations` are those of one image's tree."""

    tree: Tree
    samples: Tensor | None
    evaluations: int | None
    disagreement: Tensor | None = None
    """How far samples were from the measurement before they were made to agree with it, `(b,)`: 0
    of a measurement that no image agrees or disagrees with for sure (noise, pairs)."""


@dataclass(frozen=True)
class Method:
    """A name, what makes the trees of `inputs[part]`, and the settings that decide about them."""

    name: str
    answer: Callable[[Inputs, slice], Answer]
    settings: dict[str, Any] = field(default_factory=dict)
    is_timed: bool = True
    training: Training | None = None
    """What its samples may repeat, if that is not what ours learned from."""
    seen: int | None = None
    """How many images it was trained on, as far as that is known."""


def choose_inputs(
    predictor: Predictor,
    images: ImageSet,
    count: int | None = None,
    seed: int = 0,
    by: str = "name",
) -> Inputs:
    """A seeded list of test images, 100 or all there are unless `count` says how many, and their
    measurements, on the predictor's device; `by` is what the images were split by."""
    indices = choose_images(len(images), count or min(USUAL, len(images)), seed)
    x, y = measured_batch(images, indices, predictor.measurement, seed, predictor.device)
    names = [images.names[i] for i in indices.tolist()]
    return Inputs(indices, names, x, y, predictor.measurement, find_groups(names, by))


def tree_method(
    name: str, predictor: Predictor, settings: dict[str, Any], seen: int | None = None
) -> Method:
    """Our way: one evaluation, no samples."""

    def answer(inputs: Inputs, part: slice) -> Answer:
        return Answer(predictor(inputs.y[part]), None, 1)

    return Method(name, answer, {"kind": "tree", **settings}, seen=seen)


def sampler_method(
    name: str,
    baseline: Baseline,
    sampler: str,
    *,
    branching: Sequence[int],
    samples: int,
    seed: int,
    options: dict[str, Any],
    settings: dict[str, Any],
    training: Training | None = None,
    seen: int | None = None,
) -> Method:
    """Samples of a baseline, clustered. The noise of a group depends on its first image only.
    `training` is what it learned from, if that is not what ours did, `seen` how many images."""

    def answer(inputs: Inputs, part: slice) -> Answer:
        number = int(inputs.indices[part][0])
        generator = step_generator(seed, number, SAMPLING, baseline.device)
        drawn, evaluations = baseline.sample(
            inputs.measurement, inputs.y[part], samples,
            method=sampler, generator=generator, **options,
        )  # fmt: skip
        clusters = _cluster(drawn, branching, seed * 1_000_003 + number)
        return Answer(clusters, drawn, evaluations * samples)

    about = {"kind": sampler, "samples": samples, **options, **settings}
    if training:
        about["training"] = of_images(training.images)
    return Method(name, answer, about, training=training, seen=seen)


def folder_method(
    name: str, folder: Path, inputs: Inputs, *, branching: Sequence[int], samples: int, seed: int
) -> Method:
    """Anybody's samples of these inputs, made to agree with y, clamped and clustered; nothing is
    known about their cost. A folder that lacks some of them is refused at once."""
    numbers = inputs.indices.tolist()
    found = find_samples(folder, numbers, inputs.names)
    places = dict(zip(numbers, found, strict=True))

    def answer(inputs: Inputs, part: slice) -> Answer:
        shape = tuple(inputs.x.shape[1:])
        numbers = inputs.indices[part].tolist()
        drawn = [read_samples(places[number], shape, samples) for number in numbers]
        counts = {len(d) for d in drawn}
        if len(counts) > 1:
            raise InputError(
                f"{folder} has from {min(counts)} to {max(counts)} samples per image; "
                f"give all images as many, or use --samples {min(counts)}"
            )
        stack = torch.stack(drawn).to(inputs.x.device)
        y = inputs.y[part].repeat_interleave(stack.shape[1], dim=0)
        agreeing = inputs.measurement.impose(stack.flatten(0, 1), y).unflatten(0, stack.shape[:2])
        off = (agreeing - stack).square().flatten(1).mean(dim=1)
        if inputs.hole is not None:  # over what is seen
            off = off / (~inputs.hole).double().mean().to(off)
        stack = agreeing.clamp(0, 1)
        return Answer(_cluster(stack, branching, seed), stack, None, off.sqrt())

    files = [file for place in found for file in sample_files(place, samples)]
    about = {"kind": "folder", "samples": samples, "folder": str(folder),
             "content": of_files(files)}  # fmt: skip
    return Method(name, answer, about, is_timed=False)


def _cluster(samples: Tensor, branching: Sequence[int], seed: int) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    return hierarchical_kmeans(samples, branching, generator=generator)
