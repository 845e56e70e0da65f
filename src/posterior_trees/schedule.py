"""How the learning rate falls."""

import math
from typing import Any

from posterior_trees.recipe import OptimizerSpec


class Schedule:
    """The factor on every group's learning rate: cosine over the run, or the paper's plateau.

    Plateau (App. A.3): ×0.1 when the validation loss has not fallen for `patience` epochs. Either
    way no group goes below `min_lr`, and the first `warmup_steps` rise linearly.
    """

    def __init__(self, spec: OptimizerSpec, total_steps: int) -> None:
        self.spec, self.total_steps = spec, total_steps
        self.plateau, self.best, self.bad_epochs = 1.0, math.inf, 0

    def lr(self, base: float, step: int) -> float:
        factor = self.plateau
        if self.spec.schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * min(step / max(self.total_steps, 1), 1.0)))
        if step < self.spec.warmup_steps:
            factor *= (step + 1) / self.spec.warmup_steps
        return max(base * factor, min(self.spec.min_lr, base))

    def observe(self, loss: float) -> None:
        """Take note of an epoch's validation loss."""
        if loss < self.best:
            self.best, self.bad_epochs = loss, 0
            return
        self.bad_epochs += 1
        if self.spec.schedule == "plateau" and self.bad_epochs > self.spec.patience:
            self.plateau, self.bad_epochs = self.plateau * 0.1, 0

    def state_dict(self) -> dict[str, Any]:
        best = self.best if math.isfinite(self.best) else None
        return {"plateau": self.plateau, "best": best, "bad_epochs": self.bad_epochs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.plateau, self.bad_epochs = state["plateau"], state["bad_epochs"]
        self.best = math.inf if state["best"] is None else state["best"]
