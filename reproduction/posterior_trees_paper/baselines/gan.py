r"""Two conditional GANs, honest stand-ins for the large inpainting GANs of the literature.

A generator, the trees' own U-Net with one output and two more channels of Gaussian noise $z$, draws
one sample per pass, $\hat x = \mathrm{naive}(y) + P\, G(y, z)$. A critic judges $(x, y)$.

- `cgan`: the logistic loss with R1 penalty and an L1 pixel loss (pix2pix). The optimum of the pixel
  loss ignores $z$: expect collapse, samples that hardly differ.
- `rcgan` (Bendel, Ahmad, Schniter; NeurIPS 2023): a Wasserstein critic and, with $P$ samples per
  input and their mean $\bar x$, a reward for spread,

$$ L_G = -w\, \mathbb E D(\hat x_i) + \lVert x - \bar x \rVert_1
   - c \sqrt{\tfrac{2}{\pi P (P+1)}}\; \hat\sigma, \qquad
   \hat\sigma = \sqrt{\tfrac{\pi}{2 P (P-1)}} \sum_i \lvert \hat x_i - \bar x \rvert, $$

  which makes mean and pixelwise spread right for Gaussian posteriors. $c$ is steered so that eight
  samples average to the 2.5 dB over one that exact samples would gain.

Neither is MAT, the GAN of the paper's Table 1, which cannot be reproduced at this scale.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees.errors import InputError
from posterior_trees.fast.accelerate import accelerate
from posterior_trees.fast.compiling import compiled
from posterior_trees.measure import Measurement
from posterior_trees.networks.padding import crop, pad
from posterior_trees.networks.unet import UNet
from posterior_trees.recipe import Recipe
from posterior_trees_paper.baselines.diffusion import see, seen_channels
from posterior_trees_paper.baselines.spec import BaselineSpec
from posterior_trees_paper.baselines.weights import make_adam

NOISE_CHANNELS = 2
CHUNK = 1000


class GanModel(nn.Module):
    """Generator and critic; images in [0, 1]."""

    control: Tensor

    def __init__(
        self, channels: int, spec: BaselineSpec, measurements: Sequence[Measurement]
    ) -> None:
        super().__init__()
        if len(measurements) > 1:
            raise InputError("a GAN learns one measurement; leave baseline.also empty")
        (measurement,) = measurements
        self.spec, self.channels = spec, channels
        self.network = UNet(
            measurement.channels(channels) + NOISE_CHANNELS, channels, 1,
            width=spec.width, is_disjoint=False,
        )  # fmt: skip
        self.critic = Critic(channels + seen_channels(measurement, channels), spec.critic)
        self.register_buffer("control", torch.ones(()))
        self.form: tuple[nn.Module] = (self.network,)  # in a tuple it is no part of what is stored

    def forward(self, inputs: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c2 h w"]:
        """The generator's images, on CUDA in bfloat16, as trees and diffusion models are."""
        (generator,) = self.form
        with torch.autocast(inputs.device.type, dtype=torch.bfloat16, enabled=inputs.is_cuda):
            return generator(inputs).images[:, 0]

    def accelerate(self) -> None:
        """Choose the form that is fast where the weights are now."""
        self.form = (accelerate(self.network),)

    def generate(
        self,
        measurement: Measurement,
        y: Float[Tensor, "b *shape"],
        z: Float[Tensor, "b 2 h w"],
        forward: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "b *shape2"]:
        """One sample of every `y`; `forward` is the generator in another form."""
        inputs = torch.cat([measurement.view(y), z], dim=1)
        images = (self if forward is None else forward)(pad(inputs, UNet.multiple, "zeros"))
        images = crop(images, inputs.shape[-2:]).to(y.dtype)
        return measurement.naive(y) + measurement.project(images)

    @torch.no_grad()
    def sample(
        self,
        measurement: Measurement,
        y: Float[Tensor, "b *shape"],
        n: int,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "b {n} *shape2"]:
        many = y.repeat_interleave(n, dim=0)
        device = generator.device if generator else y.device
        size = measurement.view(y[:1]).shape[-2:]
        z = torch.randn(len(many), NOISE_CHANNELS, *size, generator=generator, device=device)
        parts = zip(many.split(CHUNK), z.to(y).split(CHUNK), strict=True)
        made = [self.generate(measurement, *part) for part in parts]
        return torch.cat(made).unflatten(0, (-1, n))


class Critic(nn.Sequential):
    """Four strided convolutions to one number per image; no normalisation."""

    def __init__(self, in_channels: int, width: int) -> None:
        layers: list[nn.Module] = []
        for before, after in pairwise((in_channels, width, 2 * width, 4 * width, 8 * width)):
            layers += [nn.Conv2d(before, after, 4, stride=2, padding=2), nn.LeakyReLU(0.2)]
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 1), nn.Flatten(0)]
        super().__init__(*layers, *pool)


