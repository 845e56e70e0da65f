r"""The diffusion U-Net (Ho et al. 2020): the residual U-Net of `networks/residual.py`, whose blocks
know the noise level.

The level $t$ enters as sines and cosines of $t\, e^{-\ln(10^4)\, i / (d/2)}$, through two linear
layers, and is added between the two convolutions of every residual block. The last convolution of
the network starts at zero.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.networks.padding import crop, pad
from posterior_trees.networks.residual import Ladder, zero


class DiffusionUNet(Ladder):
    """Maps noisy images, extra channels and noise levels to an image of `channels` channels."""

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        base: int = 48,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (2,),
        dropout: float = 0.0,
    ) -> None:
        depth = 4 * base
        super().__init__(base, multipliers, blocks, attention, dropout=dropout, time=depth)
        self.base, self.channels = base, channels
        self.embed = nn.Sequential(nn.Linear(base, depth), nn.SiLU(), nn.Linear(depth, depth))
        self.first = nn.Conv2d(in_channels, base, 3, padding=1)
        self.last = zero(nn.Conv2d(base * multipliers[0], channels, 3, padding=1))

    def forward(
        self, x: Float[Tensor, "b c h w"], t: Int[Tensor, "b"]
    ) -> Float[Tensor, "b c2 h w"]:
        embedding = self.embed(sinusoids(t, self.base).to(x.dtype))
        *_, maps = self.climb(self.first(pad(x, self.multiple, "zeros")), embedding)
        return crop(self.last(maps), x.shape[-2:])


def sinusoids(t: Int[Tensor, "b"], width: int) -> Float[Tensor, "b w"]:
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = t.unsqueeze(1).float() * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))
