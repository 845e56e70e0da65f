"""What every network returns, and the small head that predicts the leaves' probabilities."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Leaves(NamedTuple):
    """The bottom of a tree, as a network predicts it: `K^d` images and their log-probabilities."""

    images: Float[Tensor, "b n *shape"]
    log_probs: Float[Tensor, "b n"]


class ProbabilityHead(nn.Module):
    """Log-probabilities of the leaves from the decoder's feature maps (App. A.1).

    All maps are averaged over space and concatenated; an MLP of widths `features → 256 → 64 → n`
    and a softmax follow, in float32 even under autocast.

    Choice: the paper says four linear layers and lists three; three is the default, `layers=4` puts
    a `features → features` layer in front. Normalisation and SiLU follow the hidden layers only.
    Deviation: LayerNorm (`norm="layer"`) instead of batch normalisation, which couples the images
    of a batch and shifts at batch size 1; `norm="batch"` is the paper's. `norm="running"` puts
    running statistics of the pooled features in front, see `Standardize`.
    Choice: the last layer starts at zero, so that training starts from equal probabilities.
    """

    def __init__(
        self,
        features: int,
        num_leaves: int,
        *,
        layers: int = 3,
        norm: str = "layer",
        is_detached: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if layers not in (3, 4):
            raise ValueError(f"the probability head has {layers} layers; choose 3 or 4")
        norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, "running": nn.LayerNorm}
        if norm not in norms:
            listed = ", ".join(map(repr, norms))
            raise ValueError(f"norm {norm!r} of the probability head: choose one of {listed}")
        widths = [features, *[features] * (layers - 3), 256, 64]
        modules: list[nn.Module] = [Standardize(features)] if norm == "running" else []
        if dropout and norm == "running":
            modules.append(nn.Dropout(dropout))
        for before, after in pairwise(widths):
            modules += [nn.Linear(before, after), norms[norm](after), nn.SiLU()]
            if dropout:
                modules.append(nn.Dropout(dropout))
        last = nn.Linear(widths[-1], num_leaves)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(*modules, last)
        self.is_detached = is_detached

    def forward(self, maps: Sequence[Float[Tensor, "b _ ..."]]) -> Float[Tensor, "b n"]:
        wide = torch.promote_types(maps[0].dtype, torch.float32)
        pooled = torch.cat([m.to(wide).flatten(2).mean(dim=2) for m in maps], dim=1)
        if self.is_detached:
            pooled = pooled.detach()
        with torch.autocast(device_type=pooled.device.type, enabled=False):
            logits = self.layers(pooled.to(next(self.layers.parameters()).dtype))
        return logits.to(wide).log_softmax(dim=1)


class Standardize(nn.Module):
    """Takes the mean over the training images from every feature and divides by its deviation.

    Averaged over a large image, features differ by a few per cent from one image to the next; what
    tells images apart drowns in what they share. Both statistics are running averages of earlier
    batches, so that no image sees its batch mates.
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor

    def __init__(self, features: int, share: float = 0.02) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, features: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
        centred = (features - self.mean) * (self.variance + 1e-6).rsqrt()
        if self.training:
            self._note(features.detach())
        return centred

    @torch.no_grad()
    def _note(self, features: Float[Tensor, "b n"]) -> None:
        """Take a batch into account; the first ones count as much as all before them together."""
        share = (1 / (self.batches + 1)).clamp(min=self.share)
        self.mean.lerp_(_shared(features.mean(dim=0)), share)
        spread = _shared((features - self.mean).square().mean(dim=0))
        self.variance.lerp_(spread, share)
        self.batches.add_(1)


def _shared(mean: Float[Tensor, "n"]) -> Float[Tensor, "n"]:
    """The mean over all processes that train together."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(mean)
        mean = mean / torch.distributed.get_world_size()
    return mean
