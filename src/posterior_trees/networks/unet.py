"""The paper's U-Net: one shared encoder, and one decoder per leaf or one for all (App. A.1)."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.fast.grouped import (
    aligned_conv,
    block_diagonal,
    deal,
    enlarging,
    ordered,
    parted,
    room_for,
    widen,
)
from posterior_trees.fast.leafwise import convolve, convolve_up, is_worth_it
from posterior_trees.fast.norm import (
    SLOPE,
    Rows,
    is_half,
    normalize_and_activate,
    rows_of,
    uses_kernels,
)
from posterior_trees.networks.head import Leaves, ProbabilityHead

STEPS = 4
"""Down- and up-sampling steps of the paper's network; images must be a multiple of 2**steps."""


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

    `in_channels` are those of the measurement, `channels` those of an answer; `head_layers`,
    `head_norm`, `head_dropout` and `is_head_detached` are of the probability head, `dropout` of the
    two deepest levels.

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
        head_layers: int = 3,
        head_norm: str = "layer",
        is_head_detached: bool = False,
        dropout: float = 0.0,
        head_dropout: float = 0.0,
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
            UpBlock(below, skip, groups=groups, parts=self.decoders)
            for below, skip in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.to_image = LeafConv(width, num_leaves * channels, 1, groups=self.decoders)
        self.head = ProbabilityHead(
            sum(widths[:-1]),
            num_leaves,
            layers=head_layers,
            norm=head_norm,
            is_detached=is_head_detached,
            dropout=head_dropout,
        )

    def forward(self, y: Float[Tensor, "b c h w"]) -> Leaves:
        rows = iter(self.norm_rows(y))
        skips = [self.encoder[0](y, rows=next(rows))]
        for block in self.encoder[1:]:
            skips.append(block(F.avg_pool2d(skips[-1], 2), rows=next(rows)))
        features = skips.pop()
        maps = []
        for block in self.decoder:
            features = block(features, skips.pop(), rows=next(rows))
            maps.append(features[:, : block.channels])
        images = self.to_image(features).unflatten(1, (self.num_leaves, self.channels))
        return Leaves(images, self.head(maps))

    def norm_rows(self, y: Float[Tensor, "b c h w"]) -> list[Sequence[Rows | None]]:
        """What the normalisations of each block get, where our kernels do them; see `rows_of`."""
        blocks = [*self.encoder, *self.decoder]
        parts = self.modules() if uses_kernels(y) else ()
        norms = [part for part in parts if isinstance(part, nn.GroupNorm)]
        if len(norms) != 2 * len(blocks):  # others do it, or it is done otherwise
            return [(None, None)] * len(blocks)
        rows = rows_of(norms, len(y))
        return list(zip(rows[::2], rows[1::2], strict=True))


class LeafConv(nn.Conv2d):
    """A convolution grouped by leaf.

    Grouped convolutions of a few channels each leave a GPU's matrix units idle, in the backward
    pass above all. On CUDA they run on kernels of our own (`leafwise.py`) or, where these are not
    faster, as a dense convolution whose weight is zero between leaves: `groups` times the
    arithmetic in less time. There, in half precision, it may return more channels, zeros, for whose
    normalisation there is `room`.
    """

    room = 0

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h2 w2"]:
        return self.with_sums(input)[0]

    def with_sums(
        self, maps: Float[Tensor, "b c h w"]
    ) -> tuple[Float[Tensor, "b c2 h2 w2"], Float[Tensor, "b parts 2 c2"] | None]:
        """The convolution, and its sums if they come for free; see `norm.py`."""
        is_plain = self.bias is None and self.padding == (1, 1) and self.stride == (1, 1)
        if is_plain and is_worth_it(self.weight, self.groups, maps):
            return convolve(maps, self.weight, self.groups)
        if not is_fast_dense(maps):
            return super().forward(maps), None
        weight = self.weight if self.groups == 1 else block_diagonal(self.weight, self.groups)
        weight = self.widened(weight, maps)
        if self.kernel_size == (1, 1):
            return aligned_conv(maps, weight, self.bias), None
        weight = ordered(weight, maps)
        return F.conv2d(maps, weight, self.bias, self.stride, self.padding), None

    def widened(
        self, weight: Float[Tensor, "c2 c kh kw"], maps: Float[Tensor, "b c3 h w"]
    ) -> Float[Tensor, "c4 c3 kh kw"]:
        """A dense weight for maps that may have more channels, and outputs that fill `room`."""
        out = max(len(weight), self.room) if is_half(maps) else len(weight)
        return widen(weight, out, maps.shape[1])


