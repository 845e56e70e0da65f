r"""Diffusion models of images: the prior, and the conditional model of a measurement.

A network $e_\theta$ learns to recognise the noise (Ho et al. 2020, L2 loss),

$$ \min_\theta\; \mathbb E\, \lVert e - e_\theta(x_t, t) \rVert^2, \qquad
   t \sim U\{0, \dots, T-1\} . $$

With `target = "edm"` (Karras et al. 2022) it learns a mixture $F$ of noise and image instead, which
stays of unit size at every level: in general, with $a = \sqrt{\bar\alpha}$ and
$s = \sqrt{1-\bar\alpha}$,

$$ \hat x_0 = k\, x_t + g\, F(c\, x_t, t), \qquad
   \text{noise:}\; k = \tfrac1a,\; g = -\tfrac sa,\; c = 1, \qquad
   \text{edm:}\; k = \tfrac{\sigma_d^2 a}{r^2},\; g = \tfrac{s\, \sigma_d}{r},\;
   c = \tfrac1r,\; r^2 = s^2 + \sigma_d^2 a^2, $$

which is EDM's preconditioning in the scale of $x_t$; $\sigma_d = 1$ is the "velocity". The noise of
a nearly drowned image says little about $\hat x_0$ ($g$ reaches 157), $F$ says it directly.
Its levels are drawn by $\ln\sigma \sim \mathcal N$ of mean and deviation `log_sigma`,
$\sigma = s/a$: mostly where images take shape. Choice: wider than EDM's own $\mathcal N(-1.2,
1.2^2)$, since posterior samplers ask for $\sigma$ up to 157, and more so where a hole or colours
are decided at high noise.

The conditional one also sees the measurement. Only what $y$ leaves open is diffused: with the
projection $P$ of `Measurement`, the network sees $P x_t$ beside what $y$ shows and learns
$\lVert P (e - e_\theta) \rVert^2$: the hole of a picture, the two colour dimensions of a grey one.
Images are in $[-1, 1]$ here; `ImageDenoiser` is what samplers call.
"""

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.baselines.process import cosine_alpha_bar, linear_alpha_bar
from posterior_trees.errors import InputError
from posterior_trees.fast.compiling import compiled
from posterior_trees.measure import Measurement
from posterior_trees.networks.padding import crop, pad
from posterior_trees.networks.residual import Ladder, zero
from posterior_trees.recipe import Recipe
from posterior_trees_paper.baselines.spec import BaselineSpec
from posterior_trees_paper.baselines.weights import make_adam

CHUNK = 1000
"""Images that go through the network together."""


