"""Early signs of a tree's health during an epoch: which leaves win, and how sure the tree is.

What is noted are sums in fixed places, so that taking note can be part of a recorded step.
"""

import math
from typing import Any

import torch
from torch import Tensor

from posterior_trees.recipe import Recipe
from posterior_trees.training.objective import Objective

DEAD = 0.002
"""A leaf that fewer of the images reach counts as dead."""

SETTLED = 0.05
"""An ε below which losers hardly learn any more."""

DEAF = 0.003
"""Nats about single images below which probabilities count as the same for all of them."""


class Health:
    """Running sums over an epoch, kept on the device so that no step waits for the GPU.
    `is_balanced`: leaves are balanced already, so that nobody is told to."""

    def __init__(self, num_leaves: int, device: torch.device, is_balanced: bool = False) -> None:
        self.is_balanced = is_balanced
        self.usage = torch.zeros(num_leaves, device=device)
        wide = torch.float32 if device.type == "mps" else torch.float64  # Apple's have no float64
        self.sums = torch.zeros(4, dtype=wide, device=device)  # squared, root, nll, entropy

    def sum(self, loss: Objective) -> Tensor:
        """The parts of a batch's loss, summed over its images."""
        parts = torch.stack([loss.squared, loss.root, loss.nll, loss.entropy])
        return parts.detach().sum(dim=1, dtype=self.sums.dtype)

    def note(self, sums: Tensor, winners: Tensor) -> None:
        """Take note of a batch, of all processes together: summed losses and winning leaves."""
        self.usage.index_add_(0, winners, torch.ones_like(winners, dtype=self.usage.dtype))
        self.sums.add_(sums)

    def is_finite(self) -> bool:
        return bool(self.sums.isfinite().all())

    def summary(self, epsilon: float, is_last: bool = False) -> dict[str, Any]:
        """The epoch's means, and `warnings` of the form "what: what to do" if there are any; starts
        the next epoch. While ε is large losers still learn, and a leaf may come back: it is called
        dead once ε is below `SETTLED`, or after a run's last epoch."""
        images = self.usage.sum().clamp(min=1)
        squared, root, nll, entropy = (self.sums / images).tolist()
        usage = (self.usage / images).tolist()
        line: dict[str, Any] = {
            "squared": squared,
            "root_mse": root,
            "nll": nll,
            "entropy": entropy,
            "leaf_usage": [round(share, 5) for share in usage],
            "leaves_in_use": round(perplexity(usage), 2),
        }
        dead = [leaf for leaf, share in enumerate(usage) if share < DEAD]
        if dead and (is_last or epsilon < SETTLED):
            what = f"leaves {dead} are reached by fewer than {DEAD:.1%} of the images: "
            line["warnings"] = [what + self._advice(epsilon)]
        self.usage.zero_()
        self.sums.zero_()
        return line

    def _advice(self, epsilon: float) -> str:
        """For dead leaves, once an ε has settled, or where a run ended before."""
        if epsilon >= SETTLED:
            return (
                f"ε is still {epsilon:.2g}, at which losers learn too: let it fall sooner "
                "(loss.epsilon_start, loss.epsilon_scale), or train longer"
            )
        balance = "" if self.is_balanced else ", switch the balancer on (balancer.is_on=true),"
        return f"anneal longer (loss.epsilon_scale){balance} or use a smaller tree"

    def state_dict(self) -> dict[str, Any]:
        return {"usage": self.usage, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.usage.copy_(state["usage"])
        self.sums.copy_(state["sums"])


def idle_options(recipe: Recipe) -> list[str]:
    """What a recipe asks for and its epochs leave no time for, as warnings."""
    loss, balancer, epochs = recipe.loss, recipe.balancer, recipe.training.epochs
    has_rate = any(loss.surprise) and loss.guided_epochs > 0 and loss.epsilon_start < epochs
    guided = loss.epsilon_start + loss.guided_epochs
    late = [
        ("annealing", True, loss.epsilon_start, "loss.epsilon_start"),
        ("loss.guided_epochs", loss.guided_epochs > 0, loss.epsilon_start, "loss.epsilon_start"),
        ("loss.surprise", has_rate, guided, "loss.guided_epochs, which guide until then"),
        ("the balancer", balancer.is_on, balancer.start, "balancer.start"),
    ]
    return [
        f"{name} acts after {start:g} epochs, the run has {epochs}: lower {key}, or train longer"
        + (" (until then all leaves learn the same)" if name == "annealing" else "")
        for name, is_asked, start, key in late
        if recipe.tree.depth and is_asked and start >= epochs
    ]


def warn_of_deafness(line: dict[str, Any], progress: float, head_norm: str = "layer") -> None:
    """Add to an epoch's log line that the probabilities are the same for all images, once the head
    had time to learn otherwise. That is no fault where y tells nothing about the leaf."""
    is_late = progress >= 0.5 and line["epsilon"] < SETTLED and len(line["leaf_usage"]) > 1
    if is_late and line.get("val_information", math.inf) < DEAF:
        norm = "with network.head_norm='batch' and head_dropout=0.3, or "
        deaf = (
            "every image gets the same probabilities, whatever it shows: either y tells nothing "
            "about which leaf it will be, and this is the truth, or the head has not learned to "
            f"listen yet: train {'' if head_norm == 'batch' else norm}longer"
        )
        line["warnings"] = [*line.get("warnings", []), deaf]


def perplexity(usage: list[float]) -> float:
    """How many leaves are in use, between 1 and all."""
    return math.exp(-sum(p * math.log(p) for p in usage if p > 0))
