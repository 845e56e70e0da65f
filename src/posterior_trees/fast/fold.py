"""A network for prediction only: what training computes from its weights anew, written out once.

The dense weights of `FastUNet` are small functions of the trained ones. At batch 1 making them
takes as many kernels as using them, so they are made here.
"""

import copy
from typing import Any

from torch import Tensor, nn

from posterior_trees.fast.grouped import block_diagonal, enlarging, parted
from posterior_trees.fast.unet import FastUNet
from posterior_trees.networks.unet import UNet


class FoldedUNet(FastUNet):
    """A copy of a `UNet` that has dense convolutions only, and predicts the same."""

    has_room = False

    def __init__(self, network: UNet) -> None:
        super().__init__(copy.deepcopy(network).eval())
        blocks: list[Any] = [*self.plain.decoder]
        for block in blocks:
            up, second = layers = block[0], block[3]
            features, skip = parted(up.weight, up.groups)
            up.enlarged = nn.Parameter(enlarging(block_diagonal(features, up.groups)).contiguous())
            up.weight = nn.Parameter(block_diagonal(skip, up.groups))
            second.weight = nn.Parameter(self.dense(second))
            for layer in layers:
                layer.groups = 1
        last = self.plain.to_image
        last.weight, last.groups = nn.Parameter(self.dense(last)), 1
        self.requires_grad_(False)

    def parts(self, layer: Any, room: int, features: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        return layer.enlarged, layer.weight
