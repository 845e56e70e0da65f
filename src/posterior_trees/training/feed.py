"""What each step of a training sees: which images, and what is measured of them.

Everything random in step `s` follows from `(seed, s)`, however many processes share the batch.
"""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from posterior_trees.balance import LeafBalancer
from posterior_trees.data import ImageSet
from posterior_trees.data.augment import augment
from posterior_trees.errors import RunError
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.seeding import step_generator


def steps_of(images: int, batch_size: int, repeat: int = 1) -> int:
    """Steps of an epoch: whole batches."""
    return images * repeat // min(batch_size, images * repeat)


class Order:
    """Which images step `s` takes, from 0; `generator(epoch)` makes the random numbers of an epoch,
    so that a run that was stopped goes on as if it had not been."""

    def __init__(
        self,
        images: int,
        batch_size: int,
        *,
        repeat: int = 1,
        generator: Callable[[int], torch.Generator],
        device: torch.device,
    ) -> None:
        self.images, self.draws = images, images * repeat
        self.batch_size = min(batch_size, self.draws)
        self.steps_per_epoch = steps_of(images, batch_size, repeat)
        self.generator, self.device = generator, device
        self.epoch: int | None = None
        self.shuffled = torch.empty(0, dtype=torch.long)

    def batch(self, step: int) -> Int[Tensor, "b"]:
        """The numbers of a step's images; what is left over at an epoch's end waits for another."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if self.epoch != epoch:
            order = torch.randperm(self.draws, generator=self.generator(epoch))
            self.epoch, self.shuffled = epoch, (order % self.images).to(self.device)
        return self.shuffled[place * self.batch_size : (place + 1) * self.batch_size]


class Feed:
    """The batches of a run: shuffled epochs, or what the balancer asks for once it is at work."""

    def __init__(
        self,
        recipe: Recipe,
        predictor: TreePredictor,
        images: ImageSet,
        *,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.recipe, self.predictor, self.images = recipe, predictor, images
        self.rank, self.processes = rank, processes
        self.order = Order(
            len(images),
            recipe.training.batch_size,
            repeat=recipe.data.repeat,
            generator=lambda epoch: self.generator(epoch, 2),
            device=predictor.device,
        )
        self.batch_size, self.steps_per_epoch = self.order.batch_size, self.order.steps_per_epoch
        if self.batch_size % processes:
            raise RunError(
                f"a batch of {self.batch_size} cannot be shared equally by {processes} "
                "processes: choose training.batch_size as a multiple"
            )
        if recipe.network.head_norm == "batch" and self.batch_size // processes < 2:
            raise RunError(
                f"a batch has {self.batch_size // processes} image for each process "
                f"(training.batch_size is {recipe.training.batch_size}, of {self.order.draws} "
                "training images), and network.head_norm='batch' needs at least 2: give it more, "
                "or use head_norm='layer'"
            )
        spec = recipe.balancer
        self.balancer = LeafBalancer(
            predictor.num_leaves, len(images), ridge=spec.ridge, floor=spec.floor,
            greedy=spec.is_greedy, window=spec.is_windowed, exact=spec.is_exact,
            refresh_every=spec.refresh_every, device=predictor.device,
        )  # fmt: skip
        self.ones = torch.ones(self.batch_size // processes, device=predictor.device)

    def draw(self, step: int) -> Tensor:
        """The indices of the whole batch of a step."""
        spec = self.recipe.balancer
        self.balancer.active = spec.is_on and step / self.steps_per_epoch >= spec.start
        if self.balancer.active:
            return next(self.balancer.batches(self.batch_size, self.generator(step, 1)))
        return self.order.batch(step)

    def share(self, indices: Tensor) -> Tensor:
        """This process's part of a batch."""
        return indices[self.rank :: self.processes]

    def weights(self, mine: Tensor) -> Tensor:
        """What the losses of these images count; 1 while the balancer is not at work."""
        return self.balancer.weights(mine) if self.balancer.active else self.ones

    def measured(self, mine: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Clean images and measurements of this process. It draws the random numbers of the whole
        batch, and gives each image those of its place there, however many processes there are."""
        generator = self.generator(step, 3)
        x, y = self.images.batch(mine)
        if self.processes > 1:
            x = x.repeat_interleave(self.processes, dim=0)
            y = None if y is None else y.repeat_interleave(self.processes, dim=0)
        x, y = self._measure(x, y, generator)
        return self.share(x), self.share(y)

    def glance(self, most: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of at most `most` different images, with measurements; alike in all processes."""
        chosen = torch.randperm(len(self.images), generator=generator)[:most]
        for indices in chosen.split(self.batch_size):
            yield self._measure(*self.images.batch(indices.to(self.predictor.device)), generator)

    def _measure(
        self, x: Tensor, y: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Images as training sees them, and what is measured of them unless it came along."""
        spec = self.recipe.data
        if spec.augment or spec.patch:
            x, y = augment(x, y, spec.augment, spec.patch, generator)
        return x, self.predictor.measure(x, generator) if y is None else y

    def generator(self, step: int, purpose: int) -> torch.Generator:
        return step_generator(self.recipe.seed, step, purpose)
