"""Seed what a network draws from, at every step, for next to nothing.

`torch.manual_seed` also seeds the kinds of accelerators that are not there: it keeps the seed for
the day one appears, each time with the text of a stack trace. That takes half a millisecond, and
memory that never comes back.
"""

import torch


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the default generators of the CPU and of `device`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