class DiffusionUNet(Ladder):
    r"""The diffusion U-Net (Ho et al. 2020): the residual U-Net of `networks/residual.py`, whose
    blocks know the noise level. Maps noisy images, extra channels and noise levels to an image of
    `channels` channels.

    The level $t$ enters as sines and cosines of $t\, e^{-\ln(10^4)\, i / (d/2)}$, through two
    linear layers, and is added between the two convolutions of every residual block. The last
    convolution of the network starts at zero.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        base: int = 48,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 2,
        attention: Sequence[int] = (2,),
        dropout: float = 0.0,
    ) -> None:
        depth = 4 * base
        super().__init__(base, multipliers, blocks, attention, dropout=dropout, time=depth)
        self.base, self.channels = base, channels
        self.embed = nn.Sequential(nn.Linear(base, depth), nn.SiLU(), nn.Linear(depth, depth))
        self.first = nn.Conv2d(in_channels, base, 3, padding=1)
        self.last = zero(nn.Conv2d(base * multipliers[0], channels, 3, padding=1))

    def forward(
        self, x: Float[Tensor, "b c h w"], t: Int[Tensor, "b"]
    ) -> Float[Tensor, "b c2 h w"]:
        embedding = self.embed(sinusoids(t, self.base).to(x.dtype))
        *_, maps = self.climb(self.first(pad(x, self.multiple, "zeros")), embedding)
        return crop(self.last(maps), x.shape[-2:])


def sinusoids(t: Int[Tensor, "b"], width: int) -> Float[Tensor, "b w"]:
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=t.device) / half)
    angles = t.unsqueeze(1).float() * rates
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


class DiffusionModel(nn.Module):
    """What a denoiser of images with `channels` channels learns, given what is `seen` of them if
    the model is conditional. `network` replaces the U-Net that the spec describes."""

    def __init__(
        self,
        channels: int,
        spec: BaselineSpec,
        measurements: Sequence[Measurement],
        network: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.is_conditional = spec.kind == "conditional"
        extra = seen_channels(measurements[0], channels) if self.is_conditional else 0
        self.channels, self.target, self.sigma_data = channels, spec.target, spec.sigma_data
        self.log_sigma = spec.log_sigma
        names = ("base", "multipliers", "blocks", "attention", "dropout")
        sizes = {name: getattr(spec, name) for name in names}
        self.network = network or DiffusionUNet(channels + extra, channels, **sizes)
        make = linear_alpha_bar if spec.schedule == "linear" else cosine_alpha_bar
        self.alpha_bar = make(spec.noise_levels)

    def forward(
        self,
        x_t: Float[Tensor, "b c h w"],
        t: Int[Tensor, "b"],
        seen: Float[Tensor, "b c2 h w"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """The noise in `x_t`, or EDM's $F$ of the shrunk one."""
        inputs = x_t if seen is None else torch.cat([x_t, seen], dim=1)
        return self.network(inputs, t)

    def scales(self, alpha: Float[Tensor, "*b"]) -> tuple[Tensor, Tensor, Tensor]:
        r"""$k$, $g$ and $c$ of $\hat x_0 = k\, x_t + g\, F(c\, x_t)$ at these $\bar\alpha$."""
        a, s = alpha.sqrt(), (1 - alpha).sqrt()
        if self.target == "noise":
            return 1 / a, -s / a, torch.ones_like(a)
        r = (s**2 + (self.sigma_data * a) ** 2).sqrt()
        return self.sigma_data**2 * a / r**2, s * self.sigma_data / r, 1 / r

    def draw_levels(
        self, n: int, generator: torch.Generator, between: tuple[float, float] | None = None
    ) -> Int[Tensor, "{n}"]:
        """Noise levels to train at, on the generator's device: by the target's law, or uniform
        between two shares of all levels."""
        count, device = len(self.alpha_bar), generator.device
        if self.target == "edm" and between is None:
            wanted = torch.randn(n, generator=generator, device=device, dtype=torch.float64)
            alpha = self.alpha_bar.to(device)
            mean, deviation = self.log_sigma
            found = torch.searchsorted(((1 - alpha) / alpha).log() / 2, deviation * wanted + mean)
            return found.clamp_max(count - 1)
        first, last = (round(share * count) for share in between or (0.0, 1.0))
        return torch.randint(first, last, (n,), generator=generator, device=device)


class ImageDenoiser:
    """A diffusion model behind the samplers' interface, for images in [-1, 1].

    One call evaluates the network once for every sample, in chunks, and counts as one evaluation.
    """

    def __init__(self, model: DiffusionModel, chunk: int = CHUNK) -> None:
        self.model, self.chunk = model, chunk
        self.alpha_bar = model.alpha_bar
        self.evaluations = 0

    def __call__(self, x_t: Float[Tensor, "b c h w"], t: int) -> Float[Tensor, "b c h w"]:
        if self.model.is_conditional:
            raise InputError(
                "this diffusion model is conditional: use it with `conditional`; ddnm, ddrm, "
                "repaint, dps and diffpir need one trained with baseline.kind='prior'"
            )
        return self._denoise(x_t, x_t, t, None)

    def given(
        self, measurement: Measurement, y: Float[Tensor, "b *shape"]
    ) -> Callable[[Tensor, int], Tensor]:
        """The conditional denoiser of these measurements, a function of `(x_t, t)`."""
        if not self.model.is_conditional:
            raise InputError(
                "this diffusion model is a prior and cannot see the measurement: use it with ddnm, "
                "ddrm or repaint, or train one with baseline.kind='conditional'"
            )
        seen = see(measurement, y)
        return lambda x_t, t: self._denoise(x_t, measurement.project(x_t), t, seen)

    def _denoise(self, x_t: Tensor, shown: Tensor, t: int, seen: Tensor | None) -> Tensor:
        self.evaluations += 1
        keep, gain, shrink = (value.item() for value in self.model.scales(self.alpha_bar[t]))
        levels = torch.full((len(x_t),), t, device=x_t.device)
        estimates = []
        with torch.autocast(x_t.device.type, dtype=torch.bfloat16, enabled=x_t.is_cuda):
            for start in range(0, len(x_t), self.chunk):
                part = slice(start, start + self.chunk)
                known = None if seen is None else seen[part]
                learned = self.model(shrink * shown[part], levels[part], known)
                estimates.append(keep * x_t[part] + gain * learned.to(x_t.dtype))
        return torch.cat(estimates)


