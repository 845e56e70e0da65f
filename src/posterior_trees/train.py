"""Training: one loop for a laptop, several GPUs or several machines, resumable at any moment.

Everything random in step `s` follows from `(seed, s)`; see `feed.py`. So a run that was killed and
started again computes what it would have computed: on the CPU bit for bit.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from posterior_trees.build import build_predictor
from posterior_trees.calibrate import calibrate_run, find_layer
from posterior_trees.capture import Capture
from posterior_trees.checkpoint import provenance, save_model, start_from
from posterior_trees.conscience import handicaps, note_taught, start_bias, strength_at
from posterior_trees.data import ImageSet, grid_patches, load_split
from posterior_trees.evaluate import validate
from posterior_trees.feed import Feed
from posterior_trees.health import Health, warn_of_deafness
from posterior_trees.loss import Objective, epsilon_at, objective
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.norm import has_kernels
from posterior_trees.optimize import Average, Schedule, make_optimizer
from posterior_trees.picture import brightness_range
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.run import Run, RunError
from posterior_trees.seeding import seed_device

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
    end of the run (`calibrate.py`); the predictor returned is as trained.
    """
    torch.manual_seed(recipe.seed)
    predictor = predictor or build_predictor(recipe)
    if start is not None:
        start_from(predictor, start)
    machines = int(os.environ.get("GROUP_WORLD_SIZE", 1))  # torchrun says how many
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=machines,
        strategy="ddp" if devices * machines > 1 else "auto",
        precision=_precision(recipe, accelerator),
    )
    fabric.launch()
    train, validation = images or load_images(recipe, data)
    run = Run(run_dir, recipe, is_writer=fabric.is_global_zero)
    trainer = Trainer(recipe, predictor, train, validation, fabric, run, report)
    trainer.resume()
    steps: Iterator[int] = iter(range(trainer.step, trainer.total_steps))
    for step in watch(steps, trainer.step, trainer.total_steps) if watch else steps:
        trainer.advance(step)
    if trainer.step < trainer.total_steps:  # `watch` ended it: the same call goes on from here
        trainer.save()
    elif recipe.training.calibrate:
        trainer.calibrate()
    trainer._swap_in_average()
    return predictor.eval()


