r"""A world small enough to know the answer: a Gaussian mixture seen through Gaussian noise.

The clean point is $x \sim \sum_\ell \pi_\ell\,\mathcal N(\mu_\ell, v I)$ and the measurement is
$y = x + \sigma n$ with $n \sim \mathcal N(0, I)$. The posterior is then a mixture again (appendix,
"Analytical Posterior"), and everything a tree claims about it can be checked:

$$ p(x \mid y) = \sum_\ell \omega_\ell(y)\, \mathcal N\bigl(x;\, \tilde\mu_\ell(y),\, \tilde v I\bigr),
   \qquad \omega_\ell(y) \propto \pi_\ell\, \mathcal N\bigl(y;\, \mu_\ell, (v + \sigma^2) I\bigr), $$

$$ \tilde\mu_\ell(y) = \mu_\ell + \tfrac{v}{v + \sigma^2}\,(y - \mu_\ell), \qquad
   \tilde v = \tfrac{v\,\sigma^2}{v + \sigma^2}. $$
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

PAPER_MEANS = ((-6.0, 2.5), (1.0, 2.5), (-2.5, 6.0), (-2.5, -1.5))
"""The rhombus of the paper's toy example; its components have equal weights and unit variance."""


class GaussianMixture:
    """An isotropic Gaussian mixture of any dimension; the paper's 2-D rhombus by default.

    Results have the dtype and device of the points that go in. `sample`, which has none, works in
    float32 on the generator's device.
    """

    def __init__(
        self,
        means: Sequence[Sequence[float]] | Float[Tensor, "l d"] = PAPER_MEANS,
        weights: Sequence[float] | Float[Tensor, "l"] | None = None,
        variance: float = 1.0,
    ) -> None:
        self.means = torch.as_tensor(means, dtype=torch.float64)
        count = len(self.means)
        given = torch.ones(count) if weights is None else weights
        self.weights = torch.as_tensor(given, dtype=torch.float64)
        self.variance = float(variance)
        if self.weights.shape != (count,) or not (self.weights > 0).all():
            raise ValueError(
                f"weights are {self.weights.tolist()}; give one positive number for each of the "
                f"{count} means"
            )
        if not self.variance > 0:
            raise ValueError(f"variance is {variance}; a component needs a positive one")
        self.weights = self.weights / self.weights.sum()

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    def mean(self) -> Float[Tensor, "d"]:
        """Mean of the prior."""
        return self.weights @ self.means

    def std(self) -> Float[Tensor, "d"]:
        """Standard deviation of every coordinate of the prior."""
        spread = self.weights @ (self.means - self.mean()).square()
        return (spread + self.variance).sqrt()

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
        self,
        y: Float[Tensor, "b d"],
        sigma: float,
        n: int,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b {n} d"]:
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
        """Log-density of the posterior of each `y` at its own points, `(b, d)` or `(b, s, d)`.

        A batch of one on either side goes with all of the other.
        """
        log_weights, centers, variance = self._posterior(y, sigma)
        between = [1] * (x.ndim - 2)
        log_weights = log_weights.reshape(len(y), *between, -1)
        centers = centers.reshape(len(y), *between, *centers.shape[1:])
        log_normals = _log_normal(x.unsqueeze(-2) - centers, variance)
        return (log_weights + log_normals).logsumexp(dim=-1)

    def _log_densities(self, x: Tensor, variance: float) -> Tensor:
        r"""$\ln \pi_\ell + \ln \mathcal N(x; \mu_\ell, \text{variance}\, I)$ for every component."""
        offset = x.unsqueeze(-2) - self.means.to(x)
        return self.weights.to(x).log() + _log_normal(offset, variance)

    def _posterior(self, y: Tensor, sigma: float) -> tuple[Tensor, Tensor, float]:
        r"""$\ln \omega_\ell(y)$, $\tilde\mu_\ell(y)$ and $\tilde v$."""
        if not sigma > 0:
            raise ValueError(f"sigma is {sigma}; the noise needs a positive standard deviation")
        total = self.variance + sigma**2
        log_weights = self._log_densities(y, total).log_softmax(dim=-1)
        means = self.means.to(y)
        centers = means + self.variance / total * (y.unsqueeze(-2) - means)
        return log_weights, centers, self.variance * sigma**2 / total


def _log_normal(offset: Tensor, variance: float) -> Tensor:
    """Log-density of an isotropic Gaussian at this offset from its mean."""
    constant = offset.shape[-1] * math.log(2 * math.pi * variance)
    return -0.5 * (offset.square().sum(dim=-1) / variance + constant)
