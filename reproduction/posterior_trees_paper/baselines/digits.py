r"""Does a prior of digits draw digits? A reader that never saw them says what they are.

Of unconditional samples: the share that the reader is sure about (its largest probability above
0.9), and the classes it sees against those of the training set. A prior that blends digits makes
unsure samples; one that forgot a class shows it. The reader's own doubts are measured on real ones.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.baselines import unconditional
from posterior_trees_paper.baselines.diffusion import DiffusionModel, ImageDenoiser

BATCH = 1000
SURE, SURE_SHARE, CLASS_GAP = 0.9, 0.95, 0.03
"""A sure reading; how many samples must have one; how far a class may be from its frequency."""


def draw_digits(
    model: DiffusionModel, shape: tuple[int, ...], n: int, steps: int, generator: torch.Generator
) -> Float[Tensor, "{n} c h w"]:
    """Unconditional samples in [0, 1]."""
    denoise, like = ImageDenoiser(model), torch.zeros(n, *shape, device=generator.device)
    how: dict[str, Any] = {"steps": steps, "generator": generator, "clip": (-1.0, 1.0)}
    parts = [unconditional(denoise, part, **how) for part in like.split(BATCH)]
    return (torch.cat(parts) + 1).div(2).clamp(0, 1)


@torch.no_grad()
def read_digits(
    x: Float[Tensor, "n c h w"], reader: Callable[[Tensor], Tensor]
) -> tuple[Int[Tensor, "n"], Float[Tensor, "n"]]:
    """The class and the reader's probability of every image; it gives logits of their classes."""
    probabilities = torch.cat([reader(part).softmax(dim=1) for part in x.split(BATCH)])
    best = probabilities.max(dim=1)
    return best.indices, best.values


def judge_digits(
    samples: Float[Tensor, "n c h w"],
    real: Float[Tensor, "m c h w"],
    labels: Int[Tensor, "k"],
    reader: Callable[[Tensor], Tensor],
) -> dict[str, Any]:
    """The check of `samples` against the classes `labels` of the training set; `real` test images
    say how sure the reader can be."""
    classes, sureness = read_digits(samples, reader)
    _, real_sureness = read_digits(real, reader)
    count = int(labels.max()) + 1
    wanted = torch.bincount(labels.cpu(), minlength=count) / len(labels)
    found = torch.bincount(classes.cpu(), minlength=count) / len(classes)
    gap = (found - wanted).abs().max().item()
    sure, real_sure = ((s > SURE).double().mean().item() for s in (sureness, real_sureness))
    return {
        "n": len(samples), "classes": found.tolist(), "training_classes": wanted.tolist(),
        "class_gap": {"value": gap, "limit": CLASS_GAP, "passed": gap <= CLASS_GAP},
        "sure": {"value": sure, "limit": SURE_SHARE, "passed": sure >= SURE_SHARE},
        "sure_of_real": real_sure, "passed": gap <= CLASS_GAP and sure >= SURE_SHARE,
    }  # fmt: skip
