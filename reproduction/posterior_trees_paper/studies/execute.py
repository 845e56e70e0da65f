"""Train and judge the runs of a study: separate processes, side by side, resumable.

RUNS/<study>/<run>/            the run's folder (training/run.py), with `leaves.jsonl` (watch.py)
RUNS/<study>/<run>.txt         what its process printed
RUNS/<study>/judged/<run>/     exported weights, scores of the test images (study.py), `row.json`

A run is finished when its `row.json` says so; the same command continues the others. With a time
limit, processes stop and save in time, and runs that would not fit are left for the next call.
A run whose recipe another study has trained already is copied from there.
"""

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from posterior_trees import store
from posterior_trees.data import load_evaluation
from posterior_trees.models.build import build_predictor
from posterior_trees.recipe import write_recipe
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit
from posterior_trees_paper.studies.plan import Job, Plan
from posterior_trees_paper.studies.watch import LeafWatch, snapshot_file
from posterior_trees_paper.tasks import judge, until

RESERVE_SECONDS = 15.0
"""Kept for judging a run, out of the time that is given."""
LEAST_SECONDS = 90.0
"""With less time left no run is started: it would hardly be compiled."""


class Place:
    """Where the files of a study are."""

    def __init__(self, runs: str | PathLike[str], plan: Plan) -> None:
        self.folder = Path(runs) / plan.name

    def run(self, job: Job) -> Path:
        return self.folder / job.name

    def judged(self, job: Job) -> Path:
        return self.folder / "judged" / job.name

    def model(self, job: Job) -> Path:
        return self.judged(job) / f"{job.name}.safetensors"

    def row(self, job: Job) -> dict[str, Any]:
        """How a run ended; empty if it was not judged yet."""
        file = self.judged(job) / "row.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def is_done(self, job: Job) -> bool:
        return self.row(job).get("state") == "done"


def run_job(
    plan: Plan,
    job: Job,
    runs: str | PathLike[str],
    data: str | PathLike[str] | None,
    *,
    minutes: float | int | None = None,
    accelerator: str = "auto",
    say: Callable[[str], object] = print,
) -> dict[str, Any]:
    """Train one run in this process until it or the time is over, and judge it if it is over."""
    place = Place(runs, plan)
    run, out = place.run(job), place.judged(job)
    run.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)

    def tell(line: dict[str, Any]) -> None:
        keys = ("epoch", "seconds", "epsilon", "root_mse", "leaf_usage")
        say(json.dumps({key: line[key] for key in keys}))

    torch.manual_seed(job.recipe.seed)  # as `fit` does before it builds a network itself
    predictor = build_predictor(job.recipe)
    images = load_evaluation(job.recipe.data, data, "test")
    watch = LeafWatch(predictor, images, run, plan.snapshots, tell, job.recipe.seed)
    limit = until(math.inf if minutes is None else 60 * minutes - RESERVE_SECONDS)
    how: dict[str, Any] = {"data": data, "predictor": predictor, "accelerator": accelerator}
    fit(job.recipe, run, **how, report=watch, watch=limit)
    log = read_log(run / "log.jsonl") if (run / "log.jsonl").is_file() else []
    if not log or log[-1]["epoch"] < job.recipe.training.epochs:
        return {"state": "stopped"}
    row = {"name": job.name, "variant": job.variant, "seed": job.seed}
    row |= judge(job.recipe, run, out, images)
    store.write_json(out / "row.json", row)
    return row


def run_all(
    file: str | PathLike[str],
    plan: Plan,
    runs: str | PathLike[str],
    options: list[str],
    *,
    side_by_side: int = 3,
    minutes: float | int | None = None,
    say: Callable[[str], object] = print,
) -> list[Job]:
    """Start a process for every run that is not finished, a few at a time; returns those that still
    are not. `options` are the words of the command line that every process gets."""
    place = Place(runs, plan)
    place.folder.mkdir(parents=True, exist_ok=True)
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    words = [str(file), *options, "--runs", str(runs)]
    for job in plan.jobs:
        if not place.is_done(job) and (twin := find_twin(job, plan, runs)):
            adopt(twin, job, place)
            say(f"{job.name}: the same recipe as {twin.parent.name}/{twin.name}, taken from there")
    waiting = [job for job in plan.jobs if not place.is_done(job)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    say(f"{plan.name}: {len(plan.jobs) - len(waiting)} of {len(plan.jobs)} runs are finished")
    try:
        while waiting or running:
            while waiting and len(running) < side_by_side and not _is_late(end):
                job = waiting.pop(0)
                running[job.name] = _start(job, place, words, end)
                say(f"{job.name}: started")
            for name in [name for name, process in running.items() if process.poll() is not None]:
                say(f"{name}: {_ending(running.pop(name).returncode, place, plan.job(name))}")
            if _is_late(end):
                waiting.clear()
            time.sleep(0.2)
    finally:
        for process in running.values():
            process.terminate()
    return [job for job in plan.jobs if not place.is_done(job)]


def find_twin(job: Job, plan: Plan, runs: str | PathLike[str]) -> Path | None:
    """The folder of a finished run of another study that had the same recipe."""
    recipe = write_recipe(job.recipe)
    for file in sorted(Path(runs).glob("*/judged/*/row.json")):
        folder = file.parents[2] / file.parent.name
        kept = [snapshot_file(folder, epoch) for epoch in plan.snapshots]
        known = folder / "recipe.toml"
        is_same = known.is_file() and known.read_text(encoding="utf-8") == recipe
        if is_same and file.parents[2].name != plan.name and all(k.is_file() for k in kept):
            return folder
    return None


def adopt(twin: Path, job: Job, place: Place) -> None:
    """Copy what a report needs of a finished run, under the name of another."""
    judged = twin.parent / "judged" / twin.name
    place.run(job).mkdir(parents=True, exist_ok=True)
    place.judged(job).mkdir(parents=True, exist_ok=True)
    for file in twin.iterdir():
        if file.is_file() and file.name not in ("state.safetensors", "best.safetensors"):
            shutil.copyfile(file, place.run(job) / file.name)
    for file in judged.iterdir():
        renamed = file.name.replace(twin.name, job.name, 1)
        shutil.copyfile(file, place.judged(job) / renamed)
    row = place.row(job) | {"name": job.name, "variant": job.variant}
    store.write_json(place.judged(job) / "row.json", row)


def _start(job: Job, place: Place, words: list[str], end: float) -> "subprocess.Popen[bytes]":
    """`words` are those of all runs."""
    words = [sys.executable, "-m", "posterior_trees", "reproduce", *words, "--only", job.name]
    if math.isfinite(end):
        words += ["--minutes", f"{(end - time.monotonic()) / 60:.3f}"]
    with (place.folder / f"{job.name}.txt").open("ab") as stream:
        return subprocess.Popen(words, stdout=stream, stderr=subprocess.STDOUT)


def _is_late(end: float) -> bool:
    return time.monotonic() > end - LEAST_SECONDS


def _ending(code: int, place: Place, job: Job) -> str:
    if code == 0:
        return place.row(job).get("state", "stopped")
    words = (place.folder / f"{job.name}.txt").read_text(encoding="utf-8", errors="replace")
    return f"failed with exit code {code}: {words.strip().splitlines()[-1] if words else ''}"
