"""Fingerprints of what a comparison's numbers depend on: images and measurements, weights, samples.

A comparison keeps what it has scored and goes on from there. Names do not tell whether that still
holds: a model is trained again into the same folder, samples are written over. Contents do.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from posterior_trees import store
from posterior_trees.data import ImageSet

LENGTH = 16
BATCH = 512


def of_tensors(tensors: Iterable[Tensor]) -> str:
    """Of shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(store.bytes_of(tensor.detach().cpu()))
    return digest.hexdigest()[:LENGTH]


def of_images(images: ImageSet) -> str:
    """Of what a set of images stores, part by part: it may not fit into memory."""
    parts = torch.arange(len(images)).split(BATCH)
    return of_tensors(images.subset(part).x for part in parts)


def of_files(files: Iterable[Path]) -> str:
    """Of contents, in this order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:LENGTH]
