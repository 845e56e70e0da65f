"""What is settled before a run begins: which network, whether it fits, and what to say of it.

A recipe that names no network gets one that suits number and size of the pictures and the machine,
unless its run, or the model that it begins with, has one already: a U-Net with one decoder for all
leaves, halved until its deepest level is some seven pixels high. Its width is the largest of a few
with which the run, by steps measured here, ends in time.

For a forecast the network is built on torch's meta device, where tensors have a shape and no
numbers: in a moment, whatever its size. A step there tells what the backward pass will need.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import log2, prod, sqrt
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from posterior_trees.data import find_folder, load_split
from posterior_trees.data.memory import free_bytes
from posterior_trees.errors import DataError, RecipeError, plural
from posterior_trees.loss import probability_loss, tree_loss
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import best_device, load_recipe
from posterior_trees.predictor import GrowingPredictor, TreePredictor
from posterior_trees.progress import in_words
from posterior_trees.recipe import Recipe, names_network, parse_resolved, read_recipe
from posterior_trees.training.feed import steps_of
from posterior_trees.training.growing import practise

WIDTHS = (8, 12, 16, 24, 32, 48, 64)
DEEPEST = 7
"""Pixels that the deepest level is about high: there one convolution sees the whole."""
SECONDS, NUMBERS = 120, 3_000 * 28 * 28
"""Choice: a run on so many numbers (3,000 grey pictures of 28×28) may take two minutes, one on more
the root of as many times longer: a first tree should be there while one waits for it."""
STEPS = 6
"""Steps of which the fastest counts, after a first one: others may use the machine."""
STEP_SECONDS = 1.0
"""A step that is likely to take longer is timed on fewer images."""
Size = tuple[int, ...]
"""Channels, height and width of a picture."""


def read_for(
    file: str | PathLike[str],
    changes: Sequence[str],
    run: Path,
    start: str | PathLike[str] | None = None,
) -> tuple[Recipe, bool]:
    """The recipe in a file, for this run, and whether its network is still to be chosen. One that
    cannot be built is refused."""
    recipe = read_recipe(file, list(changes))
    if not names_network(file, list(changes)):
        kept = run / "recipe.toml"
        if kept.is_file() and (run / "state.safetensors").is_file():
            known = parse_resolved(kept.read_text(encoding="utf-8"), str(kept))
        elif start is not None:
            known = load_recipe(start)
        else:
            return recipe, True
        recipe = dataclasses.replace(recipe, network=known.network)
    predictor_on(recipe, "meta")
    return recipe, False


def look(recipe: Recipe, data: str | PathLike[str] | None) -> tuple[int, Size]:
    """How many training pictures there are and of which size, without reading them if that can be
    helped; without a data folder 0, and the size that the recipe says, () if it says none."""
    try:
        find_folder(data)
    except DataError:
        spec = recipe.data
        side = (spec.patch, spec.patch) if spec.patch else spec.size or recipe.measurement.of
        return 0, (spec.channels, *side) if side else ()
    images = load_split(recipe.data, data, "train", resident_limit_bytes=0)
    return len(images), _size(recipe, images.shape)


def prepare(
    recipe: Recipe,
    count: int,
    shape: Size,
    device: str | None = None,
    *,
    processes: int = 1,
    is_open: bool = False,
    say: Callable[[str], object] = print,
) -> Recipe:
    """The recipe to train with `count` pictures of a shape, its network chosen if that `is_open`;
    `say` hears what it takes. Refuses what memory cannot hold, and pictures that do not fit."""
    size, where = _size(recipe, shape), _device(device)
    if is_open:
        recipe = choose_network(recipe, size, count, where, say, is_measured=processes == 1)
    found = forecast(recipe, size, processes)
    if device is None or where.type == torch.device(device).type:
        refuse_what_cannot_fit(recipe, found, where)
    say(str(found))
    return recipe


def choose_network(
    recipe: Recipe,
    size: Size,
    count: int,
    device: str | torch.device,
    say: Callable[[str], object],
    is_measured: bool = True,
) -> Recipe:
    """The recipe with a network for `count` pictures of `size`; `say` hears which and how long it
    takes. Processes that train together must choose alike: they do not measure."""
    steps = recipe.training.epochs * steps_of(count, recipe.training.batch_size, recipe.data.repeat)
    numbers = count * prod(size)
    limit, free = SECONDS * max(sqrt(numbers / NUMBERS), 1), free_on(device)
    halvings = min(max(round(log2(min(size[-2:]) / DEEPEST)), 1), 6)

    def rate(width: int) -> tuple[Recipe, Forecast, float]:
        network = dataclasses.replace(
            recipe.network, decoder="shared", width=width, steps=halvings, doublings=2,
            kind="growing" if recipe.network.kind == "growing" else "unet",
        )  # fmt: skip
        candidate = dataclasses.replace(recipe, network=network)
        found = forecast(candidate, size)
        seconds = found.flops / (50e9 if torch.device(device).type == "cpu" else 5e12)
        if is_measured:
            seconds = time_step(candidate, size, found.flops, device)
        return candidate, found, seconds * steps

    chosen, larger = rate(WIDTHS[0]), None
    for width in WIDTHS[1:]:
        larger = rate(width)
        is_heavy = free is not None and larger[1].nbytes > free
        if larger[2] > limit or larger[1].weights > numbers or is_heavy:
            break
        chosen, larger = larger, None
    network, (_, found, seconds) = chosen[0].network, chosen
    more = larger and f"--set network.width={larger[0].network.width} about {in_words(larger[2])}"
    say(
        f"no network is named: one of width {network.width}, halved {network.steps} times, with "
        f"{in_millions(found.weights)} weights suits {count} pictures of {size[-2]}×{size[-1]}. "
        f"Its {steps} steps take about {in_words(seconds)}" + (f"; {more}" if more else "")
    )
    return chosen[0]


def estimate(recipe: Recipe, count: int, size: Size, device: str | None = None) -> str:
    """How long a run takes, by steps that are made and thrown away."""
    where = _device(device)
    seconds = time_step(recipe, size, forecast(recipe, size).flops, where)
    text = f"{seconds:.2g} s a step on this {where.type}"
    if not count:
        return f"{text}; with --data also how long it takes"
    steps = steps_of(count, recipe.training.batch_size, recipe.data.repeat)
    epochs = recipe.training.epochs
    return (
        f"{text}: {plural(count, 'picture')}, {plural(steps, 'step')} an epoch, "
        f"{in_words(steps * seconds)}; "
        f"{plural(epochs, 'epoch')} about {in_words(epochs * steps * seconds)}"
    )


def _size(recipe: Recipe, shape: Size) -> Size:
    """Of what the network sees in training: windows, if the recipe takes them."""
    patch = recipe.data.patch
    return (shape[0], patch, patch) if patch else tuple(shape)


def _device(name: str | None) -> torch.device:
    """Where this computer would train: on what was asked for, if it has that."""
    if name and torch.device(name).type == "cuda" and not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(name) if name else best_device()


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


def forecast(recipe: Recipe, size: Size, processes: int = 1) -> Forecast:
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


def time_step(recipe: Recipe, size: Size, flops: int, device: str | torch.device) -> float:
    """Seconds of a step on a device, measured: on fewer pictures where it would take long."""
    batch = recipe.training.batch_size
    speed = 20e9 if torch.device(device).type == "cpu" else 2e12
    few = min(batch, max(2, int(batch * STEP_SECONDS * speed / max(flops, 1))))
    predictor = predictor_on(recipe, device)
    optimizer = torch.optim.AdamW(predictor.parameters())
    x, marks = torch.rand(few, *size, device=device), [time.perf_counter()]
    while len(marks) < 2 + STEPS and marks[-1] - marks[0] < 4 * STEP_SECONDS:
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
