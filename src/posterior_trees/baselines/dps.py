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
from torch import Tensor

from posterior_trees.baselines.process import Chain, noise_in, sampler, spaced_times


@sampler
def dps(chain: Chain, *, steps: int = 1000, zeta: float | int = 0.5) -> Tensor:
    """`n` samples of every `y`. Defaults: the published settings for inpainting."""
    see = chain.measurement
    seen = see(see.naive(chain.known))
    x = chain.noise()
    for t, alpha, alpha_next in chain.moves(spaced_times(chain.levels, steps)):
        x0, slope = _estimate(chain, x, t, seen)
        variance = (1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next)
        mean = math.sqrt(alpha_next) * x0
        mean = mean + math.sqrt(max(1 - alpha_next - variance, 0.0)) * noise_in(x, x0, alpha)
        x = mean + math.sqrt(variance) * chain.noise() - zeta * slope
    return chain.impose(x)


@torch.enable_grad()
def _estimate(chain: Chain, x: Tensor, t: int, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The clean image and the gradient of each sample's own residual."""
    x = x.detach().requires_grad_()
    x0 = chain.estimate(x, t)
    squares = (chain.measurement(x0) - seen).flatten(1).square().sum(dim=1)
    norms = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    (slope,) = torch.autograd.grad(norms.sum(), x)
    return x0.detach(), slope
