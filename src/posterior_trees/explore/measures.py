r"""Numbers of an image, for the explorer's histograms; write your own in the same form.

A measure takes one image `(c, h, w)` in about [0, 1] and gives a number. Over the leaves, with
their probabilities, it has a distribution:

$$ P(f = v) = \sum_{\text{leaves } l:\, f(x_l) = v} \alpha_l $$
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor


def brightness(image: Float[Tensor, "c h w"]) -> float:
    """The mean over pixels and channels."""
    return image.mean().item()


def count_bright(image: Float[Tensor, "c h w"], threshold: float = 0.5, smallest: int = 4) -> int:
    """Connected bright regions (four neighbours) of at least `smallest` pixels: a plain count of
    nuclei, or of the strokes of a digit."""
    is_bright = image.mean(dim=0).numpy() > threshold
    labels = np.where(is_bright, np.arange(1, is_bright.size + 1).reshape(is_bright.shape), 0)
    while True:  # every pixel takes the largest label of its bright neighbours until none changes
        padded = np.pad(labels, 1)
        around = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
        spread = np.where(is_bright, np.maximum.reduce([labels, *around]), 0)
        if np.array_equal(spread, labels):
            break
        labels = spread
    sizes = np.unique(labels[is_bright], return_counts=True)[1]
    return int((sizes >= smallest).sum())
