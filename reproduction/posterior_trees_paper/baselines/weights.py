r"""How a baseline's weights move: AdamW, its rate over time, and the average that samples.

The weights that sample are a running average whose half-life grows with the run (Karras et al.
2022): a fixed decay of 0.9999 would leave the random first weights in a short one.

$$ \text{decay} = 2^{-\text{batch} / h}, \qquad
   h = \min(500\,000,\; 0.05 \cdot \text{images seen}) $$
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from posterior_trees.recipe.sections import OptimizerSpec
from posterior_trees.training.optimize import Schedule

HALF_LIFE_IMAGES, HALF_LIFE_SHARE = 500_000, 0.05


def average_share(step: int, batch_size: int) -> float:
    """Weight of the new weights in their running average, after step number `step` (from 0)."""
    half_life = min(HALF_LIFE_IMAGES, HALF_LIFE_SHARE * (step + 1) * batch_size)
    return 1 - 0.5 ** (batch_size / half_life)


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


def set_rate(optimizer: torch.optim.Optimizer, schedule: Schedule, step: int) -> None:
    """The learning rate of a step, in place where a recorded step reads it."""
    for group in optimizer.param_groups:
        rate = schedule.lr(group["base_lr"], step)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
