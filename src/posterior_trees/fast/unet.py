"""The paper's U-Net as GPUs like to compute it: another way through the same modules.

Grouped convolutions of a few channels each leave a GPU's matrix units idle, in the backward pass
above all. They run on kernels of our own (`leafwise.py`) or, where these are not faster, as dense
convolutions whose weight is zero between leaves: `groups` times the arithmetic in less time. In
half precision maps may have more channels, zeros, that fill normalisation groups of their own.

Neither the upsampled nor the joined map of a decoder is ever made: a 3×3 convolution of an image
enlarged twice by nearest neighbours is a transposed 4×4 convolution of the small one, with 4
instead of 9 products per pixel, and the convolution of two joined maps is the sum of theirs.
"""

from collections.abc import Collection
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
from posterior_trees.fast.leafwise import convolve, convolve_up, is_worth_it
from posterior_trees.fast.norm import HALF, Rows, normalize_and_activate, rows_of
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.unet import UNet


class FastUNet(nn.Module):
    """Computes what a `UNet` does with its very Parameters: gradients are those of the `plain` one,
    and whatever changes its weights changes these. `kernels` are those that may be used."""

    has_room = True

    def __init__(self, plain: UNet, kernels: Collection[str] = ()) -> None:
        super().__init__()
        self.plain, self.by_leaf, self.has_norm = plain, "leaf" in kernels, "norm" in kernels

    def forward(
        self, y: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"] | None = None
    ) -> Leaves:
        plain: Any = self.plain
        rows = iter(self.norm_rows(y))
        skips = [self.block(plain.encoder[0], y, rows=next(rows))]
        for block in plain.encoder[1:]:
            skips.append(self.block(block, F.avg_pool2d(skips[-1], 2), rows=next(rows)))
        features, maps = skips.pop(), []
        for block in plain.decoder:
            features = self.block(block, features, skips.pop(), rows=next(rows))
            maps.append(features[:, : block[1].num_channels])
        last = plain.to_image
        weight = widen(self.dense(last), last.out_channels, features.shape[1])
        images = aligned_conv(features, weight, last.bias)
        return Leaves(
            images.unflatten(1, (plain.num_leaves, plain.channels)), plain.head(maps, region)
        )

    def norm_rows(self, y: Float[Tensor, "b c h w"]) -> list[tuple[Rows | None, Rows | None]]:
        """What the normalisations of each block get, where our kernels do them; see `rows_of`."""
        blocks: list[Any] = [*self.plain.encoder, *self.plain.decoder]
        if not (self.has_norm and is_half(y)):
            return [(None, None)] * len(blocks)
        rows = rows_of([norm for block in blocks for norm in (block[1], block[4])], len(y))
        return list(zip(rows[::2], rows[1::2], strict=True))

    def block(
        self, block: Any, *maps: Float[Tensor, "b _ _ _"], rows: tuple[Rows | None, Rows | None]
    ) -> Float[Tensor, "b c h w"]:
        """A block of the encoder, or with skip maps one of the decoder."""
        first, norm, _, second, last_norm, _, *dropout = block
        room = room_for(norm.num_channels, norm.num_groups) if self.has_room else 0
        convolve: Any = self.convolve if len(maps) == 1 else self.up
        features = normalize_and_activate(norm, *convolve(first, room, *maps), rows[0])
        convolved = self.convolve(second, room, features)
        features = normalize_and_activate(last_norm, *convolved, rows[1])
        for layer in dropout:
            features = layer(features)
        return features

    def convolve(
        self, layer: nn.Conv2d, room: int, maps: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b c2 h w"], Float[Tensor, "b parts 2 c2"] | None]:
        """The convolution, and its sums if they come for free; see `norm.py`."""
        if self.by_leaf and is_worth_it(layer.weight, layer.groups, maps):
            return convolve(maps, layer.weight, layer.groups)
        weight = widened(self.dense(layer), room, maps)
        return F.conv2d(maps, ordered(weight, maps), padding=1), None

    def up(
        self,
        layer: nn.Conv2d,
        room: int,
        features: Float[Tensor, "b c1 h w"],
        skip: Float[Tensor, "b c2 h2 w2"],
    ) -> tuple[Float[Tensor, "b c3 h2 w2"], Float[Tensor, "b parts 2 c3"] | None]:
        """The same of the enlarged features and the skip maps, dealt out to the leaves."""
        if self.by_leaf and is_worth_it(layer.weight, layer.groups, features, skip):
            return convolve_up(features, skip, layer.weight, layer.groups)
        kernel, across = self.parts(layer, room, features, skip)
        enlarged = F.conv_transpose2d(features, ordered(kernel, features), stride=2, padding=1)
        return enlarged + F.conv2d(skip, ordered(across, skip), padding=1), None

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


def widened(
    weight: Float[Tensor, "c2 c kh kw"], room: int, maps: Float[Tensor, "b c3 h w"]
) -> Float[Tensor, "c4 c3 kh kw"]:
    """A dense weight for maps that may have more channels, and outputs that fill the `room`."""
    out = max(len(weight), room) if is_half(maps) else len(weight)
    return widen(weight, out, maps.shape[1])


def is_half(maps: Tensor) -> bool:
    """Whether a convolution of these maps runs in half precision."""
    return maps.dtype in HALF or torch.is_autocast_enabled(maps.device.type)
