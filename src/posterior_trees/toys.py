r"""A world small enough to know the answer: a Gaussian mixture seen through Gaussian noise.

The clean point is $x \sim \sum_\ell \pi_\ell\,\mathcal N(\mu_\ell, v I)$ and the measurement is
$y = x + \sigma n$ with $n \sim \mathcal N(0, I)$. The posterior is then a mixture again (appendix,
"Analytical Posterior"), and everything a tree claims about it can be checked:

$$ p(x \mid y) = \sum_\ell \omega_\ell(y)\, \mathcal N(x;\, \tilde\mu_\ell(y),\, \tilde v I), \qquad
   \omega_\ell(y) \propto \pi_\ell\, \mathcal N(y;\, \mu_\ell,\, (v + \sigma^2) I), $$

$$ \tilde\mu_\ell(y) = \mu_\ell + \tfrac{v}{v + \sigma^2}\,(y - \mu_\ell), \qquad
   \tilde v = \tfrac{v\,\sigma^2}{v + \sigma^2}. $$

The same mixture has a perfect denoiser for every level of a diffusion process, `MixtureDenoiser`:
what a posterior sampler gets wrong with it is the sampler's own fault.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.baselines.process import alpha_at, linear_alpha_bar
from posterior_trees.errors import InputError
from posterior_trees.measure import Denoise, Inpaint, Measurement

PAPER_MEANS = ((-6.0, 2.5), (1.0, 2.5), (-2.5, 6.0), (-2.5, -1.5))
"""The rhombus of the paper's toy example; its components have equal weights and unit variance."""


