"""Trained baselines: build, save, load, and draw samples in [0, 1] by any method they allow."""

import dataclasses
import inspect
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees import store
from posterior_trees.baselines import conditional, ddnm, ddrm, denoising, diffpir, dps, repaint
from posterior_trees.errors import InputError, ModelError, RecipeError
from posterior_trees.measure import Denoise, Measurement
from posterior_trees.models.build import build_measurement
from posterior_trees.models.checkpoint import best_device, find_model, load_weights
from posterior_trees.recipe import Recipe, build_recipe, parse_resolved, write_recipe
from posterior_trees.schema import SchemaError, check
from posterior_trees_paper.baselines.diffusion import (
    DiffusionLearner,
    DiffusionModel,
    ImageDenoiser,
)
from posterior_trees_paper.baselines.gan import CGanLearner, GanLearner, GanModel, RcGanLearner
from posterior_trees_paper.baselines.spec import BaselineSpec, spec_from_facts, spec_to_facts

SCHEMA = 1
SAMPLERS: dict[str, Callable] = {
    sampler.__name__: sampler
    for sampler in (conditional, ddnm, ddrm, repaint, dps, diffpir, denoising)
}
CLIP = {"repaint": (-1.0, 1.0), "dps": (-1.0, 1.0), "conditional": (-1.0, 1.0)}
"""Methods that clip their estimates of the clean image, as published; DDNM and DDRM do not."""


class Baseline:
    """A model that draws posterior samples of images, with the recipe it was trained by."""

    def __init__(self, recipe: Recipe, spec: BaselineSpec, about: dict | None = None) -> None:
        self.recipe, self.spec, self.about = recipe, spec, about or {}
        self.measurements = build_measurements(recipe, spec)
        make = GanModel if spec.kind in ("cgan", "rcgan") else DiffusionModel
        self.model = make(recipe.data.channels, spec, self.measurements)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def network(self) -> nn.Module:
        return self.model.network

    def to(self, device: torch.device) -> "Baseline":
        self.model.to(device)
        if isinstance(self.model, GanModel):
            self.model.accelerate()
        if device.type == "cuda":
            self.network.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
        self.measurements = [measurement.to(device) for measurement in self.measurements]
        return self

    def measurement_of(self, task: str | None = None) -> Measurement:
        """What is measured in a task on the same images; by default in the model's own."""
        if task is None:
            return self.measurements[0]
        size = list(self.recipe.data.size)
        other = build_recipe({"task": task, "data": {"size": size}}, "--task")
        if other.data.name != self.recipe.data.name:
            raise InputError(
                f"task {task!r} is about {other.data.name}; this model knows "
                f"{self.recipe.data.name}: choose a task on the same data"
            )
        return build_measurement(other).to(self.device)

    def methods(self) -> list[str]:
        """Names of the methods this model can sample with, its own first."""
        if self.spec.kind == "prior":
            others = ("conditional", "denoising")
            can_denoise = self.measurements[0].is_random
            return ["denoising"] if can_denoise else [s for s in SAMPLERS if s not in others]
        return [self.spec.kind]

    def sample(
        self,
        measurement: Measurement,
        y: Float[Tensor, "b *shape"],
        n: int,
        *,
        method: str | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "b {n} *shape2"], int]:
        """`n` samples of every `y`, images in [0, 1], and the network evaluations of each sample.

        `options` are those of the method; `noise`, of DDNM and DDRM, is in the scale of `y`. A
        sample is an image: values are clamped to [0, 1] after the sampler is done.
        """
        method = method or self.methods()[0]
        if method not in self.methods():
            raise InputError(
                f"a {self.spec.kind} model cannot sample by {method!r}; it can by "
                + ", ".join(map(repr, self.methods()))
            )
        measurement, y = measurement.to(self.device), y.to(self.device)
        self._check_trained_for(measurement)
        if isinstance(self.model, GanModel):
            return self.model.sample(measurement, y, n, generator).clamp(0, 1), 1
        denoise = ImageDenoiser(self.model)
        if measurement.noise:
            measurement = Denoise(2 * measurement.noise)
        _check_options(method, options)
        if "noise" in options:
            options["noise"] *= 2  # samplers work in [-1, 1]
        how = {"generator": generator, "clip": CLIP.get(method), **options}
        samples = SAMPLERS[method](denoise, measurement, 2 * y - 1, n, **how)
        return ((samples + 1) / 2).clamp(0, 1), denoise.evaluations

    def _check_trained_for(self, measurement: Measurement) -> None:
        if self.spec.kind == "prior" or any(measurement.same_as(m) for m in self.measurements):
            return
        raise InputError(
            f"this {self.spec.kind} model was not trained for this measurement "
            f"({type(measurement).__name__}); its recipe must have the same, of the same size"
        )


