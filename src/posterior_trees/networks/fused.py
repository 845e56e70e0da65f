"""The U-Net with disjoint decoders, for prediction on CUDA, in few passes over memory.

Between two convolutions of the plain network a map is read for its normalisation's statistics, and
read and written by the normalisation and again by the activation. Here convolutions leave sums
behind, and one pass normalises, activates and halves (`kernels/norm.py`). Decoders convolve only
what their leaf owns (`kernels/conv.py`), and the last map goes straight to pixels. Dense
convolutions stay cuDNN's.
"""

import copy
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.networks.grouped import block_diagonal, parted
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.kernels import conv
from posterior_trees.networks.kernels import norm as norms
from posterior_trees.networks.kernels.plan import channels_last
from posterior_trees.networks.leafwise import LEAST
from posterior_trees.networks.norm import on_its_device
from posterior_trees.networks.unet import UNet


class FusedUNet(nn.Module):
    """Predicts what a `UNet` with disjoint decoders does; made of a trained one.

    Weights of convolutions have the given dtype; normalisation and head are in float32. It stays
    on the device where it was made.
    """

    is_fused = True

    def __init__(self, network: UNet, dtype: torch.dtype) -> None:
        super().__init__()
        network = copy.deepcopy(network).float().eval().requires_grad_(False)
        self.in_channels, self.channels = network.in_channels, network.channels
        self.num_leaves, self.multiple = network.num_leaves, network.multiple
        self.encoder, self.decoder, self.head = network.encoder, network.decoder, network.head
        for block in self.encoder:
            for convolution in _convolutions(block):
                convolution.weight.data = channels_last(convolution.weight).to(dtype)
        groups = network.decoders
        self.ups, self.skips, self.leaves = [], [], []
        for block in self.decoder:
            up, leaf = _convolutions(block)
            of_features, of_skip = parted(up.weight, groups)
            self.ups.append(conv.UpWeight(of_features, groups).to(dtype))
            self.skips.append(conv.LeafWeight(of_skip, groups).to(dtype))
            is_thin = leaf.weight.shape[1] < LEAST
            packed = _dense if is_thin else conv.LeafWeight
            self.leaves.append(packed(leaf.weight, groups).to(dtype))
        weight, bias = network.to_image.parameters()
        matrix = torch.block_diag(*weight[:, :, 0, 0].chunk(groups))
        self.matrix = norms.padded(matrix).to(dtype)
        self.bias = F.pad(bias, (0, self.matrix.shape[1] - len(bias)))

    def forward(self, y: Float[Tensor, "b c h w"]) -> Leaves:
        return self.leaves_of(*self.maps(y))

    def leaves_of(
        self, images: Float[Tensor, "b n c h w"], means: list[Float[Tensor, "b _ _"]]
    ) -> Leaves:
        """The leaves, with their probabilities from the means of the decoder's maps."""
        return Leaves(images, self.head([mean.sum(dim=1).unsqueeze(2) for mean in means]))

    def maps(
        self, y: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b n c2 h w"], list[Float[Tensor, "b _ _"]]]:
        """The leaves' images, and the means of the decoder's maps, in parts to be added."""
        return on_its_device(self._maps)(y)

    def _maps(self, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips, features = [], channels_last(y)
        for block in self.encoder:
            maps, scale_shift = self._encode(block, features)
            if block is self.encoder[-1]:
                features = norms.normalize(maps, *scale_shift)
            else:
                skip, features = norms.normalize_and_halve(maps, *scale_shift)
                skips.append(skip)
        means = []
        weights = zip(self.ups, self.skips, self.leaves, strict=True)
        for block, packed in zip(self.decoder, weights, strict=True):
            maps, scale_shift = self._decode(block, features, skips.pop(), *packed)
            if skips:
                features, mean = norms.normalize_and_average(maps, *scale_shift)
                means.append(mean)
        size = self.num_leaves * self.channels
        images, mean = norms.to_leaves(maps, *scale_shift, self.matrix, self.bias, size)
        return images.unflatten(1, (self.num_leaves, self.channels)), [*means, mean]

    @staticmethod
    def _encode(block: Any, maps: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """A block's maps before the last normalisation, and what that multiplies and adds."""
        first, norm, _, second, last_norm, *_ = block
        maps = first(maps)
        maps = norms.normalize(maps, *_scale_shift(norm, maps))
        maps = second(maps)
        return maps, _scale_shift(last_norm, maps)

    @staticmethod
    def _decode(block: Any, features: Tensor, skip: Tensor, up, of_skip, leaf):
        """The same of a decoder's block."""
        _, norm, _, _, last_norm, *_ = block
        maps, sums = conv.leaf_up(features, up, skip, of_skip)
        maps = norms.normalize(maps, *_scale_shift(norm, maps, sums))
        if isinstance(leaf, Tensor):  # of leaves so thin that they are faster as one
            maps = F.conv2d(maps, leaf, padding=1)
            return maps, _scale_shift(last_norm, maps)
        maps, sums = conv.leaf_conv(maps, leaf, skip.shape[1])
        return maps, _scale_shift(last_norm, maps, sums)


def _scale_shift(norm: Any, maps: Tensor, sums: Tensor | None = None):
    """What a normalisation multiplies these maps by, and what it adds."""
    sums = norms.channel_sums(maps) if sums is None else sums
    area = maps.shape[2] * maps.shape[3]
    parameters = norm.weight, norm.bias, norm.num_groups, area, norm.eps
    return norms.scale_and_shift(sums, *parameters)[:2]


def _dense(weight: Float[Tensor, "out in 3 3"], groups: int) -> Float[Tensor, "out in2 3 3"]:
    return channels_last(block_diagonal(weight, groups))


def _convolutions(block: Any) -> list[nn.Conv2d]:
    return [layer for layer in block if isinstance(layer, nn.Conv2d)]
