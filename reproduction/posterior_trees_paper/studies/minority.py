r"""The runner-up digit: does a layout change its probability, or only the number of its leaves?

A classifier says which digit $c_\ell$ each leaf of a test image shows. The **mass** of digit $c$ is
$m(c) = \sum_{\ell : c_\ell = c} \alpha_\ell$. The runner-up of an image is the digit with the
second largest mass, by the mean over all layouts compared, so that it is the same digit for all of
them. Images count in which it has at least 5 % on average.

The paper claims (appendix, "Tree Width vs. Depth"): its mass agrees between layouts of equally many
leaves, and with a smaller $K$ it gets more leaves as the tree grows deeper.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.metrics import summarize
from posterior_trees_paper.studies.classifier import CLASSES

AT_LEAST = 0.05
Runs = dict[str, dict[str, Tensor]]
"""Values per image as `examine` returns them, by run; the same images in the same order."""


def masses(digits: Int[Tensor, "b n"], probs: Float[Tensor, "b n"]) -> Float[Tensor, "b 10"]:
    """Total probability of every digit."""
    return probs.new_zeros(len(probs), CLASSES).scatter_add_(1, digits, probs)


@dataclass(frozen=True)
class RunnerUp:
    """The runner-up digit of the images (their numbers) that have one; of every run its probability
    and the number of its leaves there."""

    images: Int[Tensor, "i"]
    digit: Int[Tensor, "i"]
    mass: dict[str, Tensor]
    leaves: dict[str, Tensor]

    @classmethod
    def among(cls, runs: Runs) -> "RunnerUp":
        found = {name: masses(v["leaf_digits"], v["probs"].double()) for name, v in runs.items()}
        top = torch.stack(list(found.values())).mean(dim=0).topk(2, dim=1)
        images = (top.values[:, 1] >= AT_LEAST).nonzero()[:, 0]
        if len(images) == 0:
            raise InputError(f"no image has a runner-up digit of at least {AT_LEAST:.0%}")
        digit = top.indices[images, 1]
        mass = {name: m[images, digit] for name, m in found.items()}
        shown = {name: v["leaf_digits"][images] == digit.unsqueeze(1) for name, v in runs.items()}
        return cls(images, digit, mass, {name: leaf.sum(dim=1) for name, leaf in shown.items()})

    def first_above(self, mass: float) -> int:
        """The first image in which the runner-up has this probability, by the mean of the runs; if
        there is none, the one in which it has most."""
        mean = torch.stack(list(self.mass.values())).mean(dim=0)
        enough = (mean >= mass).nonzero()[:, 0]
        return int(self.images[enough[0] if len(enough) else mean.argmax()])

    def row(self, name: str, values: dict[str, Tensor]) -> dict[str, float]:
        """Means of one run: its probability, how often it is the truth, its leaves and their share
        of all leaves, and how its probability agrees with the mean of the other runs."""
        leaves, mass = self.leaves[name].double(), self.mass[name]
        others = [other for run, other in self.mass.items() if run != name]
        mean = torch.stack(others or [mass]).mean(dim=0)
        alike = torch.corrcoef(torch.stack([mass, mean]))[0, 1]
        return {
            "runner_up_images": float(len(self.images)),
            "runner_up_mass": mass.mean().item(),
            "runner_up_truth": (values["digit"][self.images] == self.digit).double().mean().item(),
            "runner_up_leaves": leaves.mean().item(),
            "runner_up_leaf_share": (leaves / values["probs"].shape[1]).mean().item(),
            "runner_up_shown": (leaves > 0).double().mean().item(),
            "runner_up_correlation": alike.nan_to_num().item(),  # 0 where one does not vary
            "runner_up_difference": (mass - mean).abs().mean().item(),
        }

    def more_leaves(self, one: str, other: str) -> dict[str, float]:
        """Leaves in run `one` minus leaves in run `other`, image by image, with a 95 % bootstrap
        interval."""
        return summarize((self.leaves[one] - self.leaves[other]).double())._asdict()
