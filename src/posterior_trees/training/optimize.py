"""How weights move: the optimiser, its learning rate over time, and the running average."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees.errors import InputError
from posterior_trees.fast.compiling import compiled
from posterior_trees.networks import NodeNetwork
from posterior_trees.recipe import Recipe
from posterior_trees.recipe.sections import OptimizerSpec


class Schedule:
    """The factor on every group's learning rate: cosine over the run, or the paper's plateau.

    Plateau (App. A.3): ×0.1 when the validation loss has not fallen for more than `patience`
    epochs.
    Either way no group goes below `min_lr`, and the first `warmup_steps` rise linearly.
    """

    def __init__(self, spec: OptimizerSpec, total_steps: int) -> None:
        self.spec, self.total_steps = spec, total_steps
        self.plateau, self.best, self.bad_epochs = 1.0, math.inf, 0

    def lr(self, base: float, step: int) -> float:
        factor = self.plateau
        if self.spec.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * min(step / max(self.total_steps, 1), 1.0)))
        if step < self.spec.warmup_steps:
            factor *= (step + 1) / self.spec.warmup_steps
        return max(base * factor, min(self.spec.min_lr, base))

    def observe(self, loss: float) -> None:
        """Take note of an epoch's validation loss."""
        if loss < self.best:
            self.best, self.bad_epochs = loss, 0
            return
        self.bad_epochs += 1
        if self.spec.schedule == "plateau" and self.bad_epochs > self.spec.patience:
            self.plateau, self.bad_epochs = self.plateau * 0.1, 0

    def state_dict(self) -> dict[str, Any]:
        best = self.best if math.isfinite(self.best) else None
        return {"plateau": self.plateau, "best": best, "bad_epochs": self.bad_epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plateau, self.bad_epochs = state["plateau"], state["bad_epochs"]
        self.best = math.inf if state["best"] is None else state["best"]


class Average:
    """A running average of a network's weights, with a half-life in steps; 0 follows them."""

    def __init__(self, network: nn.Module, half_life: float | int) -> None:
        floats = {k: v for k, v in network.state_dict().items() if v.is_floating_point()}
        self.network, self.weights = network, list(floats.values())
        self.values = {name: tensor.clone() for name, tensor in floats.items()}
        self.half_life = half_life

    def share(self, step: int) -> float:
        """Share of the new weights in the average; larger at first, to forget the random start."""
        if not self.half_life:
            return 1.0
        return 1 - min(0.5 ** (1 / self.half_life), (1 + step) / (10 + step))

    def update(self, share: Float[Tensor, ""]) -> None:
        values = list(self.values.values())
        change = torch._foreach_sub(self.weights, values)
        torch._foreach_mul_(change, share)
        torch._foreach_add_(values, change)

    def swap_in(self) -> dict[str, Tensor]:
        """Put the averaged weights into the network; returns those that were there."""
        before = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.network.load_state_dict({**before, **self.values})
        return before

    def load(self, values: dict[str, Tensor]) -> None:
        for name, tensor in values.items():
            self.values[name].copy_(tensor)


def trunk_of(network: nn.Module) -> nn.Module:
    """What of a growing network has weights."""
    return network.trunk if isinstance(network, NodeNetwork) else network


def output_layers(network: nn.Module) -> tuple[str, ...]:
    """Prefixes of the layers no normalisation follows, which must not decay.

    What makes a leaf's image would shrink while the leaf wins nothing, and it would never win; the
    logits of the probabilities would shrink towards equal ones, and be under-confident.
    """
    network = trunk_of(network)
    linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    in_head = [name for name in linear if name.startswith("head.")]
    return ("to_image.", *[f"{name}." for name in in_head[-1:]])


def make_optimizer(recipe: Recipe, network: nn.Module, device: torch.device):
    """Two learning rates: the network's and the probability head's (App. A.3)."""
    spec, network = recipe.optimizer, trunk_of(network)
    outputs = output_layers(network)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        lr = spec.head_lr if name.startswith("head.") else spec.lr
        is_decayed = parameter.ndim > 1 and not name.startswith(outputs)
        decay = spec.weight_decay if is_decayed else 0.0
        groups.setdefault((lr, decay), []).append(parameter)
    tables: list[dict[str, Any]] = [
        {"params": params, "lr": lr, "base_lr": lr, "weight_decay": decay}
        for (lr, decay), params in groups.items()
    ]
    uses_cuda = device.type == "cuda"
    for table in tables if uses_cuda else []:
        table["lr"] = torch.tensor(table["lr"], device=device)  # a recorded step reads it there
    if spec.name == "sgd":
        return torch.optim.SGD(tables, momentum=0.9, fused=uses_cuda)
    return torch.optim.AdamW(tables, betas=(0.9, 0.999), fused=uses_cuda, capturable=uses_cuda)


def compile_step(optimizer: torch.optim.Optimizer) -> None:
    """Let the compiler write AdamW's kernels, for short steps that will be recorded.

    Torch's own give 65,536 weights to a block, so that a small network leaves most of a GPU idle.
    Where steps are not recorded, the checks before compiled code take longer than it saves.
    """
    if not isinstance(optimizer, torch.optim.AdamW):
        return
    for group in optimizer.param_groups:
        group.update(foreach=True, fused=False)
    plain = optimizer.step
    optimizer.step = compiled(lambda: plain())


def load_slots(optimizer: torch.optim.Optimizer, slots: dict[Any, dict[str, Any]]) -> None:
    """Give an optimiser its moments back, laid out as its parameters are.

    A file keeps numbers row by row; a network on a GPU keeps channels last, and fused optimisers
    refuse moments in another order than their weights, or would read them amiss.
    """
    groups = optimizer.state_dict()["param_groups"]
    numbered = {int(number): slot for number, slot in slots.items()}
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})
    for parameter, slot in optimizer.state.items():
        for name, values in slot.items():
            if isinstance(values, Tensor) and values.ndim:
                if values.shape != parameter.shape:
                    raise InputError(
                        f"the saved optimiser has {name} of {tuple(values.shape)} for a weight of "
                        f"{tuple(parameter.shape)}: another version wrote this run. Continue it "
                        "with that one, or begin anew in another --out folder"
                    )
                slot[name] = torch.empty_like(parameter, dtype=values.dtype).copy_(values)
