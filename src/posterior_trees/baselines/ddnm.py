r"""DDNM: what is known comes from $y$, what is not from the prior (Wang, Yu, Zhang; ICLR 2023).

At every level the estimate is projected on $\{A x = y\}$, and the noise of the next level is mixed
from fresh $z$ and the network's $e$:

$$ \hat x_0' = \hat x_0 + A^\dagger (y - A \hat x_0), \qquad
   x_{t'} = \sqrt{\bar\alpha'}\, \hat x_0' + \sqrt{1-\bar\alpha'}\,
            \bigl(\eta z + \sqrt{1-\eta^2}\, e\bigr) . $$

The stochastic share is $\eta \sqrt{1-\bar\alpha'}$, not DDIM's $\sigma$, and $e$ is that of the
unprojected estimate. The published code has a second, "simplified" path that adds less noise than
this; we follow the formula. DDNM is *not* an exact posterior sampler, even with a perfect denoiser:
it is under-dispersed and favours modes that lie between others (results/baselines).

**Noisy measurements** (DDNM+): $y = A x + \sigma_y n$ has noise $\sigma = \sigma_y / d$ along what
$A$ sees, $d$ its singular value. With $a = \sqrt{\bar\alpha'}$ and $s = \sqrt{1-\bar\alpha'}$ the
estimate goes a share $\lambda$ of the way to $y$, and the seen part gets fresh noise of deviation
$\tau$:

$$ s \ge a \sigma:\; \lambda = 1,\; \tau^2 = s^2 - a^2 \sigma^2, \qquad
   s < a \sigma:\; \lambda = \frac{s \sqrt{1-\eta^2}}{a \sigma},\; \tau = \eta s . $$

The published short form ($\tau = 0$ below the threshold) would give one point for $A = I$. As
$\sigma_y \to 0$ the seen part has fresh noise only, no $e$: the limit is DDRM at the same steps.

Time travel (`travel_length`, `travel_repeat`) goes up again and repeats. Choice: it re-noises the
projected estimate, where the published code takes the unprojected one; with noise, the unprojected
one, since the other has the noise of $y$ already.
"""

import math
from itertools import pairwise

import torch
from torch import Tensor

from posterior_trees.baselines.process import (
    Chain,
    noise_in,
    sampler,
    seen_noise,
    spaced_times,
    travel_times,
)


@sampler
def ddnm(
    chain: Chain, *, steps: int = 100, eta: float | int = 0.85, travel_length: int = 1,
    travel_repeat: int = 1, noise: float | int = 0.0,
) -> Tensor:  # fmt: skip
    """All samples agree with `y` unless it has noise (`noise`, its standard deviation in the
    denoiser's scale). Defaults: the published settings."""
    levels = spaced_times(chain.levels, steps)[::-1]  # −1, then upwards
    sigma = seen_noise(chain.measurement, noise)
    x = x0 = chain.noise()
    for step, step_next in pairwise(travel_times(steps, travel_length, travel_repeat)):
        t, alpha_next = levels[step + 1], chain.alpha(levels[step_next + 1])
        z = chain.noise()
        if step_next > step:
            x = math.sqrt(alpha_next) * x0 + math.sqrt(1 - alpha_next) * z
            continue
        x0 = chain.estimate(x, t)
        e = noise_in(x, x0, chain.alpha(t))
        s, noisy = math.sqrt(1 - alpha_next), math.sqrt(alpha_next) * sigma
        mixed = s * (eta * z + math.sqrt(1 - eta**2) * e)
        agreed = chain.impose(x0)
        if sigma:
            if s >= noisy:
                trust, deviation = 1.0, math.sqrt(s**2 - noisy**2)
            else:
                trust, deviation = s * math.sqrt(1 - eta**2) / noisy, eta * s
            agreed = torch.lerp(x0, agreed, trust)
            mixed = deviation * z + chain.measurement.project(mixed - deviation * z)
        else:
            x0 = agreed
        x = math.sqrt(alpha_next) * agreed + mixed
    return x
