"""The U-Net for prediction on CUDA, in few passes over memory.

Between two convolutions of the plain network a map is read for its normalisation's statistics, and
read and written by the normalisation and again by the activation. Here it is read for its sums
once, and one pass normalises, activates and halves (`kernels/predict.py`); the last map goes
straight to pixels. Convolutions stay cuDNN's, dense as in `unet.py`.
"""

import copy
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.fast.grouped import block_diagonal, enlarging, parted, room_for, widen
from posterior_trees.fast.kernels import norm as norms
from posterior_trees.fast.kernels import predict
from posterior_trees.fast.kernels.plan import channels_last
from posterior_trees.networks.head import Leaves
from posterior_trees.networks.unet import UNet


class FusedUNet(nn.Module):
    """Predicts what a `UNet` does, be its decoders disjoint or shared; made of a trained one.

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
        first = _convolutions(self.encoder[0])[0]
        self.room = room_for(self.in_channels, groups=self.in_channels)
        wide = widen(first.weight.data, len(first.weight), self.room)
        first.weight.data = channels_last(wide)
        groups = network.decoders
        self.weights = []
        for block in self.decoder:
            up, second = _convolutions(block)
            of_features, of_skip = parted(up.weight, groups)
            dense = _enlarging(of_features, groups), _dense(of_skip, groups)
            dense = *dense, _dense(second.weight, groups)
            self.weights.append([weight.to(dtype) for weight in dense])
        weight, bias = network.to_image.parameters()
        matrix = torch.block_diag(*weight[:, :, 0, 0].chunk(groups))
        self.matrix = predict.padded(matrix).to(dtype)
        self.bias = F.pad(bias, (0, self.matrix.shape[1] - len(bias)))

    def forward(self, y: Float[Tensor, "b c h w"]) -> Leaves:
        return self.leaves_of(*self.maps(self.prepared(y)))

    def prepared(self, y: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c8 h w"]:
        """What `maps` reads: in the precision and order of the weights, with zeros added to the
        channels, which cuDNN would add in passes of its own. To be fused by the compiler."""
        if y.shape[1] != self.in_channels:
            raise InputError(
                f"the image has {y.shape[1]} channels, this network takes {self.in_channels}"
            )
        wide = F.pad(y, (0, 0, 0, 0, 0, self.room - self.in_channels))
        return wide.to(self.matrix.dtype, memory_format=torch.channels_last)

    def leaves_of(
        self, images: Float[Tensor, "b n c h w"], means: list[Float[Tensor, "b _ _"]]
    ) -> Leaves:
        """The leaves, with their probabilities from the means of the decoder's maps."""
        return Leaves(images, self.head([mean.sum(dim=1).unsqueeze(2) for mean in means]))

    def maps(
        self, prepared: Float[Tensor, "b c8 h w"]
    ) -> tuple[Float[Tensor, "b n c2 h w"], list[Float[Tensor, "b _ _"]]]:
        """The leaves' images, and the means of the decoder's maps, in parts to be added."""
        with torch.cuda.device_of(prepared):  # Triton would launch on the current one
            return self._maps(prepared)

    def _maps(self, prepared: Tensor) -> tuple[Tensor, list[Tensor]]:
        skips, features = [], channels_last(prepared)
        for block in self.encoder:
            first, norm, _, second, last_norm, *_ = cast(Any, block)
            maps = _normalized(norm, F.conv2d(features, first.weight, padding=1))
            maps = F.conv2d(maps, second.weight, padding=1)
            if block is self.encoder[-1]:
                features = _normalized(last_norm, maps)
            else:
                skip, features = predict.normalize_and_halve(maps, _measured(last_norm, maps))
                skips.append(skip)
        means = []
        for block, (up, across, leaf) in zip(self.decoder, self.weights, strict=True):
            _, norm, _, _, last_norm, *_ = cast(Any, block)
            maps = F.conv_transpose2d(features, up, stride=2, padding=1)
            maps = _normalized(norm, maps.add_(F.conv2d(skips.pop(), across, padding=1)))
            maps = F.conv2d(maps, leaf, padding=1)
            norm = _measured(last_norm, maps)
            if skips:
                features, mean = norms.normalize_and_average(maps, norm)
                means.append(mean)
        size = self.num_leaves * self.channels
        images, mean = predict.to_leaves(maps, norm, self.matrix, self.bias, size)
        return images.unflatten(1, (self.num_leaves, self.channels)), [*means, mean]


def _normalized(norm: Any, maps: Tensor) -> Tensor:
    return norms.group_norm(maps, norm.weight, norm.bias, norm.num_groups, norm.eps)


def _measured(norm: Any, maps: Tensor) -> norms.Norm:
    """What a normalisation will do to these maps."""
    return norms.Norm(norms.measure(maps, norm.num_groups, norm.eps), norm.weight, norm.bias)


def _dense(weight: Float[Tensor, "out in 3 3"], groups: int) -> Float[Tensor, "out in2 3 3"]:
    return channels_last(block_diagonal(weight, groups))


def _enlarging(weight: Float[Tensor, "out in 3 3"], groups: int) -> Float[Tensor, "in2 out 4 4"]:
    return channels_last(enlarging(block_diagonal(weight, groups)))


def _convolutions(block: Any) -> list[nn.Conv2d]:
    return [layer for layer in block if isinstance(layer, nn.Conv2d)]
