"""Posterior samplers with a perfect denoiser: what is exact, and how far off the others are."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from posterior_trees_paper.baselines import bias
from posterior_trees_paper.baselines.learned import distances
from torch import Tensor

from posterior_trees import toys
from posterior_trees.baselines import (
    conditional,
    cosine_alpha_bar,
    ddnm,
    ddrm,
    denoising,
    diffpir,
    dps,
    linear_alpha_bar,
    repaint,
    unconditional,
)
from posterior_trees.baselines.diffpir import quad_times
from posterior_trees.baselines.dps import _estimate
from posterior_trees.baselines.process import (
    Chain,
    Denoiser,
    alpha_at,
    seen_noise,
    spaced_times,
    travel_times,
)
from posterior_trees.baselines.repaint import respace
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Paired

TABLE = json.loads(
    (Path(__file__).parents[1] / "results" / "baselines" / "numbers.json").read_text()
)["mixture_bias"]
ROWS = {row["name"]: row for row in TABLE}
ERRORS = {"w1": 0.021, "tv": 0.008, "sd_ratio": 0.012, "seen_w1": 0.01, "seen_sd_ratio": 0.012}
"""One Monte-Carlo error of 4000 samples."""
QUICK = {"steps": 8}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Shrinker:
    """A denoiser of white Gaussian images, of any shape: E[x0 | x_t] = √ᾱ x_t."""

    def __init__(self) -> None:
        self.alpha_bar = linear_alpha_bar()
        self.evaluations = 0

    def __call__(self, x_t: torch.Tensor, t: int, y: torch.Tensor | None = None) -> torch.Tensor:
        self.evaluations += 1
        return alpha_at(self.alpha_bar, t) ** 0.5 * x_t


class Offset(Shrinker):
    """One that is off by the same everywhere and always."""

    def __init__(self, wrong: torch.Tensor) -> None:
        super().__init__()
        self.wrong = wrong

    def __call__(self, x_t: torch.Tensor, t: int, y: torch.Tensor | None = None) -> torch.Tensor:
        return super().__call__(x_t, t, y) + self.wrong


def test_the_linear_schedule_is_that_of_ddpm() -> None:
    alpha_bar = linear_alpha_bar()
    assert alpha_bar.dtype == torch.float64
    assert alpha_bar[0].item() == pytest.approx(1 - 1e-4)
    assert alpha_bar[999].item() == pytest.approx(4.04e-5, rel=0.01)
    assert linear_alpha_bar(500)[-1].item() == pytest.approx(4e-5, rel=0.1)
    assert (alpha_bar.diff() < 0).all()
    assert (cosine_alpha_bar().diff() < 0).all()
    assert cosine_alpha_bar()[500].item() == pytest.approx(0.49, abs=0.01)


def test_times_are_evenly_spaced_and_as_many_as_asked() -> None:
    assert spaced_times(1000, 100) == [*range(990, -1, -10), -1]
    assert spaced_times(1000, 20)[:2] == [950, 900]
    for steps in (1, 7, 30, 999, 1000):
        times = spaced_times(1000, steps)
        assert len(times) == steps + 1
        assert times == sorted(set(times), reverse=True)
    with pytest.raises(ValueError, match="steps is 1001; this denoiser has 1 to 1000"):
        spaced_times(1000, 1001)


@pytest.mark.parametrize(
    ("levels", "length", "repeat", "down", "up"),
    [
        (250, 10, 10, 2410, 2160),
        (100, 10, 10, 910, 810),
        (100, 10, 3, 280, 180),
        (50, 5, 5, 230, 180),
        (25, 5, 5, 105, 80),
        (100, 1, 3, 298, 198),
        (100, 1, 1, 100, 0),
    ],
)
def test_resampling_visits_as_many_levels_as_published(levels, length, repeat, down, up) -> None:
    times = travel_times(levels, length, repeat)
    moves = [b - a for a, b in pairwise(times)]
    assert (moves.count(-1), moves.count(1), len(moves)) == (down, up, down + up)
    assert times[0] == levels - 1
    assert times[-2:] == [0, -1]


def test_the_mixture_denoiser_follows_tweedie() -> None:
    r"""E[x0 | x_t] = (x_t + (1-ᾱ) ∇ log p(x_t)) / √ᾱ, with p(x_t) the noisy mixture's density."""
    denoise = toys.MixtureDenoiser()
    for t in (0, 10, 300, 600, 999):
        alpha = alpha_at(denoise.alpha_bar, t)
        noisy = toys.GaussianMixture(
            denoise.mixture.means * math.sqrt(alpha),
            denoise.mixture.weights,
            alpha * denoise.mixture.variance + 1 - alpha,
        )
        x = 2 * torch.randn(50, 2, dtype=torch.float64, generator=seeded(t))
        x.requires_grad_()
        (score,) = torch.autograd.grad(noisy.log_prob(x).sum(), x)
        expected = (x + (1 - alpha) * score) / math.sqrt(alpha)
        torch.testing.assert_close(denoise(x, t), expected, rtol=0, atol=1e-9)
        torch.testing.assert_close(denoise(x, torch.full((50,), t)), denoise(x, t))
    assert denoise.evaluations == 5 + 10
    assert isinstance(denoise, Denoiser)


