r"""What a tree tells apart: a part of the picture, its shapes or its edges, or what is asked for.

Squared errors count every pixel alike, so children differ in whatever varies most: the light on a
chin and what is behind it rather than a mouth, which has few pixels. With `loss.focus` the truth
goes to the child that is nearest in this part alone,

$$ \overline{(x_{nk} - x)^2}^{\,\text{part}} , $$

and the child learns the whole picture, as ever: nodes are means of the answers that they learned
from, and parents means of their children. The path of all pixels, by which probabilities are
learned and trees are judged, may be another one; but children then differ most in the part, and
what they have in common does not enter the choice.

What is compared are features $\varphi$ of the images, `loss.features`. With `"shape"` colour and
light do not enter either: it is the part in grey, without what a level and a slope can explain of
it. A mouth in the shade then is near a mouth in the sun, and far from a smile. With `"edges"` it is
what changes from pixel to pixel; `"module:function"` is a function of your own, of images
`(n, c, h, w)`.

A growing network is asked for a region $M$, and told by it, too: the truth goes to the child with
the smallest mean over $M$ of $(\varphi(x_{nk}) - \varphi(x))^2$, which is also what probabilities
learn (`Inside`).

Deviation: the paper associates by all pixels, as they are.
"""

import functools
import math
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import RecipeError
from posterior_trees.networks.head import mean_inside
from posterior_trees.training.association import Errors, Rule
from posterior_trees.tree import Tree

Eyes = Callable[[Tensor], Tensor]
r"""$\varphi$, of images with any leading axes."""


class Part(Rule):
    """What of images tells children apart."""

    def __init__(self, focus: Sequence[float], features: str = "pixels") -> None:
        self.focus, self.eyes = focus, eyes_of(features)

    def of(self, images: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n _ _ _"]:
        return self.eyes(inside(images, self.focus))

    def adjust(self, tree: Tree, x: Float[Tensor, "b c h w"], errors: Errors) -> Errors:
        """Mean squared errors of every node in this part, level by level."""
        return tree.map_images(self.of).errors(self.of(x))


class Inside(Rule):
    """The region of each picture tells children apart, and the truth reaches them by it."""

    leads = True

    def __init__(self, region: Float[Tensor, "b 1 h w"], eyes: Eyes) -> None:
        self.region, self.eyes = region, eyes

    def adjust(self, tree: Tree, x: Float[Tensor, "b c h w"], errors: Errors) -> Errors:
        return tuple(errors_inside(nodes, x, self.region, self.eyes) for nodes in tree.images)


def errors_inside(
    nodes: Float[Tensor, "b n c h w"],
    x: Float[Tensor, "b c h w"],
    region: Float[Tensor, "b 1 h w"],
    eyes: Eyes,
) -> Float[Tensor, "b n"]:
    """Mean squares of the nodes' features minus the truth's, over a region."""
    return mean_inside((eyes(nodes) - eyes(x).unsqueeze(1)).square().mean(dim=2), region)


def eyes_of(features: str) -> Eyes:
    r"""The $\varphi$ that a recipe names."""
    ours: dict[str, Eyes] = {"pixels": lambda images: images, "shape": shape, "edges": edges}
    if features in ours:
        return ours[features]
    try:
        found: Any = pkgutil.resolve_name(features)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(
            f"loss.features is {features!r}: {error}. Write module:function, of a module that "
            "Python finds (PYTHONPATH)"
        ) from error
    return lambda images: found(images.flatten(0, -4)).unflatten(0, images.shape[:-3])


def shape(images: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n 1 h w"]:
    """Images in grey, without light."""
    return without_light(images.mean(dim=-3, keepdim=True))


def edges(images: Float[Tensor, "*n c h w"]) -> Float[Tensor, "*n 2 h w"]:
    """What changes from a row and from a column to the next one, in grey."""
    grey = images.mean(dim=-3, keepdim=True)
    down = grey.diff(dim=-2, append=grey[..., -1:, :])
    return torch.cat([down, grey.diff(dim=-1, append=grey[..., -1:])], dim=-3)


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