class UpConv(LeafConv):
    """Convolves the upsampled features and the skip maps, dealt out to the leaves.

    On CUDA neither the upsampled nor the joined map is ever made: a 3×3 convolution of an image
    enlarged twice by nearest neighbours is a transposed 4×4 convolution of the small one, with 4
    instead of 9 products per pixel, and the convolution of two joined maps is the sum of theirs.
    """

    def forward(  # ty: ignore[incompatible-method-override]
        self, features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h2 w2"]
    ) -> Float[Tensor, "b c3 h2 w2"]:
        return self.with_sums(features, skip)[0]

    def with_sums(  # ty: ignore[incompatible-method-override]
        self, features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h2 w2"]
    ) -> tuple[Float[Tensor, "b c3 h2 w2"], Float[Tensor, "b parts 2 c3"] | None]:
        if is_worth_it(self.weight, self.groups, features, skip):
            return convolve_up(features, skip, self.weight, self.groups)
        if is_fast_dense(features):
            return self.without_joining(features, skip), None
        enlarged = F.interpolate(features, scale_factor=2)
        return super().with_sums(deal(enlarged, skip, self.groups))

    def without_joining(
        self, features: Float[Tensor, "b c1 h w"], skip: Float[Tensor, "b c2 h2 w2"]
    ) -> Float[Tensor, "b c3 h2 w2"]:
        """The same, as the sum of two dense convolutions."""
        of_features, of_skip = self.parted()
        kernel = ordered(enlarging(self.widened(of_features, features)), features)
        enlarged = F.conv_transpose2d(features, kernel, stride=2, padding=1)
        of_skip = ordered(self.widened(of_skip, skip), skip)
        return enlarged + F.conv2d(skip, of_skip, padding=self.padding)

    def parted(self) -> tuple[Float[Tensor, "c3 c1 3 3"], Float[Tensor, "c3 c2 3 3"]]:
        """The dense weights of the features and of the skip maps."""
        parts = parted(self.weight, self.groups)
        first, second = (block_diagonal(part, self.groups) for part in parts)
        return first, second


class Block(nn.Sequential):
    """Two times convolution, normalisation, activation, at one resolution."""

    first = LeafConv

    def __init__(
        self, before: int, after: int, *, groups: int, parts: int = 1, dropout: float = 0.0
    ) -> None:
        layers: list[nn.Module] = []
        for kind, channels in ((self.first, before), (LeafConv, after)):
            convolution = kind(channels, after, 3, padding=1, bias=False, groups=parts)
            convolution.room = room_for(after, groups)
            layers += [
                convolution,
                nn.GroupNorm(groups, after),
                nn.LeakyReLU(SLOPE, inplace=True),
            ]
        if dropout:
            layers.append(nn.Dropout2d(dropout))
        super().__init__(*layers)
        self.channels = after

    def forward(  # ty: ignore[incompatible-method-override]
        self, *maps: Float[Tensor, "b _ _ _"], rows: Sequence[Rows | None] = (None, None)
    ) -> Float[Tensor, "b c h w"]:
        first, norm, _, second, last_norm, _, *dropout = self
        features = normalize_and_activate(norm, *with_sums(first, *maps), rows[0])
        features = normalize_and_activate(last_norm, *with_sums(second, features), rows[1])
        for layer in dropout:
            features = layer(features)
        return features


class UpBlock(Block):
    """A block of a decoder: doubles the resolution of its features and takes in the skip maps."""

    first = UpConv

    def __init__(self, below: int, skip: int, *, groups: int, parts: int) -> None:
        super().__init__(below + skip, skip, groups=groups, parts=parts)


def is_fast_dense(maps: Tensor) -> bool:
    """Whether the device is faster at dense convolutions than at grouped ones."""
    return maps.is_cuda


def with_sums(layer: nn.Module, *maps: Tensor) -> tuple[Tensor, Tensor | None]:
    """What a convolution returns, of whatever kind, with its sums if it has any."""
    return layer.with_sums(*maps) if isinstance(layer, LeafConv) else (layer(*maps), None)


def norm_groups(width: int, decoders: int) -> int:
    """Number of normalisation groups: whole leaves each, and about nine of them.

    Choice: the paper does not say. A network of the same width has the same groups whatever its
    number of leaves, so that a tree and its plain MSE counterpart differ in nothing else.
    """
    share = width // decoders
    fits = [d for d in range(1, 9 // decoders + 1) if share % d == 0]
    return decoders * max(fits, default=1)
