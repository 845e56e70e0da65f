"""What every network returns, and the small head that predicts the leaves' probabilities."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError


class Leaves(NamedTuple):
    """The bottom of a tree, as a network predicts it: `K^d` images and their log-probabilities."""

    images: Float[Tensor, "b n *shape"]
    log_probs: Float[Tensor, "b n"]


class ProbabilityHead(nn.Module):
    """Log-probabilities of the leaves from the decoder's feature maps (App. A.1).

    All maps are averaged over space and concatenated; an MLP of widths `features → 256 → 64 → n`
    and a softmax follow, in float32 even under autocast.

    Choice: the paper says four linear layers and lists three; there are three. Normalisation and
    SiLU follow the hidden layers only.
    Deviation: LayerNorm (`norm="layer"`) instead of batch normalisation, which couples the images
    of a batch and shifts at batch size 1; `norm="batch"` is the paper's.
    With `is_regional` they are also averaged over the region that children are asked for.
    Choice: the last layer starts at zero, so that training starts from equal probabilities.
    """

    def __init__(
        self,
        features: int,
        num_leaves: int,
        *,
        norm: str = "layer",
        dropout: float = 0.0,
        is_regional: bool = False,
    ) -> None:
        super().__init__()
        norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
        if norm not in norms:
            raise InputError(f"norm {norm!r} of the probability head: choose 'layer' or 'batch'")
        widths = (features * (1 + is_regional), 256, 64)
        modules: list[nn.Module] = []
        for before, after in pairwise(widths):
            modules += [nn.Linear(before, after), norms[norm](after), nn.SiLU()]
            if dropout:
                modules.append(nn.Dropout(dropout))
        last = nn.Linear(widths[-1], num_leaves)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*modules, last)

    def forward(
        self,
        maps: Sequence[Float[Tensor, "b _ ..."]],
        region: Float[Tensor, "b 1 h w"] | None = None,
    ) -> Float[Tensor, "b n"]:
        wide = torch.promote_types(maps[0].dtype, torch.float32)
        means = [m.to(wide).flatten(2).mean(dim=2) for m in maps]
        if region is not None:
            means += [mean_inside(m.to(wide), region) for m in maps]
        pooled = torch.cat(means, dim=1)
        kind = pooled.device.type  # "meta", where a forecast is made, is no device of autocast's
        with torch.autocast(device_type="cpu" if kind == "meta" else kind, enabled=False):
            logits = self.layers(pooled.to(next(self.layers.parameters()).dtype))
        return logits.to(wide).log_softmax(dim=1)


def mean_inside(
    maps: Float[Tensor, "b c h2 w2"], region: Float[Tensor, "b 1 h w"]
) -> Float[Tensor, "b c"]:
    """The mean of each map over a region, given at full size."""
    share = F.adaptive_avg_pool2d(region.to(maps.dtype), (maps.shape[-2], maps.shape[-1]))
    return (maps * share).sum(dim=(2, 3)) / share.sum(dim=(2, 3)).clamp_min(1e-12)
