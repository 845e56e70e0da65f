"""Random numbers at every step, for next to nothing.

What a network draws from is seeded by `seed_device`: `torch.manual_seed` also seeds the kinds of
accelerators that are not there. It keeps the seed for the day one appears, each time with the text
of a stack trace, which takes half a millisecond, and memory that never comes back.

Everything random in a step comes from `step_generator`, which knows nothing of the steps before.

A random number for each of many samples is made where the samples are, by `shake`: drawn from a
generator of the CPU they would all have to travel, and a GPU would wait for them.

What must not depend on a generator at all, such as which images are for testing, goes by
`unit_hash` of a name.
"""

import hashlib

import torch
from jaxtyping import Int64
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
MIXERS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))
"""Numbers without a sign, as tensors have them: with one."""


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the default generators of the CPU and of `device`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


def step_generator(
    seed: int, step: int, purpose: int, device: str | torch.device = "cpu"
) -> torch.Generator:
    """The random numbers of one step, or of one image, for one purpose."""
    number = (seed * 1_000_003 + purpose) * 1_000_003 + step
    return torch.Generator(device).manual_seed(number % 2**63)


def unit_hash(name: str, salt: str) -> float:
    """A random-looking number in [0, 1) for a name, the same on every machine and for ever; each
    purpose has a `salt` of its own, and numbers that have nothing to do with another's."""
    digest = hashlib.sha256(f"{salt}\0{name}".encode()).digest()
    return (int.from_bytes(digest[:8]) >> 11) / 2**53


def make_marks(count: int) -> Int64[Tensor, "count"]:
    """A random-looking number of 64 bits for each of 0 … count-1, always the same: the mixing
    function of splitmix64 (Steele, Lea & Flood, 2014). All are different."""
    z = torch.arange(1, count + 1) * GOLDEN
    for shift, factor in MIXERS:
        z = (z ^ _shift_right(z, shift)) * factor
    return z ^ _shift_right(z, 31)


def shake(
    marks: Int64[Tensor, "count"], generator: torch.Generator | None
) -> Int64[Tensor, "count"]:
    r"""New numbers from marks: their product with one odd number that `generator` draws. Overflow
    wraps around, on every device alike. For marks $h$ the numbers are independent, as far as their
    upper bits go, unless a sum of few $\pm h$ happens to vanish modulo $2^{64}$."""
    place = marks.device if generator is None else generator.device
    factor = torch.empty((), dtype=torch.int64, device=place).random_(generator=generator)
    return marks * factor.bitwise_or_(1)  # no copy: a CPU scalar goes along with the launch


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Without copies of the sign."""
    return (z >> bits) & (2 ** (64 - bits) - 1)
