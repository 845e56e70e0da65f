r"""What each sampler gets wrong with a perfect denoiser, measured where the answer is known.

The world is the paper's mixture, `toys.GaussianMixture().normalized()`, of which coordinate 1 is
observed. The truth $p(x_2 \mid x_1)$ is a mixture again; against it we measure, at three values of
$x_1$,

- `w1`, the Wasserstein distance $\int_0^1 \lvert F_n^{-1}(u) - F^{-1}(u) \rvert\, du$,
- `tv`, the total variation between the masses of the modes (cells around the components' $x_2$),
- `sd_ratio`, the standard deviation over the true one: below 1 is under-dispersed.

Rows with `noise` in their name observe coordinate 1 with that much noise: the truth is then a
mixture in both coordinates, and `seen_w1`, `seen_sd_ratio` are those of coordinate 1.

DDNM, DDRM, RePaint, DPS and DiffPIR are *not* exact posterior samplers: a test that asks correct
code for the analytic posterior would fail. `results/baselines/numbers.json` holds what they
do, and the tests pin it.
"""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.measure import Inpaint
from posterior_trees.toys import GaussianMixture, MixtureDenoiser
from posterior_trees_paper.baselines import sampling

OBSERVED = (-2.5, -4.25, -4.0)
"""Values of coordinate 1, in the units of the paper."""

SAMPLERS: dict[str, dict[str, Any]] = {
    "conditional-1000": {"steps": 1000},
    "conditional-100": {"steps": 100},
    "conditional-20": {"steps": 20},
    "ddnm-100": {},
    "ddnm-100-travel-10-10": {"travel_length": 10, "travel_repeat": 10},
    "ddrm-20": {},
    "ddrm-100": {"steps": 100},
    "repaint-250-10-10": {},
    "repaint-250-10-1": {"resamplings": 1},
    "dps-1000-zeta-0.5": {},
    "dps-1000-zeta-0.1": {"zeta": 0.1},
    "dps-1000-zeta-0.03": {"zeta": 0.03},
    "diffpir-100": {},
    "diffpir-20": {"steps": 20},
    "ddnm-100-noise-0.4": {"noise": 0.4},
    "ddrm-20-noise-0.4": {"noise": 0.4},
}
"""Options by name, which begins with the sampler's: every one with its published settings, and the
variants that explain them."""


def measure_bias(name: str, n: int = 40_000, seed: int = 0) -> dict[str, Any]:
    """One row of the table: `name`, `evaluations` per sample, and `w1`, `tv`, `sd_ratio`, each a
    list over the three observations; distances in normalised units."""
    sampler, options = sampling.SAMPLERS[name.partition("-")[0]], SAMPLERS[name]
    denoise, y = MixtureDenoiser(), observations()
    generator = torch.Generator().manual_seed(seed)
    samples = sampler(denoise, HIDE_SECOND, y, n, generator=generator, **options)
    row: dict[str, Any] = {"name": name, "evaluations": denoise.evaluations, "n": n, "seed": seed}
    noise, scores = options.get("noise", 0.0), []
    for x, first in zip(samples, y[:, 0].tolist(), strict=True):
        scores.append(judge(x[:, 1], Line.given(denoise.mixture, first, noise)))
        if noise:
            seen = judge(x[:, 0], Line.seen(denoise.mixture, first, noise))
            scores[-1] |= {f"seen_{key}": seen[key] for key in ("w1", "sd_ratio")}
    return row | {key: [score[key] for score in scores] for key in scores[0]}


def observations() -> Float[Tensor, "3 2"]:
    """The three measurements in normalised units; what the hole shows does not matter."""
    mixture = GaussianMixture()
    first = (torch.tensor(OBSERVED, dtype=torch.float64) - mixture.mean()[0]) / mixture.scale()
    return torch.stack([first, torch.zeros_like(first)], dim=1)


HIDE_SECOND = Inpaint(torch.tensor([False, True]), fill=0.0)


class Line:
    """A mixture on the line: the law of a coordinate, given the first one or a noisy look at it."""

    def __init__(self, weights: Tensor, means: Tensor, variance: float) -> None:
        self.weights, self.means, self.variance = weights, means, variance

    @classmethod
    def given(cls, mixture: GaussianMixture, first: float, noise: float = 0.0) -> "Line":
        """Coordinate 2, given coordinate 1 seen with this much noise."""
        logs, total = mixture.weights.log(), mixture.variance + noise**2
        logs = logs - 0.5 * (first - mixture.means[:, 0]).square() / total
        return cls(logs.softmax(dim=0), mixture.means[:, 1], mixture.variance)

    @classmethod
    def seen(cls, mixture: GaussianMixture, first: float, noise: float) -> "Line":
        """Coordinate 1 itself, given a noisy look at it."""
        share = mixture.variance / (mixture.variance + noise**2)
        centers = mixture.means[:, 0] + share * (first - mixture.means[:, 0])
        return cls(cls.given(mixture, first, noise).weights, centers, share * noise**2)

    def std(self) -> float:
        mean = self.weights @ self.means
        return math.sqrt(self.weights @ (self.means - mean).square() + self.variance)

    def cdf(self, x: Float[Tensor, "s"]) -> Float[Tensor, "s"]:
        offset = (x.unsqueeze(1) - self.means) / math.sqrt(self.variance)
        return torch.special.ndtr(offset) @ self.weights

    def quantile(self, u: Float[Tensor, "s"]) -> Float[Tensor, "s"]:
        """The inverse of `cdf`, by halving."""
        reach = 10 * math.sqrt(self.variance)
        low = torch.full_like(u, self.means.min().item() - reach)
        high = torch.full_like(u, self.means.max().item() + reach)
        for _ in range(60):
            middle = (low + high) / 2
            is_below = self.cdf(middle) < u
            low, high = torch.where(is_below, middle, low), torch.where(is_below, high, middle)
        return (low + high) / 2

    def walls(self) -> Float[Tensor, "m"]:
        """Where the cells of the modes meet: halfway between distinct means."""
        centers = self.means.unique()
        return (centers[1:] + centers[:-1]) / 2


def judge(samples: Float[Tensor, "s"], truth: Line) -> dict[str, float]:
    """`w1`, `tv` and `sd_ratio` of samples on the line."""
    samples = samples.double().sort().values
    u = (torch.arange(len(samples), dtype=samples.dtype) + 0.5) / len(samples)
    edges = truth.cdf(truth.walls())
    found = torch.searchsorted(samples, truth.walls()) / len(samples)
    ends = torch.zeros(1, dtype=samples.dtype), torch.ones(1, dtype=samples.dtype)
    masses, expected = (torch.cat([ends[0], cuts, ends[1]]).diff() for cuts in (found, edges))
    return {
        "w1": (samples - truth.quantile(u)).abs().mean().item(),
        "tv": (masses - expected).abs().sum().item() / 2,
        "sd_ratio": samples.std(correction=0).item() / truth.std(),
    }