def test_a_known_coordinate_leaves_a_mixture_on_the_line() -> None:
    denoise = toys.MixtureDenoiser()
    y = bias.observations()[1:2].repeat(40, 1)
    line = bias.Line.given(denoise.mixture, y[0, 0].item())
    on_line = toys.MixtureDenoiser(
        toys.GaussianMixture(line.means.unsqueeze(1), line.weights, line.variance)
    )
    x = torch.randn(40, 2, dtype=torch.float64, generator=seeded())
    found = denoise.given(bias.HIDE_SECOND, y)(x, 400)
    torch.testing.assert_close(found[:, 1:], on_line(x[:, 1:], 400), rtol=0, atol=1e-12)
    assert torch.equal(found[:, 0], y[:, 0])


def test_two_equal_looks_are_one_with_half_the_noise() -> None:
    denoise = toys.MixtureDenoiser()
    alpha = alpha_at(denoise.alpha_bar, 500)
    sigma = math.sqrt((1 - alpha) / alpha)
    y = torch.randn(30, 2, dtype=torch.float64, generator=seeded())
    found = denoise.given(Denoise(sigma), y)(math.sqrt(alpha) * y, 500)
    expected = denoise.mixture.posterior_mean(y, sigma / math.sqrt(2))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="Inpaint or Denoise"):
        denoise.given(Colorize(), y)


def test_the_normalised_mixture_has_mean_zero_and_variance_one() -> None:
    mixture = toys.GaussianMixture()
    assert mixture.mean().tolist() == pytest.approx([-2.5, 2.375])
    assert mixture.scale() == pytest.approx(2.754, abs=1e-3)
    normal = mixture.normalized()
    assert normal.variance == pytest.approx(0.1318, abs=1e-4)
    assert normal.mean().abs().max().item() < 1e-12
    assert normal.scale() == pytest.approx(1.0)


def test_the_reverse_chain_draws_from_the_prior() -> None:
    denoise = toys.MixtureDenoiser()
    like = torch.zeros(4000, 2, dtype=torch.float64)
    samples = unconditional(denoise, like, steps=100, generator=seeded())
    exact = denoise.mixture.sample(4000, seeded(1)).double()
    assert denoise.evaluations == 100
    tv, energy = distances(samples, exact, denoise.mixture)
    assert tv <= 0.03
    assert energy <= 0.008


