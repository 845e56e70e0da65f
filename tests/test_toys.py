"""The mixture's closed forms against each other: moments, Bayes' rule, limits of the noise."""

import math

import pytest
import torch

from posterior_trees.toys import GaussianMixture

LOPSIDED = GaussianMixture([[0.0, 1.0], [4.0, -2.0], [-3.0, 0.5]], [0.5, 0.3, 0.2], variance=0.7)
MIXTURES = {"paper": GaussianMixture(), "lopsided": LOPSIDED}
SIGMA = 2.0


@pytest.fixture(params=list(MIXTURES))
def mixture(request: pytest.FixtureRequest) -> GaussianMixture:
    return MIXTURES[request.param]


def measurements(count: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return 4 * torch.randn(count, 2, generator=generator, dtype=torch.float64)


def grid(center: torch.Tensor, radius: float = 12.0, side: int = 241) -> tuple[torch.Tensor, float]:
    """Points of a square around the center, and the area of each."""
    axis = torch.linspace(-radius, radius, side, dtype=center.dtype)
    points = torch.cartesian_prod(axis, axis) + center
    return points, (2 * radius / (side - 1)) ** 2


def test_the_default_is_the_papers_rhombus() -> None:
    mixture = GaussianMixture()
    assert mixture.means.tolist() == [[-6.0, 2.5], [1.0, 2.5], [-2.5, 6.0], [-2.5, -1.5]]
    assert mixture.weights.tolist() == [0.25] * 4
    assert mixture.variance == 1.0


def test_samples_have_the_moments_of_the_prior(mixture: GaussianMixture) -> None:
    n = 200_000
    x = mixture.sample(n, torch.Generator().manual_seed(0)).double()
    standard_error = mixture.std() / math.sqrt(n)
    assert ((x.mean(dim=0) - mixture.mean()).abs() < 4 * standard_error).all()
    assert torch.allclose(x.std(dim=0), mixture.std(), rtol=0.01)


def test_the_prior_integrates_to_one_and_has_its_moments(mixture: GaussianMixture) -> None:
    points, area = grid(mixture.mean(), radius=20.0, side=401)
    mass = mixture.log_prob(points).exp() * area
    assert mass.sum().item() == pytest.approx(1.0, abs=1e-9)
    mean = mass @ points
    assert torch.allclose(mean, mixture.mean(), atol=1e-8)
    assert torch.allclose((mass @ (points - mean).square()).sqrt(), mixture.std(), atol=1e-8)


def test_the_posterior_integrates_to_one_and_to_its_mean(mixture: GaussianMixture) -> None:
    y = measurements()
    points, area = grid(mixture.mean(), radius=16.0, side=321)
    mass = mixture.posterior_log_prob(points.expand(len(y), -1, -1), y, SIGMA).exp() * area
    assert torch.allclose(mass.sum(dim=1), torch.ones(len(y)).double(), atol=1e-9)
    assert torch.allclose(mass @ points, mixture.posterior_mean(y, SIGMA), atol=1e-8)


def test_the_posterior_is_bayes_rule(mixture: GaussianMixture) -> None:
    """ln p(x|y) − ln p(x) − ln p(y|x) does not depend on x; it is −ln p(y)."""
    y = measurements()
    x = mixture.means.mean(dim=0) + 3 * torch.randn(len(y), 50, 2, dtype=torch.float64)
    squares = (y.unsqueeze(1) - x).square().sum(dim=2)
    log_likelihood = -squares / (2 * SIGMA**2) - math.log(2 * math.pi * SIGMA**2)
    log_evidence = mixture.log_prob(x) + log_likelihood - mixture.posterior_log_prob(x, y, SIGMA)
    wider = GaussianMixture(mixture.means, mixture.weights, mixture.variance + SIGMA**2)
    assert torch.allclose(log_evidence, wider.log_prob(y).unsqueeze(1).expand(-1, 50), atol=1e-10)


def test_posterior_samples_average_to_the_posterior_mean(mixture: GaussianMixture) -> None:
    y, n = measurements(8), 40_000
    x = mixture.sample_posterior(y, SIGMA, n, torch.Generator().manual_seed(1))
    assert x.shape == (8, n, 2)
    assert x.dtype == y.dtype
    standard_error = x.std(dim=1) / math.sqrt(n)
    error = (x.mean(dim=1) - mixture.posterior_mean(y, SIGMA)).abs()
    assert (error < 4.5 * standard_error).all()


def test_posterior_samples_have_the_posterior_density(mixture: GaussianMixture) -> None:
    """The mean of −ln p over samples is the entropy, here integrated on a grid."""
    y = measurements(2)
    points, area = grid(mixture.mean(), radius=16.0, side=321)
    log_prob = mixture.posterior_log_prob(points.expand(2, -1, -1), y, SIGMA)
    entropy = -(log_prob.exp() * log_prob * area).sum(dim=1)
    x = mixture.sample_posterior(y, SIGMA, 40_000, torch.Generator().manual_seed(2))
    surprise = -mixture.posterior_log_prob(x, y, SIGMA)
    standard_error = surprise.std(dim=1) / 200
    assert ((surprise.mean(dim=1) - entropy).abs() < 4 * standard_error).all()


def test_pairs_from_the_prior_and_from_the_posterior_have_one_law(mixture: GaussianMixture) -> None:
    """Drawing x then y, or y then x given y, gives the same covariance of x and y."""
    n = 100_000
    generator = torch.Generator().manual_seed(4)
    x = mixture.sample(n, generator)
    y = x + SIGMA * torch.randn(n, 2, generator=generator)
    again = mixture.sample_posterior(y, SIGMA, 1, generator)[:, 0]

    def covariance(points: torch.Tensor) -> torch.Tensor:
        return torch.cov(torch.cat([points, y], dim=1).T)

    assert torch.allclose(covariance(again), covariance(x), atol=0.25)
    assert torch.allclose(covariance(again)[:2, 2:], torch.cov(x.T), atol=0.25)


def test_without_noise_the_posterior_is_the_measurement(mixture: GaussianMixture) -> None:
    y = measurements()
    assert torch.allclose(mixture.posterior_mean(y, 1e-4), y, atol=1e-6)
    x = mixture.sample_posterior(y, 1e-4, 1000, torch.Generator().manual_seed(0))
    assert (x - y.unsqueeze(1)).abs().max() < 6e-4


def test_in_pure_noise_the_posterior_is_the_prior(mixture: GaussianMixture) -> None:
    y = measurements()
    x = mixture.means.expand(len(y), -1, -1)
    assert torch.allclose(mixture.posterior_mean(y, 1e6), mixture.mean().expand(len(y), -1))
    assert torch.allclose(mixture.posterior_log_prob(x, y, 1e6), mixture.log_prob(x), atol=1e-6)


def test_one_gaussian_shrinks_towards_its_mean() -> None:
    mixture = GaussianMixture([[1.0, -1.0, 2.0]], variance=3.0)
    y = torch.tensor([[4.0, 2.0, -1.0]], dtype=torch.float64)
    expected = torch.tensor([[2.0, 0.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(mixture.posterior_mean(y, math.sqrt(6.0)), expected)


def test_log_prob_takes_one_point_or_many_per_measurement() -> None:
    mixture, y = GaussianMixture(), measurements(3)
    x = mixture.sample_posterior(y, SIGMA, 5)
    many = mixture.posterior_log_prob(x, y, SIGMA)
    assert many.shape == (3, 5)
    assert torch.equal(mixture.posterior_log_prob(x[:, 2], y, SIGMA), many[:, 2])
    assert torch.equal(mixture.posterior_log_prob(x[1], y[1:2], SIGMA), many[1])


def test_a_far_measurement_stays_finite() -> None:
    mixture = GaussianMixture()
    y = torch.tensor([[1e4, -1e4]])
    assert mixture.posterior_mean(y, SIGMA).isfinite().all()
    assert mixture.sample_posterior(y, SIGMA, 10).isfinite().all()


def test_the_generator_decides_the_samples() -> None:
    mixture, y = GaussianMixture(), measurements()
    for draw in (
        lambda g: mixture.sample(5, g),
        lambda g: mixture.sample_posterior(y, SIGMA, 5, g),
    ):
        first, second, other = (draw(torch.Generator().manual_seed(s)) for s in (0, 0, 1))
        assert torch.equal(first, second)
        assert not torch.equal(first, other)


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="sigma is -1"):
        GaussianMixture().posterior_mean(measurements(), -1.0)
    with pytest.raises(ValueError, match="variance is 0"):
        GaussianMixture(variance=0.0)
    with pytest.raises(ValueError, match="one positive number for each of the 4 means"):
        GaussianMixture(weights=[0.5, 0.5])
