"""A network for prediction only: what training computes from its weights anew, written out once.

On CUDA a convolution grouped by leaf runs as a dense one (`unet.LeafConv`), and the enlarged,
joined maps of a decoder are never made (`unet.UpConv`). Their weights are small functions of the
trained ones. At batch 1 making them takes as many kernels as using them, so they are made here.
"""

import copy

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.fast.grouped import block_diagonal, enlarging
from posterior_trees.networks.unet import LeafConv, UpConv


def fold(network: nn.Module) -> nn.Module:
    """A copy of a network whose convolutions are all dense; it predicts what `network` does."""
    folded = copy.deepcopy(network).eval().requires_grad_(False)
    for parent in list(folded.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, UpConv):
                setattr(parent, name, FoldedUp(child))
            elif isinstance(child, LeafConv) and child.groups > 1:
                setattr(parent, name, dense(child))
            elif isinstance(child, LeafConv):
                child.room = 0
    return folded


def dense(convolution: LeafConv) -> nn.Conv2d:
    """A grouped convolution as an ordinary one, with zeros between the groups."""
    weight = block_diagonal(convolution.weight, convolution.groups)
    out, into, side, _ = weight.shape
    twin = nn.Conv2d(into, out, side, padding=side // 2, device="meta")
    twin.weight, twin.bias = nn.Parameter(weight, requires_grad=False), convolution.bias
    return twin


class FoldedUp(nn.Module):
    """`UpConv` as a transposed convolution of the features plus one of the skip maps."""

    def __init__(self, convolution: UpConv) -> None:
        super().__init__()
        features, skip = convolution.parted()
        self.features = nn.Parameter(enlarging(features).contiguous(), requires_grad=False)
        self.skip = nn.Parameter(skip, requires_grad=False)

    def forward(
        self, features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h2 w2"]
    ) -> Float[Tensor, "b c3 h2 w2"]:
        enlarged = F.conv_transpose2d(features, self.features, stride=2, padding=1)
        return enlarged + F.conv2d(skip, self.skip, padding=1)
