"""Any backbone as the trunk of a tree."""

from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees.errors import InputError
from posterior_trees.networks.head import Leaves, ProbabilityHead


class Backbone(nn.Module):
    """Makes leaves and log-probabilities from the feature maps of any image-to-image network.

    `backbone` maps `(b, c_in, h, w)` to `(b, features, h, w)`. A 1×1 convolution turns the features
    into `num_leaves · channels` maps, unless the backbone emits those itself (`emits_leaves`).
    """

    def __init__(
        self,
        backbone: nn.Module,
        *,
        features: int,
        channels: int,
        num_leaves: int,
        emits_leaves: bool = False,
        is_regional: bool = False,
    ) -> None:
        super().__init__()
        if emits_leaves and features != num_leaves * channels:
            raise InputError(
                f"a backbone that emits {num_leaves} leaves of {channels} channels itself has "
                f"{num_leaves * channels} output maps, not features={features}"
            )
        self.backbone, self.features = backbone, features
        self.channels, self.num_leaves = channels, num_leaves
        self.to_image = (
            nn.Identity() if emits_leaves else nn.Conv2d(features, num_leaves * channels, 1)
        )
        self.head = ProbabilityHead(features, num_leaves, is_regional=is_regional)

    def forward(
        self, y: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"] | None = None
    ) -> Leaves:
        maps = self.backbone(y)
        if not isinstance(maps, Tensor):
            raise InputError(
                f"the backbone returned a {type(maps).__name__}; wrap one that returns its feature "
                "maps alone, a tensor (b, features, h, w)"
            )
        if maps.ndim != 4 or maps.shape[1] != self.features:
            raise InputError(
                f"the backbone returned {tuple(maps.shape)}, but was wrapped with "
                f"features={self.features}: it must return (b, {self.features}, h, w)"
            )
        if maps.shape[2:] != y.shape[2:]:
            raise InputError(
                f"the backbone returned maps of {maps.shape[2]}×{maps.shape[3]} for a picture of "
                f"{y.shape[2]}×{y.shape[3]}; they must have its size: give its convolutions "
                "padding, undo its strides, or wrap it with the `multiple` that its sides must be"
            )
        images = self.to_image(maps).unflatten(1, (self.num_leaves, self.channels))
        return Leaves(images, self.head([maps], region))
