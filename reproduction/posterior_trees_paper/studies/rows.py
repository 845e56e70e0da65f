"""Everything a study's tables show of one run, as one row of plain numbers.

The two criteria of a good leaf: at least 1 % of the test images reach it, and on these its PSNR is
above the root's. A leaf that fewer reach is *dead*; one that is reached but no better than the root
is *weak*.
"""

import json
from statistics import fmean
from typing import Any

from torch import Tensor

from posterior_trees.data import ImageSet
from posterior_trees.evaluation.score import seconds_per_image
from posterior_trees.models.checkpoint import load
from posterior_trees.training.health import perplexity
from posterior_trees.training.run import read_log
from posterior_trees_paper.studies.classifier import DigitReader
from posterior_trees_paper.studies.examine import examine
from posterior_trees_paper.studies.execute import Place
from posterior_trees_paper.studies.plan import Job

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
    values = examine(
        predictor,
        images,
        batch_size=job.recipe.training.evaluation_batch,
        seed=job.recipe.seed,
        reader=None if reader is None else reader.to(predictor.device),
    )
    judged = json.loads((place.judged(job) / f"{job.name}.json").read_text(encoding="utf-8"))
    row: dict[str, Any] = {
        "run": job.name,
        "variant": job.variant,
        "label": job.label,
        "seed": job.seed,
    }
    row |= {"commit": place.row(job).get("commit"), **score_row(judged)}
    row |= {name: values[name].double().mean().item() for name in MEANS}
    explained, error = (values[name].double().mean() for name in ("explained", "root_error"))
    row["explained"] = (explained / error).item()
    row |= training_row(read_log(place.run(job) / "log.jsonl"))
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
        "test_images": judged["n"],
        "branching": judged["branching"],
        "psnr": [level["mean"] for level in quality],
        "nll": nll,
        "entropy": entropy,
        "calibration": nll[-1] - entropy[-1],
        "leaves": len(leaves),
        "good": len(good),
        "dead": len(leaves) - len(reached),
        "weak": len(reached) - len(good),
        "rarest": min(leaf["frequency"] for leaf in leaves),
    }


def has_diverged(row: dict[str, Any]) -> bool:
    """Is the root's PSNR no number above 0 dB, its error as large as the whole range of values?"""
    return not row["psnr"][0] > 0


def training_row(log: list[dict[str, Any]]) -> dict[str, Any]:
    """From the log of the training: how long it took, and how evenly leaves won in its last epoch
    (a number of leaves, at most all)."""
    last = log[-1]
    return {
        "epochs": last["epoch"],
        "training_seconds": last["seconds"],
        "leaves_in_use": perplexity(last["leaf_usage"]),
    }


def over_seeds(rows: list[dict[str, Any]], value) -> tuple[float, float]:
    """Mean and half the range of a value over the seeds of a variant."""
    numbers = [float(value(row)) for row in rows]
    return fmean(numbers), (max(numbers) - min(numbers)) / 2
