r"""DDRM: a diffusion chain in the singular vectors of $A$ (Kawar, Elad, Ermon, Song; NeurIPS 2022).

In the scale $\bar x = x_t / \sqrt{\bar\alpha}$, with noise of
$\sigma^2 = (1-\bar\alpha)/\bar\alpha$, components that $A$ cannot see follow the prior and the
others follow $y$ (noise-free case):

$$ \text{unseen:}\quad \bar x' = \hat x_0 + \sigma' \bigl(\sqrt{1-\eta^2}\; e + \eta z\bigr), \qquad
   \text{seen:}\quad \bar x' = (1-\eta_b)\, \hat x_0 + \eta_b\, A^\dagger y + \sigma' z . $$

The update is the same in every orthonormal basis of either space, so the projections of
`Measurement` replace the SVD. At the last step $\sigma' = 0$ and the seen part is $y$ itself (the
published code's strict comparisons miss that case). With $\eta_b = 1$ this is DDNM with fresh noise
on the seen part, so at equal steps they are alike; its published 20 steps make it worse.
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


@torch.no_grad()
def ddrm(
    denoise: Denoiser,
    measurement: Measurement,
    y: Float[Tensor, "b *shape"],
    n: int,
    *,
    steps: int = 20,
    eta: float | int = 0.85,
    eta_b: float | int = 1.0,
    generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape2"]:
    """`n` samples of every `y`, all of which agree with it. Defaults: the published settings."""
    check_noise_free(measurement, "ddrm")
    times = spaced_times(len(denoise.alpha_bar), steps)
    plain = spread(measurement.naive(y), n)
    seen = plain - measurement.project(plain)
    alpha = alpha_at(denoise.alpha_bar, times[0])
    scaled = seen + math.sqrt((1 - alpha) / alpha) * normal_like(plain, generator)
    for t, t_next in pairwise(times):
        alpha, alpha_next = (alpha_at(denoise.alpha_bar, level) for level in (t, t_next))
        x = math.sqrt(alpha) * scaled
        x0 = clamp(denoise(x, t), clip)
        e, z = noise_in(x, x0, alpha), normal_like(x, generator)
        sigma_next = math.sqrt((1 - alpha_next) / alpha_next)
        unseen = x0 + sigma_next * (math.sqrt(1 - eta**2) * e + eta * z)
        guided = (1 - eta_b) * x0 + sigma_next * z
        scaled = eta_b * seen + guided + measurement.project(unseen - guided)
    return gather(measurement.impose(scaled, spread(y, n)), n)
