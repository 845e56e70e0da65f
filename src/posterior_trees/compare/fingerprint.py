"""Fingerprints of what a comparison's numbers depend on: images and measurements, weights, samples.

A comparison keeps what it has scored and goes on from there. Names do not tell whether that still
holds: a model is trained again into the same folder, samples are written over. Contents do.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

LENGTH = 16


def of_tensors(tensors: Iterable[Tensor]) -> str:
    """Of shapes, types and values."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:LENGTH]


def of_files(files: Iterable[Path]) -> str:
    """Of contents, in this order."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:LENGTH]