class GanLearner(ABC):
    """What both GANs share: alternating steps of critic and generator."""

    can_capture = False
    copies = 1
    betas = (0.5, 0.99)

    def __init__(
        self,
        model: GanModel,
        measurements: Sequence[Measurement],
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self.model, self.network, self.spec = model, model.network, model.spec
        self.measurement, self.device = measurements[0].to(device), device
        self.optimizers = [
            make_adam(part.parameters(), recipe.optimizer, device, self.betas)
            for part in (model.critic, model.network)
        ]
        model.accelerate()
        self.forward = compiled(model) if recipe.training.compile else model

    def draw(
        self, x: Float[Tensor, "b c h w"], y: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        """Images, measurements, what the critic sees of them, the noise, and numbers in [0, 1]."""
        y = self.measurement(x, generator) if y is None else y
        shape = self.copies, len(x), NOISE_CHANNELS, *x.shape[-2:]
        z = torch.randn(shape, generator=generator, device=generator.device).to(x)
        u = torch.rand(len(x), 1, 1, 1, generator=generator, device=generator.device).to(x)
        return x, y, see(self.measurement, 2 * y - 1), z, u

    def learn(self, x: Tensor, y: Tensor, seen: Tensor, z: Tensor, u: Tensor) -> Float[Tensor, "2"]:
        """One step of each; returns the critic's and the generator's loss."""
        made = [self.model.generate(self.measurement, y, noise, self.forward) for noise in z]
        samples = torch.stack(made)
        critic = self._step(0, self.critic_loss(x, seen, samples.detach(), u))
        self.model.critic.requires_grad_(False)
        generator = self._step(1, self.generator_loss(x, seen, samples))
        self.model.critic.requires_grad_(True)
        return torch.stack([critic, generator])

    def judge(self, x: Tensor, seen: Tensor) -> Float[Tensor, "b"]:
        return self.model.critic(torch.cat([2 * x - 1, seen], dim=1))

    def slope(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The critic's values and their gradient with respect to the image in [-1, 1]."""
        scaled = (2 * x - 1).detach().requires_grad_()
        values = self.model.critic(torch.cat([scaled, seen], dim=1))
        (gradient,) = torch.autograd.grad(values.sum(), scaled, create_graph=True)
        return values, gradient.flatten(1)

    @abstractmethod
    def critic_loss(self, x: Tensor, seen: Tensor, samples: Tensor, u: Tensor) -> Tensor:
        """Real images against the first of each input's samples; `u` is uniform in [0, 1]."""

    @abstractmethod
    def generator_loss(self, x: Tensor, seen: Tensor, samples: Tensor) -> Tensor:
        """What the samples `(p, b, …)` of the inputs lose."""

    @torch.no_grad()
    def validate(
        self, x: Float[Tensor, "b c h w"], y: Tensor | None, seed: int
    ) -> dict[str, float]:
        """PSNR of one sample and of the mean of eight: exact samples gain 2.5 dB."""
        generator = torch.Generator().manual_seed(seed)
        y = self.measurement(x, generator) if y is None else y
        samples = self.model.sample(self.measurement, y, 8, generator)
        one = (samples - x.unsqueeze(1)).square().mean()
        eight = (samples.mean(dim=1) - x).square().mean()
        return {"psnr_1": -10 * one.log10().item(), "psnr_8": -10 * eight.log10().item()}

    def _step(self, number: int, loss: Tensor) -> Tensor:
        self.optimizers[number].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[number].step()
        return loss.detach()


class CGanLearner(GanLearner):
    """Logistic loss, R1 penalty, L1 pixel loss."""

    def critic_loss(self, x, seen, samples, u):
        real, gradient = self.slope(x, seen)
        fake = self.judge(samples[0], seen)
        penalty = self.spec.penalty / 2 * gradient.square().sum(dim=1)
        return (F.softplus(-real) + F.softplus(fake) + penalty).mean()

    def generator_loss(self, x, seen, samples):
        fooled = F.softplus(-self.judge(samples[0], seen)).mean()
        return fooled + self.spec.pixel_weight * (samples[0] - x).abs().mean()


class RcGanLearner(GanLearner):
    """Wasserstein critic with gradient penalty; L1 loss of the mean and a reward for spread."""

    copies = 2
    betas = (0.0, 0.99)

    def critic_loss(self, x, seen, samples, u):
        real, fake = self.judge(x, seen), self.judge(samples[0], seen)
        _, gradient = self.slope(u * x + (1 - u) * samples[0], seen)
        penalty = self.spec.penalty * (gradient.norm(dim=1) - 1).square()
        return (fake - real + penalty + 0.001 * real.square()).mean()

    def generator_loss(self, x, seen, samples):
        p, mean = self.copies, samples.mean(dim=0)
        judged = self.judge(samples.flatten(0, 1), torch.cat([seen] * p)).mean()
        spread = math.sqrt(math.pi / (2 * p * (p - 1))) * (samples - mean).abs().sum(dim=0).mean()
        reward = self.model.control * math.sqrt(2 / (math.pi * p * (p + 1))) * spread
        # Both in the scale [-1, 1] of the critic, twice that of the images.
        pixels = 2 * ((x - mean).abs().mean() - reward)
        return pixels - self.spec.adversarial_weight * judged

    def validate(self, x, y, seed):
        """Also steers the weight of the spread; those that pass the 2.5 dB test rank by PSNR."""
        line = super().validate(x, y, seed)
        gap = line["psnr_8"] - line["psnr_1"] - 2.5
        self.model.control -= 0.02 * gap
        line["val_loss"] = 1000 * max(abs(gap) - 0.25, 0.0) - line["psnr_8"]
        return line | {"control": self.model.control.item()}
