r"""The diffusion process and the one interface that all samplers share.

An image is drowned in noise step by step, $t = 0, \dots, T-1$:

$$ x_t = \sqrt{\bar\alpha_t}\, x_0 + \sqrt{1-\bar\alpha_t}\, e, \qquad e \sim \mathcal N(0, I),
   \qquad \bar\alpha_t = \prod_{s \le t} (1-\beta_s), \quad \bar\alpha_{-1} = 1 . $$

A sampler knows the prior only through `denoise(x_t, t)`, the estimate $\hat x_0$ of
$\mathbb E[x_0 \mid x_t]$; the noise follows from it, $e = (x_t - \sqrt{\bar\alpha}\,\hat x_0) /
\sqrt{1-\bar\alpha}$. A trained network and the closed form of `toys.MixtureDenoiser` are therefore
interchangeable. Samplers work in the denoiser's own scale on points and images alike, hold their
schedules in float64 and carry all samples of all measurements in one batch.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import pairwise
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.measure import Measurement

Clip = tuple[float, float] | None


@runtime_checkable
class Denoiser(Protocol):
    r"""What samplers ask for. `alpha_bar` is $\bar\alpha_0, \dots, \bar\alpha_{T-1}$ in float64;
    `evaluations` grows by one with every call, in which each sample goes through the network once:
    it counts the network evaluations of one sample, however many travel together."""

    alpha_bar: Tensor
    evaluations: int

    def __call__(self, x_t: Tensor, t: int) -> Tensor: ...


def linear_alpha_bar(levels: int = 1000) -> Float[Tensor, "t"]:
    r"""$\bar\alpha$ of the linear schedule of DDPM, $\beta$ from 1e-4 to 0.02 over 1000 levels and
    scaled by $1000/T$ for another number of them."""
    if levels < 2:
        raise InputError(f"levels is {levels}; a diffusion process needs at least 2 noise levels")
    scale = 1000 / levels
    beta = torch.linspace(1e-4 * scale, 0.02 * scale, levels, dtype=torch.float64)
    return (1 - beta.clamp_max(0.999)).cumprod(dim=0)


def cosine_alpha_bar(levels: int = 1000) -> Float[Tensor, "t"]:
    r"""$\bar\alpha$ of the cosine schedule, $\beta_t = \min(1 - f(t+1)/f(t), 0.999)$ with
    $f(t) = \cos^2\bigl(\tfrac{t/T + s}{1 + s} \tfrac\pi2\bigr)$ and $s = 0.008$."""
    t = torch.arange(levels + 1, dtype=torch.float64) / levels
    f = ((t + 0.008) / 1.008 * math.pi / 2).cos().square()
    return (f[1:] / f[:-1]).clamp_min(0.001).cumprod(dim=0)


def alpha_at(alpha_bar: Float[Tensor, "t"], t: int) -> float:
    r"""$\bar\alpha_t$, with $\bar\alpha_{-1} = 1$: the step to $-1$ returns the clean image."""
    return 1.0 if t < 0 else alpha_bar[t].item()


def spaced_times(levels: int, steps: int) -> list[int]:
    """`steps` evenly spaced levels from the noisy end to 0, then −1: 990, 980, …, 0, −1 for 100
    steps of 1000 levels."""
    if not 1 <= steps <= levels:
        raise InputError(f"steps is {steps}; this denoiser has 1 to {levels} noise levels")
    return [i * levels // steps for i in reversed(range(steps))] + [-1]


def travel_times(levels: int, length: int, repeat: int) -> list[int]:
    """The levels that resampling visits, −1 last (RePaint's jumps, DDNM's time travel). Levels 0,
    L, 2L, … below `levels` − L are passed `repeat` times: whenever a step down arrives at one of
    them for the first `repeat` − 1 times, the chain goes up L levels again."""
    if length < 1 or repeat < 1:
        raise InputError(f"jumps of length {length}, {repeat} times: both must be at least 1")
    returns = dict.fromkeys(range(0, levels - length, length), repeat - 1)
    times = [levels - 1]
    while times[-1] > 0 or returns.get(0, 0) > 0:
        if returns.get(times[-1], 0) > 0:
            returns[times[-1]] -= 1
            times += range(times[-1] + 1, times[-1] + length + 1)
        times.append(times[-1] - 1)
    return [*times, -1]


def noise_in(x_t: Tensor, x0: Tensor, alpha: float) -> Tensor:
    r"""$e$ of $x_t = \sqrt{\bar\alpha}\, x_0 + \sqrt{1-\bar\alpha}\, e$."""
    return (x_t - math.sqrt(alpha) * x0) / math.sqrt(1 - alpha)


class Chain:
    """What a sampler walks on: the samples of all measurements are one batch, `known` holds the
    measurement of each, and `plain` its naive image."""

    def __init__(
        self, denoise: Denoiser, measurement: Measurement, y: Float[Tensor, "b *shape"], n: int,
        generator: torch.Generator | None, clip: Clip,
    ) -> None:  # fmt: skip
        if n < 1:
            raise InputError(f"n is {n}; draw at least one sample")
        self.denoise, self.measurement = denoise, measurement
        self.generator, self.clip = generator, clip
        self.alpha_bar, self.levels = denoise.alpha_bar, len(denoise.alpha_bar)
        self.alpha = partial(alpha_at, denoise.alpha_bar)
        self.known, self.plain = (
            image.repeat_interleave(n, dim=0) for image in (y, measurement.naive(y))
        )

    def noise(self) -> Float[Tensor, "bn *shape"]:
        """Standard normal numbers, drawn where the generator lives."""
        like = self.plain
        device = like.device if self.generator is None else self.generator.device
        z = torch.randn(like.shape, dtype=like.dtype, device=device, generator=self.generator)
        return z.to(like.device)

    def estimate(self, x: Float[Tensor, "bn *shape"], t: int) -> Float[Tensor, "bn *shape"]:
        return self.clamp(self.denoise(x, t))

    def clamp(self, x0: Float[Tensor, "bn *shape"]) -> Float[Tensor, "bn *shape"]:
        return x0 if self.clip is None else x0.clamp(*self.clip)

    def impose(self, x: Float[Tensor, "bn *shape"]) -> Float[Tensor, "bn *shape"]:
        return self.measurement.impose(x, self.known)

    def moves(self, times: Sequence[int]) -> Iterator[tuple[int, float, float]]:
        r"""The levels but the last one, each with its $\bar\alpha$ and that of the next."""
        return ((t, self.alpha(t), self.alpha(t_next)) for t, t_next in pairwise(times))


def sampler(walk: FunctionType, is_exact: bool = True) -> Callable[..., Tensor]:
    """A sampler: draws `n` samples of every `y`, by what `walk` makes of their chain and its
    options; `is_exact`, of measurements that can be imposed on an image only."""

    def draw(
        denoise: Denoiser, measurement: Measurement, y: Float[Tensor, "b *shape"], n: int, *,
        generator: torch.Generator | None = None, clip: Clip = None, **options: Any,
    ) -> Float[Tensor, "b {n} *shape2"]:  # fmt: skip
        if is_exact and not measurement.is_exact:  # there is no {A x = y} to project on
            kind = type(measurement).__name__
            remedy = "`denoising`" if measurement.is_random else "`conditional`"
            raise InputError(
                f"{walk.__name__} needs a measurement without noise that can be imposed on an "
                f"image (Inpaint, Colorize, Downsample), not {kind}; use {remedy}"
            )
        chain = Chain(denoise, measurement, y, n, generator, clip)
        return walk(chain, **options).unflatten(0, (-1, n))

    known, own = inspect.signature(draw).parameters, inspect.signature(walk).parameters
    made: Any = wraps(walk)(torch.no_grad()(draw))
    made.__signature__ = inspect.Signature(
        [
            *(known[name] for name in ("denoise", "measurement", "y", "n")),
            *(p for p in own.values() if p.kind is p.KEYWORD_ONLY),
            *(known[name] for name in ("generator", "clip")),
        ]
    )
    return made


def seen_noise(measurement: Measurement, noise: float | int) -> float:
    r"""Standard deviation of $A^\dagger n$ along what $A$ sees, for white noise $n$ of `noise`."""
    if noise < 0:
        raise InputError(f"noise is {noise}; a standard deviation is 0 or more")
    return noise / math.sqrt(measurement.gain)
