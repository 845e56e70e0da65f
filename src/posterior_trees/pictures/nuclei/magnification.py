r"""Whether a picture is at the magnification that a model was trained at, by what its tree shows.

A model of pairs, of a missing stain say, knows things at one size. In a picture of another
magnification it still finds some, and their size gives it away: it lies between that of the picture
and that of the training. So let $m$ be the median number of pixels of an image's bright regions
(`regions.py`), if it has at least ten. A trainer keeps the 5, 50 and 95 % quantiles of $m$ over the
clean training images, and the root of a picture's tree is doubted if its $m$ is below the first or
above the last by a factor of more than 1.25. In trees of one picture at several scales $s$ the
regions grow more slowly than its things do,

$$ m \propto s^g, \qquad 1 < g < 2, $$

so that the scale which is advised, $(m_{0.5} / m)^{1/g}$ times the present one, takes $g = 1.5$
(`GROWTH`). Of 14 training fields the median $g$ was 1.2 at half the size, 1.3 to 1.7 at 60 to 170 %
and 1.4 at twice the size (results/cells_actin_to_dna).

In the cells of BBBC022 the quantiles are 161, 180 and 205 pixels. Of 22 test fields none was
doubted as it is, 9 at 80 % of their size, 21 at 70 %, 15 at 125 % and all at 140 %; see
`docs/cells.md`.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.data import ImageSet, evenly_spaced
from posterior_trees.imaging.adjust import Trained
from posterior_trees.imaging.components import sizes
from posterior_trees.imaging.otsu import otsu
from posterior_trees.imaging.size import SCALES
from posterior_trees.pictures.nuclei.count import FAINTEST, SMALLEST
from posterior_trees.pictures.nuclei.regions import BRIDGE, find_regions
from posterior_trees.tree import Tree

LEAST = 10
"""Regions of an image that have a median worth knowing."""
FEW = 10
"""Images of a set that have quantiles worth knowing."""
SLACK = 1.25
GROWTH = 1.5
SIDE = 1024
"""Pixels of the longest side that is looked at, in the middle of a picture."""
REACH = 4 * BRIDGE
"""Pixels from a region's core that are still its own: long thin strokes are none, and take long."""
PIXELS, IMAGES = 10_000_000, (3 * FEW, 200)
"""How much of a training set is looked at: so many pixels, in between so many images."""


def median_region(image: Float[Tensor, "h w"]) -> float | None:
    """The median number of pixels of the bright regions; None of fewer than ten."""
    top, left = (max(0, (side - SIDE) // 2) for side in image.shape)
    image = image[top : top + SIDE, left : left + SIDE].detach().cpu().double()
    bright = image > max(otsu(image), FAINTEST)
    pixels = sizes(find_regions(bright, SMALLEST, reach=REACH))
    return pixels.double().quantile(0.5).item() if len(pixels) >= LEAST else None


def region_quantiles(images: ImageSet) -> list[float] | None:
    """The 5, 50 and 95 % quantiles of the medians of a set's clean images, which a trainer keeps in
    `about["region_pixels"]`; None unless they are grey, one of a pair each, and at least ten have
    enough regions."""
    found = torch.tensor([m for m in _medians(images) if m is not None]).double()
    if len(found) < FEW:
        return None
    return found.quantile(torch.tensor([0.05, 0.5, 0.95]).double()).tolist()


def _medians(images: ImageSet) -> Iterator[float | None]:
    channels, height, width = images.shape
    least, most = IMAGES
    count = min(max(PIXELS // (min(height, SIDE) * min(width, SIDE)), least), most)
    for index in evenly_spaced(len(images), count if channels == 1 else 0):
        x, y = images.batch([index])
        if y is None:
            return
        yield median_region(x[0, 0])


def describe_magnification(tree: Tree, model: Trained, scale: float | int = 1.0) -> str:
    """Why the picture of a tree, taken at `scale` (`size.py`), may be at another magnification than
    the model's training images, and what to try; empty if it fits or nobody knows."""
    if not (usual := model.about.get("region_pixels")):
        return ""
    low, middle, high = usual
    median = median_region(tree.root[0, 0])
    if median is None or low / SLACK <= median <= high * SLACK:
        return ""
    task = f"the task {model.name!r}" if model.name else "this model"
    least, most = SCALES
    advised = min(max(scale * (middle / median) ** (1 / GROWTH), least), most)
    return (
        f"the picture may be at another magnification than {task} was trained at: bright regions "
        f"of the root, the predicted mean, have {median:.0f} pixels (the median), in training "
        f"images they have {low:.0f} to {high:.0f}, and {low / SLACK:.0f} to {high * SLACK:.0f} "
        f"pass. Try {advised:.3g} of its size (--scale {advised:.3g}), and once more if this is "
        "then said again"
    )
