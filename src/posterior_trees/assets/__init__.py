"""What ships with the package beside its models: pictures to show them with, and whom to thank."""

from importlib import resources

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

SIZES = {"digits": (28, 28), "shoes": (128, 128), "cells": (260, 348)}
"""Height and width of the sample pictures; each kind is one sheet of them."""
PAPER = (
    "Nehme, Mulayoff and Michaeli, Hierarchical Uncertainty Exploration via Feedforward Posterior "
    "Trees, NeurIPS 2024"
)


def sample_digits(count: int | None = None) -> Float[Tensor, "n 1 28 28"]:
    """The test digits that ship with the package, or `count` evenly spaced ones, in [0, 1]."""
    return sample_pictures("digits", count)


def sample_pictures(kind: str, count: int | None = None) -> Float[Tensor, "n 1 h w"]:
    """Pictures for the models whose card names this kind of `samples`, or `count` of them."""
    height, width = SIZES[kind]
    sheet = resources.files("posterior_trees.assets") / f"{kind}.png"
    with sheet.open("rb") as file, Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image.convert("L")))
    tiles = pixels.unfold(0, height, height).unfold(1, width, width).reshape(-1, 1, height, width)
    count = len(tiles) if count is None else min(count, len(tiles))
    return tiles[[i * len(tiles) // count for i in range(count)]].float() / 255
