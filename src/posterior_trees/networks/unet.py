"""The paper's U-Net: one shared encoder, and one decoder per leaf or one for all (App. A.1).

Plain torch. What a GPU needs to be fast at it is in `fast/`, on the same weights.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.networks.head import Leaves, ProbabilityHead

STEPS = 4
"""Down- and up-sampling steps of the paper's network; images must be a multiple of 2**steps."""
SLOPE = 0.2


class UNet(nn.Module):
    """Predicts `num_leaves` images and their log-probabilities from one image.

    Four steps down by average pooling and four up by nearest neighbours; at each resolution two
    (3×3 convolution, GroupNorm, LeakyReLU 0.2). The encoder has `width · (1, 2, 4, 8, 16)`
    channels, the paper's `width` being `c_init · num_leaves`. Levels below have no more: with more
    `steps` large images are seen as a whole, at little cost. Fewer `doublings` make the deep levels
    narrower: most weights are there.

    With disjoint decoders each leaf owns an equal share of every decoder map: convolutions are
    grouped by leaf, the encoder's skip maps are dealt out evenly among the leaves, and no
    normalisation group spans two leaves, so that no weight of one decoder acts on another's leaf.
    `is_disjoint=False` is one decoder for all leaves.

    `in_channels` are those of the measurement, `channels` those of an answer; `head_norm` and
    `head_dropout` are of the probability head, `dropout` of the two deepest levels. With
    `is_regional` the head also sees means over a region (`NodeNetwork`).

    >>> network = UNet(1, 1, num_leaves=4, width=8, steps=2)
    >>> images, log_probs = network(torch.rand(2, 1, 28, 28))
    >>> images.shape, log_probs.shape
    (torch.Size([2, 4, 1, 28, 28]), torch.Size([2, 4]))
    """

    multiple = 2**STEPS

    def __init__(
        self,
        in_channels: int,
        channels: int,
        num_leaves: int,
        *,
        width: int,
        steps: int = STEPS,
        doublings: int = STEPS,
        is_disjoint: bool = True,
        head_norm: str = "layer",
        dropout: float = 0.0,
        head_dropout: float = 0.0,
        is_regional: bool = False,
    ) -> None:
        super().__init__()
        self.decoders = num_leaves if is_disjoint else 1
        if width % self.decoders:
            raise InputError(
                f"width {width} cannot be dealt out evenly among {num_leaves} leaves; "
                f"use a multiple of {num_leaves}, or a shared decoder"
            )
        self.in_channels, self.channels, self.num_leaves = in_channels, channels, num_leaves
        self.multiple = 2**steps
        groups = norm_groups(width, self.decoders)
        widths = [width * 2 ** min(step, doublings) for step in range(steps + 1)]
        self.encoder = nn.ModuleList(
            Block(before, after, groups=groups, dropout=dropout if step >= steps - 1 else 0.0)
            for step, (before, after) in enumerate(
                zip([in_channels, *widths], widths, strict=False)
            )
        )
        self.decoder = nn.ModuleList(
            UpBlock(below, skip, groups=groups, decoders=self.decoders)
            for below, skip in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.to_image = nn.Conv2d(width, num_leaves * channels, 1, groups=self.decoders)
        self.head = ProbabilityHead(
            sum(widths[:-1]),
            num_leaves,
            norm=head_norm,
            dropout=head_dropout,
            is_regional=is_regional,
        )

    def forward(
        self, y: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"] | None = None
    ) -> Leaves:
        skips = [self.encoder[0](y)]
        for block in self.encoder[1:]:
            skips.append(block(F.avg_pool2d(skips[-1], 2)))
        maps = [skips.pop()]
        for block in self.decoder:
            maps.append(block(maps[-1], skips.pop()))
        images = self.to_image(maps[-1]).unflatten(1, (self.num_leaves, self.channels))
        return Leaves(images, self.head(maps[1:], region))


class Block(nn.Sequential):
    """Two times convolution, normalisation, activation, at one resolution."""

    def __init__(
        self, before: int, after: int, *, groups: int, decoders: int = 1, dropout: float = 0.0
    ) -> None:
        layers: list[nn.Module] = []
        for channels in (before, after):
            layers += [
                nn.Conv2d(channels, after, 3, padding=1, bias=False, groups=decoders),
                nn.GroupNorm(groups, after),
                nn.LeakyReLU(SLOPE, inplace=True),
            ]
        super().__init__(*layers, *([nn.Dropout2d(dropout)] if dropout else []))


class UpBlock(Block):
    """A block of a decoder: doubles the resolution of its features and takes in the skip maps."""

    def __init__(self, below: int, skip: int, *, groups: int, decoders: int) -> None:
        super().__init__(below + skip, skip, groups=groups, decoders=decoders)
        self.decoders = decoders

    def forward(  # ty: ignore[incompatible-method-override]
        self, features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h2 w2"]
    ) -> Float[Tensor, "b c2 h2 w2"]:
        return super().forward(deal(F.interpolate(features, scale_factor=2), skip, self.decoders))


def deal(
    features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h w"], parts: int
) -> Float[Tensor, "b c3 h w"]:
    """Concatenate channels so that each of `parts` equal shares holds its part of both maps."""
    if parts == 1:
        return torch.cat([features, skip], dim=1)
    shares = [maps.unflatten(1, (parts, -1)) for maps in (features, skip)]
    return torch.cat(shares, dim=2).flatten(1, 2)


def norm_groups(width: int, decoders: int) -> int:
    """Number of normalisation groups: whole leaves each, and about nine of them.

    Choice: the paper does not say. A network of the same width has the same groups whatever its
    number of leaves, so that a tree and its plain MSE counterpart differ in nothing else.
    """
    share = width // decoders
    fits = [d for d in range(1, 9 // decoders + 1) if share % d == 0]
    return decoders * max(fits, default=1)