class GaussianMixture:
    """An isotropic Gaussian mixture of any dimension; the paper's 2-D rhombus by default. Results
    have the dtype and device of the points that go in. `sample`, which has none, works in float32
    on the generator's device."""

    def __init__(
        self,
        means: Sequence[Sequence[float]] | Float[Tensor, "l d"] = PAPER_MEANS,
        weights: Sequence[float] | Float[Tensor, "l"] | None = None,
        variance: float = 1.0,
    ) -> None:
        self.means = torch.as_tensor(means, dtype=torch.float64)
        count, self.dim = self.means.shape
        given = torch.ones(count) if weights is None else weights
        self.weights = torch.as_tensor(given, dtype=torch.float64)
        self.variance = float(variance)
        if self.weights.shape != (count,) or not (self.weights > 0).all():
            raise InputError(
                f"weights are {self.weights.tolist()}; give one positive number for each of the "
                f"{count} means"
            )
        if not self.variance > 0:
            raise InputError(f"variance is {variance}; a component needs a positive one")
        self.weights = self.weights / self.weights.sum()

    def mean(self) -> Float[Tensor, "d"]:
        """Mean of the prior."""
        return self.weights @ self.means

    def std(self) -> Float[Tensor, "d"]:
        """Standard deviation of every coordinate of the prior."""
        spread = self.weights @ (self.means - self.mean()).square()
        return (spread + self.variance).sqrt()

    def normalized(self) -> "GaussianMixture":
        """The same mixture moved to mean 0 and scaled to the mean variance 1 of its coordinates, as
        diffusion models want their data. `x` becomes `(x - mean()) / scale()`."""
        means = (self.means - self.mean()) / self.scale()
        return GaussianMixture(means, self.weights, self.variance / self.scale() ** 2)

    def scale(self) -> float:
        """Root mean square, over coordinates, of the standard deviation of the prior."""
        return self.std().square().mean().sqrt().item()

    def log_prob(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Log-density of the prior."""
        return self._log_densities(x, self.variance).logsumexp(dim=-1)

    def sample(
        self, n: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "{n} {self.dim}"]:
        """Clean points from the prior."""
        device = generator.device if generator else None
        weights = self.weights.to(device, torch.float32)
        component = weights.multinomial(n, replacement=True, generator=generator)
        noise = torch.randn(n, self.dim, generator=generator, device=device)
        return self.means.to(noise)[component] + math.sqrt(self.variance) * noise

    def posterior_mean(self, y: Float[Tensor, "b d"], sigma: float) -> Float[Tensor, "b d"]:
        r"""The best single answer, $\mathbb E[x \mid y] = \sum_\ell \omega_\ell \tilde\mu_\ell$."""
        log_weights, centers, _ = self._posterior(y, sigma)
        return (log_weights.exp().unsqueeze(2) * centers).sum(dim=1)

    def sample_posterior(
        self, y: Float[Tensor, "b d"], sigma: float, n: int,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b {n} d"]:  # fmt: skip
        """`n` exact posterior samples for every measurement."""
        log_weights, centers, variance = self._posterior(y, sigma)
        device = generator.device if generator else y.device
        weights = log_weights.exp().to(device)
        component = weights.multinomial(n, replacement=True, generator=generator).to(y.device)
        noise = torch.randn(len(y), n, self.dim, generator=generator, device=device, dtype=y.dtype)
        chosen = centers.gather(1, component.unsqueeze(2).expand(-1, -1, self.dim))
        return chosen + math.sqrt(variance) * noise.to(y.device)

    def posterior_log_prob(
        self, x: Float[Tensor, "#b *s d"], y: Float[Tensor, "#b d"], sigma: float
    ) -> Float[Tensor, "_ *s"]:
        """Log-density of the posterior of each `y` at its own points, `(b, d)` or `(b, s, d)`. A
        batch of one on either side goes with all of the other."""
        log_weights, centers, variance = self._posterior(y, sigma)
        between = (slice(None), *[None] * (x.ndim - 2))  # an axis for each of the points'
        log_normals = _log_normal(x.unsqueeze(-2) - centers[between], variance)
        return (log_weights[between] + log_normals).logsumexp(dim=-1)

    def _log_densities(self, x: Tensor, variance: float) -> Tensor:
        r"""$\ln \pi_\ell + \ln \mathcal N(x; \mu_\ell, \text{variance}\, I)$ of each component."""
        offset = x.unsqueeze(-2) - self.means.to(x)
        return self.weights.to(x).log() + _log_normal(offset, variance)

    def _posterior(self, y: Tensor, sigma: float) -> tuple[Tensor, Tensor, float]:
        r"""$\ln \omega_\ell(y)$, $\tilde\mu_\ell(y)$ and $\tilde v$."""
        if not sigma > 0:
            raise InputError(f"sigma is {sigma}; the noise needs a positive standard deviation")
        total = self.variance + sigma**2
        log_weights = self._log_densities(y, total).log_softmax(dim=-1)
        means = self.means.to(y)
        centers = means + self.variance / total * (y.unsqueeze(-2) - means)
        return log_weights, centers, self.variance * sigma**2 / total


def _log_normal(offset: Tensor, variance: float) -> Tensor:
    """Log-density of an isotropic Gaussian at this offset from its mean."""
    constant = offset.shape[-1] * math.log(2 * math.pi * variance)
    return -0.5 * (offset.square().sum(dim=-1) / variance + constant)


class MixtureDenoiser:
    r"""The perfect denoiser of a Gaussian mixture, behind the interface that samplers share.

    With $x_t = \sqrt{\bar\alpha}\, x_0 + \sqrt{1-\bar\alpha}\, e$ and
    $w = \bar\alpha v + 1 - \bar\alpha$,

    $$ \mathbb E[x_0 \mid x_t] = \sum_\ell \omega_\ell
       \Bigl(\mu_\ell + \tfrac{\sqrt{\bar\alpha}\, v}{w}
       (x_t - \sqrt{\bar\alpha}\, \mu_\ell)\Bigr), \qquad
       \omega_\ell \propto \pi_\ell\, \mathcal N(x_t;\, \sqrt{\bar\alpha}\, \mu_\ell,\, w I) . $$

    Works in the mixture's own scale: that of the paper's mixture, `normalized()`, unless another
    one is given. `evaluations` counts the calls.
    """

    def __init__(
        self, mixture: GaussianMixture | None = None, alpha_bar: Float[Tensor, "t"] | None = None
    ) -> None:
        self.mixture = GaussianMixture().normalized() if mixture is None else mixture
        self.alpha_bar = linear_alpha_bar() if alpha_bar is None else alpha_bar
        self.evaluations = 0

    def __call__(self, x_t: Float[Tensor, "b d"], t: int | Tensor) -> Float[Tensor, "b d"]:
        """The mean of the clean point, given the noisy one at level `t` (one, or one for each)."""
        log_weights, centers = self._components(x_t, t)
        return self._mean(log_weights.sum(dim=-1), centers)

    def given(
        self, measurement: Measurement, y: Float[Tensor, "b d"]
    ) -> Callable[[Tensor, int], Tensor]:
        r"""The conditional denoiser $\mathbb E[x_0 \mid x_t, y]$ as a function of `(x_t, t)`. A
        hole: known coordinates are $y$, and weigh the components by $\mathcal N(y; \mu_\ell, v)$ in
        place of what $x_t$ says there. Noise: $y$ is a second noisy look at $x_0$."""
        if isinstance(measurement, Inpaint):
            hole = measurement.hole.to(y.device)
            seen = _log_normals(y.unsqueeze(-2) - self.mixture.means.to(y), self.mixture.variance)

            def denoise(x_t: Tensor, t: int) -> Tensor:
                log_weights, centers = self._components(x_t, t)
                log_weights = torch.where(hole, log_weights, seen).sum(dim=-1)
                return torch.where(hole, self._mean(log_weights, centers), y)

            return denoise
        if isinstance(measurement, Denoise):
            return lambda x_t, t: self._denoise_twice(x_t, t, y, float(measurement.sigma) ** 2)
        raise InputError(f"the mixture is seen through Inpaint or Denoise, not {measurement}")

    def _components(self, x_t: Tensor, t: int | Tensor) -> tuple[Tensor, Tensor]:
        """Log-density of each coordinate under, and mean of x₀ in, every component."""
        self.evaluations += 1
        alpha = self.alpha_bar.to(x_t.device)[t].to(x_t).reshape(-1, 1, 1)
        means, v = self.mixture.means.to(x_t), self.mixture.variance
        total = alpha * v + 1 - alpha
        offset = x_t.unsqueeze(-2) - alpha.sqrt() * means
        return _log_normals(offset, total), means + alpha.sqrt() * v / total * offset

    def _mean(self, log_weights: Tensor, centers: Tensor) -> Tensor:
        weights = (log_weights + self.mixture.weights.to(log_weights).log()).softmax(dim=-1)
        return (weights.unsqueeze(-1) * centers).sum(dim=-2)

    def _denoise_twice(self, x_t: Tensor, t: int, y: Tensor, noise: float) -> Tensor:
        """Two looks of independent noise are one look at their mean, weighted by precision."""
        self.evaluations += 1
        alpha = alpha_at(self.alpha_bar, t)
        precision = alpha / (1 - alpha) + 1 / noise
        look = (math.sqrt(alpha) / (1 - alpha) * x_t + y / noise) / precision
        return self.mixture.posterior_mean(look, precision**-0.5)


def _log_normals(offset: Tensor, variance: float | Tensor) -> Tensor:
    """Log-density of each coordinate, up to a constant common to all components."""
    return -0.5 * offset.square() / variance
