r"""Training of the baselines: one loop for diffusion models and GANs, resumable at any moment.

Everything random in step $s$ follows from (seed, $s$), as in the trees' own trainer. The weights
that sample are a running average (`baselines/weights.py`). Training ends with the recipe's epochs,
or when the held-out loss has not fallen for `baseline.patience` log lines: a model that starts to
memorise its images gets no better. `optimizer.patience`, of the schedule "plateau", counts log
lines here, too; a cGAN has no held-out loss, and with that schedule keeps its rate.

What a model learns from one batch is its learner's business (`make_learner`): `draw` makes the
inputs of a step, `learn` takes the optimisers' steps, `validate` looks at held-out images.
"""

import math
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees.data import ImageSet, evenly_spaced, grid_patches, load_images
from posterior_trees.data.augment import augment
from posterior_trees.data.facts import name_images
from posterior_trees.errors import RunError
from posterior_trees.fast.graph import Capture
from posterior_trees.lock import hold
from posterior_trees.models.checkpoint import best_device, provenance
from posterior_trees.recipe import Recipe
from posterior_trees.seeding import seed_device, step_generator
from posterior_trees.training.feed import Order
from posterior_trees.training.optimize import Average, Schedule, load_slots
from posterior_trees.training.run import Run, check_folder, describe_images
from posterior_trees_paper.baselines.sampling import Baseline, make_learner, save_baseline
from posterior_trees_paper.baselines.spec import BaselineSpec, spec_to_facts
from posterior_trees_paper.baselines.weights import average_share, set_rate

VALIDATION_IMAGES = 512


def fit_baseline(
    recipe: Recipe,
    spec: BaselineSpec,
    run_dir: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    images: tuple[ImageSet, ImageSet | None] | None = None,
    device: str | torch.device | None = None,
    minutes: float | int = math.inf,
    report: Callable[[dict[str, Any]], None] | None = None,
    watch: Callable[[Iterator[int], int, int], Iterator[int]] | None = None,
) -> Baseline:
    """Train a baseline in `run_dir`; the same call continues a run that was stopped.

    Stops by itself after `minutes`, with its state saved. `best.safetensors` holds the averaged
    weights in bfloat16: the best on held-out images, or the last where none are held out.
    """
    deadline = time.monotonic() + 60 * minutes
    check_folder(Path(run_dir), recipe)  # before all that takes time
    with hold(run_dir):
        torch.manual_seed(recipe.seed)
        baseline = Baseline(recipe, spec).to(torch.device(device or best_device()))
        train, held_out = images or load_images(recipe.data, data)
        loop = Loop(baseline, train, held_out, Run(run_dir, recipe), report)
        loop.resume()
        steps: Iterator[int] = iter(range(loop.step, loop.total_steps))
        for step in watch(steps, loop.step, loop.total_steps) if watch else steps:
            if 0 < spec.patience <= loop.stale:  # so long has the held-out loss not fallen
                break
            loop.advance(step)
            if time.monotonic() > deadline:
                break
        loop.finish()
        return baseline


