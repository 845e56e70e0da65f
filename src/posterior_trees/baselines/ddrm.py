r"""DDRM: a diffusion chain in the singular vectors of $A$ (Kawar, Elad, Ermon, Song; NeurIPS 2022).

In the scale $\bar x = x_t / \sqrt{\bar\alpha}$, with noise of
$\sigma^2 = (1-\bar\alpha)/\bar\alpha$, components that $A$ cannot see follow the prior and the
others follow $y$, whose noise along a singular vector of value $d$ is $\tau = \sigma_y / d$:

$$ \text{unseen:}\quad \bar x' = \hat x_0 + \sigma' \bigl(\sqrt{1-\eta^2}\; e + \eta z\bigr), $$
$$ \text{seen, } \sigma' \ge \tau:\quad \bar x' = (1-\eta_b)\, \hat x_0 + \eta_b\, A^\dagger y
   + \sqrt{\sigma'^2 - \eta_b^2 \tau^2}\; z, $$
$$ \text{seen, } \sigma' < \tau:\quad \bar x' = \hat x_0
   + \sqrt{1-\eta^2}\, \tfrac{\sigma'}{\tau} (A^\dagger y - \hat x_0) + \eta \sigma' z . $$

The update is the same in every orthonormal basis of either space, so the projections of
`Measurement` replace the SVD. Without noise $\sigma' = 0$ at the last step and the seen part is $y$
itself (the published code's strict comparisons miss that case). With $\eta_b = 1$ this is DDNM with
fresh noise on the seen part, so at equal steps they are alike (with noise, DDNM+ is the very same
chain); its published 20 steps make it worse.
"""

import math

from torch import Tensor

from posterior_trees.baselines.process import Chain, noise_in, sampler, seen_noise, spaced_times


@sampler
def ddrm(
    chain: Chain, *, steps: int = 20, eta: float | int = 0.85, eta_b: float | int = 1.0,
    noise: float | int = 0.0,
) -> Tensor:  # fmt: skip
    """All samples agree with `y` unless it has noise (`noise`, its standard deviation in the
    denoiser's scale). Defaults: the published settings."""
    times, tau = spaced_times(chain.levels, steps), seen_noise(chain.measurement, noise)
    project = chain.measurement.project
    seen = chain.plain - project(chain.plain)
    alpha = chain.alpha(times[0])
    sigma = math.sqrt((1 - alpha) / alpha)
    scaled = sigma * chain.noise()
    if sigma > tau:  # what is seen is less noisy than the first level: begin about it
        narrow = math.sqrt(1 - (tau / sigma) ** 2) * scaled
        scaled = seen + narrow + project(scaled - narrow)
    for t, alpha, alpha_next in chain.moves(times):
        x = math.sqrt(alpha) * scaled
        x0 = chain.estimate(x, t)
        e, z = noise_in(x, x0, alpha), chain.noise()
        sigma = math.sqrt((1 - alpha_next) / alpha_next)
        unseen = x0 + sigma * (math.sqrt(1 - eta**2) * e + eta * z)
        if sigma >= tau:
            trust, deviation = eta_b, math.sqrt(sigma**2 - (eta_b * tau) ** 2)
        else:
            trust, deviation = math.sqrt(1 - eta**2) * sigma / tau, eta * sigma
        guided = (1 - trust) * x0 + deviation * z
        scaled = trust * seen + guided + project(unseen - guided)
    return scaled if noise else chain.impose(scaled)
