r"""Do samples repeat training images? How far the nearest of them is.

For samples $x_i$, a test image $x$ and training images $u$,

$$ \text{nearest} = \frac{\text{mean over samples of } \min_u \lVert x_i - u \rVert}
                       {\text{mean over test images of } \min_u \lVert x - u \rVert} . $$

New images of the same law give about 1; a model that recites its training images gives far less;
blurred or broken samples may give more or less, so read it next to v and PSNR. Over what the
measurement hides where that is a hole. Where training mirrored its images, the mirrored ones count.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posterior_trees.data import ImageSet

CHUNK = 2048
"""Training images held as floats at a time; so much memory, and no more, is needed for them."""


def nearest_distance(
    x: Float[Tensor, "b c h w"],
    training: ImageSet,
    mask: Bool[Tensor, "h w"] | None = None,
    is_mirrored: bool = False,
    chunk: int = CHUNK,
) -> Float[Tensor, "b"]:
    """Of every image, the L2 distance to the nearest training image, over the pixels of `mask`."""
    queries = _pixels(x, mask)
    nearest = queries.new_full((len(x),), torch.inf)
    for start in range(0, len(training), chunk):
        images, _ = training.batch(range(start, min(start + chunk, len(training))))
        images = images.to(x)
        for version in (images, images.flip(-1)) if is_mirrored else (images,):
            nearest = nearest.minimum(torch.cdist(queries, _pixels(version, mask)).amin(dim=1))
    return nearest


def _pixels(x: Tensor, mask: Tensor | None) -> Tensor:
    return x.flatten(1) if mask is None else x[..., mask.to(x.device)].flatten(1)
