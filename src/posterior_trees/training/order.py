"""In which order a training takes its images: shuffled epochs, each image `repeat` times in one."""

from collections.abc import Callable

import torch
from jaxtyping import Int
from torch import Tensor


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
