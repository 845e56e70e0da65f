r"""DiffPIR: denoise, agree with $y$ by a proximal step, add noise again (Zhu et al., CVPRW 2023).

$$ \hat x_0' = \arg\min_x \lVert y - A x \rVert^2 + \rho\, \lVert x - \hat x_0 \rVert^2, \qquad
   \rho = \lambda \sigma_n^2 / \sigma_t^2, \qquad
   x_{t'} = \sqrt{\bar\alpha'}\, \hat x_0' + \sqrt{1-\bar\alpha'}\,
            \bigl(\sqrt{1-\zeta}\; e + \sqrt\zeta\, z\bigr) $$

with $e$ of the corrected estimate. For $A A^\top = c\,I$ the minimum is
$\hat x_0 + \tfrac{c}{c+\rho} A^\dagger (y - A \hat x_0)$: $\rho = 0$ is the projection, and the
method then is DDNM with $e$ recomputed. Levels are dense at the clean end ("quad").
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
    spread,
)
from posterior_trees.errors import InputError
from posterior_trees.measure import Measurement


@torch.no_grad()
def diffpir(
    denoise: Denoiser,
    measurement: Measurement,
    y: Float[Tensor, "b *shape"],
    n: int,
    *,
    steps: int = 100,
    lambda_: float | int = 1.0,
    zeta: float | int = 1.0,
    sigma_n: float | int = 0.001,
    generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape2"]:
    """`n` samples of every `y`. Defaults: the published settings for inpainting without noise."""
    check_noise_free(measurement, "diffpir")
    times = quad_times(len(denoise.alpha_bar), steps)
    known, gain = spread(y, n), measurement.gain
    plain = spread(measurement.naive(y), n)
    alpha = alpha_at(denoise.alpha_bar, times[0])
    x = math.sqrt(alpha) * plain + math.sqrt(1 - alpha) * normal_like(plain, generator)
    for t, t_next in pairwise(times):
        alpha, alpha_next = (alpha_at(denoise.alpha_bar, level) for level in (t, t_next))
        x0 = clamp(denoise(x, t), clip)
        rho = lambda_ * sigma_n**2 * alpha / (1 - alpha)
        x0 = torch.lerp(x0, measurement.impose(x0, known), gain / (gain + rho))
        noise = math.sqrt(1 - zeta) * noise_in(x, x0, alpha)
        noise = noise + math.sqrt(zeta) * normal_like(x, generator)
        x = math.sqrt(alpha_next) * x0 + math.sqrt(1 - alpha_next) * noise
    x0 = clamp(denoise(x, times[-1]), clip)
    return gather(measurement.impose(x0, known), n)


def quad_times(levels: int, steps: int) -> list[int]:
    """`steps` levels from the noisiest to the cleanest, ever closer to each other."""
    if not 2 <= steps <= levels:
        raise InputError(f"steps is {steps}; this denoiser allows 2 to {levels}")
    down = [int(math.sqrt(i / (steps - 1)) * levels) for i in range(steps)]
    return [levels - 1 - min(place, levels - 1) for place in down]
