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

Time travel (`travel_length`, `travel_repeat`) goes up again and repeats. Choice: it re-noises the
projected estimate, where the published code takes the unprojected one.
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
    travel_times,
)
from posterior_trees.measure import Measurement


@torch.no_grad()
def ddnm(
    denoise: Denoiser,
    measurement: Measurement,
    y: Float[Tensor, "b *shape"],
    n: int,
    *,
    steps: int = 100,
    eta: float | int = 0.85,
    travel_length: int = 1,
    travel_repeat: int = 1,
    generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape2"]:
    """`n` samples of every `y`, all of which agree with it. Defaults: the published settings."""
    check_noise_free(measurement, "ddnm")
    levels = spaced_times(len(denoise.alpha_bar), steps)[::-1]  # −1, then upwards
    visits = travel_times(steps, travel_length, travel_repeat)
    known = spread(y, n)
    x = normal_like(spread(measurement.naive(y), n), generator)
    x0 = x
    for step, step_next in pairwise(visits):
        t, t_next = levels[step + 1], levels[step_next + 1]
        alpha_next = alpha_at(denoise.alpha_bar, t_next)
        noise = normal_like(x, generator)
        if step_next < step:
            estimate = clamp(denoise(x, t), clip)
            e = noise_in(x, estimate, alpha_at(denoise.alpha_bar, t))
            x0 = measurement.impose(estimate, known)
            noise = eta * noise + math.sqrt(1 - eta**2) * e
        x = math.sqrt(alpha_next) * x0 + math.sqrt(1 - alpha_next) * noise
    return gather(x, n)
