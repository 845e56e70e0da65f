r"""What a tree learns from one batch: losses, gradients, the optimiser's step, the running average.

A step is a function of tensors only. What changes from step to step (learning rates, $\varepsilon$,
the average's share, …) is put into one tensor first, and all it takes note of stays in its place,
so that on CUDA the step can be recorded once and replayed (`fast/graph.py`); it can also be
compiled, and shared by processes (`devices.py`).
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from lightning_fabric import Fabric
from torch import Tensor, nn

from posterior_trees.fast.accelerate import accelerate
from posterior_trees.fast.compiling import compiled, plain_way_back
from posterior_trees.fast.graph import Capture
from posterior_trees.loss import epsilon_at
from posterior_trees.networks.head import Leaves
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.training.association.conscience import Conscience, strength_at
from posterior_trees.training.association.features import Part
from posterior_trees.training.association.starts import Starts, coarse, find_centres
from posterior_trees.training.devices import gather_leaves, sum_over_processes
from posterior_trees.training.health import Health
from posterior_trees.training.objective import objective, rules_of
from posterior_trees.training.optimize import (
    Average,
    Schedule,
    compile_step,
    load_slots,
    make_optimizer,
)

LITTLE = 2**21
"""Numbers in all leaves of a batch up to which a launch takes longer than a pass over them: those
of 256 digits are fewer, those of 64 faces at 64×64 more."""
MANY = 50_000
"""Steps of a run from which compiling the optimiser, which takes seconds, can be made up for."""


class Learner:
    """A predictor on its device, and all that learning changes: weights and their average,
    optimiser, schedule, handicaps, centres."""

    def __init__(
        self,
        recipe: Recipe,
        predictor: TreePredictor,
        fabric: Fabric,
        steps_per_epoch: int,
        health: Health,
    ) -> None:
        self.recipe, self.predictor, self.fabric = recipe, predictor, fabric
        self.steps_per_epoch, self.health = steps_per_epoch, health
        self.total_steps = recipe.training.epochs * steps_per_epoch
        self.schedule = Schedule(recipe.optimizer, self.total_steps)
        self.optimizer = make_optimizer(recipe, predictor.network, fabric.device)
        self.network, self.wrapped = self._set_up(predictor.network)
        self.average = Average(self.network, recipe.training.average_half_life * steps_per_epoch)
        if recipe.training.compile and fabric.device.type == "cuda":  # three passes become one
            self.average.update = compiled(self.average.update)
        groups, spec = len(self.optimizer.param_groups), recipe.loss
        self.numbers = torch.zeros(groups + 4, device=fabric.device)
        self.is_ready = False
        self._place_rates()
        self.beta = spec.cross_entropy_weight
        *_, strength, is_guided = self.numbers
        self.conscience = Conscience(predictor.branching, strength)
        part = Part(spec.focus, spec.features)
        self.starts = Starts(predictor.branching, is_guided, part)
        self.rules = rules_of(spec, self.conscience, self.starts)

    def learn(
        self,
        step: int,
        x: Float[Tensor, "b *shape"],
        y: Float[Tensor, "b *measured"],
        weights: Float[Tensor, "b"],
    ) -> Int[Tensor, "batch"]:
        """One optimiser step on this process's part of a batch, whose losses count by `weights`.
        Returns the leaves that the images of the whole batch reach, until the next call."""
        if not self.is_ready:
            self._prepare(x)
        self._set_numbers(step)
        return self._learn(x, y, weights, *self._draw(step, len(x)))

    def _draw(self, step: int, count: int) -> tuple[Tensor, ...]:
        """What else a step needs, of random numbers."""
        return ()

    def _prepare(self, x: Float[Tensor, "b *shape"]) -> None:
        """What depends on the size of the images, before the first batch."""
        if self.recipe.loss.guided_epochs:
            self.starts.make_room(x[0])
        if self.recipe.training.compile:
            has_little_data = x.numel() * self.predictor.num_leaves <= LITTLE
            self._judge = compiled(self._judge, has_little_data=has_little_data)
            # A recorded step, unless gradients are scaled: that needs torch's own kernels.
            has_scaler = getattr(self.fabric.strategy.precision, "scaler", None) is not None
            can_compile = isinstance(self._learn, Capture) and not has_scaler
            if can_compile and has_little_data and self.total_steps >= MANY:
                compile_step(self.optimizer.optimizer)
        self.is_ready = True

    def epsilon(self, epoch: float | int) -> float:
        """The losers' weight after so many epochs."""
        spec = self.recipe.loss
        return max(epsilon_at(epoch, spec.epsilon_start, spec.epsilon_scale), spec.epsilon_floor)

    def _set_numbers(self, step: int) -> None:
        """The numbers of a step: the learning rate of each group, ε, the share of the new weights
        in the running average, the strength of the conscience, and whether centres guide."""
        groups = self.optimizer.param_groups
        rates = [self.schedule.lr(group["base_lr"], step) for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            if not isinstance(group["lr"], Tensor):
                group["lr"] = rate
        epoch, spec = step / self.steps_per_epoch, self.recipe.loss
        strength = strength_at(step / self.total_steps, spec.conscience)
        is_guided = self.starts.is_found and epoch < spec.epsilon_start + spec.guided_epochs
        last = self.epsilon(epoch), self.average.share(step), strength, float(is_guided)
        numbers = torch.tensor([*rates, *last])
        self.numbers.copy_(numbers, non_blocking=True)  # CUDA reads few bytes before it returns

    def _place_rates(self) -> None:
        """On CUDA the optimiser reads its rates where `_set_numbers` puts them."""
        for group, place in zip(self.optimizer.param_groups, self.numbers, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"] = place

    def _learn(self, x: Tensor, y: Tensor, weights: Tensor, *drawn: Tensor) -> Tensor:
        """Forward, backward, optimiser, running average, and what is to be noted."""
        epsilon, share, *_ = self.numbers[-4:]
        self.wrapped.train()
        total, sums, leaf, taught = self._teach(x, y, weights, epsilon, *drawn)
        self.fabric.backward(total)
        if self.recipe.optimizer.clip:
            self.fabric.clip_gradients(  # a recorded step cannot wait to hear that one is NaN
                self.wrapped, self.optimizer, max_norm=self.recipe.optimizer.clip,
                error_if_nonfinite=False,
            )  # fmt: skip
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.average.update(share)
        return self._note(sums, leaf, taught)

    def _teach(
        self, x: Tensor, y: Tensor, weights: Tensor, epsilon: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One pass of the network, and what `_judge` says of it."""
        with plain_way_back():
            leaves = self.wrapped(self.predictor.view(y))
        return self._judge(leaves, x, y, weights, epsilon)

    def _note(self, sums: Tensor, leaf: Tensor, taught: Tensor) -> Tensor:
        """Take note of a batch, of all processes together; returns the leaves its images reach."""
        if self.recipe.loss.conscience:
            self.conscience.note(gather_leaves(self.fabric, taught))
        winners = gather_leaves(self.fabric, leaf)
        self.health.note(sum_over_processes(self.fabric, sums), winners)
        return winners

    def _judge(
        self, leaves: Leaves, x: Tensor, y: Tensor, weights: Tensor, epsilon: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the optimiser lowers, sums for `health`, and the leaves that images reach and teach.
        Compiled as one function: each of its small steps would be a launch of its own. It returns
        no `Objective`: torch 2.11 cannot compile a named tuple that was replaced."""
        loss = objective(self.predictor.assemble(leaves, y), x, epsilon, self.rules)
        total = loss.total(self.beta, self._mean(loss.root.mean()))
        return (weights * total).mean(), self.health.sum(loss), loss.leaf, loss.taught

    @torch.no_grad()
    def seed(
        self,
        batches: Iterable[tuple[Float[Tensor, "b *shape"], Float[Tensor, "b *measured"]]],
        generator: torch.Generator,
    ) -> None:
        """Find the centres that leaves begin at, from images and their measurements."""
        self.network.eval()
        part, missed = self.starts.part, (x - self.predictor(y).root for x, y in batches)
        rows = torch.cat([coarse(part.of(residuals)) for residuals in missed])
        centres = find_centres(rows, self.predictor.branching, generator)
        self.starts.take(self.fabric.broadcast(centres))

    def _mean(self, values: Tensor) -> Tensor:
        return sum_over_processes(self.fabric, values) / self.fabric.world_size

    def _set_up(self, network: nn.Module) -> tuple[nn.Module, Any]:
        """The bare network, and the one to train with: accelerated, compiled, distributed."""
        spec, uses_cuda = self.recipe.training, self.fabric.device.type == "cuda"
        if uses_cuda:
            network.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
            torch.backends.cudnn.benchmark = True
        trained: Any = accelerate(network)
        trained = compiled(trained) if spec.compile else trained
        wrapped, self.optimizer = self.fabric.setup(trained, self.optimizer)
        if uses_cuda and self.fabric.world_size == 1:
            self._learn = Capture(self._learn)  # ty: ignore[invalid-assignment]
        return network, wrapped

    def is_finite(self) -> bool:
        """Whether all weights are: 0 times another is NaN. Few launches for many weights."""
        zeros = torch._foreach_mul(self.average.weights, 0.0)
        return bool(torch.stack(torch._foreach_norm(zeros)).isfinite().all())

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": dict(self.network.state_dict()),
            "average": self.average.values,
            "optimizer": self.optimizer.state_dict()["state"],
            "schedule": self.schedule.state_dict(),
            "bias": self.conscience.bias,
            "centres": dict(enumerate(self.starts.centres)) if self.starts.is_found else {},
            "precision": self.fabric.strategy.precision.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the learner's part of a run's state."""
        self.network.load_state_dict(state["network"])
        self.average.load(state["average"])
        load_slots(self.optimizer, state.get("optimizer", {}))
        self._place_rates()
        self.schedule.load_state_dict(state["schedule"])
        self.conscience.bias.copy_(state.get("bias", self.conscience.bias))
        if kept := state.get("centres"):
            self.starts.take([kept[key].to(self.fabric.device) for key in sorted(kept, key=int)])
        if state.get("precision"):  # the gradient scaler of 16-mixed; other precisions have none
            self.fabric.strategy.precision.load_state_dict(state["precision"])
