"""What is bright in a picture, by the picture itself."""

import torch
from jaxtyping import Float
from torch import Tensor


def otsu(values: Float[Tensor, "..."], bins: int = 256) -> float:
    r"""The threshold $t$ in [0, 1] that parts values best into two classes (Otsu, 1979).

    It maximises the variance between them,
    $\omega(t) \, (1 - \omega(t)) \, (\mu_1(t) - \mu_0(t))^2$, $\omega$ the share below $t$.
    """
    clipped = values.detach().double().clamp(0, 1).flatten()
    share = torch.histc(clipped, bins, 0, 1) / len(clipped)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below, mass = share.cumsum(0), (share * centres).cumsum(0)
    between = (mass[-1] * below - mass).square() / (below * (1 - below)).clamp(min=1e-12)
    best = (between >= between.max() * (1 - 1e-9)).nonzero()[:, 0].double()
    return (best.mean().item() + 1) / bins  # the middle, where an empty gap makes many the best
