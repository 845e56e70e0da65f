"""The children of one node: a network that is asked again at every node of a growing tree."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posterior_trees.networks.head import Leaves


class NodeNetwork(nn.Module):
    r"""$f(y, x_n, x_n - x_{\text{parent}}, M, \text{level}) \to (\delta_1 \dots \delta_K,
    \text{logits})$.

    The node, what it changed of its parent, the region $M$ and the level join the measurement as
    channels, `extra_channels` of them, and the `trunk` emits K images. Its probability head sees
    means over the region, too (`is_regional`). Level 0 is asked for the root, level 1 for the
    root's children; below `levels`, for which it was trained, all levels are as the last.
    """

    def __init__(self, trunk: nn.Module, levels: int) -> None:
        super().__init__()
        self.trunk, self.levels = trunk, levels
        self.multiple = getattr(trunk, "multiple", 1)

    @staticmethod
    def extra_channels(channels: int, levels: int) -> int:
        """How many channels join the measurement, of answers with `channels`."""
        return 2 * channels + 1 + levels + 1

    def forward(
        self,
        seen: Float[Tensor, "b c h w"],
        node: Float[Tensor, "b c2 h w"],
        change: Float[Tensor, "b c2 h w"],
        region: Float[Tensor, "b 1 h w"],
        level: Int[Tensor, "b"],
    ) -> Leaves:
        number = torch.arange(self.levels + 1, device=level.device)
        is_level = (level.clamp(max=self.levels)[:, None] == number).to(seen.dtype)
        planes = is_level[:, :, None, None].expand(-1, -1, *seen.shape[-2:])
        return self.trunk(torch.cat([seen, node, change, region, planes], dim=1), region)