@pytest.mark.parametrize("sigma", [0.4, 0.7])
def test_the_chain_started_at_the_noise_of_y_draws_from_the_posterior(sigma: float) -> None:
    denoise = toys.MixtureDenoiser()
    y = torch.tensor([[0.1, 0.1], [-0.6, 0.2]], dtype=torch.float64)
    samples = denoising(denoise, Denoise(sigma), y, 4000, steps=100, generator=seeded())
    assert denoise.evaluations == 100
    exact = denoise.mixture.sample_posterior(y, sigma, 4000, seeded(1))
    for ours, true in zip(samples, exact, strict=True):
        tv, energy = distances(ours, true, denoise.mixture)
        assert tv <= 0.03
        assert energy <= 0.01
    frozen = denoising(denoise, Denoise(sigma), y, 50, steps=100, eta=0.0, generator=seeded())
    assert frozen.std(dim=1).max().item() < 1e-6


SAMPLERS = [conditional, ddnm, ddrm, repaint, dps, diffpir]
MASK = torch.rand(4, 4, generator=seeded(5)) < 0.6


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    ("measurement", "shape"),
    [(Inpaint(torch.tensor([False, True])), (2,)), (Inpaint(MASK), (1, 4, 4)),
     (Colorize(), (3, 4, 4)), (Downsample(2), (2, 4, 4))],
    ids=["point", "hole", "colour", "blocks"],
)  # fmt: skip
def test_all_samples_agree_with_the_measurement(sampler, measurement, shape) -> None:
    if sampler is repaint and not isinstance(measurement, Inpaint):
        pytest.skip("masks only")
    y = measurement(torch.randn(3, *shape, dtype=torch.float64, generator=seeded()))
    options = {"jump": 2, "resamplings": 2} if sampler is repaint else {}
    samples = sampler(Shrinker(), measurement, y, 5, generator=seeded(), **QUICK, **options)
    assert samples.shape == (3, 5, *shape)
    seen = measurement(samples.flatten(0, 1)).unflatten(0, (3, 5))
    torch.testing.assert_close(seen, y.unsqueeze(1).expand_as(seen), rtol=0, atol=1e-12)
    assert samples.std(dim=1).max().item() > 0.1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_seed_decides_the_samples_and_a_batch_does_not_change_the_count(sampler) -> None:
    y = torch.zeros(2, 2, dtype=torch.float64)
    denoise = toys.MixtureDenoiser()
    first = sampler(denoise, bias.HIDE_SECOND, y, 3, generator=seeded(1), **QUICK)
    count = denoise.evaluations
    again = sampler(denoise, bias.HIDE_SECOND, y, 3, generator=seeded(1), **QUICK)
    other = sampler(denoise, bias.HIDE_SECOND, y[:1], 1, generator=seeded(2), **QUICK)
    assert torch.equal(first, again)
    assert not torch.equal(first[:1, :1], other)
    assert denoise.evaluations == 3 * count
    assert sampler(denoise, bias.HIDE_SECOND, y.float(), 1, **QUICK).dtype == torch.float32


@pytest.mark.parametrize("sampler", [ddnm, ddrm])
@pytest.mark.parametrize("eta", [0.85, 0.2])
def test_white_images_get_the_spread_that_the_recursion_predicts(sampler, eta: float) -> None:
    """With x0 = √ᾱ x and e = √(1-ᾱ) x the hidden pixels' variance has a closed recursion; fresh
    noise shrinks it at every step, which no denoiser can repair."""
    measurement, denoise = Inpaint(MASK), Shrinker()
    y = measurement(torch.randn(1, 4, 4, dtype=torch.float64, generator=seeded()))
    samples = sampler(denoise, measurement, y, 4000, steps=50, eta=eta, generator=seeded())
    variance, times = 1.0, spaced_times(1000, 50)
    for t, t_next in pairwise(times):
        a, b = alpha_at(denoise.alpha_bar, t), alpha_at(denoise.alpha_bar, t_next)
        kept = math.sqrt(a * b) + math.sqrt((1 - a) * (1 - b) * (1 - eta**2))
        variance = kept**2 * variance + (1 - b) * eta**2
    found = samples[0][:, MASK]
    assert found.std(dim=0).mean().item() == pytest.approx(math.sqrt(variance), abs=0.012)
    assert found.mean(dim=0).abs().max().item() < 0.08
    assert variance < 0.98


