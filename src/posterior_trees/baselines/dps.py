r"""DPS: the ancestral chain, pulled towards $y$ (Chung, Kim, Mccann, Klasky, Ye; ICLR 2023).

$$ x_{t-1} = x'_{t-1} - \zeta\, \nabla_{x_t} \bigl\lVert y - A \hat x_0(x_t) \bigr\rVert_2 $$

with $x'_{t-1}$ the ancestral step from $x_t$. The gradient goes through the network, about three
times the cost of an evaluation. The norm is that of each sample by itself: the published code takes
one norm over the batch, which couples samples. $\zeta$ must be tuned for every task: the step does
not shrink with the residual, and in two dimensions $\zeta = 1$ diverges. Choice: the samples are
projected on $\{A x = y\}$ at the end, as those of all other methods.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import (
    Clip,
    Denoiser,
    alpha_at,
    check_noise_free,
    clamp,
    gather,
    noise_in,
    normal_like,
    spaced_times,
    spread,
)
from posterior_trees.measure import Measurement


def dps(
    denoise: Denoiser,
    measurement: Measurement,
    y: Float[Tensor, "b *shape"],
    n: int,
    *,
    steps: int = 1000,
    zeta: float | int = 0.5,
    generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape2"]:
    """`n` samples of every `y`. Defaults: the published settings for inpainting."""
    check_noise_free(measurement, "dps")
    times = spaced_times(len(denoise.alpha_bar), steps)
    known = spread(y, n)
    x = normal_like(spread(measurement.naive(y), n), generator)
    for t, t_next in pairwise(times):
        alpha, alpha_next = (alpha_at(denoise.alpha_bar, level) for level in (t, t_next))
        x0, slope = _estimate(denoise, measurement, x, t, known, clip)
        variance = (1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)
        mean = math.sqrt(alpha_next) * x0
        mean = mean + math.sqrt(max(1 - alpha_next - variance, 0.0)) * noise_in(x, x0, alpha)
        x = mean + math.sqrt(variance) * normal_like(x, generator) - zeta * slope
    return gather(measurement.impose(x, known), n)


def _estimate(
    denoise: Denoiser, measurement: Measurement, x: Tensor, t: int, known: Tensor, clip: Clip
) -> tuple[Tensor, Tensor]:
    """The clean image and the gradient of each sample's own residual."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        x0 = clamp(denoise(x, t), clip)
        residual = measurement(x0) - measurement(measurement.naive(known))
        squares = residual.flatten(1).square().sum(dim=1)
        norms = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
        (slope,) = torch.autograd.grad(norms.sum(), x)
    return x0.detach(), slope
