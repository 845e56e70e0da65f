"""Stored integers as brightness."""

import torch
from jaxtyping import Float
from torch import Tensor


def to_float(stored: Tensor) -> Float[Tensor, "..."]:
    """Integers → float32 in [0, 1]; 16-bit ones come signed or unsigned."""
    if stored.dtype == torch.uint8:
        return stored.to(torch.float32).div_(255)
    bits = signed(stored).to(torch.int32).bitwise_and_(0xFFFF)
    return bits.to(torch.float32).div_(65535)


def signed(stored: Tensor) -> Tensor:
    """The same bits under a type that every device can index: torch's uint16 can do little."""
    return stored.view(torch.int16) if stored.dtype == torch.uint16 else stored


def unsigned(stored: Tensor) -> Tensor:
    """16 bits as torch's uint16 again."""
    return stored.view(torch.uint16) if stored.dtype == torch.int16 else stored
