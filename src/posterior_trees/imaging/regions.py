"""Bright regions of a picture: what is bright, and what hangs together.

A component is a set of marked pixels that touch. A region is one of bright pixels, except that two
which only touch, along a few pixels, are two. Choice: SciPy finds components, in 5 ms where torch
took 1.4 s (1024×1024); it is imported where it is used (0.2 s). Otsu's threshold is ten lines of
our own: scikit-image would be one more package.
"""

from itertools import count

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F

SMALLEST = 25
"""Pixels of the smallest nucleus; in our BBBC022 fields the median nucleus has about 180."""
FAINTEST = 0.2
"""No threshold of Otsu's below this: a field without nuclei is split at its noise."""
BRIDGE = 3
"""Regions that touch along fewer than about twice as many pixels count as two."""
REACH = 4 * BRIDGE
"""Pixels from a region's core that are still its own: long thin strokes are none, and take long."""
LEAST = 10
"""Regions of an image that have a median worth knowing."""
BINS = 256
"""Of the histogram by which a threshold is chosen."""
SIDE = 1024
"""Pixels of the longest side whose median is looked at, in the middle of a picture."""


def otsu(values: Float[Tensor, "..."]) -> float:
    r"""The threshold $t$ in [0, 1] that parts values best into two classes (Otsu, 1979). It
    maximises the variance between them, $\omega(t) \, (1 - \omega(t)) \, (\mu_1(t) - \mu_0(t))^2$,
    $\omega$ the share below $t$."""
    return part(histogram(values))


def histogram(values: Float[Tensor, "..."]) -> Float[Tensor, "bins"]:
    """How many values are in each of `BINS` equal parts of [0, 1]; those of parts of a picture add
    up."""
    return torch.histc(values.detach().double().clamp(0, 1).flatten(), BINS, 0, 1)


def part(histogram: Float[Tensor, "bins"]) -> float:
    """Otsu's threshold by a histogram."""
    share = histogram / histogram.sum()
    centres = (torch.arange(BINS, dtype=torch.float64) + 0.5) / BINS
    below, mass = share.cumsum(0), (share * centres).cumsum(0)
    between = (mass[-1] * below - mass).square() / (below * (1 - below)).clamp(min=1e-12)
    best = (between >= between.max() * (1 - 1e-9)).nonzero()[:, 0].double()
    return (best.mean().item() + 1) / BINS  # the middle, where an empty gap makes many the best


def label(mask: Bool[Tensor, "h w"], corners: bool = True) -> Int64[Tensor, "h w"]:
    """The number of each pixel's component, 1, 2, … by first pixel in reading order; 0 outside.
    Pixels that touch at a side belong together, and unless `corners` is False at a corner too."""
    from scipy import ndimage

    around = ndimage.generate_binary_structure(2, 2 if corners else 1)
    return torch.from_numpy(ndimage.label(mask.cpu().numpy(), around)[0]).long()


def sizes(labels: Int64[Tensor, "h w"]) -> Int64[Tensor, "n"]:
    """Number of pixels of components 1, 2, …"""
    return labels.flatten().bincount()[1:]


def find_regions(
    bright: Bool[Tensor, "h w"], smallest: int, reach: int | None = None
) -> Int64[Tensor, "h w"]:
    """Bright regions of at least `smallest` pixels, numbered from 1; 0 elsewhere. Their edges (but
    not the picture's) are taken off `BRIDGE` times, what is then still connected is one region, and
    it grows back over the bright pixels around it: over all that hang together, or over those
    within `reach` steps of what was left, which bounds the time that long thin strokes take."""
    from scipy import ndimage

    cores = ndimage.binary_erosion(bright.numpy(), None, BRIDGE, border_value=1)
    labels = _spread(label(torch.from_numpy(cores)), bright, reach)
    is_large = torch.cat([torch.tensor([False]), sizes(labels) >= smallest])
    return (is_large.cumsum(0) * is_large)[labels]


def median_region(image: Float[Tensor, "h w"]) -> float | None:
    """The median number of pixels of the bright regions; None of fewer than ten."""
    top, left = (max(0, (side - SIDE) // 2) for side in image.shape)
    image = image[top : top + SIDE, left : left + SIDE].detach().cpu().double()
    bright = image > max(otsu(image), FAINTEST)
    pixels = sizes(find_regions(bright, SMALLEST, reach=REACH))
    return pixels.double().quantile(0.5).item() if len(pixels) >= LEAST else None


def _spread(
    labels: Int64[Tensor, "h w"], bright: Bool[Tensor, "h w"], reach: int | None
) -> Int64[Tensor, "h w"]:
    """Labels spread over the bright pixels around them, step by step to the four neighbours; where
    two meet the larger number wins."""
    wide = F.pad(labels, (1, 1, 1, 1))
    flat, width = wide.view(-1), wide.shape[1]
    rest = F.pad(bright & (labels == 0), (1, 1, 1, 1)).view(-1).nonzero()[:, 0]
    for _ in count() if reach is None else range(reach):
        if not len(rest):
            break
        around = torch.stack([flat[rest + step] for step in (-width, -1, 1, width)]).amax(dim=0)
        if not around.any():
            break
        flat[rest] = around
        rest = rest[around == 0]
    return wide[1:-1, 1:-1].contiguous()
