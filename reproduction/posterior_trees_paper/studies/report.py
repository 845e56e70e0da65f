"""From the finished runs of a study to its table and its figure.

OUT/runs.json     a row of numbers per run (`rows.py`), and what the study compares pairwise
OUT/table.md      means over the seeds, a line per variant
OUT/figure.png    panels and pictures of the first seed of each variant
OUT/<run>.jsonl   the log of every training, its leaves' lines (`watch.py`) beside it
"""

import json
import shutil
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

from posterior_trees import store
from posterior_trees.data import evenly_spaced
from posterior_trees.errors import InputError
from posterior_trees.evaluation.examples import predict_examples
from posterior_trees.models.checkpoint import load
from posterior_trees_paper.studies import figures
from posterior_trees_paper.studies.classifier import DigitReader
from posterior_trees_paper.studies.execute import Place
from posterior_trees_paper.studies.minority import RunnerUp
from posterior_trees_paper.studies.panels import PANELS, gain_panels
from posterior_trees_paper.studies.plan import Plan
from posterior_trees_paper.studies.rows import Findings, examine_run, has_diverged
from posterior_trees_paper.studies.tables import table
from posterior_trees_paper.studies.watch import SHOWN, load_snapshot, read_watch

READS_DIGITS = ("layouts",)
"""Studies that need the digit classifier."""
SHOWN_MASS = 0.2
"""The layouts are shown on the first test image whose runner-up digit has this probability."""


def write_report(
    plan: Plan,
    runs: str | PathLike[str],
    out: str | PathLike[str],
    data: str | PathLike[str] | None,
    *,
    reader: DigitReader | None = None,
    say: Callable[[str], object] = print,
) -> list[dict[str, Any]]:
    """Examine all finished runs and write table and figure; returns the rows."""
    check_reader(plan, reader)
    out = Path(out)
    found = Findings(plan, Place(runs, plan), data)
    if not found.jobs:
        raise InputError(f"no run of {plan.name} is finished: there is nothing to report yet")
    out.mkdir(parents=True, exist_ok=True)
    for job in found.jobs:
        is_digit = found.images(job).shape == (1, 28, 28)
        row, values = examine_run(job, found.place, found.images(job), reader if is_digit else None)
        found.rows.append(row)
        found.values[job.name] = values
        shutil.copyfile(found.place.run(job) / "log.jsonl", out / f"{job.name}.jsonl")
        lines = [json.dumps(line) + "\n" for line in read_watch(found.place.run(job))]
        store.write_bytes(out / f"{job.name}_leaves.jsonl", "".join(lines).encode())
        say(f"{job.name}: examined")
    if plan.name in READS_DIGITS:
        _add_runner_up(found)
    facts = {"schema": 1, "study": plan.name, "title": plan.title, "runs": found.rows}
    text = json.dumps(facts | found.extra, indent=1) + "\n"
    store.write_bytes(out / "runs.json", text.encode())
    store.write_bytes(out / "table.md", table(plan.name, found.rows).encode())
    panels = PANELS.get(plan.name, gain_panels)(found)
    figures.save_study(out / "figure.png", panels, strips(found))
    say(f"wrote {out}/table.md, runs.json and figure.png")
    return found.rows


def check_reader(plan: Plan, reader: DigitReader | None) -> None:
    """Refuse a study that cannot be reported later, before anything is trained."""
    if plan.name in READS_DIGITS and reader is None:
        raise InputError(
            f"{plan.name} needs the digit classifier: give --classifier FILE; "
            "`bash reproduction/scripts/studies.sh classifier` makes one"
        )


def strips(found: Findings) -> list[figures.Strip]:
    """The tree of one test image by each variant, and before it those kept during its training."""
    drawn = []
    for job, row in found.first_rows():
        images = found.images(job)
        number = found.extra.get("shown_image", evenly_spaced(len(images), SHOWN)[-1])
        predictor = load(found.place.model(job))
        tree, y, x = predict_examples(predictor, images, [number], job.recipe.seed)
        for epoch in found.plan.snapshots:
            kept = load_snapshot(found.place.run(job), epoch)[-1]
            drawn.append(figures.Strip(f"{job.label}\nepoch {epoch}", kept, x, y))
        end = "\nend" if found.plan.snapshots else ""
        end += "\ndiverged" if has_diverged(row) else ""
        drawn.append(figures.Strip(job.label + end, tree, x, y))
    return drawn


def _add_runner_up(found: Findings) -> None:
    """The runner-up digit of each image, by all finished layouts; into rows and extras."""
    found.runner_up = digits = RunnerUp.among(found.values)
    for row in found.rows:
        row |= digits.row(row["run"], found.values[row["run"]])
    found.extra["shown_image"] = digits.first_above(SHOWN_MASS)
    found.extra["more_leaves"] = {
        f"{other.name} over {one.name}": digits.more_leaves(other.name, one.name)
        for one, other in found.equal_pairs()
    }
