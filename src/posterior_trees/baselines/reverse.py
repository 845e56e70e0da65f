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
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import (
    Clip,
    Denoiser,
    alpha_at,
    clamp,
    noise_in,
    normal_like,
    spaced_times,
    spread,
)
from posterior_trees.measure import Denoise, Measurement


def reverse(
    denoise: Callable[[Tensor, int], Tensor], alpha_bar: Float[Tensor, "t"],
    x: Float[Tensor, "bn *shape"], times: Sequence[int], eta: float | int,
    generator: torch.Generator | None, correct: Callable[[Tensor], Tensor],
) -> Float[Tensor, "bn *shape"]:  # fmt: skip
    """Walk `x` down the levels `times`; `correct` may change each estimate of the clean image."""
    for t, t_next in pairwise(times):
        alpha, alpha_next = alpha_at(alpha_bar, t), alpha_at(alpha_bar, t_next)
        x0 = correct(denoise(x, t))
        sigma = eta * math.sqrt((1 - alpha_next) / (1 - alpha) * (1 - alpha / alpha_next))
        x_next = math.sqrt(alpha_next) * x0
        x_next += math.sqrt(max(1 - alpha_next - sigma**2, 0.0)) * noise_in(x, x0, alpha)
        x = x_next + sigma * normal_like(x, generator) if sigma else x_next
    return x


@torch.no_grad()
def unconditional(
    denoise: Denoiser, like: Float[Tensor, "n *shape"], *, steps: int = 100, eta: float | int = 1.0,
    generator: torch.Generator | None = None, clip: Clip = None,
) -> Float[Tensor, "n *shape"]:  # fmt: skip
    """Samples of the prior itself, as many and of the shape, dtype and device of `like`."""
    times = spaced_times(len(denoise.alpha_bar), steps)
    x = normal_like(like, generator)
    correct = partial(clamp, clip=clip)
    return reverse(denoise, denoise.alpha_bar, x, times, eta, generator, correct)


@torch.no_grad()
def denoising(
    denoise: Denoiser, measurement: Denoise, y: Float[Tensor, "b *shape"], n: int, *,
    steps: int = 100, eta: float | int = 1.0, generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape"]:  # fmt: skip
    """Exact posterior samples of `y = x + noise`, for any denoiser of the prior.

    `measurement.sigma` is in the denoiser's own scale. The chain has at most `steps` steps.
    """
    ratios = ((1 - denoise.alpha_bar) / denoise.alpha_bar).sqrt()  # of noise to image
    start = int((ratios.log() - math.log(measurement.sigma)).abs().argmin())
    below = spaced_times(start, min(steps - 1, start)) if min(steps - 1, start) else [-1]
    x = math.sqrt(alpha_at(denoise.alpha_bar, start)) * spread(y, n)
    times, correct = [start, *below], partial(clamp, clip=clip)
    samples = reverse(denoise, denoise.alpha_bar, x, times, eta, generator, correct)
    return samples.unflatten(0, (-1, n))


@torch.no_grad()
def conditional(
    denoise: Denoiser, measurement: Measurement, y: Float[Tensor, "b *shape"], n: int, *,
    steps: int = 100, eta: float | int = 1.0, generator: torch.Generator | None = None,
    clip: Clip = None,
) -> Float[Tensor, "b {n} *shape2"]:  # fmt: skip
    r"""`n` posterior samples of every `y`: the only sampler here that is unbiased in the limit of a
    perfect network and many steps and works for every measurement, paired data included. It learns
    from the same pairs as a tree does: it is the baseline to beat. No guidance, which would narrow
    the samples and falsify the probabilities.

    `denoise` is asked for $\mathbb E[x_0 \mid x_t, y]$ through `denoise.given(measurement, y)` if
    it has that method, else as `denoise(x_t, t, y)`. Below about 50 steps $\eta = 1$ loses 5 to
    10 % of the spread; $\eta = 0$ is valid too, since chance enters through the first $x$.
    """
    asked: Any = denoise
    known = spread(y, n)
    given = getattr(asked, "given", None)
    posterior = given(measurement, known) if given else lambda x_t, t: asked(x_t, t, known)
    x = normal_like(spread(measurement.naive(y), n), generator)
    times = spaced_times(len(denoise.alpha_bar), steps)

    def correct(x0: Tensor) -> Tensor:
        return measurement.impose(clamp(x0, clip), known)

    x = reverse(posterior, denoise.alpha_bar, x, times, eta, generator, correct)
    return x.unflatten(0, (-1, n))
