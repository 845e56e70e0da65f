"""A tiny world with two plausible answers, and a recipe for it."""

import torch

from posterior_trees import Tree, grow
from posterior_trees.data import ImageSet
from posterior_trees.recipe import Recipe, parse_recipe

RECIPE = """
task = "blobs"
seed = 3
[data]
name = "blobs"
kind = "idx"
channels = 1
split = "files"
split_order = "sorted"
validation = 0.25
[measurement]
kind = "inpaint"
rows = [0, 4]
columns = [0, 7]
of = [8, 8]
[tree]
branching = 2
depth = 1
[network]
c_init = 1
[loss]
epsilon_start = 1.0
epsilon_scale = 0.5
[training]
epochs = 3
batch_size = 8
precision = "32-true"
picture_every = 0
save_seconds = 1e9
"""


def make_blobs(n: int, seed: int = 0, odds: float = 0.5) -> ImageSet:
    """8×8 images: a bright blob in the upper right (with these odds) or upper left, over a bar
    whose place says nothing about it. With the upper rows hidden there are two answers."""
    generator = torch.Generator().manual_seed(seed)
    is_right = torch.rand(n, generator=generator) < odds
    bar = torch.randint(7, (n,), generator=generator)
    x = torch.zeros(n, 1, 8, 8)
    for image, right, place in zip(x, is_right.tolist(), bar.tolist(), strict=True):
        image[:, 1:4, 4 * right : 4 * right + 3] = 0.8
        image[:, 6:, place : place + 2] = 0.6
    x += 0.1 * torch.rand(x.shape, generator=generator)
    return ImageSet((255 * x).to(torch.uint8))


def make_recipe(*changes: str) -> Recipe:
    return parse_recipe(RECIPE, changes)


def make_tree(b: int, side: int) -> tuple[Tree, torch.Tensor]:
    """Random trees of nine leaves in float64, and as many truths."""
    generator = torch.Generator().manual_seed(0)
    leaves = torch.rand(b, 9, 1, side, side, generator=generator, dtype=torch.float64)
    log_probs = torch.randn(b, 9, generator=generator, dtype=torch.float64).log_softmax(dim=1)
    x = torch.rand(b, 1, side, side, generator=generator, dtype=torch.float64)
    return grow(leaves, log_probs, (3, 3)), x