def load_images(
    recipe: Recipe, data: str | PathLike[str] | None
) -> tuple[ImageSet, ImageSet | None]:
    """The training set and, unless the recipe trains on everything, the validation set."""
    train = load_split(recipe.data, data, "train")
    has_validation = recipe.data.validation > 0
    return train, load_split(recipe.data, data, "validation") if has_validation else None


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
            recipe,
            self.predictor,
            self.train,
            rank=fabric.global_rank,
            processes=fabric.world_size,
        )
        self.steps_per_epoch, self.balancer = self.feed.steps_per_epoch, self.feed.balancer
        self.total_steps = recipe.training.epochs * self.steps_per_epoch
        self.schedule = Schedule(recipe.optimizer, self.total_steps)
        self.optimizer = make_optimizer(recipe, predictor.network, fabric.device)
        self.network, self.wrapped = self._set_up(predictor.network)
        self.average = Average(self.network, recipe.training.ema * self.steps_per_epoch)
        self.health = Health(predictor.num_leaves, fabric.device)
        is_paper = recipe.loss.probability == "paper"
        self.beta, self.best = 0.0 if is_paper else recipe.loss.beta, math.inf
        self.step, self.seconds, self.saved_at = 0, 0.0, time.monotonic()
        self.bias = start_bias(predictor.branching, fabric.device)
        self.brightness: list[float] | None = None
        if recipe.training.calibrate:  # a network that cannot be calibrated is refused now
            find_layer(self.predictor, self.validation, recipe.seed)

    def advance(self, step: int) -> None:
        """One optimiser step, and at the end of an epoch its log line, saves and pictures."""
        start = time.monotonic()
        indices = self.feed.draw(step)
        mine = self.feed.share(indices)
        x, y = self.feed.measured(mine, step)
        weights = self.balancer.weights(mine)
        loss = self._learn(x, y, weights, *self._set_rates(step), *self._conscience(step))
        winners = self._gathered(loss.leaf)
        if self.recipe.balancer.is_on:
            self.balancer.update(indices, winners)
        if self.recipe.loss.conscience:
            note_taught(self.bias, self._gathered(loss.taught), self.predictor.branching)
        self.health.note(self._shared_sum(self.health.sum(loss)), winners)
        self.step = step + 1
        if self.step % CHECK_EVERY == 0 or self.fabric.device.type == "cpu":
            self._refuse_nan()
        self.seconds += time.monotonic() - start
        if self.step % self.steps_per_epoch == 0:
            self._end_epoch()
        is_due = time.monotonic() - self.saved_at >= self.recipe.training.save_seconds
        if is_due or self.step == self.total_steps:
            self.save()

    def _set_rates(self, step: int) -> tuple[Tensor, Tensor]:
        """Set the learning rates of a step; returns ε and the share of the new weights in the
        running average, as tensors so that a recorded step sees them change."""
        for group in self.optimizer.param_groups:
            rate = self.schedule.lr(group["base_lr"], step)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        if self.recipe.network.dropout or self.recipe.network.head_dropout:
            seed = self.feed.generator(step, 4 + self.fabric.global_rank).initial_seed()
            seed_device(self.fabric.device, seed)
        numbers = self._epsilon(step / self.steps_per_epoch), self.average.share(step)
        epsilon, share = (torch.full((), n, device=self.fabric.device) for n in numbers)
        return epsilon, share

    def _conscience(self, step: int) -> tuple[Tensor, ...]:
        """What winning costs each node now; nothing if the recipe has no conscience."""
        if not self.recipe.loss.conscience:
            return ()
        strength = strength_at(step / self.total_steps, self.recipe.loss.conscience)
        return self.bias, torch.full((), strength, device=self.fabric.device)

    def _learn(self, x: Tensor, y: Tensor, weights: Tensor, epsilon: Tensor, share: Tensor, *wins):
        """Forward, backward, optimiser and running average."""
        self.wrapped.train()
        leaves = self.wrapped(self.predictor.view(y))
        loss = self._judge(leaves, x, y, epsilon, *wins)
        total = loss.total(self.beta, self._shared_mean(loss.root))
        self.fabric.backward((weights * total).mean())
        if self.recipe.optimizer.clip:
            self.fabric.clip_gradients(
                self.wrapped, self.optimizer, max_norm=self.recipe.optimizer.clip
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(share)
        return loss._replace(squared=loss.squared.detach(), nll=loss.nll.detach())

    def _judge(self, leaves: Leaves, x: Tensor, y: Tensor, epsilon: Tensor, *wins) -> Objective:
        factors = handicaps(wins[0], self.predictor.branching, wins[1]) if wins else None
        tree = self.predictor.assemble(leaves, y)
        return objective(tree, x, epsilon, factors, self.recipe.loss.rate)

    def _epsilon(self, epoch: float | int) -> float:
        spec = self.recipe.loss
        return max(epsilon_at(epoch, spec.epsilon_start, spec.epsilon_scale), spec.epsilon_floor)

    def _end_epoch(self) -> None:
        self._refuse_nan()
        epoch = self.step // self.steps_per_epoch
        lr = self.schedule.lr(self.recipe.optimizer.lr, self.step - 1)
        line = {"step": self.step, "epoch": epoch, "lr": lr, "seconds": round(self.seconds, 2)}
        line["epsilon"] = self._epsilon(epoch)
        line |= self.health.summary(line["epsilon"])
        is_last = self.step == self.total_steps
        weights = self._swap_in_average()
        if self.validation is not None:
            scores = validate(self.predictor, self.validation, self.recipe)
            line |= self.fabric.broadcast(scores)  # all processes must draw the same conclusions
            self.schedule.observe(line["val_loss"])
            warn_of_deafness(line, self.step / self.total_steps)
        if self.validation is None or line["val_loss"] < self.best:
            self.best = line.get("val_loss", math.inf)
            if self.run.is_writer and (self.validation is not None or is_last or epoch % 5 == 0):
                save_model(self.run.model_file, self.predictor, self.recipe, self._about())
        self._picture(epoch, is_last)
        self.network.load_state_dict(weights)
        self.run.log(line)
        if self.report and self.fabric.is_global_zero:
            self.report(line)

    def _picture(self, epoch: int, is_last: bool) -> None:
        every = self.recipe.training.picture_every
        if self.run.is_writer and every and (epoch % every == 0 or is_last):
            from posterior_trees.examples import save_examples

            images = self.validation or self.train
            file = self.run.folder / "trees" / f"epoch_{epoch:04d}.png"
            save_examples(file, self.predictor, images, seed=self.recipe.seed)

    def save(self) -> None:
        """Write everything needed to continue, unless it is broken."""
        self._refuse_nan()
        self.run.save(
            {
                "step": self.step,
                "seconds": self.seconds,
                "best": self.best if math.isfinite(self.best) else None,
                "network": dict(self.network.state_dict()),
                "average": self.average.values,
                "optimizer": self.optimizer.state_dict()["state"],
                "schedule": self.schedule.state_dict(),
                "balancer": self.balancer.state_dict(),
                "health": self.health.state_dict(),
                "bias": self.bias,
                "precision": self.fabric.strategy.precision.state_dict(),
            }
        )
        self.saved_at = time.monotonic()

    def resume(self) -> None:
        """Continue where the last save was, if there is one."""
        state = self.run.load()
        if state is None:
            self.run.rewind(0)
            return
        self.step, self.seconds = state["step"], state["seconds"]
        self.best = math.inf if state["best"] is None else state["best"]
        self.network.load_state_dict(state["network"])
        self.average.load(state["average"])
        slots = {int(k): v for k, v in state.get("optimizer", {}).items()}
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": slots, "param_groups": groups})
        self.schedule.load_state_dict(state["schedule"])
        self.balancer.load_state_dict(state["balancer"])
        self.health.load_state_dict(state["health"])
        self.bias.copy_(state.get("bias", self.bias))
        if state.get("precision"):  # the gradient scaler of 16-mixed; other precisions have none
            self.fabric.strategy.precision.load_state_dict(state["precision"])
        self.run.rewind(self.step)

    def calibrate(self) -> None:
        """Calibrate the best weights of a run that is over, unless that was done before."""
        if self.run.is_writer and self.validation is not None:
            calibrate_run(self.run, self.predictor, self.validation)
        self.fabric.barrier()

    def _set_up(self, network: nn.Module) -> tuple[nn.Module, Any]:
        """The bare network, and the one to train with: compiled, distributed, mixed precision."""
        spec, uses_cuda = self.recipe.training, self.fabric.device.type == "cuda"
        if uses_cuda:
            network.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
            torch.backends.cudnn.benchmark = True
            has_kernels()  # asked before the compiler, for which it is a constant
        if spec.compile:
            self._judge = torch.compile(self._judge)
        trained: Any = torch.compile(network) if spec.compile else network
        wrapped, self.optimizer = self.fabric.setup(trained, self.optimizer)
        if uses_cuda and spec.capture and self.fabric.world_size == 1:
            self._learn = Capture(self._learn)  # ty: ignore[invalid-assignment]
        return network, wrapped

    def _swap_in_average(self) -> dict[str, Tensor]:
        """Put the averaged weights into the network; returns those that were there."""
        before = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict({**before, **self.average.values})
        return before

    def _refuse_nan(self) -> None:
        are_finite = torch.stack([weight.isfinite().all() for weight in self.average.weights]).all()
        if not (self.health.is_finite() and are_finite):
            raise RunError(
                f"the loss or a weight became NaN or infinite near step {self.step}. The last good "
                f"state is kept in {self.run.folder}. Lower optimizer.lr (now "
                f"{self.recipe.optimizer.lr:g}), set optimizer.clip=1.0, or train in "
                "training.precision='32-true'"
            )

    def _about(self) -> dict[str, Any]:
        if self.brightness is None:
            self.brightness = brightness_range(self.train, self.predictor.measurement)
        facts = {"epochs": self.step / self.steps_per_epoch, "step": self.step}
        if "start" in self.predictor.about:
            facts["start"] = self.predictor.about["start"]
        return {**provenance(), **facts, "input_brightness": self.brightness}

    def _shared_mean(self, root: Tensor) -> Tensor:
        return self._shared_sum(root.mean()) / self.fabric.world_size

    def _shared_sum(self, values: Tensor) -> Tensor:
        """Over all processes: they log the same numbers, and all stop at a NaN of one of them."""
        if self.fabric.world_size > 1:
            torch.distributed.all_reduce(values)
        return values

    def _gathered(self, winners: Tensor) -> Tensor:
        """Winning leaves of the whole batch, in the order of its indices."""
        rank, processes = self.fabric.global_rank, self.fabric.world_size
        everyone = winners.new_zeros(len(winners) * processes)
        everyone[rank::processes] = winners
        return self._shared_sum(everyone)


def _precision(recipe: Recipe, accelerator: str) -> Any:
    if recipe.training.precision != "auto":
        return recipe.training.precision
    uses_cuda = accelerator in ("auto", "cuda", "gpu") and torch.cuda.is_available()
    return "bf16-mixed" if uses_cuda and torch.cuda.is_bf16_supported() else "32-true"
