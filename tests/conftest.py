"""Fixtures of several test files: the tiny world of `tiny.py`, in memory and as files."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny import RECIPE, make_blobs, make_recipe

from posterior_trees.data import ImageSet
from posterior_trees.recipe import Recipe

torch.set_num_threads(1)  # tests run side by side; and one thread is what "bit for bit" is about
os.environ.setdefault("OMP_NUM_THREADS", "1")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU, slowly


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
