r"""Does our training make a denoiser good enough? Asked where the answer is known.

Points of the normalised mixture (`toys.py`) go through the code that trains image models, as images
of 2×1 pixels, with a small MLP in place of the U-Net. What it learns is then held against the
closed form, in four checks:

1. `denoiser`: root mean square distance from $\mathbb E[x_0 \mid x_t]$ at five noise levels;
2. `prior`: the reverse chain against exact draws;
3. `denoising`: the chain started at the noise of $y = x + \sigma_y n$, against exact posterior
   draws; a deterministic chain must collapse;
4. `conditional`: a second network that sees coordinate 1, against the law of coordinate 2.

`tv` is the total variation between the masses of the modes and `energy` the energy distance
$2\,\mathbb E|a-b| - \mathbb E|a-a'| - \mathbb E|b-b'|$ of 1500 points each; exact draws have a `tv`
of about 0.01 and an `energy` of up to 0.0045.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posterior_trees.baselines import conditional, denoising, unconditional
from posterior_trees.baselines.process import alpha_at, linear_alpha_bar
from posterior_trees.measure import Denoise, Inpaint
from posterior_trees.recipe import Recipe
from posterior_trees.recipe.sections import MeasurementSpec, OptimizerSpec, TrainingSpec
from posterior_trees.toys import GaussianMixture, MixtureDenoiser
from posterior_trees.training.optimize import Average, Schedule
from posterior_trees_paper.baselines.bias import Line, judge, observations
from posterior_trees_paper.baselines.diffusion import (
    DiffusionLearner,
    DiffusionModel,
    ImageDenoiser,
)
from posterior_trees_paper.baselines.spec import BaselineSpec
from posterior_trees_paper.baselines.weights import average_share, set_rate

LEVELS = (10, 100, 300, 600, 900)
SIGMAS = (0.4, 0.7)
LOOKS = ((0.1, 0.1), (-0.6, 0.2))
"""Noise, and noisy points, of the denoising check; in normalised units."""

EXACT = 40_000
"""Exact draws that samples are compared with."""

HIDE_LOWER = Inpaint(torch.tensor([[False], [True]]), fill=0.5)
"""Observe coordinate 1: the upper one of two pixels."""


class PointNetwork(nn.Module):
    """An MLP for images of 2×1 pixels, with the signature of `DiffusionUNet`.

    The level enters by slow waves of its ln σ, in which the answer is smooth.
    """

    waves: Tensor

    def __init__(self, in_channels: int, width: int = 128, waves: int = 8) -> None:
        super().__init__()
        alpha = linear_alpha_bar().unsqueeze(1)
        angles = torch.arange(1, waves + 1) * ((1 - alpha) / alpha).log() * math.pi / 20
        table = torch.cat([angles.sin(), angles.cos()], dim=1).float()
        self.register_buffer("waves", table, persistent=False)
        layers: list[nn.Module] = []
        for before, after in pairwise((2 * in_channels + 2 * waves, width, width, width)):
            layers += [nn.Linear(before, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 2))

    def forward(self, x: Float[Tensor, "b c 2 1"], t: Int[Tensor, "b"]) -> Float[Tensor, "b 1 2 1"]:
        return self.layers(torch.cat([x.flatten(1), self.waves[t]], dim=1)).reshape(-1, 1, 2, 1)


@dataclass(frozen=True)
class Plan:
    """How much is trained and drawn."""

    steps: int = 12_000
    batch: int = 1024
    samples: int = 4000
    chain: int = 400
    seed: int = 0


def train_denoiser(
    kind: Literal["prior", "conditional"], plan: Plan, watch: Callable = iter
) -> tuple[DiffusionModel, dict[str, Any]]:
    """A model of the mixture, `kind` "prior" or "conditional", and how it was trained."""
    torch.manual_seed(plan.seed)
    generator, mixture = torch.Generator().manual_seed(plan.seed), GaussianMixture().normalized()
    spec = BaselineSpec(kind=kind, target="edm", sigma_data=1.0)
    rates = OptimizerSpec(lr=3e-3, schedule="cosine", min_lr=1e-6, warmup_steps=200, clip=1.0)
    recipe = Recipe(measurement=MeasurementSpec(kind="inpaint"), optimizer=rates,
                    training=TrainingSpec(batch_size=plan.batch))  # fmt: skip
    network = PointNetwork(1 if kind == "prior" else 3)
    model = DiffusionModel(1, spec, [HIDE_LOWER], network)
    learner = DiffusionLearner(model, [HIDE_LOWER], recipe, torch.device("cpu"))
    schedule, average = Schedule(recipe.optimizer, plan.steps), Average(network, 0)
    start = time.perf_counter()
    for step in watch(range(plan.steps)):
        set_rate(learner.optimizers[0], schedule, step)
        x = as_images(mixture.sample(plan.batch, generator))
        learner.learn(*learner.draw((x + 1) / 2, None, generator))
        average.update(torch.tensor(average_share(step, plan.batch)))
    network.load_state_dict(average.values)
    return model.eval(), {
        "steps": plan.steps, "batch": plan.batch, "seed": plan.seed,
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": round(time.perf_counter() - start, 1),
    }  # fmt: skip


def as_images(points: Float[Tensor, "*b 2"]) -> Float[Tensor, "*b 1 2 1"]:
    return points.unsqueeze(-2).unsqueeze(-1)


def as_points(images: Float[Tensor, "*b 1 2 1"]) -> Float[Tensor, "*b 2"]:
    return images.squeeze(-1).squeeze(-2)


def check_denoiser(model: DiffusionModel, plan: Plan) -> list[dict[str, Any]]:
    """Distance from the closed form, over the standard deviation 1 of the prior."""
    exact, ours = MixtureDenoiser(), ImageDenoiser(model)
    generator = torch.Generator().manual_seed(plan.seed + 1)
    checks = []
    for t in LEVELS:
        x = exact.mixture.sample(2000, generator)
        e, alpha = torch.randn(x.shape, generator=generator), alpha_at(exact.alpha_bar, t)
        x_t = alpha**0.5 * x + (1 - alpha) ** 0.5 * e
        with torch.no_grad():
            found = as_points(ours(as_images(x_t), t))
        rmse = (found - exact(x_t, t)).square().mean().sqrt().item()
        checks.append(_check("denoiser", {"t": t}, rmse=(rmse, 0.03)))
    return checks


def check_prior(model: DiffusionModel, plan: Plan) -> list[dict[str, Any]]:
    mixture, denoise = GaussianMixture().normalized(), ImageDenoiser(model)
    generator = torch.Generator().manual_seed(plan.seed + 2)
    like = torch.zeros(plan.samples, 1, 2, 1)
    samples = as_points(unconditional(denoise, like, steps=plan.chain, generator=generator))
    tv, energy = distances(samples, mixture.sample(EXACT, generator), mixture)
    return [_check("prior", {"evaluations": denoise.evaluations}, tv=(tv, 0.03),
                   energy=(energy, 0.008))]  # fmt: skip


def check_denoising(model: DiffusionModel, plan: Plan) -> list[dict[str, Any]]:
    mixture, y = GaussianMixture().normalized(), torch.tensor(LOOKS)
    generator, checks = torch.Generator().manual_seed(plan.seed + 3), []
    for sigma in SIGMAS:
        chain = partial(denoising, ImageDenoiser(model), Denoise(sigma), as_images(y),
                        steps=plan.chain, generator=generator)  # fmt: skip
        samples, frozen = as_points(chain(n=plan.samples)), as_points(chain(n=50, eta=0.0))
        exact = mixture.sample_posterior(y, sigma, EXACT, generator)
        for place, (ours, true) in enumerate(zip(samples, exact, strict=True)):
            tv, energy = distances(ours, true, mixture)
            collapsed = frozen[place].std(dim=0).max().item()
            checks.append(_check("denoising", {"sigma": sigma, "y": list(LOOKS[place])},
                                 tv=(tv, 0.03), energy=(energy, 0.01),
                                 deterministic_sd=(collapsed, 1e-3)))  # fmt: skip
    return checks


def check_conditional(model: DiffusionModel, plan: Plan) -> list[dict[str, Any]]:
    mixture = GaussianMixture().normalized()
    generator = torch.Generator().manual_seed(plan.seed + 4)
    y = as_images(observations().float())
    samples = as_points(
        conditional(ImageDenoiser(model), HIDE_LOWER, y, plan.samples, steps=plan.chain,
                    generator=generator)
    )  # fmt: skip
    checks = []
    for points in samples:
        first = points[0, 0].item()
        found = judge(points[:, 1], Line.given(mixture, first))
        about = {"x1": round(first, 4), "sd_ratio": found["sd_ratio"]}
        checks.append(_check("conditional", about, w1=(found["w1"], 0.06), tv=(found["tv"], 0.03)))
    return checks


def distances(
    ours: Float[Tensor, "n 2"], true: Float[Tensor, "m 2"], mixture: GaussianMixture
) -> tuple[float, float]:
    """Total variation between the masses of the modes, and energy distance of 1500 points each."""
    nearest = [torch.cdist(x, mixture.means.to(x)).argmin(dim=1) for x in (ours, true)]
    one, other = (torch.bincount(n, minlength=len(mixture.means)) / len(n) for n in nearest)
    a, b = ours[:1500], true[:1500].to(ours)
    within = torch.cdist(a, a).mean() + torch.cdist(b, b).mean()
    return (one - other).abs().sum().item() / 2, (2 * torch.cdist(a, b).mean() - within).item()


def run_checks(plan: Plan, watch: Callable = iter) -> dict[str, Any]:
    """Train both models and hold them against the truth."""
    prior, prior_facts = train_denoiser("prior", plan, watch)
    given, given_facts = train_denoiser("conditional", plan, watch)
    checks = [*check_denoiser(prior, plan), *check_prior(prior, plan)]
    checks += [*check_denoising(prior, plan), *check_conditional(given, plan)]
    training = {"prior": prior_facts, "conditional": given_facts}
    counts = {"samples": plan.samples, "chain": plan.chain, "torch": torch.__version__}
    passed = all(check["passed"] for check in checks)
    return {"schema": 1, "training": training, **counts, "passed": passed, "checks": checks}


def _check(name: str, about: dict[str, Any], **found: tuple[float, float]) -> dict[str, Any]:
    """What was found, with the largest value allowed."""
    values = {key: {"value": value, "limit": limit} for key, (value, limit) in found.items()}
    passed = all(value <= limit for value, limit in found.values())
    return {"check": name, **about, **values, "passed": passed}
