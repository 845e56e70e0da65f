"""Small trees, pictures and models for the tests."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn


def make_predictor(before: Callable[[], object] = lambda: None) -> Any:
    """A small model of a missing stain, in pictures of any size; `before` is called at each
    pass."""
    from posterior_trees import Paired, wrap

    class Blurs(nn.Conv2d):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            before()
            return super().forward(y)

    torch.manual_seed(0)
    backbone = Blurs(1, 6, 3, padding=1)
    measurement = Paired(1, 1)
    predictor = wrap(backbone, features=6, channels=1, branching=3, measurement=measurement)
    predictor.eval().requires_grad_(False)
    backbone.weight.mul_(0.3)  # so that leaves are not far from what is seen
    backbone.bias.mul_(0.3)
    return predictor


def make_tree(h: int = 40, w: int = 60, seed: int = 0) -> Any:
    from posterior_trees import grow

    generator = torch.Generator().manual_seed(seed)
    leaves = torch.rand(1, 9, 1, h, w, generator=generator)
    return grow(leaves, torch.randn(1, 9, generator=generator).log_softmax(dim=1), 3)


def paint(h: int = 40, w: int = 60) -> np.ndarray:
    """Dim ground and two bright discs, with 16 bits."""
    rows, columns = np.mgrid[:h, :w]
    field = np.full((h, w), 9000, dtype=np.uint16)
    for y, x in ((h // 4, w // 4), (2 * h // 3, 2 * w // 3)):
        field[(rows - y) ** 2 + (columns - x) ** 2 < 36] = 52000
    return field
