"""Everything a study's tables show of one run, as one row of plain numbers.

The two criteria of a good leaf: at least 1 % of the test images reach it, and on these its PSNR is
above the root's. A leaf that fewer reach is *dead*; one that is reached but no better than the root
is *weak*.
"""

import json
from itertools import combinations
from os import PathLike
from typing import Any

from torch import Tensor

from posterior_trees.data import ImageSet, load_evaluation
from posterior_trees.evaluation.score import seconds_per_image
from posterior_trees.models.checkpoint import load
from posterior_trees.training.health import perplexity
from posterior_trees.training.run import read_log
from posterior_trees_paper.studies.classifier import DigitReader
from posterior_trees_paper.studies.examine import examine
from posterior_trees_paper.studies.execute import Place
from posterior_trees_paper.studies.minority import RunnerUp
from posterior_trees_paper.studies.plan import Job, Plan

REACHED = 0.01
MEANS = (
    "best_psnr", "best_nll", "diversity", "nearest", "walk", "scan", "scan_best", "expected_walk",
    "expected_scan",
)  # fmt: skip
"""Per-image values of `examine` whose means over the test images are in the row."""


def examine_run(
    job: Job, place: Place, images: ImageSet, reader: DigitReader | None = None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The row of a finished run and its values per test image."""
    predictor = load(place.model(job))
    size, seed = job.recipe.training.evaluation_batch, job.recipe.seed
    reader = None if reader is None else reader.to(predictor.device)
    values = examine(predictor, images, batch_size=size, seed=seed, reader=reader)
    judged = json.loads((place.judged(job) / f"{job.name}.json").read_text(encoding="utf-8"))
    row = {"run": job.name, "variant": job.variant, "label": job.label, "seed": job.seed,
           "commit": place.row(job).get("commit"), **score_row(judged)}  # fmt: skip
    row |= {name: values[name].double().mean().item() for name in MEANS}
    explained, error = (values[name].double().mean() for name in ("explained", "root_error"))
    row["explained"] = (explained / error).item()
    last = read_log(place.run(job) / "log.jsonl")[-1]
    row |= {"epochs": last["epoch"], "training_seconds": last["seconds"]}
    row["leaves_in_use"] = perplexity(last["leaf_usage"])  # how evenly they won in that epoch
    row["parameters"] = sum(p.numel() for p in predictor.network.parameters())
    row["ms_per_image"] = 1000 * seconds_per_image(predictor, images)
    return row, values


def score_row(judged: dict[str, Any]) -> dict[str, Any]:
    """From the JSON of `ptrees evaluate`: PSNR (of the hole, if there is one) and NLL per depth,
    and how many leaves are good, dead and weak."""
    quality, leaves = judged["psnr_hole"] or judged["psnr"], judged["leaves"]
    reached = [leaf for leaf in leaves if leaf["frequency"] >= REACHED]
    good = [leaf for leaf in reached if leaf["psnr"] > leaf["root_psnr"]]
    nll, entropy = ([level["mean"] for level in judged[name]] for name in ("nll", "entropy"))
    return {
        "test_images": judged["n"], "branching": judged["branching"],
        "psnr": [level["mean"] for level in quality],
        "nll": nll, "entropy": entropy, "calibration": nll[-1] - entropy[-1],
        "leaves": len(leaves), "good": len(good), "dead": len(leaves) - len(reached),
        "weak": len(reached) - len(good), "rarest": min(leaf["frequency"] for leaf in leaves),
    }  # fmt: skip


def has_diverged(row: dict[str, Any]) -> bool:
    """Is the root's PSNR no number above 0 dB, its error as large as the whole range of values?"""
    return not row["psnr"][0] > 0


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

    def first_rows(self) -> list[tuple[Job, dict[str, Any]]]:
        """These and their rows."""
        rows = {row["run"]: row for row in self.rows}
        return [(job, rows[job.name]) for job in self.first.values()]

    def equal_pairs(self) -> list[tuple[Job, Job]]:
        """The wider and the deeper of two layouts with equally many leaves."""
        jobs = sorted(self.first.values(), key=lambda job: job.recipe.tree.depth)
        sizes = {job.name: job.recipe.tree.branching**job.recipe.tree.depth for job in jobs}
        pairs = combinations(jobs, 2)
        return [(one, other) for one, other in pairs if sizes[one.name] == sizes[other.name]]
