r"""What a tree tells apart: a part of the picture, or its shapes.

Squared errors count every pixel alike, so children differ in whatever varies most: the light on a
chin and what is behind it rather than a mouth, which has few pixels. With `loss.focus` the truth
goes to the child that is nearest in this part alone,

$$ \overline{(x_{nk} - x)^2}^{\,\text{part}} , $$

and the child learns the whole picture, as ever: nodes are means of the answers that they learned
from, and parents means of their children. The path of all pixels, by which probabilities are
learned and trees are judged, may be another one; but children then differ most in the part, and
what they have in common does not enter the choice.

With `loss.is_by_shape` neither do colour and light: what is compared is the part in grey, without
what a level and a slope can explain of it. A mouth in the shade then is near a mouth in the sun,
and far from a smile.

Deviation: the paper associates by all pixels, as they are.
"""

import functools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.tree import Tree


class Part:
    """What of images tells children apart."""

    leads = False

    def __init__(self, focus: Sequence[float], is_by_shape: bool = False) -> None:
        self.focus, self.is_by_shape = focus, is_by_shape

    def of(self, images: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n _ _ _"]:
        part = inside(images, self.focus)
        return without_light(part.mean(dim=-3, keepdim=True)) if self.is_by_shape else part

    def adjust(
        self, tree: Tree, x: Float[Tensor, "b c h w"], errors: Sequence[Float[Tensor, "b _"]]
    ) -> tuple[Float[Tensor, "b _"], ...]:
        """Mean squared errors of every node in this part, level by level."""
        return tree.map_images(self.of).errors(self.of(x))


def inside(images: Float[Tensor, "*n h w"], focus: Sequence[float]) -> Float[Tensor, "*n _ _"]:
    """The pixels that `focus` touches, (top, bottom, left, right) as shares of an image's sides."""
    if not focus:
        return images
    (height, width), (top, bottom, left, right) = images.shape[-2:], focus
    rows = slice(math.floor(top * height), math.ceil(bottom * height))
    columns = slice(math.floor(left * width), math.ceil(right * width))
    return images[..., rows, columns]


def without_light(images: Float[Tensor, "*n h w"]) -> Float[Tensor, "*n h w"]:
    """Images without what a level and a slope explain of each, by least squares."""
    make = functools.partial(torch.arange, dtype=images.dtype, device=images.device)
    down, across = (make(size) for size in images.shape[-2:])
    rows, columns = torch.meshgrid(down - down.mean(), across - across.mean(), indexing="ij")
    for light in (torch.ones_like(rows), rows, columns):  # orthogonal to each other
        light = light / light.square().mean().sqrt().clamp_min(1e-6)
        images = images - (images * light).mean(dim=(-2, -1), keepdim=True) * light
    return images
