"""What is bright in a picture, by the picture itself."""

import torch
from jaxtyping import Float
from torch import Tensor

BINS = 256


def otsu(values: Float[Tensor, "..."]) -> float:
    r"""The threshold $t$ in [0, 1] that parts values best into two classes (Otsu, 1979).

    It maximises the variance between them,
    $\omega(t) \, (1 - \omega(t)) \, (\mu_1(t) - \mu_0(t))^2$, $\omega$ the share below $t$.
    """
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
