r"""Are samples spread as the truth is, and new? Checks that need only pairs $(x, y)$ and samples.

**Spread-skill.** Let $\bar x$ be the mean of $P$ samples. For exact samples, averaged over images,

$$ v = \frac{\mathbb E\, \tfrac1P \sum_i (x_i - \bar x)^2}{\mathbb E\, (x - \bar x)^2}
     = \frac{1 - 1/P}{1 + 1/P}, $$

0.98 for 100 samples. Collapsed samples give 0; too wide ones more than 1. It is the averaging law:
one sample errs $1 + v$ times as much as the mean of all.

**Rank test.** Along a direction that does not depend on the truth, the rank of the truth among $P$
exact samples is uniform. Ranks of all images and directions fill ten bins; $\chi^2$ with 9 degrees
of freedom is below 21.7 in 99 % of cases, were all ranks independent. Those of one image along
several directions are not quite: with 100 images and 8 directions exact samples whose variance is
in few directions (standard deviations as $1/i$) were above it in 6 % of 300 trials, and rejected
in 3 % (results/baselines). A U-shaped histogram means samples too narrow.

**Root.** The mean of many exact samples is the posterior mean up to $10 \log_{10}(1 + 1/P)$ dB, so
its PSNR must be that of a network trained for it.

**Nearest.** Do samples repeat training images? For samples $x_i$, a test image $x$ and training
images $u$,

$$ \text{nearest} = \frac{\text{mean over samples of } \min_u \lVert x_i - u \rVert}
                       {\text{mean over test images of } \min_u \lVert x - u \rVert} . $$

New images of the same law give about 1; a model that recites its training images gives far less;
blurred or broken samples may give more or less, so read it next to v and PSNR. Over what the
measurement hides where that is a hole. Where training mirrored its images, the mirrored ones count.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.data import ImageSet
from posterior_trees.errors import InputError

BINS = 10
ACCEPTED_V, ACCEPTED_CHI2, ACCEPTED_GAP = (0.88, 1.08), 25.0, 0.3
"""What a diffusion model must reach to be called trained: v of `USUAL_SAMPLES` (of others in the
ratio of `expected_v`), χ², and dB below an MSE network."""
USUAL_SAMPLES = 100
ENOUGH_RANKS = 600
"""Fewer ranks than this decide nothing."""
CHUNK = 2048
"""Training images held as floats at a time; so much memory, and no more, is needed for them."""


def spread_and_skill(
    samples: Float[Tensor, "b s *shape"], x: Float[Tensor, "b *shape"]
) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Of every image: the variance of its samples, and the squared error of their mean."""
    flat = samples.flatten(2)
    mean = flat.mean(dim=1)
    variance = (flat - mean.unsqueeze(1)).square().mean(dim=(1, 2))
    return variance, (mean - x.flatten(1)).square().mean(dim=1)


def spread_skill(variance: Float[Tensor, "b"], error: Float[Tensor, "b"]) -> float:
    """v of a set of images."""
    return (variance.double().mean() / error.double().mean()).item()


def expected_v(count: int) -> float:
    """v of `count` exact samples."""
    return (1 - 1 / count) / (1 + 1 / count)


