"""A network that suits number and size of the pictures and the machine, where a recipe names none.

A U-Net with one decoder for all leaves, halved until its deepest level is some seven pixels high.
Its width is the largest of a few with which the run, by steps measured here, ends in time.
"""

import dataclasses
from collections.abc import Callable
from math import log2, prod, sqrt

import torch

from posterior_trees.progress import in_words
from posterior_trees.recipe import Recipe
from posterior_trees.training.feed import steps_of
from posterior_trees.training.forecast import Forecast, forecast, free_on, in_millions, time_step

WIDTHS = (8, 12, 16, 24, 32, 48, 64)
DEEPEST = 7
"""Pixels that the deepest level is about high: there one convolution sees the whole."""
SECONDS, NUMBERS = 120, 3_000 * 28 * 28
"""Choice: a run on so many numbers (3,000 grey pictures of 28×28) may take two minutes, one on more
the root of as many times longer: a first tree should be there while one waits for it."""


def choose_network(
    recipe: Recipe,
    size: tuple[int, ...],
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

    def rate(width: int) -> tuple[Recipe, Forecast, float]:
        candidate = with_width(recipe, width, size)
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


def with_width(recipe: Recipe, width: int, size: tuple[int, ...]) -> Recipe:
    """The recipe with such a network, and what else its [network] says."""
    halvings = min(max(round(log2(min(size[-2:]) / DEEPEST)), 1), 6)
    network = dataclasses.replace(
        recipe.network, decoder="shared", width=width, steps=halvings, doublings=2,
        kind="growing" if recipe.network.kind == "growing" else "unet",
    )  # fmt: skip
    return dataclasses.replace(recipe, network=network)
