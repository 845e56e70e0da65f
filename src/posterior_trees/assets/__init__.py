"""What ships with the package beside its models: sample digits, and whom to thank."""

from importlib import resources

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

SIDE = 28
PAPER = (
    "Nehme, Mulayoff and Michaeli, Hierarchical Uncertainty Exploration via Feedforward Posterior "
    "Trees, NeurIPS 2024"
)


def sample_digits(count: int | None = None) -> Float[Tensor, "n 1 28 28"]:
    """The test digits that ship with the package, or `count` evenly spaced ones, in [0, 1]."""
    sheet = resources.files("posterior_trees.assets") / "digits.png"
    with sheet.open("rb") as file, Image.open(file) as image:
        pixels = torch.from_numpy(np.array(image.convert("L")))
    tiles = pixels.unfold(0, SIDE, SIDE).unfold(1, SIDE, SIDE).reshape(-1, 1, SIDE, SIDE)
    count = len(tiles) if count is None else min(count, len(tiles))
    return tiles[[i * len(tiles) // count for i in range(count)]].float() / 255
