r"""Numbers of an image, for the explorer's histograms; write your own in the same form.

A measure takes one image `(c, h, w)` in about [0, 1] and gives a number. Over the leaves, with
their probabilities, it has a distribution:

$$ P(f = v) = \sum_{\text{leaves } l:\, f(x_l) = v} \alpha_l $$
"""

from jaxtyping import Float
from torch import Tensor

from posterior_trees.imaging.regions import label, sizes


def brightness(image: Float[Tensor, "c h w"]) -> float:
    """The mean over pixels and channels."""
    return image.mean().item()


def count_bright(image: Float[Tensor, "c h w"], threshold: float = 0.5, smallest: int = 4) -> int:
    """Connected bright regions (four neighbours) of at least `smallest` pixels: a plain count of
    nuclei, or of the strokes of a digit."""
    is_bright = image.mean(dim=0) > threshold
    return int((sizes(label(is_bright, corners=False)) >= smallest).sum())