@pytest.mark.parametrize("eta", [0.85, 0.2])
@pytest.mark.parametrize(
    ("measurement", "shape"),
    [(Inpaint(MASK), (1, 4, 4)), (Colorize(), (3, 4, 4)), (Downsample(2), (1, 4, 4))],
    ids=["hole", "colour", "blocks"],
)
def test_ddnm_plus_and_noisy_ddrm_are_one_chain(measurement, shape, eta: float) -> None:
    """With η_b = 1 both draw the same; what the first state was is forgotten on the way."""
    y = measurement(torch.randn(2, *shape, dtype=torch.float64, generator=seeded()))
    options = {"steps": 100, "eta": eta, "noise": 0.3}
    one, other = (
        sampler(Shrinker(), measurement, y, 3, generator=seeded(1), **options)
        for sampler in (ddnm, ddrm)
    )
    slack = 0.02 if eta < 0.5 else 1e-4
    torch.testing.assert_close(one, other, rtol=0, atol=slack)


def test_what_a_noisy_look_sees_has_the_moments_that_the_recursion_predicts() -> None:
    """A white pixel seen with noise: x0 = √ᾱ x, the estimate goes λ of the way to y, and τ z comes
    on top (baselines/ddnm.py), so mean and variance follow by hand. The eye of A = I would see a
    point if τ were 0 below the threshold."""
    measurement, denoise, sigma, eta = Inpaint(MASK), Shrinker(), 0.5, 0.85
    y = measurement(torch.ones(1, 4, 4, dtype=torch.float64))
    samples = ddnm(denoise, measurement, y, 4000, noise=sigma, eta=eta, generator=seeded())
    mean, variance = 0.0, 1.0
    for t, t_next in pairwise(spaced_times(1000, 100)):
        alpha, alpha_next = alpha_at(denoise.alpha_bar, t), alpha_at(denoise.alpha_bar, t_next)
        a, s = math.sqrt(alpha_next), math.sqrt(1 - alpha_next)
        is_early = s >= a * sigma
        share = 1.0 if is_early else s * math.sqrt(1 - eta**2) / (a * sigma)
        added = s**2 - (a * sigma) ** 2 if is_early else (eta * s) ** 2
        kept = a * (1 - share) * math.sqrt(alpha)
        mean, variance = kept * mean + a * share, kept**2 * variance + added
    found = samples[0][:, ~MASK]
    assert found.mean().item() == pytest.approx(mean, abs=0.01)
    assert found.std(dim=0).mean().item() == pytest.approx(math.sqrt(variance), abs=0.01)
    assert variance > 0.01


@pytest.mark.parametrize("sampler", [ddnm, ddrm])
def test_noise_that_vanishes_gives_the_sampler_without_noise(sampler) -> None:
    """DDRM is the same chain, number by number; DDNM has that one as its limit. Only the last step
    differs, in which a noisy look leaves the seen part to the denoiser."""
    y, denoise = bias.observations(), toys.MixtureDenoiser()
    plain = ddrm(denoise, bias.HIDE_SECOND, y, 200, steps=100, generator=seeded())
    limit = sampler(denoise, bias.HIDE_SECOND, y, 200, steps=100, noise=1e-9, generator=seeded())
    torch.testing.assert_close(limit[..., 1], plain[..., 1], rtol=0, atol=1e-6)
    torch.testing.assert_close(limit[..., 0], plain[..., 0], rtol=0, atol=0.05)
    assert not torch.equal(limit[..., 0], plain[..., 0])


def test_the_noise_of_a_measurement_is_that_of_what_it_sees() -> None:
    """A†n for white n has deviation σ / d along the singular vectors."""
    for measurement, shape in ((Colorize(), (1, 64, 64)), (Downsample(2), (1, 32, 32))):
        noise = 0.3 * torch.randn(20, *shape, generator=seeded())
        plain = measurement.naive(noise)
        energy = plain.square().sum() / noise.numel()  # one singular vector per number of y
        assert energy.sqrt().item() == pytest.approx(seen_noise(measurement, 0.3), rel=0.02)
    with pytest.raises(ValueError, match="noise is -1"):
        seen_noise(Colorize(), -1)


