r"""RePaint: paste the known pixels at every noise level, and go back (Lugmayr et al. 2022).

A step down from level $i$ first replaces the known pixels by those of $y$ with the level's noise,
then draws from the DDPM posterior; a step up adds one level of noise:

$$ x \leftarrow m\,(\sqrt{\bar\alpha_i}\, y + \sqrt{1-\bar\alpha_i}\, z_1) + (1-m)\, x, \qquad
   x_{i-1} = \frac{\beta_i \sqrt{\bar\alpha_{i-1}}}{1-\bar\alpha_i}\, \hat x_0
   + \frac{(1-\bar\alpha_{i-1}) \sqrt{1-\beta_i}}{1-\bar\alpha_i}\, x
   + \sqrt{\tilde\beta_i}\, z_2, $$

$$ x_{i+1} = \sqrt{1-\beta_{i+1}}\, x_i + \sqrt{\beta_{i+1}}\, z . $$

Going up `jump` levels and down again, `resamplings` times, lets hidden and known pixels agree.
250 steps with jumps of 10, 10 times, are 4570 moves, of which the 2410 down evaluate the network.
Masks only. The known pixels are pasted at the end, so that all samples agree with $y$.
"""

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import Chain, sampler, travel_times
from posterior_trees.errors import InputError
from posterior_trees.measure import Inpaint


@sampler
def repaint(chain: Chain, *, steps: int = 250, jump: int = 10, resamplings: int = 10) -> Tensor:
    """`n` samples of every `y`, all of which agree with it. Defaults: the published settings."""
    measurement = chain.measurement
    if not isinstance(measurement, Inpaint):
        raise InputError(
            f"repaint pastes known pixels: it needs Inpaint, not {type(measurement).__name__}; "
            "use ddnm, ddrm or conditional"
        )
    levels, alphas = respace(chain.alpha_bar, steps)
    x = chain.noise()
    for number, (i, i_next) in enumerate(pairwise(travel_times(steps, jump, resamplings))):
        alpha, before = alphas[max(i, i_next) + 1], alphas[max(i, i_next)]
        beta = 1 - alpha / before
        if i_next > i:
            x = math.sqrt(1 - beta) * x + math.sqrt(beta) * chain.noise()
            continue
        if number:
            noise = math.sqrt(1 - alpha) * chain.noise()
            x = measurement.impose(x, math.sqrt(alpha) * chain.known + noise)
        x0 = chain.estimate(x, levels[i])
        x = beta * math.sqrt(before) * x0 + (1 - before) * math.sqrt(1 - beta) * x
        x = x / (1 - alpha)
        if i > 0:
            x = x + math.sqrt(beta * (1 - before) / (1 - alpha)) * chain.noise()
    return chain.impose(x)


def respace(alpha_bar: Float[Tensor, "t"], steps: int) -> tuple[list[int], list[float]]:
    r"""`steps` of the levels, evenly spaced from the first to the last and rounded; and their
    $\bar\alpha$, after the 1 of the clean image."""
    if not 2 <= steps <= len(alpha_bar):
        raise InputError(f"steps is {steps}; this denoiser allows 2 to {len(alpha_bar)}")
    levels = torch.linspace(0, len(alpha_bar) - 1, steps, dtype=torch.float64).round().long()
    return levels.tolist(), [1.0, *alpha_bar.cpu()[levels].tolist()]