def build_measurements(recipe: Recipe, spec: BaselineSpec) -> list[Measurement]:
    """The recipe's own measurement and the further ones of `also`."""
    variants = [dataclasses.replace(recipe, measurement=other) for other in spec.also]
    measurements = [build_measurement(variant) for variant in (recipe, *variants)]
    if len(measurements) > 1 and not all(m.is_exact for m in measurements):
        raise RecipeError("baseline.also can only join inpaint, colorize and downsample")
    return measurements


def _check_options(method: str, options: dict[str, Any]) -> None:
    parameters = inspect.signature(SAMPLERS[method]).parameters.values()
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    known = [name for name in known if name not in ("generator", "clip")]
    for name in options:
        if name not in known:
            raise InputError(f"{method} has no option {name!r}; it has {', '.join(known)}")


def make_learner(baseline: Baseline) -> DiffusionLearner | GanLearner:
    """The training step of a baseline."""
    model = baseline.model
    more = baseline.measurements, baseline.recipe, baseline.device
    if isinstance(model, DiffusionModel):
        return DiffusionLearner(model, *more)
    kind = CGanLearner if baseline.spec.kind == "cgan" else RcGanLearner
    return kind(model, *more)


def save_baseline(
    file: str | PathLike[str], baseline: Baseline, about: dict[str, Any] | None = None
) -> None:
    """Write the weights that sample, in bfloat16, with all that is needed to use them again."""
    weights = baseline.network.state_dict()
    weights = {k: v.bfloat16() if v.is_floating_point() else v for k, v in weights.items()}
    facts = {"baseline": SCHEMA, "recipe": write_recipe(baseline.recipe),
             "spec": spec_to_facts(baseline.spec), "about": about or baseline.about}  # fmt: skip
    store.write(file, weights, facts)


FORM = {"baseline": int, "recipe": str, "spec": dict, "about": dict}


def load_baseline(path: str | PathLike[str], device: str | torch.device | None = None) -> Baseline:
    """A baseline ready to sample, from a run folder or a file."""
    if not Path(path).exists():
        raise ModelError(
            f"there is no {path}: give a run folder or file of `ptrees baseline train`"
        )
    file = find_model(path)
    facts = store.read_facts(file)
    if "baseline" not in facts:
        raise ModelError(f"{file} is not a baseline's model; was it trained by `ptrees baseline`?")
    try:
        check(facts, FORM, "its facts", required=tuple(FORM))
    except SchemaError as error:
        raise ModelError(f"{file} is damaged: {error}; copy or train it again") from error
    if facts["baseline"] > SCHEMA:
        raise ModelError(
            f"{file} has baseline schema {facts['baseline']}, this version reads up to {SCHEMA}: "
            "upgrade posterior-trees"
        )
    recipe = parse_resolved(facts["recipe"], str(file))
    baseline = Baseline(recipe, spec_from_facts(facts["spec"], str(file)), facts["about"])
    weights, _ = store.read(file)
    load_weights(baseline.network, weights, origin=str(file))
    baseline.model.eval().requires_grad_(False)
    return baseline.to(torch.device(device or best_device()))