def see(measurement: Measurement, y: Float[Tensor, "b *shape"]) -> Float[Tensor, "b _ h w"]:
    """What a conditional network is shown of `y`, in the scale of `y`: the known part of the image
    and, in one more channel, how much of each pixel is known."""
    if not measurement.is_exact:
        return measurement.view(y)
    plain = measurement.naive(y)
    known = torch.as_tensor(1 - measurement.open_share, dtype=y.dtype, device=y.device)
    known = known.expand(len(y), 1, *plain.shape[-2:])
    return torch.cat([plain - measurement.project(plain), known], dim=1)


def seen_channels(measurement: Measurement, channels: int) -> int:
    return channels + 1 if measurement.is_exact else measurement.channels(channels)


class DiffusionLearner:
    """One training step of a diffusion model."""

    can_capture = True

    def __init__(
        self,
        model: DiffusionModel,
        measurements: Sequence[Measurement],
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self.model, self.network, self.device = model, model.network, device
        self.measurements = [measurement.to(device) for measurement in measurements]
        # Plain numbers: a recorded step must not copy anything from the host.
        self.shares = [float(torch.as_tensor(m.open_share).mean()) for m in self.measurements]
        self.clip = recipe.optimizer.clip
        self.optimizers = [make_adam(model.parameters(), recipe.optimizer, device)]
        self.forward = compiled(model) if recipe.training.compile else model

    def draw(
        self,
        x: Float[Tensor, "b c h w"],
        y: Tensor | None,
        generator: torch.Generator,
        levels: tuple[float, float] | None = None,
    ) -> tuple[Tensor, ...]:
        """The inputs of a step: noisy images, noise levels (uniform between these shares of all if
        given), what is to be learned, and what is seen. Several measurements share the batch
        equally."""
        x = 2 * x - 1
        t = self.model.draw_levels(len(x), generator, levels).to(x.device)
        e = torch.randn(x.shape, generator=generator, device=generator.device).to(x)
        alpha = self.model.alpha_bar.to(x.device)[t].reshape(-1, 1, 1, 1)
        x_t = alpha.sqrt().to(x) * x + (1 - alpha).sqrt().to(x) * e
        keep, gain, shrink = (scale.to(x) for scale in self.model.scales(alpha))
        target, x_t = (x - keep * x_t) / gain, shrink * x_t
        if not self.model.is_conditional:
            return x_t, t, target
        parts = []
        for place, measurement in enumerate(self.measurements):
            mine = slice(place, None, len(self.measurements))
            known = measurement((x[mine] + 1) / 2, generator) if y is None else y[mine]
            shown, wanted = measurement.project(x_t[mine]), measurement.project(target[mine])
            parts.append((shown, t[mine], wanted, see(measurement, 2 * known - 1)))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def learn(self, *inputs: Tensor) -> Float[Tensor, ""]:
        """One step of the optimiser; returns the loss."""
        (optimizer,) = self.optimizers
        kind = self.device.type
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda"):
            loss = self.loss(*inputs)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def loss(
        self, x_t: Tensor, t: Tensor, target: Tensor, seen: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The squared error of what is learned, over what the measurement leaves open."""
        forward = self.forward if torch.is_grad_enabled() else self.model
        prediction = forward(x_t, t, seen).float()
        if seen is None:
            return (prediction - target).square().mean()
        count = len(self.measurements)
        sizes = [len(range(place, len(target), count)) for place in range(count)]
        losses = []
        columns = self.measurements, self.shares, prediction.split(sizes), target.split(sizes)
        for measurement, share, ours, true in zip(*columns, strict=True):
            losses.append((measurement.project(ours) - true).square().flatten(1).mean(1) / share)
        return torch.cat(losses).mean()

    @torch.no_grad()
    def validate(
        self, x: Float[Tensor, "b c h w"], y: Tensor | None, seed: int
    ) -> dict[str, float]:
        """The loss on held-out images at middle noise, where memorisation shows first."""
        generator = torch.Generator().manual_seed(seed)
        inputs = self.draw(x, y, generator, levels=(0.2, 0.5))
        return {"val_loss": self.loss(*inputs).item()}
