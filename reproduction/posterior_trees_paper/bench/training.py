"""`ptrees bench train`: real steps of the trainer on noise, with and without the leaf balancer.

The images are noise, resident on the device like real ones, and the steps are `Trainer.advance`
itself: draw, measure, forward, backward, optimiser, average. Steps are timed in groups, because the
trainer never waits for a GPU between two of them.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from posterior_trees.data import ImageSet
from posterior_trees.errors import InputError
from posterior_trees.measure import Paired
from posterior_trees.models.build import build_predictor
from posterior_trees.recipe import Recipe
from posterior_trees.training.devices import make_fabric
from posterior_trees.training.run import Run
from posterior_trees.training.trainer import Trainer
from posterior_trees_paper.bench.clock import Timing, peak_bytes, time_together
from posterior_trees_paper.bench.report import Report, conditions, megabytes
from posterior_trees_paper.bench.subject import size_of

WARM_UP = {"cuda": 12}
"""Steps before the clock starts: a captured step records itself after a few plain ones."""
SET_BYTES = 256 * 2**20
MOST_IMAGES = 60_000


def bench_training(
    recipe: Recipe,
    device: torch.device,
    *,
    images: int | None = None,
    group: int = 5,
    repeat: int = 8,
    seconds: float = 40.0,
) -> Report:
    """Milliseconds of a step of `recipe`, balancer off and on in the same run, and how long the
    whole schedule takes at that rate."""
    noise = make_noise(recipe, images)
    schedule = recipe.training
    steps = schedule.epochs * (len(noise) // min(schedule.batch_size, len(noise)))
    settings: dict[str, Any] = {
        "task": recipe.task, "size": list(noise.shape[1:]), "images": len(noise),
        "batch": schedule.batch_size, "epochs": schedule.epochs, "steps": steps,
        "compile": schedule.compile, "steps_per_time": group,
    }  # fmt: skip
    report = Report("train", conditions(device), settings)
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder:
        steppers, groups = {}, {}
        for name, is_on in (("balancer off", False), ("balancer on", True)):
            place = noise, device, f"{folder}/{name}"
            step, settings["precision"] = stepper(recipe, *place, is_balanced=is_on)
            steppers[name], groups[name] = step, repeated(step, group)
        for step in steppers.values():
            for _ in range(WARM_UP.get(device.type, 1)):
                step()
        peaks = {name: peak_bytes(step, device) for name, step in steppers.items()}
        times = time_together(groups, device, repeat=repeat, warm_up=1, seconds=seconds)
    for name, (*many, repeats) in times.items():
        each = Timing(*(ms / group for ms in many), repeats)
        row = report.add(each, step=name, batch=schedule.batch_size)
        row["steps_per_s"] = 1000 / each.median_ms
        row["images_per_s"] = schedule.batch_size * row["steps_per_s"]
        row["schedule_minutes"] = steps * each.median_ms / 60_000
        row["balancer_share"] = 1 - report.rows[0]["ms"] / each.median_ms
        row["peak_mb"] = megabytes(peaks[name])
    return report


def stepper(
    recipe: Recipe, noise: ImageSet, device: torch.device, folder: str, *, is_balanced: bool
) -> tuple[Callable[[], None], str]:
    """A call that makes the next step of a training, without saves, pictures and calibration and
    with the balancer at work from the first one, and its precision."""
    change = dataclasses.replace
    balancer = change(recipe.balancer, is_on=is_balanced, start=0.0)
    training = change(recipe.training, save_seconds=1e9, picture_every=0, calibrate=False)
    quiet = change(recipe, balancer=balancer, training=training)
    fabric = make_fabric(quiet, device.type)
    torch.manual_seed(recipe.seed)
    trainer = Trainer(quiet, build_predictor(quiet), noise, None, fabric, Run(folder, quiet))

    def step() -> None:
        """Within the first epoch for ever: what ends one (saving, validating) is no step."""
        trainer.advance(trainer.step % max(trainer.steps_per_epoch - 1, 1))

    return step, fabric.strategy.precision.precision


def repeated(step: Callable[[], None], count: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(count):
            step()

    return run


def make_noise(recipe: Recipe, images: int | None = None) -> ImageSet:
    """Random 8-bit images of the recipe's shape; as many as 256 MB hold unless told."""
    height, width = size_of(recipe)
    shape = (recipe.data.channels, height, width)
    per_image = recipe.data.channels * height * width
    count = images or min(MOST_IMAGES, SET_BYTES // per_image)
    least = 2 * recipe.training.batch_size
    if count < least:
        raise InputError(f"--limit is {count}; two batches need at least {least}")
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, *shape), dtype=torch.uint8, generator=generator)
    if recipe.measurement.kind != "paired":
        return ImageSet(x)
    seen = Paired(recipe.data.channels, recipe.data.input_channels).channels(1)
    return ImageSet(x, x[:, :1].expand(-1, seen, -1, -1).contiguous())
