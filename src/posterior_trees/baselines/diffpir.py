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

import torch
from torch import Tensor

from posterior_trees.baselines.process import Chain, noise_in, sampler
from posterior_trees.errors import InputError


@sampler
def diffpir(
    chain: Chain, *, steps: int = 100, lambda_: float | int = 1.0, zeta: float | int = 1.0,
    sigma_n: float | int = 0.001,
) -> Tensor:  # fmt: skip
    """`n` samples of every `y`. Defaults: the published settings for inpainting without noise."""
    times, gain = quad_times(chain.levels, steps), chain.measurement.gain
    alpha = chain.alpha(times[0])
    x = math.sqrt(alpha) * chain.plain + math.sqrt(1 - alpha) * chain.noise()
    for t, alpha, alpha_next in chain.moves(times):
        x0 = chain.estimate(x, t)
        rho = lambda_ * sigma_n**2 * alpha / (1 - alpha)
        x0 = torch.lerp(x0, chain.impose(x0), gain / (gain + rho))
        noise = math.sqrt(1 - zeta) * noise_in(x, x0, alpha) + math.sqrt(zeta) * chain.noise()
        x = math.sqrt(alpha_next) * x0 + math.sqrt(1 - alpha_next) * noise
    return chain.impose(chain.estimate(x, times[-1]))


def quad_times(levels: int, steps: int) -> list[int]:
    """`steps` levels from the noisiest to the cleanest, ever closer to each other."""
    if not 2 <= steps <= levels:
        raise InputError(f"steps is {steps}; this denoiser allows 2 to {levels}")
    down = [int(math.sqrt(i / (steps - 1)) * levels) for i in range(steps)]
    return [levels - 1 - min(place, levels - 1) for place in down]
