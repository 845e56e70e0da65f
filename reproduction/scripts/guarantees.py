"""The numbers of results/guarantees: do promises hold, how much do they say, how long do they take?

    python reproduction/scripts/guarantees.py DATA results/guarantees [--cache FOLDER] [--again]

Digits: 10,000 test digits are judged once; 20 halvings by a hash of their names calibrate on one
half (a third of which fits the scales) and judge the other. Cells: windows of the 16 wells that
were not trained on, each well left out in turn; the scales are fitted on the training wells.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import betabinom

from posterior_trees import load
from posterior_trees.data import ImageSet, evenly_spaced, load_evaluation
from posterior_trees.guarantee.certify import calibrate, drawn
from posterior_trees.guarantee.conformal import ROUNDING, quantile
from posterior_trees.guarantee.judging import Judged, score_rows, take
from posterior_trees.guarantee.numbers import Form
from posterior_trees.guarantee.report import diagnose, draw_report, sizes_of
from posterior_trees.models.checkpoint import load_recipe, provenance
from posterior_trees.progress import track
from posterior_trees.seeding import unit_hash
from posterior_trees.store import write_json

LEVELS = (0.8, 0.9, 0.95)
SPLITS = 20
MEASURES = ["ink", "share=0.5", "box=7,11,6,6", "box=8,8,4,12"]


def judge(name: str, images: ImageSet, cache: Path | None, **options: Any) -> Judged:
    """What is seen of images, kept in the cache between runs."""
    file = cache / f"{name}.pt" if cache else None
    if file and file.exists():
        return torch.load(file, weights_only=False)
    predictor = load(name, "cpu")
    found = calibrate(predictor, images, watch=track(f"judging {name}"), **options).judged
    if file:
        torch.save(found, file)
    return found


def judge_digits(data: str, cache: Path | None) -> Judged:
    images = load_evaluation(load_recipe("digits").data, data, "test")
    return judge("digits", images, cache, groups="image", measures=MEASURES, box=(6, 6))


def judge_cells(data: str, cache: Path | None) -> Judged:
    """Windows of the wells that were not trained on, the scales fitted on those that were."""
    spec = load_recipe("cells").data
    train, *parts = (load_evaluation(spec, data, s) for s in ("train", "validation", "test"))
    x, y = (torch.cat([getattr(part, side) for part in parts]) for side in "xy")
    images = ImageSet(x, y, names=[name for part in parts for name in part.names])
    fit = train.subset(evenly_spaced(len(train), 160))
    options = {"measures": ["nuclei", "ink"], "box": (24, 24), "batch_size": 8}
    return judge("cells", images, cache, groups="well", fit=fit, **options)


def digits(judged: Judged) -> dict:
    """Coverage of the halves that did not calibrate, and sizes, by promise and level."""
    labels = judged.labels
    coverage: dict[str, list[list[float]]] = {}
    sizes: list[dict[float, dict[str, float]]] = []
    for split in range(SPLITS):
        half = torch.tensor([unit_hash(label, f"acceptance {split}") < 0.5 for label in labels])
        inside = [label for label, is_in in zip(labels, half.tolist(), strict=True) if is_in]
        fits = drawn(inside, split)
        part = Judged(take(judged.rows, half), inside, fits, judged.plan, judged.about)
        found, rest = part.conclude(), take(judged.rows, ~half)
        scores = score_rows(rest, judged.plan, found.fitted, found.facts["measures"])
        for name, values in scores.items():
            q = torch.tensor([found.scores[name].quantile(level) for level in LEVELS])
            shares = (values <= q[:, None]).double().mean(dim=1).tolist()
            coverage.setdefault(name, []).append([*shares, found.n, len(values)])
        if split < 3:
            sizes.append({level: sizes_of(rest, found, level) for level in LEVELS})
    mean = {level: _mean([size[level] for size in sizes]) for level in LEVELS}
    return {"coverage": {k: _summary(rows) for k, rows in coverage.items()}, "sizes": mean}


def _mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def _summary(rows: list[list[float]]) -> dict:
    """Mean and extremes of the splits, and how many lie in the 95 % of what calibrating on n and
    judging m images allow: a binomial number of m, whose chance is that of the k-th of n."""
    table, told = np.array(rows), {}
    n, m = table[:, -2], table[:, -1]
    for level, shares in zip(LEVELS, table.T, strict=False):
        k = np.ceil((n + 1) * level - ROUNDING)
        low, high = betabinom(m, k, n + 1 - k).ppf([[0.025], [0.975]]) / m
        told[level] = {"mean": shares.mean(), "least": shares.min(), "most": shares.max()}
        told[level]["in_band"] = int(((low <= shares) & (shares <= high)).sum())
    return told


def cells(judged: Judged) -> dict:
    """Every well left out in turn, and judged by the certificate that the others give: the share of
    its windows covered, and sizes, each well having one vote."""
    labels, told = np.array(judged.labels), defaultdict(list)
    wells = sorted(set(labels[~judged.fits.numpy()]))
    for well in wells:
        own = torch.from_numpy(labels == well)
        rest = Judged(take(judged.rows, ~own), labels[~own.numpy()].tolist(), judged.fits[~own],
                      judged.plan, judged.about)  # fmt: skip
        found, rows = rest.conclude(), take(judged.rows, own)
        scores = score_rows(rows, judged.plan, found.fitted, found.facts["measures"])
        for level in LEVELS[:2]:
            q = {name: found.scores[name].quantile(level) for name in scores}
            shares = {k: (v <= q[k]).double().mean().item() for k, v in scores.items()}
            told["coverage", level].append(shares)
            told["sizes", level].append(sizes_of(rows, found, level))
    mean = {
        part: {level: _mean(told[part, level]) for level in LEVELS[:2]}
        for part in ("coverage", "sizes")
    }
    return {"wells": len(wells), **mean}


def before(judged: Judged) -> dict[str, Any]:
    """What happens without a guarantee: the share of truths in the 90 % range of the leaves, and in
    an interval promised for each box by itself where it is asked for the box of largest spread."""
    rows = judged.rows
    raw = {
        name: (Form(True).score(rows[f"values.{name}"], rows["probs"], rows[f"truth.{name}"]) <= 0)
        .double().mean().item()
        for name in MEASURES
    }  # fmt: skip
    half = torch.tensor([unit_hash(label, "acceptance 0") < 0.5 for label in judged.labels])
    off = rows["box.off"].abs()
    single = torch.tensor([quantile(column, 0.9) for column in off[half].T])
    worst = rows["box.variance"].argmax(dim=1, keepdim=True)
    inside = (off <= single).gather(1, worst)[~half].double().mean().item()
    return {"leaves_90": raw, "single_box_after_looking": inside}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--again", action="store_true", help="only what is quick, from the cache")
    arguments = parser.parse_args()
    out, cache, file = arguments.out, arguments.cache, arguments.out / "numbers.json"
    if arguments.again:
        judged = judge_digits(arguments.data, cache)
        quick = {"timing": timing(arguments.data), "before": before(judged)}
        write_json(file, json.loads(file.read_text(encoding="utf-8")) | quick)
        return
    torch.set_num_threads(2)
    out.mkdir(parents=True, exist_ok=True)
    judged = judge_digits(arguments.data, cache)
    numbers: dict[str, Any] = {"made": provenance(), "digits": digits(judged)}
    told = diagnose(judged.conclude())
    draw_report(out / "digits.png", told, "digits: 10,000 test images")
    numbers["digits"] |= {"verdict": told.verdict, "z": told.z, "by_likeliest": told.by_group}
    numbers["cells"] = cells(judge_cells(arguments.data, cache))
    numbers |= {"timing": timing(arguments.data), "before": before(judged)}
    write_json(file, json.loads(json.dumps(numbers, default=lambda t: t.tolist())))
    print(file)


def timing(data: str) -> dict[str, float]:
    """Seconds of a calibration of 1,000 digits, by the clock and of all cores together."""
    predictor = load("digits", "cpu")
    images = load_evaluation(load_recipe("digits").data, data, "test")
    wall, cores = time.perf_counter(), time.process_time()
    calibrate(predictor, images.subset(evenly_spaced(len(images), 1000)), measures=["ink"])
    return {"wall": time.perf_counter() - wall, "cores": time.process_time() - cores}


if __name__ == "__main__":
    main()
