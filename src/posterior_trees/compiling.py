"""`torch.compile` as we use it: without the padding of strides that can make results wrong.

The compiler may lengthen the rows of what it keeps on a GPU to a multiple of 128 bytes. In torch
2.11 a kernel may then read with the longer rows what another wrote with the shorter ones (pytorch
issue 194281, mended later): nothing fails, the numbers are wrong. Rows of 28×28 pixels are
lengthened, those of 64×64 are not.
"""

from collections.abc import Callable
from typing import Any

import torch

SAFE: dict[str, Any] = {"comprehensive_padding": False}


def compiled(function: Callable, *, is_dynamic: bool | None = None) -> Any:
    """The function or network, compiled for the sizes it meets; `is_dynamic` as in torch."""
    return torch.compile(function, dynamic=is_dynamic, options=SAFE)
