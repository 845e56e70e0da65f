"""What tells one predictor from another: weights, dtype and measurement."""

import hashlib
import json

import torch

from posterior_trees import store
from posterior_trees.predictor import TreePredictor


def fingerprint_of(predictor: TreePredictor) -> str:
    """Of all that a prediction depends on; a certificate is bound to it."""
    digest = hashlib.sha256(_way(predictor).encode())
    measurement = predictor.measurement
    numbers = {k: v for k, v in vars(measurement).items() if isinstance(v, int | float)}
    numbers.pop("training", None)
    digest.update(f"{type(measurement).__name__} {json.dumps(numbers, sort_keys=True)}".encode())
    tensors = [*measurement.named_buffers(), *predictor.network.state_dict().items()]
    for name, tensor in tensors:
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(store.bytes_of(values))
    return digest.hexdigest()[:16]


def state_of(predictor: TreePredictor) -> tuple:
    """What changes, at next to no cost to ask, whenever the fingerprint may have."""
    tensors = [*predictor.network.parameters(), *predictor.network.buffers()]
    tensors += predictor.measurement.buffers()
    versions = sum(0 if t.is_inference() else t._version for t in tensors)
    parts = id(predictor.measurement), id(predictor.network)
    return _way(predictor), predictor.branching, *parts, versions


def _way(predictor: TreePredictor) -> str:
    """In which numbers a predictor computes."""
    is_cast = torch.is_autocast_enabled(predictor.device.type)
    words = [str(predictor.dtype), "autocast" * is_cast, "compiled" * predictor.is_compiled]
    return " ".join(filter(None, words))
