"""What is measured: the network of a recipe with random weights, and its plain counterpart."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posterior_trees.errors import InputError
from posterior_trees.models.build import build_predictor
from posterior_trees.predictor import Predictor, TreePredictor
from posterior_trees.recipe import TASKS, Recipe, parse_recipe, read_recipe

PAPER = 'task = "faces_eyes"'
"""The paper's network, whatever our recipe for eyes has: a recipe's defaults."""
KEYS = {"branching": "tree.branching={}", "depth": "tree.depth={}", "c_init": "network.c_init={}",
        "decoder": "network.decoder={}", "channels": "data.channels={}",
        "size": "data.size={}"}  # fmt: skip
"""What an option changes of the recipe whose network is measured."""


def find_recipe(name_or_file: str, changes: list[str] | tuple[str, ...] = ()) -> Recipe:
    """A TOML file, the name of one in `recipes/`, or a task with the defaults of a recipe."""
    for file in (Path(name_or_file), Path("recipes") / f"{name_or_file}.toml"):
        if file.is_file():
            return read_recipe(file, changes)
    if name_or_file in TASKS:
        return parse_recipe(f'task = "{name_or_file}"', changes)
    return read_recipe(name_or_file, changes)  # its error says what a recipe is


def square_recipe(size: int = 64, **options: Any) -> Recipe:
    """Squares with the paper's box over the eyes: the size and the tree are what is studied."""
    options["size"] = [size, size]
    return parse_recipe(PAPER, [KEYS[name].format(value) for name, value in options.items()])


def fresh(recipe: Recipe, device: str | torch.device) -> TreePredictor:
    """The recipe's predictor with random weights, those of the head's last layer too, which start
    at zero: its probabilities must have something to be wrong about."""
    torch.manual_seed(recipe.seed)
    with torch.device(device):  # billions of random numbers take a CPU minutes
        predictor = build_predictor(recipe)
    last = [layer for layer in predictor.network.modules() if isinstance(layer, nn.Linear)][-1]
    nn.init.normal_(last.weight, std=0.3)
    return predictor.to(device).eval().requires_grad_(False)


def size_of(recipe: Recipe, fallback: tuple[int, int] = (64, 64)) -> tuple[int, int]:
    """Height and width of the images of a recipe, as far as it says."""
    if len(recipe.data.size or recipe.measurement.of) == 2:
        height, width = recipe.data.size or recipe.measurement.of
        return height, width
    side = recipe.data.patch
    return (side, side) if side else fallback


def random_measurement(predictor: Predictor, batch: int, size: tuple[int, int]) -> Tensor:
    """Noise in the shape of measurements of images of `size`."""
    measurement = predictor.measurement
    hole = measurement.hole
    if hole is not None and tuple(hole.shape) != tuple(size):
        have = "×".join(map(str, hole.shape))
        raise InputError(f"this model takes {have}, --size is {size[0]}: leave --size out")
    shape = (batch, measurement.channels(predictor.channels), *size)
    noise = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(predictor.device)
    return noise if hole is None else measurement.observe(noise)