def test_a_noisy_look_leaves_the_seen_coordinate_open() -> None:
    """Taking a noisy look for exact is the negative control: it has no spread there at all."""
    rows = [ROWS[name] for name in ("ddnm-100-noise-0.4", "ddrm-20-noise-0.4")]
    mixture = toys.GaussianMixture().normalized()
    for place, first in enumerate(bias.observations()[:, 0].tolist()):
        wrong = bias.judge(torch.full((1000,), first), bias.Line.seen(mixture, first, 0.4))
        for row in rows:
            assert row["seen_w1"][place] < 0.5 * wrong["w1"]
            assert row["seen_sd_ratio"][place] > 0.5 > wrong["sd_ratio"] == 0


def test_repaint_draws_hidden_pixels_with_the_variance_of_ddpm() -> None:
    """Without resampling a hidden white pixel never meets the known ones: x0 = √ᾱ x, and each step
    keeps (c1 √ᾱ + c2)² of its variance and adds β̃."""
    measurement, denoise = Inpaint(MASK), Shrinker()
    y = measurement(torch.randn(1, 4, 4, dtype=torch.float64, generator=seeded()))
    samples = repaint(denoise, measurement, y, 4000, steps=12, resamplings=1, generator=seeded())
    _, alphas = respace(denoise.alpha_bar, 12)
    variance = 1.0
    for before, alpha in reversed(list(pairwise(alphas))):
        beta = 1 - alpha / before
        c1 = beta * math.sqrt(before) / (1 - alpha)
        c2 = (1 - before) * math.sqrt(1 - beta) / (1 - alpha)
        added = beta * (1 - before) / (1 - alpha)
        variance = (c1 * math.sqrt(alpha) + c2) ** 2 * variance + added
    found = samples[0][:, MASK].std(dim=0).mean().item()
    assert found == pytest.approx(math.sqrt(variance), abs=0.012)
    assert variance < 0.95


@pytest.mark.parametrize(
    ("measurement", "shape"),
    [(Inpaint(MASK), (1, 4, 4)), (Colorize(), (3, 4, 4)), (Downsample(2), (1, 4, 4))],
    ids=["hole", "colour", "blocks"],
)
def test_a_conditional_network_may_say_anything_of_what_is_measured(measurement, shape) -> None:
    """It learns what the measurement leaves open only; a clip must not mix the rest in."""
    y = measurement(torch.rand(2, *shape, dtype=torch.float64, generator=seeded()) - 0.5)
    wrong = 4 * torch.ones(1, *shape, dtype=torch.float64)
    wrong -= measurement.project(wrong)
    one, other = (
        conditional(denoise, measurement, y, 3, generator=seeded(1), clip=(-1.0, 1.0), **QUICK)
        for denoise in (Shrinker(), Offset(wrong))
    )
    assert one.std(dim=1).max().item() > 0.1
    torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_clipping_happens_only_on_request() -> None:
    y = torch.zeros(1, 2, dtype=torch.float64)
    for sampler in SAMPLERS:
        loose = sampler(Shrinker(), bias.HIDE_SECOND, y, 200, generator=seeded(), **QUICK)
        tight = sampler(
            Shrinker(), bias.HIDE_SECOND, y, 200, generator=seeded(), clip=(-0.5, 0.5), **QUICK
        )
        assert loose.abs().max().item() > 1.0, sampler.__name__
        slack = 0.05 if sampler is dps else 1e-12
        assert tight.abs().max().item() <= 0.5 + slack, sampler.__name__


def test_published_settings_are_the_defaults() -> None:
    y = bias.observations()
    for sampler, count in ((ddnm, 100), (ddrm, 20), (conditional, 100), (repaint, 2410),
                           (dps, 1000), (diffpir, 100)):  # fmt: skip
        denoise = toys.MixtureDenoiser()
        sampler(denoise, bias.HIDE_SECOND, y, 1, generator=seeded())
        assert denoise.evaluations == count, sampler.__name__