def usable_count(count: int) -> int:
    """The largest number of samples, at most `count`, whose ranks fill ten bins evenly; 0: none."""
    return max((count + 1) // BINS * BINS - 1, 0)


def ranks(
    samples: Float[Tensor, "b s *shape"],
    x: Float[Tensor, "b *shape"],
    directions: Float[Tensor, "b d *shape"],
    generator: torch.Generator | None = None,
) -> Int[Tensor, "b d"]:
    """Bin (0 to 9) of the truth among its samples along every direction; ties are drawn by lot."""
    count = usable_count(samples.shape[1])
    if count == 0:
        raise InputError(f"{samples.shape[1]} samples are too few for a rank test; draw 9 or more")
    lines = directions.flatten(2)
    projected = samples[:, :count].flatten(2) @ lines.mT
    truth = (lines @ x.flatten(1).unsqueeze(2)).mT
    # Float rounding must not decide between equal samples; it goes by what is summed, not the sum.
    lengths = lines.norm(dim=2), samples[:, :count].flatten(2).norm(dim=2).amax(dim=1)
    slack = (1e-6 * lengths[0] * lengths[1].unsqueeze(1)).unsqueeze(1)
    below = (projected < truth - slack).sum(dim=1)
    equal = ((projected - truth).abs() <= slack).sum(dim=1)
    device = generator.device if generator else x.device
    lot = torch.rand(below.shape, generator=generator, device=device).to(x.device)
    rank = below + (lot * (equal + 1)).long()
    return rank * BINS // (count + 1)


def chi_square(bins: Int[Tensor, "b d"]) -> float:
    """χ² of all ranks against the uniform law, 9 degrees of freedom."""
    counts = torch.bincount(bins.flatten(), minlength=BINS).double()
    expected = counts.sum() / BINS
    return ((counts - expected).square() / expected).sum().item()


def choose_directions(
    shape: Sequence[int],
    images: int,
    spreads: Float[Tensor, "b n *shape2"] | None = None,
    count: int = 4,
    seed: int = 0,
) -> Float[Tensor, "{images} d *shape2"]:
    """`count` fixed random directions and, given how answers `spreads` about their mean for every
    image, as many of the main axes of the other half of the images."""
    generator = torch.Generator().manual_seed(seed)
    random = torch.randn(count, *shape, generator=generator).expand(images, -1, *shape)
    if spreads is None or images < 2:
        return random
    halves = []
    for half in (0, 1):
        others = spreads[1 - half :: 2].flatten(0, 1).flatten(1).double().cpu()
        axes = torch.linalg.svd(others, full_matrices=False).Vh[:count]
        halves.append(axes.to(random.dtype).reshape(-1, *shape))
    kept = min(len(axes) for axes in halves)
    mine = torch.stack([halves[number % 2][:kept] for number in range(images)])
    return torch.cat([random, mine], dim=1)


def accept(
    v: float, chi2: float | None, count: int, root_gap: float, samples: int = USUAL_SAMPLES
) -> dict[str, Any]:
    """The three tests of a diffusion model, each with its value, limit and whether it passed.

    `count` is the number of ranks behind `chi2`; `root_gap` the PSNR of the root minus that of an
    MSE network. A test that cannot be decided has None, and so has the verdict then.
    """
    scale = expected_v(samples) / expected_v(USUAL_SAMPLES)
    low, high = (limit * scale for limit in ACCEPTED_V)
    is_ranked = chi2 is not None and count >= ENOUGH_RANKS
    tests = {
        "v": {"value": v, "limit": [low, high],
              "passed": low <= v <= high if samples > 1 else None},
        "chi2": {"value": chi2, "limit": ACCEPTED_CHI2, "ranks": count,
                 "passed": chi2 < ACCEPTED_CHI2 if is_ranked else None},
        "root": {"value": root_gap, "limit": -ACCEPTED_GAP, "passed": root_gap >= -ACCEPTED_GAP},
    }  # fmt: skip
    verdicts = [test["passed"] for test in tests.values()]
    passed = False if False in verdicts else None if None in verdicts else True
    return {**tests, "passed": passed}


def nearest_distance(
    x: Float[Tensor, "b c h w"],
    training: ImageSet,
    mask: Bool[Tensor, "h w"] | None = None,
    is_mirrored: bool = False,
    chunk: int = CHUNK,
) -> Float[Tensor, "b"]:
    """Of every image, the L2 distance to the nearest training image, over the pixels of `mask`."""
    queries = _pixels(x, mask)
    nearest = queries.new_full((len(x),), torch.inf)
    for start in range(0, len(training), chunk):
        images, _ = training.batch(range(start, min(start + chunk, len(training))))
        images = images.to(x)
        for version in (images, images.flip(-1)) if is_mirrored else (images,):
            nearest = nearest.minimum(torch.cdist(queries, _pixels(version, mask)).amin(dim=1))
    return nearest


def _pixels(x: Tensor, mask: Tensor | None) -> Tensor:
    return x.flatten(1) if mask is None else x[..., mask.to(x.device)].flatten(1)
