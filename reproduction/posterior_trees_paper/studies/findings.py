"""What was found out about the finished runs of a study: rows, values per image, test images."""

from itertools import combinations
from os import PathLike
from typing import Any

from torch import Tensor

from posterior_trees.data import ImageSet, load_evaluation
from posterior_trees_paper.studies.execute import Place
from posterior_trees_paper.studies.minority import RunnerUp
from posterior_trees_paper.studies.plan import Job, Plan


class Findings:
    """What was found out about the finished runs of a study."""

    def __init__(self, plan: Plan, place: Place, data: str | PathLike[str] | None) -> None:
        self.plan, self.place, self.data = plan, place, data
        self.jobs = [job for job in plan.jobs if place.is_done(job)]
        self.rows: list[dict[str, Any]] = []
        self.values: dict[str, dict[str, Tensor]] = {}
        self.extra: dict[str, Any] = {}
        self.runner_up: RunnerUp | None = None
        self._sets: dict[Any, ImageSet] = {}

    def images(self, job: Job) -> ImageSet:
        """The test images of a run; runs of one set share them."""
        spec = job.recipe.data
        if spec not in self._sets:
            self._sets[spec] = load_evaluation(spec, self.data, "test")
        return self._sets[spec]

    @property
    def first(self) -> dict[str, Job]:
        """The first seed of each variant, by the variant's name."""
        found: dict[str, Job] = {}
        for job in self.jobs:
            found.setdefault(job.variant, job)
        return found

    def equal_pairs(self) -> list[tuple[Job, Job]]:
        """The wider and the deeper of two layouts with equally many leaves."""
        jobs = sorted(self.first.values(), key=lambda job: job.recipe.tree.depth)
        sizes = {job.name: job.recipe.tree.branching**job.recipe.tree.depth for job in jobs}
        pairs = combinations(jobs, 2)
        return [(one, other) for one, other in pairs if sizes[one.name] == sizes[other.name]]
