"""Stored integers as brightness, and brightness as it is shown."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError


def to_float(stored: Tensor) -> Float[Tensor, "..."]:
    """Integers → float32 in [0, 1]; 16-bit ones come signed or unsigned."""
    if stored.dtype == torch.uint8:
        return stored.to(torch.float32).div_(255)
    bits = signed(stored).to(torch.int32).bitwise_and_(0xFFFF)
    return bits.to(torch.float32).div_(65535)


def visible(image: Float[Tensor, "c h w"], what: str, where: str) -> np.ndarray:
    """Grey `(h, w)` or colour `(h, w, 3)` values, clipped to [0, 1]."""
    values = image.detach().cpu().double().numpy()
    if bad := int(values.size - np.isfinite(values).sum()):
        raise InputError(
            f"{what} has {bad} NaN or infinite pixels of {values.size}; "
            f"{where} needs finite values: look for a training run that diverged"
        )
    values = values.clip(0.0, 1.0)
    return values[0] if len(values) == 1 else values.transpose(1, 2, 0)


def signed(stored: Tensor) -> Tensor:
    """The same bits under a type that every device can index: torch's uint16 can do little."""
    return stored.view(torch.int16) if stored.dtype == torch.uint16 else stored


def unsigned(stored: Tensor) -> Tensor:
    """16 bits as torch's uint16 again."""
    return stored.view(torch.uint16) if stored.dtype == torch.int16 else stored
