"""Any backbone as a predictor."""

from collections.abc import Sequence

from torch import nn

from posterior_trees.errors import InputError
from posterior_trees.measure import Free, Measurement
from posterior_trees.networks.backbone import Backbone
from posterior_trees.networks.node import NodeNetwork
from posterior_trees.predictor.growing import GrowingPredictor
from posterior_trees.predictor.onepass import TreePredictor
from posterior_trees.tree import layout, level_sizes


def wrap(
    backbone: nn.Module,
    *,
    features: int,
    channels: int,
    branching: int | Sequence[int] = 3,
    depth: int = 2,
    measurement: Measurement | None = None,
    leaves: bool = False,
    multiple: int = 1,
    levels: int = 0,
) -> TreePredictor:
    """Make a tree predictor of any image-to-image backbone.

    `backbone` maps `(b, c_in, h, w)` to `(b, features, h, w)`; with `leaves=True` its maps are the
    `K^d · channels` leaves themselves. Without a `measurement` the network predicts images freely;
    give one and every node agrees with it. `branching` may have a number for each level, and
    `depth` is then how many they are; `channels` are those of an answer. `features` are those of
    the backbone, and `multiple` is the number its image sides must be divisible by.

    With `levels` the predictor is a growing one, to be trained for so many of them: the backbone
    emits K children of a node, and gets `NodeNetwork.extra_channels(channels, levels)` channels
    after those of the measurement. `depth` is then how far a tree is grown at once.

    >>> backbone = torch.nn.Conv2d(1, 16, kernel_size=3, padding=1)  # any network will do
    >>> predictor = wrap(backbone, features=16, channels=1, branching=2, depth=3)
    >>> predictor(torch.rand(4, 1, 28, 28))
    Tree(4 images of (1, 28, 28), 2×2×2, cpu)
    """
    sizes = layout(branching, depth=depth)
    if levels and len(set(sizes)) != 1:
        raise InputError(f"branching is {sizes}; a growing predictor has one K on every level")
    num_leaves = sizes[0] if levels else level_sizes(sizes)[-1]
    network: nn.Module = Backbone(
        backbone, features=features, channels=channels, num_leaves=num_leaves,
        emits_leaves=leaves, is_regional=levels > 0,
    )  # fmt: skip
    make = GrowingPredictor if levels else TreePredictor
    network = NodeNetwork(network, levels) if levels else network
    measurement = measurement or Free(channels)
    return make(network, measurement, branching=sizes, channels=channels, multiple=multiple)
