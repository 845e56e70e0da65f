"""The paper's U-Net as GPUs like to compute it: another way through the same modules.

Grouped convolutions of a few channels each leave a GPU's matrix units idle, in the backward pass
above all. They run as dense convolutions whose weight is zero between leaves: `groups` times the
arithmetic in less time. In half precision maps may have more channels, zeros, that fill
normalisation groups of their own.

Neither the upsampled nor the joined map of a decoder is ever made: a 3×3 convolution of an image
enlarged twice by nearest neighbours is a transposed 4×4 convolution of the small one, with 4
instead of 9 products per pixel, and the convolution of two joined maps is the sum of theirs.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.fast.grouped import (
    aligned_conv,
    block_diagonal,
    enlarging,
    ordered,
    parted,
    room_for,
    widen,
)
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.unet import SLOPE, UNet

HALF = (torch.bfloat16, torch.float16)


class FastUNet(nn.Module):
    """Computes what a `UNet` does with its very Parameters: gradients are those of the `plain` one,
    and whatever changes its weights changes these."""

    has_room = True

    def __init__(self, plain: UNet) -> None:
        super().__init__()
        self.plain = plain

    def forward(
        self, y: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"] | None = None
    ) -> Leaves:
        plain: Any = self.plain
        skips = [self.block(plain.encoder[0], y)]
        for block in plain.encoder[1:]:
            skips.append(self.block(block, F.avg_pool2d(skips[-1], 2)))
        features, maps = skips.pop(), []
        for block in plain.decoder:
            features = self.block(block, features, skips.pop())
            maps.append(features[:, : block[1].num_channels])
        last = plain.to_image
        weight = widen(self.dense(last), last.out_channels, features.shape[1])
        images = aligned_conv(features, weight, last.bias)
        return Leaves(
            images.unflatten(1, (plain.num_leaves, plain.channels)), plain.head(maps, region)
        )

    def block(self, block: Any, *maps: Float[Tensor, "b _ _ _"]) -> Float[Tensor, "b c h w"]:
        """A block of the encoder, or with skip maps one of the decoder."""
        first, norm, _, second, last_norm, _, *dropout = block
        room = room_for(norm.num_channels, norm.num_groups) if self.has_room else 0
        convolve: Any = self.convolve if len(maps) == 1 else self.up
        features = normalize_and_activate(norm, convolve(first, room, *maps))
        features = normalize_and_activate(last_norm, self.convolve(second, room, features))
        for layer in dropout:
            features = layer(features)
        return features

    def convolve(
        self, layer: nn.Conv2d, room: int, maps: Float[Tensor, "b c h w"]
    ) -> Float[Tensor, "b c2 h w"]:
        weight = widened(self.dense(layer), room, maps)
        return F.conv2d(maps, ordered(weight, maps), padding=1)

    def up(
        self,
        layer: nn.Conv2d,
        room: int,
        features: Float[Tensor, "b c1 h w"],
        skip: Float[Tensor, "b c2 h2 w2"],
    ) -> Float[Tensor, "b c3 h2 w2"]:
        """The same of the enlarged features and the skip maps, dealt out to the leaves."""
        kernel, across = self.parts(layer, room, features, skip)
        enlarged = F.conv_transpose2d(features, ordered(kernel, features), stride=2, padding=1)
        return enlarged + F.conv2d(skip, ordered(across, skip), padding=1)

    def dense(self, layer: nn.Conv2d) -> Float[Tensor, "c2 c kh kw"]:
        """The weight of the dense convolution that equals this one."""
        return layer.weight if layer.groups == 1 else block_diagonal(layer.weight, layer.groups)

    def parts(
        self, layer: nn.Conv2d, room: int, features: Tensor, skip: Tensor
    ) -> tuple[Float[Tensor, "c1 c3 4 4"], Float[Tensor, "c3 c2 3 3"]]:
        """The dense weights of the features, which it enlarges, and of the skip maps."""
        both = parted(layer.weight, layer.groups)
        first, second = (block_diagonal(part, layer.groups) for part in both)
        return enlarging(widened(first, room, features)), widened(second, room, skip)


def normalize_and_activate(
    norm: nn.GroupNorm, maps: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b c h w"]:
    """LeakyReLU of the normalised maps. Channels that `grouped.room_for` has added are groups of
    their own, and stay zero."""
    extra = maps.shape[1] - norm.num_channels
    if not extra:
        return F.leaky_relu(norm(maps), SLOPE, inplace=True)
    groups = norm.num_groups + extra * norm.num_groups // norm.num_channels
    parameters = F.pad(torch.stack([norm.weight, norm.bias]), (0, extra)).unbind()
    return F.leaky_relu(F.group_norm(maps, groups, *parameters, norm.eps), SLOPE, inplace=True)


def widened(
    weight: Float[Tensor, "c2 c kh kw"], room: int, maps: Float[Tensor, "b c3 h w"]
) -> Float[Tensor, "c4 c3 kh kw"]:
    """A dense weight for maps that may have more channels, and outputs that fill the `room`."""
    out = max(len(weight), room) if is_half(maps) else len(weight)
    return widen(weight, out, maps.shape[1])


def is_half(maps: Tensor) -> bool:
    """Whether a convolution of these maps runs in half precision."""
    return maps.dtype in HALF or torch.is_autocast_enabled(maps.device.type)
