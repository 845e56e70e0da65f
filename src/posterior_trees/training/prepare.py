"""What is settled before a run begins: which network, whether it fits, and what to say of it.

A recipe that names no network gets one that suits number and size of the pictures and the machine,
unless its run, or the model that it begins with, has one already: a U-Net with one decoder for all
leaves, halved until its deepest level is some seven pixels high. Its width is the largest of a few
with which the run, by steps measured here, ends in time.
"""

import dataclasses
from collections.abc import Callable, Sequence
from math import log2, prod, sqrt
from os import PathLike
from pathlib import Path

import torch

from posterior_trees.data import find_folder, load_split
from posterior_trees.errors import DataError, plural
from posterior_trees.models.checkpoint import best_device, load_recipe
from posterior_trees.progress import in_words
from posterior_trees.recipe import Recipe, names_network, parse_resolved, read_recipe
from posterior_trees.training.feed import steps_of
from posterior_trees.training.forecast import (
    Forecast,
    forecast,
    free_on,
    in_millions,
    predictor_on,
    refuse_what_cannot_fit,
    time_step,
)

WIDTHS = (8, 12, 16, 24, 32, 48, 64)
DEEPEST = 7
"""Pixels that the deepest level is about high: there one convolution sees the whole."""
SECONDS, NUMBERS = 120, 3_000 * 28 * 28
"""Choice: a run on so many numbers (3,000 grey pictures of 28×28) may take two minutes, one on more
the root of as many times longer: a first tree should be there while one waits for it."""
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
