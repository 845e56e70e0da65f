r"""Diffusion models of images: the prior, and the conditional model of a measurement.

A network $e_\theta$ learns to recognise the noise (Ho et al. 2020, L2 loss),

$$ \min_\theta\; \mathbb E\, \lVert e - e_\theta(x_t, t) \rVert^2, \qquad
   t \sim U\{0, \dots, T-1\} . $$

The conditional one also sees the measurement. Only what $y$ leaves open is diffused: with the
projection $P$ of `Measurement`, the network sees $P x_t$ beside what $y$ shows and learns
$\lVert P (e - e_\theta) \rVert^2$: the hole of a picture, the two colour dimensions of a grey one.
Images are in $[-1, 1]$ here; `ImageDenoiser` is what samplers call.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from posterior_trees.baselines.process import cosine_alpha_bar, linear_alpha_bar
from posterior_trees.baselines.spec import BaselineSpec
from posterior_trees.baselines.unet import DiffusionUNet
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Measurement, Paired
from posterior_trees.recipe import OptimizerSpec, Recipe

CHUNK = 1000
"""Images that go through the network together."""


class DiffusionModel(nn.Module):
    """A noise predictor for images of `channels` channels, given what is `seen` of them if the
    model is conditional."""

    def __init__(
        self, channels: int, spec: BaselineSpec, measurements: Sequence[Measurement]
    ) -> None:
        super().__init__()
        self.is_conditional = spec.kind == "conditional"
        extra = seen_channels(measurements[0], channels) if self.is_conditional else 0
        self.channels = channels
        self.network = DiffusionUNet(
            channels + extra,
            channels,
            base=spec.base,
            multipliers=spec.multipliers,
            blocks=spec.blocks,
            attention=spec.attention,
            dropout=spec.dropout,
        )
        make = linear_alpha_bar if spec.schedule == "linear" else cosine_alpha_bar
        self.alpha_bar = make(spec.noise_levels)

    def forward(
        self,
        x_t: Float[Tensor, "b c h w"],
        t: Int[Tensor, "b"],
        seen: Float[Tensor, "b c2 h w"] | None = None,
    ) -> Float[Tensor, "b c h w"]:
        """The noise in `x_t`."""
        inputs = x_t if seen is None else torch.cat([x_t, seen], dim=1)
        return self.network(inputs, t)


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
            raise ValueError(
                "this diffusion model is conditional: use it with `conditional`; ddnm, ddrm, "
                "repaint, dps and diffpir need one trained with baseline.kind='prior'"
            )
        return self._denoise(x_t, x_t, t, None)

    def given(
        self, measurement: Measurement, y: Float[Tensor, "b *shape"]
    ) -> Callable[[Tensor, int], Tensor]:
        """The conditional denoiser of these measurements, a function of `(x_t, t)`."""
        if not self.model.is_conditional:
            raise ValueError(
                "this diffusion model is a prior and cannot see the measurement: use it with ddnm, "
                "ddrm or repaint, or train one with baseline.kind='conditional'"
            )
        seen = see(measurement, y)
        return lambda x_t, t: self._denoise(x_t, measurement.project(x_t), t, seen)

    def _denoise(self, x_t: Tensor, shown: Tensor, t: int, seen: Tensor | None) -> Tensor:
        self.evaluations += 1
        alpha = self.alpha_bar[t].item()
        is_cuda = x_t.is_cuda
        estimates = []
        with torch.autocast(x_t.device.type, dtype=torch.bfloat16, enabled=is_cuda):
            for part in torch.arange(len(x_t), device=x_t.device).split(self.chunk):
                where = slice(int(part[0]), int(part[-1]) + 1)
                levels = torch.full_like(part, t)
                e = self.model(shown[where], levels, None if seen is None else seen[where])
                estimates.append((x_t[where] - (1 - alpha) ** 0.5 * e.to(x_t.dtype)) / alpha**0.5)
        return torch.cat(estimates)


def see(measurement: Measurement, y: Float[Tensor, "b *shape"]) -> Float[Tensor, "b _ h w"]:
    """What a conditional network is shown of `y`, in the scale of `y`: the known part of the image
    and, in one more channel, how much of each pixel is known."""
    if isinstance(measurement, Denoise | Paired):
        return measurement.view(y)
    plain = measurement.naive(y)
    known = 1 - open_share(measurement)
    known = torch.as_tensor(known, dtype=y.dtype, device=y.device)
    known = known.expand(len(y), 1, *plain.shape[-2:])
    return torch.cat([plain - measurement.project(plain), known], dim=1)


def seen_channels(measurement: Measurement, channels: int) -> int:
    is_plain = isinstance(measurement, Denoise | Paired)
    return measurement.channels(channels) if is_plain else channels + 1


def open_share(measurement: Measurement) -> Tensor | float:
    """How much of every pixel the measurement leaves open."""
    if isinstance(measurement, Inpaint):
        return measurement.hole.to(torch.float32)
    if isinstance(measurement, Colorize):
        return 2 / 3
    return 1 - 1 / measurement.factor**2 if isinstance(measurement, Downsample) else 1.0


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
        self.shares = [float(torch.as_tensor(open_share(m)).mean()) for m in self.measurements]
        self.clip = recipe.optimizer.clip
        self.optimizers = [make_adam(model.parameters(), recipe.optimizer, device)]
        self.forward = torch.compile(model) if recipe.training.compile else model

    def draw(
        self,
        x: Float[Tensor, "b c h w"],
        y: Tensor | None,
        generator: torch.Generator,
        levels: tuple[float, float] = (0.0, 1.0),
    ) -> tuple[Tensor, ...]:
        """The inputs of a step: noisy images, noise levels (between these shares of all), noise and
        what is seen. With several measurements the batch is dealt out among them."""
        device, count = generator.device, len(self.model.alpha_bar)
        x = 2 * x - 1
        first, last = (round(share * count) for share in levels)
        t = torch.randint(first, last, (len(x),), generator=generator, device=device).to(x.device)
        e = torch.randn(x.shape, generator=generator, device=device).to(x)
        alpha = self.model.alpha_bar.to(x.device)[t].to(x).reshape(-1, 1, 1, 1)
        x_t = alpha.sqrt() * x + (1 - alpha).sqrt() * e
        if not self.model.is_conditional:
            return x_t, t, e
        parts = []
        for place, measurement in enumerate(self.measurements):
            mine = slice(place, None, len(self.measurements))
            known = measurement((x[mine] + 1) / 2, generator) if y is None else y[mine]
            shown, target = measurement.project(x_t[mine]), measurement.project(e[mine])
            parts.append((shown, t[mine], target, see(measurement, 2 * known - 1)))
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def learn(self, *inputs: Tensor) -> Float[Tensor, ""]:
        """One step of the optimiser; returns the loss."""
        (optimizer,) = self.optimizers
        with torch.autocast(
            self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda"
        ):
            loss = self.loss(*inputs)
        loss.backward()
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def loss(
        self, x_t: Tensor, t: Tensor, e: Tensor, seen: Tensor | None = None
    ) -> Float[Tensor, ""]:
        """The squared error of the noise, over what the measurement leaves open."""
        forward = self.forward if torch.is_grad_enabled() else self.model
        prediction = forward(x_t, t, seen).float()
        if seen is None:
            return (prediction - e).square().mean()
        count = len(self.measurements)
        sizes = [len(range(place, len(e), count)) for place in range(count)]
        losses = []
        for measurement, share, ours, true in zip(
            self.measurements, self.shares, prediction.split(sizes), e.split(sizes), strict=True
        ):
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


def make_adam(
    parameters: Iterable[nn.Parameter],
    spec: OptimizerSpec,
    device: torch.device,
    betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.AdamW:
    """AdamW whose learning rate a recorded step can see change."""
    is_cuda = device.type == "cuda"
    lr = torch.tensor(spec.lr, device=device) if is_cuda else spec.lr
    group = {"params": list(parameters), "lr": lr, "base_lr": spec.lr}
    return torch.optim.AdamW(
        [group], betas=betas, weight_decay=spec.weight_decay, fused=is_cuda, capturable=is_cuda
    )
