"""Training: one loop for a laptop, several GPUs or several machines, resumable at any moment.

A step draws a batch (`training/feed.py`), learns from it (`training/learn.py`) and takes note of it
(`training/health.py`). Everything random in step `s` follows from `(seed, s)`. So a run that was
killed and started again computes what it would have computed: on the CPU bit for bit.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from posterior_trees.data import ImageSet, grid_patches, load_images
from posterior_trees.data.facts import describe_training
from posterior_trees.errors import RunError
from posterior_trees.evaluation.examples import save_examples
from posterior_trees.evaluation.score import validate
from posterior_trees.lock import hold
from posterior_trees.models.build import build_predictor, check_own
from posterior_trees.models.card import facts_of
from posterior_trees.models.checkpoint import (
    find_difference,
    provenance,
    save_model,
    shapes_of,
    start_from,
)
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.seeding import seed_device
from posterior_trees.training.association.starts import IMAGES
from posterior_trees.training.devices import make_fabric
from posterior_trees.training.feed import Feed
from posterior_trees.training.growing import GrowingLearner
from posterior_trees.training.health import Health, idle_options, warn_of_deafness
from posterior_trees.training.learn import Learner
from posterior_trees.training.probabilities import calibrate_run, describe_order, find_layer
from posterior_trees.training.run import Run, check_folder, describe_images

CHECK_EVERY = 50
"""Steps between looks at the loss: each look waits for the GPU."""


def fit(
    recipe: Recipe,
    run_dir: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    images: tuple[ImageSet, ImageSet | None] | None = None,
    predictor: TreePredictor | None = None,
    start: str | PathLike[str] | None = None,
    accelerator: str = "auto",
    devices: int = 1,
    report: Callable[[dict[str, Any]], None] | None = None,
    watch: Callable[[Iterator[int], int, int], Iterator[int]] | None = None,
) -> TreePredictor:
    """Train a recipe in `run_dir`; the same call continues a run that was stopped.

    Data come from the folder `data`, or are given as `images` (training and validation set). A
    `predictor` of your own replaces the recipe's network. A new run begins with the weights of the
    model `start` (a name, a run or a file of the same layout). `report` receives each epoch's log
    line and `watch(steps, first, total)` may wrap the steps in a progress bar, or end them early.
    Returns the predictor with its last weights, averaged if the recipe says so; `best.safetensors`
    holds the best ones. With `training.calibrate` that file's probabilities are calibrated at the
    end of the run (`training/probabilities.py`); the predictor returned is as trained.
    """
    check_folder(Path(run_dir), recipe)  # before all that takes time
    with hold(run_dir):
        torch.manual_seed(recipe.seed)
        if predictor is None:
            predictor = build_predictor(recipe)
        else:
            check_own(predictor, recipe)
        if start is not None:
            start_from(predictor, start)
        fabric = make_fabric(recipe, accelerator, devices)
        fabric.launch()
        train, validation = images or load_images(recipe.data, data)
        run = Run(run_dir, recipe, is_writer=fabric.is_global_zero)
        trainer = Trainer(recipe, predictor, train, validation, fabric, run, report)
        trainer.run_steps(watch)
        return predictor.eval()


class Trainer:
    """The state of a run and one step of it."""

    def __init__(
        self,
        recipe: Recipe,
        predictor: TreePredictor,
        train: ImageSet,
        validation: ImageSet | None,
        fabric: Fabric,
        run: Run,
        report: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.recipe, self.fabric, self.run, self.report = recipe, fabric, run, report
        self.predictor = predictor.to(fabric.device)
        self.train, self.validation = train.to(fabric.device), validation
        if validation is not None:  # random windows train, a fixed grid of them validates
            self.validation = grid_patches(validation, recipe.data.patch)
        self.feed = Feed(
            recipe, self.predictor, self.train, rank=fabric.global_rank, processes=fabric.world_size
        )
        self.steps_per_epoch, self.balancer = self.feed.steps_per_epoch, self.feed.balancer
        is_growing = recipe.network.kind == "growing"
        leaves = recipe.tree.branching if is_growing else predictor.num_leaves
        self.health = Health(leaves, fabric.device, recipe.balancer.is_on or is_growing)
        make = GrowingLearner if is_growing else Learner
        self.learner = make(recipe, self.predictor, fabric, self.steps_per_epoch, self.health)
        self.total_steps = self.learner.total_steps
        self.step, self.seconds, self.saved_at = 0, 0.0, time.monotonic()
        self.best = math.inf
        if recipe.training.calibrate:  # a network that cannot be calibrated is refused now
            find_layer(self.predictor, self.validation, recipe.seed)

    def run_steps(self, watch: Callable[[Iterator[int], int, int], Iterator[int]] | None) -> None:
        """From where the last save was to the end, or until `watch` ends it."""
        self.resume()
        steps: Iterator[int] = iter(range(self.step, self.total_steps))
        for step in watch(steps, self.step, self.total_steps) if watch else steps:
            self.advance(step)
        if self.step < self.total_steps:  # `watch` ended it: the same call goes on from here
            self.save()
        elif self.recipe.training.calibrate:
            if self.run.is_writer and self.validation is not None:
                calibrate_run(self.run, self.predictor, self.validation)
            self.fabric.barrier()
        self.learner.average.swap_in()

    def advance(self, step: int) -> None:
        """One optimiser step, and at the end of an epoch its log line, saves and pictures."""
        start = time.monotonic()
        indices = self.feed.draw(step)
        mine = self.feed.share(indices)
        x, y = self.feed.measured(mine, step)
        self._seed_leaves(step)
        self._seed_dropout(step)
        winners = self.learner.learn(step, x, y, self.feed.weights(mine))
        if self.recipe.balancer.is_on:
            self.balancer.update(indices, winners)
        self.step = step + 1
        if self.step % CHECK_EVERY == 0 or self.fabric.device.type == "cpu":
            self._refuse_nan()
        self.seconds += time.monotonic() - start
        if self.step % self.steps_per_epoch == 0:
            self._end_epoch()
        is_due = time.monotonic() - self.saved_at >= self.recipe.training.save_seconds
        if is_due or self.step == self.total_steps:
            self.save()

    def _seed_leaves(self, step: int) -> None:
        """Once ε starts to fall, let leaves begin at clusters of what the root misses."""
        spec, learner = self.recipe.loss, self.learner
        is_due = spec.guided_epochs and step >= spec.epsilon_start * self.steps_per_epoch
        if is_due and not learner.starts.is_found:
            generator = self.feed.generator(step, 0)
            learner.seed(self.feed.glance(IMAGES, generator), generator)

    def _seed_dropout(self, step: int) -> None:
        """Each process drops other features: it has other images."""
        if self.recipe.network.dropout or self.recipe.network.head_dropout:
            seed = self.feed.generator(step, 4 + self.fabric.global_rank).initial_seed()
            seed_device(self.fabric.device, seed)

    def _end_epoch(self) -> None:
        self._refuse_nan()
        epoch = self.step // self.steps_per_epoch
        lr = self.learner.schedule.lr(self.recipe.optimizer.lr, self.step - 1)
        line: dict[str, Any] = {"step": self.step, "epoch": epoch, "lr": lr}
        line["seconds"], line["epsilon"] = round(self.seconds, 2), self.learner.epsilon(epoch)
        is_last = self.step == self.total_steps
        line |= self.health.summary(line["epsilon"], is_last)
        if epoch == 1:
            doubts = idle_options(self.recipe)
            if self.recipe.training.calibrate and self.validation is not None:
                doubts += describe_order(self.recipe, self.validation)
            if doubts:
                line["warnings"] = [*line.get("warnings", []), *doubts]
            if doubts and self.report is None:  # nobody reads the log's lines as they come
                warnings.warn("; ".join(doubts), stacklevel=4)
        weights = self.learner.average.swap_in()
        if self.validation is not None:
            scores = validate(self.predictor, self.validation, self.recipe)
            line |= self.fabric.broadcast(scores)  # all processes must draw the same conclusions
            self.learner.schedule.observe(line["val_loss"])
            progress, head_norm = self.step / self.total_steps, self.recipe.network.head_norm
            warn_of_deafness(line, progress, head_norm)
        if self.validation is None or line["val_loss"] < self.best:
            self.best = line.get("val_loss", math.inf)
            is_due = self.validation is not None or is_last or epoch == 1 or epoch % 5 == 0
            if self.run.is_writer and is_due:
                save_model(self.run.model_file, self.predictor, self.recipe, self._about())
        self._picture(epoch, is_last)
        self.learner.network.load_state_dict(weights)
        self.run.log(line)
        if self.report and self.fabric.is_global_zero:
            self.report(line)

    def _picture(self, epoch: int, is_last: bool) -> None:
        every = self.recipe.training.picture_every
        if self.run.is_writer and every and (epoch % every == 0 or is_last):
            images = self.validation or self.train
            file = self.run.folder / "trees" / f"epoch_{epoch:04d}.png"
            save_examples(file, self.predictor, images, seed=self.recipe.seed)

    def save(self) -> None:
        """Write everything needed to continue, unless it is broken."""
        self._refuse_nan()
        self.run.save(self.state_dict())
        self.saved_at = time.monotonic()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "seconds": self.seconds,
            "images": describe_images(self.train),
            "best": self.best if math.isfinite(self.best) else None,
            **self.learner.state_dict(),
            "balancer": self.balancer.state_dict(),
            "health": self.health.state_dict(),
        }

    def resume(self) -> None:
        """Continue where the last save was, if there is one."""
        state = self.run.load()
        if state is None:
            self.run.rewind(0)
            return
        self.run.check_images(state, self.train)
        if difference := find_difference(self.learner.network, shapes_of(state["network"])):
            raise RunError(
                f"{self.run.folder} was begun with another network: {difference}. Continue it with "
                "the same predictor, or begin a new run with another --out"
            )
        with self.run.taking_over(state, self.state_dict()):
            self.step, self.seconds = state["step"], state["seconds"]
            self.best = math.inf if state["best"] is None else state["best"]
            self.learner.load_state_dict(state)
            self.balancer.load_state_dict(state["balancer"])
            self.health.load_state_dict(state["health"])
        self.run.rewind(self.step)

    def _refuse_nan(self) -> None:
        if not (self.health.is_finite() and self.learner.is_finite()):
            raise RunError(
                f"the loss or a weight became NaN or infinite near step {self.step}. The last good "
                f"state is kept in {self.run.folder}. Lower optimizer.lr (now "
                f"{self.recipe.optimizer.lr:g}), set optimizer.clip=1.0, or train in "
                "training.precision='32-true'"
            )

    @cached_property
    def image_facts(self) -> dict[str, Any]:
        return describe_training(self.train, self.predictor.measurement)

    def _about(self) -> dict[str, Any]:
        facts = {"epochs": self.step / self.steps_per_epoch, "step": self.step}
        if "start" in self.predictor.about:
            facts["start"] = self.predictor.about["start"]
        return {**facts_of(self.recipe), **provenance(), **facts, **self.image_facts}