def test_the_distance_on_the_line_is_what_it_says() -> None:
    line = bias.Line(torch.tensor([1.0]).double(), torch.tensor([0.0]).double(), 1.0)
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    exact = line.quantile(u)
    assert bias.judge(exact, line)["w1"] < 1e-9
    assert bias.judge(exact + 0.3, line)["w1"] == pytest.approx(0.3)
    assert bias.judge(0.5 * exact, line)["sd_ratio"] == pytest.approx(0.5, abs=1e-3)
    two = bias.Line(torch.tensor([0.25, 0.75]).double(), torch.tensor([-9.0, 9.0]).double(), 1.0)
    assert bias.judge(torch.cat([exact - 9, exact + 9]), two)["tv"] == pytest.approx(0.25)


def check_row(name: str, n: int) -> None:
    """Measured again with another seed, a row of the table stays within three errors."""
    row = bias.measure_bias(name, n, seed=11)
    assert row["evaluations"] == ROWS[name]["evaluations"]
    for key in ERRORS.keys() & ROWS[name].keys():
        tolerance = 3 * ERRORS[key] * math.sqrt(4000 / n)
        assert row[key] == pytest.approx(ROWS[name][key], abs=tolerance), key


@pytest.mark.parametrize(
    "name",
    [
        "conditional-100",
        "conditional-20",
        "ddnm-100",
        "ddrm-20",
        "ddrm-100",
        "diffpir-100",
        "diffpir-20",
        "ddnm-100-noise-0.4",
        "ddrm-20-noise-0.4",
    ],
)
def test_the_bias_of_a_sampler_is_the_committed_one(name: str) -> None:
    check_row(name, 4000)


@pytest.mark.parametrize("name", ["repaint-250-10-1", "ddnm-100-travel-10-10"])
def test_the_bias_of_a_slower_sampler_is_the_committed_one(name: str) -> None:
    check_row(name, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(bias.SAMPLERS))
def test_the_whole_bias_table_is_reproduced(name: str) -> None:
    check_row(name, 4000)


def mean(name: str, key: str) -> float:
    return sum(ROWS[name][key]) / 3


def test_the_table_says_what_theory_says() -> None:
    assert set(ROWS) == set(bias.SAMPLERS)
    for steps in (100, 1000):
        exact = ROWS[f"conditional-{steps}"]
        assert max(exact["w1"]) <= 0.06
        assert max(exact["tv"]) <= 0.03
    for name in ("ddnm-100", "ddrm-20"):
        assert max(ROWS[name]["sd_ratio"]) < 0.97, "under-dispersed"
    assert mean("ddrm-20", "sd_ratio") < mean("ddnm-100", "sd_ratio") - 0.05
    assert mean("ddrm-20", "w1") > mean("ddnm-100", "w1") + 0.05
    assert mean("ddrm-100", "w1") == pytest.approx(mean("ddnm-100", "w1"), abs=0.03)
    assert mean("repaint-250-10-10", "w1") < 0.08
    assert mean("repaint-250-10-10", "w1") < mean("repaint-250-10-1", "w1") / 2
    assert mean("ddnm-100-travel-10-10", "w1") < mean("ddnm-100", "w1") - 0.03
    assert [ROWS[n]["evaluations"] for n in ("ddnm-100", "ddrm-20", "repaint-250-10-10")] == [
        100, 20, 2410]  # fmt: skip


@pytest.mark.parametrize("sampler", [ddnm, ddrm])
def test_projection_samplers_favour_the_mode_between_the_others(sampler) -> None:
    y = bias.observations()
    denoise = toys.MixtureDenoiser()
    samples = sampler(denoise, bias.HIDE_SECOND, y, 4000, generator=seeded())[:, :, 1]
    for line, x in zip(y[:, 0].tolist(), samples, strict=True):
        truth = bias.Line.given(denoise.mixture, line)
        low, high = truth.walls()
        middle = truth.cdf(truth.walls()).diff().item()
        found = ((x > low) & (x < high)).double().mean().item()
        assert found > middle + 0.03


