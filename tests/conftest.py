"""What several test files share: a tiny world with two plausible answers, and recipes for it."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posterior_trees.data import ImageSet
from posterior_trees.recipe import Recipe, parse_recipe

torch.set_num_threads(1)  # tests run side by side; and one thread is what "bit for bit" is about
os.environ.setdefault("OMP_NUM_THREADS", "1")

RECIPE = """
task = "blobs"
seed = 3
[data]
name = "blobs"
kind = "idx"
channels = 1
split = "files"
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


@pytest.fixture
def blobs() -> Callable[..., ImageSet]:
    """`blobs(n, seed, odds)`: images with two plausible answers."""
    return make_blobs


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """`recipe("tree.depth=2", …)`: the tiny recipe, with changes."""
    return make_recipe


@pytest.fixture
def blob_folder(tmp_path: Path) -> Path:
    """A folder with `blobs.toml` and the set it names, 32 training and 8 test images as IDX."""
    folder = tmp_path / "data"
    (folder / "blobs").mkdir(parents=True)
    for part, images in (("train", make_blobs(32)), ("t10k", make_blobs(8, seed=1))):
        header = struct.pack(">4B3I", 0, 0, 8, 3, len(images), 8, 8)
        file = folder / "blobs" / f"{part}-images-idx3-ubyte"
        file.write_bytes(header + images.x.numpy().tobytes())
    (folder / "blobs.toml").write_text(RECIPE)
    return folder
