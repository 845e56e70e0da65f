"""What training a recipe will take: weights, memory, and the time of a step.

The network is built on torch's meta device, where tensors have a shape and no numbers: in a moment,
whatever its size. A step there tells what the backward pass will need. How long a step takes is
measured, by a few of them.
"""

import time
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posterior_trees.data.memory import free_bytes
from posterior_trees.errors import RecipeError
from posterior_trees.loss import probability_loss, tree_loss
from posterior_trees.models.build import build_predictor
from posterior_trees.predictor import GrowingPredictor, TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.training.growing import practise

STEPS = 6
"""Steps of which the fastest counts, after a first one: others may use the machine."""
SECONDS = 1.0
"""A step that is likely to take longer is timed on fewer images."""


class Forecast(NamedTuple):
    """Of a step on one device: trained numbers, the bytes they take with gradients, moments and
    average, the bytes that the backward pass needs, and multiplications and additions."""

    weights: int
    state_bytes: int
    kept_bytes: int
    flops: int

    def __str__(self) -> str:
        return f"{in_millions(self.weights)} weights, about {in_bytes(self.nbytes)} of memory"

    @property
    def nbytes(self) -> int:
        return self.state_bytes + self.kept_bytes


def forecast(recipe: Recipe, size: tuple[int, ...], processes: int = 1) -> Forecast:
    """What a step takes with pictures of `size` (channels, height, width). Refuses what no such
    picture can be: a hole of another size, a width that leaves cannot share."""
    predictor = predictor_on(recipe, "meta")
    batch = max(recipe.training.batch_size // processes, 1)
    counter, kept = FlopCounterMode(display=False), {}

    def keep(tensor: Tensor) -> Tensor:
        kept[id(tensor.untyped_storage())] = tensor
        return tensor

    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(predictor, torch.zeros(batch, *size, device="meta"))
    own = {id(p.untyped_storage()) for p in predictor.parameters()}
    half = 2 if recipe.training.precision.startswith(("bf16", "16")) else 1
    nbytes = sum(t.untyped_storage().nbytes() for key, t in kept.items() if key not in own)
    weights = sum(p.numel() for p in predictor.parameters())
    copies = 4 if recipe.optimizer.name == "sgd" else 5
    return Forecast(weights, 4 * copies * weights, nbytes // half, counter.get_total_flops())


def predictor_on(recipe: Recipe, device: str | torch.device) -> TreePredictor:
    """The recipe's predictor, with weights made where they are to be."""
    try:
        return build_predictor(recipe, device)
    except RuntimeError as error:  # numbers of weights beyond what an integer can hold
        raise RecipeError(f"no such network can be built ({error}): lower tree.depth, or "
                          "network.c_init or width") from error  # fmt: skip


def step(predictor: TreePredictor, x: Tensor, optimizer: torch.optim.Optimizer | None = None):
    """The work of a training step on pictures x (their measurements, for pairs, are made up)."""
    measurement = predictor.measurement
    made_up = x[:, :1].repeat(1, measurement.channels(predictor.channels), 1, 1)
    y = predictor.measure(x) if measurement.is_computable else made_up
    tree = practise(predictor, x, y) if isinstance(predictor, GrowingPredictor) else predictor(y)
    (tree_loss(tree, x, 0.5) + probability_loss(tree, x)).mean().backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def time_step(
    recipe: Recipe, size: tuple[int, ...], flops: int, device: str | torch.device
) -> float:
    """Seconds of a step on a device, measured: on fewer pictures where it would take long."""
    batch = recipe.training.batch_size
    speed = 20e9 if torch.device(device).type == "cpu" else 2e12
    few = min(batch, max(2, int(batch * SECONDS * speed / max(flops, 1))))
    predictor = predictor_on(recipe, device)
    optimizer = torch.optim.AdamW(predictor.parameters())
    x, marks = torch.rand(few, *size, device=device), [time.perf_counter()]
    while len(marks) < 2 + STEPS and marks[-1] - marks[0] < 4 * SECONDS:
        step(predictor, x, optimizer)
        x.new_zeros(1).item()  # waits for the device
        marks.append(time.perf_counter())
    times = [after - before for before, after in pairwise(marks)]
    return min(times[1:] or times) * batch / few


def free_on(device: str | torch.device) -> int | None:
    """Bytes that may still be taken there, if that is known."""
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return free_bytes() if kind == "cpu" else None


def refuse_what_cannot_fit(recipe: Recipe, found: Forecast, device: str | torch.device) -> None:
    """Say what a run needs and what there is, and which keys decide, if it is too much."""
    free = free_on(device)
    if free is None or found.nbytes <= free:
        return
    leaves = recipe.tree.branching**recipe.tree.depth
    smaller = f"tree.depth (now {recipe.tree.depth}: {leaves} leaves) or network.width"
    if found.kept_bytes > found.state_bytes:
        batch = recipe.training.batch_size
        smaller = f"training.batch_size (now {batch}), {smaller}, or data.size"
    raise RecipeError(
        f"training needs about {in_bytes(found.nbytes)} of memory, {in_bytes(free)} are free: "
        f"{in_bytes(found.state_bytes)} for {in_millions(found.weights)} weights with gradients, "
        f"moments and average, {in_bytes(found.kept_bytes)} for a batch. Lower {smaller}"
    )


def in_bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def in_millions(count: int) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size / 10:
            return f"{count / size:.3g} {word}"
    return f"{count:,}"
