r"""The reverse chain: from noise to a clean sample (DDPM, Ho et al. 2020; DDIM, Song et al. 2021).

From level $t$ to a lower one $t'$, with $\hat x_0$ and $e$ of the denoiser and fresh $z$:

$$ x_{t'} = \sqrt{\bar\alpha'}\, \hat x_0 + \sqrt{1-\bar\alpha'-\sigma^2}\; e + \sigma z, \qquad
   \sigma^2 = \eta^2\, \frac{1-\bar\alpha'}{1-\bar\alpha}
              \Bigl(1 - \frac{\bar\alpha}{\bar\alpha'}\Bigr) . $$

$\eta = 1$ is ancestral sampling; $\eta = 0$ is deterministic. With an exact denoiser and many steps
the chain draws from the prior. Two more uses are exact as well: started at the level whose noise is
that of a measurement $y = x + \sigma_y n$, from $x_t = \sqrt{\bar\alpha}\, y$, it draws from the
*denoising posterior* (only with $\eta = 1$: a deterministic chain returns one point); run with a
denoiser that sees the measurement, in the manner of Palette (Saharia et al. 2022), it draws from
any posterior (`conditional`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import Chain, Clip, Denoiser, noise_in, sampler, spaced_times
from posterior_trees.measure import Measurement


def reverse(
    chain: Chain, estimate: Callable[[Tensor, int], Tensor], x: Float[Tensor, "bn *shape"],
    times: Sequence[int], eta: float | int,
) -> Float[Tensor, "bn *shape"]:  # fmt: skip
    """Walk `x` down the levels `times`, by estimates of the clean image."""
    for t, alpha, alpha_next in chain.moves(times):
        x0 = estimate(x, t)
        sigma = eta * math.sqrt((1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next))
        x_next = math.sqrt(alpha_next) * x0
        x_next += math.sqrt(max(1 - alpha_next - sigma**2, 0.0)) * noise_in(x, x0, alpha)
        x = x_next + sigma * chain.noise() if sigma else x_next
    return x


@torch.no_grad()
def unconditional(
    denoise: Denoiser, like: Float[Tensor, "n *shape"], *, steps: int = 100, eta: float | int = 1.0,
    generator: torch.Generator | None = None, clip: Clip = None,
) -> Float[Tensor, "n *shape"]:  # fmt: skip
    """Samples of the prior itself, as many and of the shape, dtype and device of `like`."""
    chain = Chain(denoise, Measurement(), like, 1, generator, clip)
    return reverse(chain, chain.estimate, chain.noise(), spaced_times(chain.levels, steps), eta)


@partial(sampler, is_exact=False)
def denoising(chain: Chain, *, steps: int = 100, eta: float | int = 1.0) -> Tensor:
    """Exact posterior samples of `y = x + noise`, for any denoiser of the prior.
    `measurement.sigma` is in the denoiser's own scale. The chain has at most `steps` steps."""
    ratios = ((1 - chain.alpha_bar) / chain.alpha_bar).sqrt()  # of noise to image
    start = int((ratios.log() - math.log(chain.measurement.noise)).abs().argmin())
    below = spaced_times(start, min(steps - 1, start)) if min(steps - 1, start) else [-1]
    x = math.sqrt(chain.alpha(start)) * chain.known
    return reverse(chain, chain.estimate, x, [start, *below], eta)


@partial(sampler, is_exact=False)
def conditional(chain: Chain, *, steps: int = 100, eta: float | int = 1.0) -> Tensor:
    r"""The only sampler here that is unbiased in the limit of a perfect network and many steps and
    works for every measurement, paired data included. It learns from the same pairs as a tree does:
    it is the baseline to beat. No guidance, which would narrow the samples and falsify the
    probabilities. `denoise` is asked for $\mathbb E[x_0 \mid x_t, y]$ through
    `denoise.given(measurement, y)` if it has that method, else as `denoise(x_t, t, y)`. Below about
    50 steps $\eta = 1$ loses 5 to 10 % of the spread; $\eta = 0$ is valid too, since chance enters
    through the first $x$."""
    asked: Any = chain.denoise
    given = getattr(asked, "given", None)
    known = chain.known
    posterior = given(chain.measurement, known) if given else lambda x, t: asked(x, t, known)

    def estimate(x: Tensor, t: int) -> Tensor:
        # Imposed first: a network that learned what y leaves open says anything of the rest, and a
        # clip would carry that from a pixel's grey into its colours.
        return chain.impose(chain.clamp(chain.impose(posterior(x, t))))

    return reverse(chain, estimate, chain.noise(), spaced_times(chain.levels, steps), eta)
