r"""What a tree tells apart: a part of the picture.

Squared errors count every pixel alike, so children differ in whatever varies most: the light on a
chin and what is behind it rather than a mouth, which has few pixels. With `loss.focus` the truth
goes to the child that is nearest in this part alone,

$$ \overline{(x_{nk} - x)^2}^{\,\text{part}} , $$

and the child learns the whole picture, as ever: nodes are means of the answers that they learned
from, and parents means of their children. The path of all pixels, by which probabilities are
learned and trees are judged, may be another one; but children then differ most in the part, and
what they have in common does not enter the choice.

Deviation: the paper associates by all pixels.
"""

import math
from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from posterior_trees.tree import Tree


def inside(images: Float[Tensor, "*n h w"], focus: Sequence[float]) -> Float[Tensor, "*n _ _"]:
    """The pixels that `focus` touches, (top, bottom, left, right) as shares of an image's sides."""
    if not focus:
        return images
    (height, width), (top, bottom, left, right) = images.shape[-2:], focus
    rows = slice(math.floor(top * height), math.ceil(bottom * height))
    columns = slice(math.floor(left * width), math.ceil(right * width))
    return images[..., rows, columns]


def errors_inside(
    tree: Tree, x: Float[Tensor, "b c h w"], focus: Sequence[float]
) -> tuple[Float[Tensor, "b _"], ...]:
    """Mean squared errors of every node in the part, level by level."""
    parts = tuple(inside(level, focus) for level in tree.images)
    return Tree(parts, tree.log_probs, tree.branching).errors(inside(x, focus))