class Loop:
    """The state of a run and one step of it."""

    def __init__(
        self,
        baseline: Baseline,
        train: ImageSet,
        held_out: ImageSet | None,
        run: Run,
        report: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.baseline, self.recipe, self.spec = baseline, baseline.recipe, baseline.spec
        self.run, self.report, self.device = run, report, baseline.device
        self.train, self.held_out = train.to(self.device), held_out
        if held_out is not None:  # random windows train, a fixed grid of them validates
            self.held_out = grid_patches(held_out, self.recipe.data.patch)
        elif self.spec.kind == "rcgan":
            raise RunError(
                "an rcGAN learns from held-out images how far its samples are to spread, and there "
                "are none: set data.validation above 0"
            )
        self.order = Order(
            len(train), self.recipe.training.batch_size, repeat=self.recipe.data.repeat,
            generator=lambda epoch: self._generator(epoch, 1), device=self.device,
        )  # fmt: skip
        self.batch_size, self.steps_per_epoch = self.order.batch_size, self.order.steps_per_epoch
        self.total_steps = self.recipe.training.epochs * self.steps_per_epoch
        self.schedule = Schedule(self.recipe.optimizer, self.total_steps)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        self.learner = make_learner(baseline)
        is_captured = self.device.type == "cuda" and self.learner.can_capture
        self.learn = Capture(self._learn) if is_captured else self._learn
        self.average = Average(self.learner.network, 0)
        self.losses: list[Tensor] = []
        self.step, self.seconds, self.best, self.stale = 0, 0.0, math.inf, 0
        self.saved_at = time.monotonic()

    def advance(self, step: int) -> None:
        """One batch, and from time to time a log line and a save."""
        start = time.monotonic()
        for optimizer in self.learner.optimizers:
            set_rate(optimizer, self.schedule, step)
        share = torch.full((), average_share(step, self.batch_size), device=self.device)
        self.losses.append(self.learn(*self._inputs(step), share).clone())
        self.step = step + 1
        self.seconds += time.monotonic() - start
        is_last = self.step == self.total_steps
        if self.step % self.spec.log_every == 0 or is_last:
            self._log()
        if is_last or time.monotonic() - self.saved_at >= self.recipe.training.save_seconds:
            self.save()

    def _learn(self, *inputs: Tensor) -> Tensor:
        losses = self.learner.learn(*inputs[:-1])
        self.average.update(inputs[-1])
        return losses

    def _inputs(self, step: int) -> tuple:
        x, y = self.train.batch(self.order.batch(step))
        data = self.recipe.data
        if data.augment or data.patch:
            x, y = augment(x, y, data.augment, data.patch, self._generator(step, 2))
        if self.spec.dropout:
            seed_device(self.device, self._generator(step, 3).initial_seed())
        generator = self._generator(step, 4, self.device)
        self.learner.network.train()
        return self.learner.draw(x, y, generator)

    def _log(self) -> None:
        self._refuse_nan()
        losses = torch.stack(self.losses).float().mean(dim=0)
        self.losses.clear()
        line: dict[str, Any] = {"step": self.step, "epoch": self.step / self.steps_per_epoch,
                "loss": losses.tolist(), "seconds": round(self.seconds, 2),
                "lr": self.schedule.lr(self.recipe.optimizer.lr, self.step - 1)}  # fmt: skip
        before = self.swap_in_average()
        if self.held_out is not None:
            chosen = evenly_spaced(len(self.held_out), VALIDATION_IMAGES)
            x, y = self.held_out.batch(chosen)
            y = None if y is None else y.to(self.device)
            line |= self.learner.validate(x.to(self.device), y, self.recipe.seed)
            if "val_loss" in line:
                self.schedule.observe(line["val_loss"])
        self.stale += 1
        if line.get("val_loss", -math.inf) < self.best:
            self.best, self.stale = line.get("val_loss", math.inf), 0
            self._export()
        self.learner.network.load_state_dict(before)
        self.run.log(line)
        if self.report:
            self.report(line)

    def _refuse_nan(self) -> None:
        """Stop at losses or weights that no longer are numbers; the last good state stays."""
        weights = self.learner.model.state_dict().values()
        floats = [t.sum() for t in (*weights, *self.losses) if t.is_floating_point()]
        if not torch.stack([total.float() for total in floats]).isfinite().all():
            raise RunError(
                f"the loss became NaN or infinite near step {self.step}. The last good state is "
                f"kept in {self.run.folder}. Lower optimizer.lr (now {self.recipe.optimizer.lr:g})"
            )

    def finish(self) -> None:
        """Save, with the averaged weights left in the model; a run stopped early has a file too."""
        self.save()
        self.swap_in_average()
        if not self.run.model_file.is_file():
            self._export()

    def _export(self) -> None:
        about = {**provenance(), "step": self.step, "images": self.step * self.batch_size}
        save_baseline(self.run.model_file, self.baseline, about | name_images(self.train))

    def swap_in_average(self) -> dict[str, Tensor]:
        """Put the averaged weights into the network; returns those that were there."""
        before = self.average.swap_in()
        self.learner.network.eval()
        return before

    def save(self) -> None:
        """Write everything needed to continue, unless it is broken."""
        self._refuse_nan()
        states = {str(i): o.state_dict()["state"] for i, o in enumerate(self.learner.optimizers)}
        self.run.save(
            {
                "step": self.step, "seconds": self.seconds, "stale": self.stale,
                "best": self.best if math.isfinite(self.best) else None,
                "images": describe_images(self.train), "spec": spec_to_facts(self.spec),
                "schedule": self.schedule.state_dict(),
                "model": dict(self.learner.model.state_dict()), "average": self.average.values,
                "losses": torch.stack(self.losses) if self.losses else torch.zeros(0),
                "optimizers": states,
            }
        )  # fmt: skip
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        """Continue where the last save was, if there is one."""
        state = self.run.load("model")
        if state is None:
            self.run.rewind(0)
            return
        if state.get("spec") != spec_to_facts(self.spec):
            raise RunError(
                f"{self.run.folder} holds a run with another [baseline] section. Use another --out "
                "folder, or the same recipe to continue"
            )
        self.run.check_images(state, self.train)
        self.step, self.seconds = state["step"], state["seconds"]
        if "schedule" in state:  # states of older versions have none
            self.schedule.load_state_dict(state["schedule"])
        self.best = math.inf if state["best"] is None else state["best"]
        self.stale = state["stale"]
        self.learner.model.load_state_dict(state["model"])
        self.average.load(state["average"])
        self.losses = list(state["losses"].to(self.device))
        for number, optimizer in enumerate(self.learner.optimizers):
            load_slots(optimizer, state["optimizers"].get(str(number), {}))
        self.run.rewind(self.step)

    def _generator(self, step: int, purpose: int, device: Any = "cpu") -> torch.Generator:
        return step_generator(self.recipe.seed, step, purpose, device)