def test_dps_pulls_every_sample_by_its_own_residual() -> None:
    x = torch.randn(4, 2, dtype=torch.float64, generator=seeded())
    known = torch.randn(4, 2, dtype=torch.float64, generator=seeded(1))
    hide, denoise = bias.HIDE_SECOND, toys.MixtureDenoiser()

    def slopes(part: slice) -> Tensor:
        chain = Chain(denoise, hide, known[part], 1, None, None)
        return _estimate(chain, x[part], 300, hide(hide.naive(known[part])))[1]

    for i in range(4):
        torch.testing.assert_close(slopes(slice(None))[i : i + 1], slopes(slice(i, i + 1)))


def test_diffpir_visits_levels_densest_at_the_clean_end() -> None:
    times = quad_times(1000, 20)
    assert len(times) == 20
    assert (times[0], times[-1]) == (999, 0)
    gaps = [a - b for a, b in pairwise(times)]
    assert gaps[0] > 5 * gaps[-2]
    assert [m.gain for m in (Colorize(), Downsample(2), Inpaint(MASK))] == [1 / 3, 0.25, 1.0]


def test_wrong_calls_are_named() -> None:
    y, denoise = torch.zeros(1, 2), toys.MixtureDenoiser()
    with pytest.raises(ValueError, match="repaint pastes known pixels: it needs Inpaint"):
        repaint(denoise, Colorize(), y, 1)
    with pytest.raises(ValueError, match="not Denoise; use `denoising`"):
        ddnm(denoise, Denoise(0.1), y, 1)
    with pytest.raises(ValueError, match="not Paired; use `conditional`"):
        ddrm(denoise, Paired(1, 1), y, 1)
    with pytest.raises(ValueError, match="n is 0"):
        ddnm(denoise, bias.HIDE_SECOND, y, 0)
    with pytest.raises(ValueError, match="both must be at least 1"):
        repaint(denoise, bias.HIDE_SECOND, y, 1, jump=0)
    with pytest.raises(ValueError, match="levels is 1"):
        linear_alpha_bar(1)


@pytest.mark.parametrize("sigma_n", [0.001, 1.0, 30.0])
def test_diffpir_weighs_the_measurement_by_its_noise(sigma_n: float) -> None:
    r"""A denoiser that says 0 against y = 1: what is seen has the mean √ᾱ' / (1 + ρ)."""

    class Zero:
        alpha_bar, evaluations = linear_alpha_bar(), 0

        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def __call__(self, x: Tensor, t: int) -> Tensor:
            self.seen.append(x.clone())
            return torch.zeros_like(x)

    denoise, hide = Zero(), Inpaint(torch.tensor([False, True]), fill=0.0)
    y = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    diffpir(denoise, hide, y, 40_000, steps=4, sigma_n=sigma_n, generator=seeded())
    steps = zip(pairwise(quad_times(1000, 4)), denoise.seen[1:], strict=True)
    for (now, then), x in steps:
        here, next_ = alpha_at(denoise.alpha_bar, now), alpha_at(denoise.alpha_bar, then)
        rho = sigma_n**2 * here / (1 - here)
        expected = math.sqrt(next_) / (1 + rho)
        assert x[:, 0].mean().item() == pytest.approx(expected, abs=0.02)


def test_denoising_clips_only_on_request() -> None:
    y = torch.full((1, 2), 3.0, dtype=torch.float64)
    options = {"steps": 8, "generator": seeded()}
    assert denoising(Shrinker(), Denoise(0.5), y, 50, **options).abs().max() > 1
    tight = denoising(Shrinker(), Denoise(0.5), y, 50, **options, clip=(-0.5, 0.5))
    assert tight.abs().max() <= 0.5 + 1e-12
