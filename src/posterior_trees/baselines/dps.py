r"""DPS: the ancestral chain, pulled towards $y$ (Chung, Kim, Mccann, Klasky, Ye; ICLR 2023).

$$ x_{t-1} = x'_{t-1} - \zeta\, \nabla_{x_t} \bigl\lVert y - A \hat x_0(x_t) \bigr\rVert_2 $$

with $x'_{t-1}$ the ancestral step from $x_t$. The gradient goes through the network, about three
times the cost of an evaluation. The norm is that of each sample by itself: the published code takes
one norm over the batch, which couples samples. $\zeta$ must be tuned for every task: the step does
not shrink with the residual, and in two dimensions $\zeta = 1$ diverges. Choice: the samples are
projected on $\{A x = y\}$ at the end, as those of all other methods.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import Chain, Clip, Denoiser, noise_in, spaced_times
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
    chain = Chain("dps", denoise, measurement, y, n, generator, clip)
    seen = measurement(measurement.naive(chain.known))
    x = chain.noise()
    for t, alpha, alpha_next in chain.moves(spaced_times(chain.levels, steps)):
        x0, slope = _estimate(chain, measurement, x, t, seen)
        variance = (1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)
        mean = math.sqrt(alpha_next) * x0
        mean = mean + math.sqrt(max(1 - alpha_next - variance, 0.0)) * noise_in(x, x0, alpha)
        x = mean + math.sqrt(variance) * chain.noise() - zeta * slope
    return measurement.impose(x, chain.known).unflatten(0, (-1, n))


@torch.enable_grad()
def _estimate(
    chain: Chain, measurement: Measurement, x: Tensor, t: int, seen: Tensor
) -> tuple[Tensor, Tensor]:
    """The clean image and the gradient of each sample's own residual."""
    x = x.detach().requires_grad_()
    x0 = chain.estimate(x, t)
    squares = (measurement(x0) - seen).flatten(1).square().sum(dim=1)
    norms = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    (slope,) = torch.autograd.grad(norms.sum(), x)
    return x0.detach(), slope
