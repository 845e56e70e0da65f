"""Several recipes in a row: train, judge on the test split, draw, export. `ptrees study`.

RUNS/<name>/                  the run of each recipe; the same command continues what was stopped
OUT/<name>.json               what `ptrees evaluate --json` writes, of the exported weights
OUT/<name>.safetensors        the weights in bfloat16
OUT/<name>_scores.safetensors every value per test image, for paired comparisons
OUT/<name>.jpg                trees of six evenly spaced test images
OUT/<name>_closer.jpg         … the hole and what is around it, where a small one is filled
OUT/<name>.jsonl              the log of the training
OUT/study.json                a row per recipe: how it ended, and what it gains over its root and
                              over the plain network, as paired 95 % bootstrap intervals
OUT/paper.json, paper.md      `paper | ours | difference` (`against.py`)

With a time limit the time that is left is shared equally among the recipes that are left. One that
fails does not stop the others. Test images are read before anything is trained, too: a broken one
ends what it would have judged.
"""

import dataclasses
import gc
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees import store
from posterior_trees.data import ImageSet, find_groups, load_evaluation
from posterior_trees.errors import InputError, PosteriorTreesError, words_for
from posterior_trees.evaluation.examples import save_examples
from posterior_trees.evaluation.score import report, score, seconds_per_image
from posterior_trees.metrics import summarize
from posterior_trees.models.checkpoint import export_model, load, load_recipe
from posterior_trees.recipe import Recipe, read_recipe
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit
from posterior_trees_paper.against import PAPER, SEED, write_ways

SHOWN = 6
SMALL = 0.33
"""Share of the picture below which a hole is drawn from closer too."""
PLAIN = "_plain"


def run_study(
    files: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    data: str | PathLike[str] | None = None,
    runs: str | PathLike[str] = "runs",
    minutes: float | int | None = None,
    changes: Sequence[str] = (),
    with_plain: bool = False,
    against: str | PathLike[str] | None = None,
    seeds: int = 1,
    accelerator: str = "auto",
    say: Callable[[str], object] = print,
) -> list[dict[str, Any]]:
    """Run recipe files, each with the same `changes`; returns the rows of `study.json`.

    `with_plain` adds to each the plain MSE network of the same width, `<name>_plain`, and `against`
    a folder with another recipe of each name, `<name>_paper`, for a table of both (`against.py`).
    Of several `seeds` the further ones are `<name>_seed1`, … `minutes` limits the training of all
    of them together; judging and drawing come on top.
    """
    recipes = list_recipes(files, changes, with_plain, against, seeds)
    unfit = {name: p for name, recipe in recipes.items() if (p := find_problem(recipe, data))}
    out, runs = Path(out), Path(runs)
    out.mkdir(parents=True, exist_ok=True)
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    rows: list[dict[str, Any]] = []
    for number, (name, recipe) in enumerate(recipes.items()):
        left = (end - time.monotonic()) / (len(recipes) - number)
        start = time.monotonic()
        try:
            if name in unfit:
                raise InputError(unfit[name])
            say(f"{name}: training" + (f" for at most {left:.0f} s" if minutes is not None else ""))
            train(recipe, runs / name, data, left, accelerator, say)
            row = judge(recipe, runs / name, out, load_evaluation(recipe.data, data, "test"))
        except Exception as error:
            if not (words := words_for(error)):
                raise
            row = {"state": "failed", "message": words}
        row = {"name": name, **row, "wall_seconds": round(time.monotonic() - start, 1)}
        rows.append(row)
        say(f"{name}: {row['state']} {row.get('message', '')}".rstrip())
        store.write_json(out / "study.json", rows)
        if against is not None:
            write_ways(out, [Path(file).stem for file in files])
        gc.collect()
        torch.compiler.reset()  # compiled networks of earlier recipes count against a limit
    return rows


def list_recipes(
    files: Sequence[str | PathLike[str]],
    changes: Sequence[str],
    with_plain: bool = False,
    against: str | PathLike[str] | None = None,
    seeds: int = 1,
) -> dict[str, Recipe]:
    """What a study trains, by name: all of the first seed before the second."""
    once: dict[str, Recipe] = {}
    for file in map(Path, files):
        recipe = once[file.stem] = read_recipe(file, list(changes))
        if with_plain:
            once[file.stem + PLAIN] = plain_of(recipe)
        if against is not None:
            once[file.stem + PAPER] = read_recipe(Path(against) / file.name, list(changes))
    recipes = dict(once)
    for seed in range(1, seeds):
        for name, recipe in once.items():
            recipes[f"{name}{SEED}{seed}"] = dataclasses.replace(recipe, seed=recipe.seed + seed)
    return recipes


def find_problem(recipe: Recipe, data: str | PathLike[str] | None) -> str:
    """What is wrong with the images that will judge it; a training of hours should not find out."""
    try:
        load_evaluation(recipe.data, data, "test")
    except (PosteriorTreesError, OSError) as error:
        return str(error)
    return ""


def plain_of(recipe: Recipe) -> Recipe:
    """The same experiment with one answer: depth 0, the same width, nothing else to fit."""
    network, leaves, kind = recipe.network, recipe.tree.branching, recipe.network.kind
    if kind == "growing":
        kind = network.trunk
    else:
        leaves **= recipe.tree.depth
    width = network.width or network.c_init * leaves
    return dataclasses.replace(
        recipe,
        tree=dataclasses.replace(recipe.tree, depth=0),
        network=dataclasses.replace(network, width=width, kind=kind),
        balancer=dataclasses.replace(recipe.balancer, is_on=False),
        training=dataclasses.replace(recipe.training, calibrate=False),
    )


def train(
    recipe: Recipe,
    run: Path,
    data: str | PathLike[str] | None,
    seconds: float,
    accelerator: str,
    say: Callable[[str], object] = print,
) -> None:
    """Train in `run` until the recipe or the time is over."""

    def tell(line: dict[str, Any]) -> None:
        keys = ("epoch", "seconds", "root_mse", "val_psnr", "val_nll", "leaf_usage")
        say("  " + json.dumps({key: line[key] for key in keys if key in line}))

    fit(recipe, run, data=data, accelerator=accelerator, watch=until(seconds), report=tell)


def until(seconds: float) -> Callable[[Iterator[int], int, int], Iterator[int]]:
    """For `fit`: let steps through for so long from now."""
    end = time.monotonic() + seconds
    return lambda steps, first, total: takewhile(lambda step: time.monotonic() <= end, steps)


def judge(recipe: Recipe, run: Path, out: Path, images: ImageSet) -> dict[str, Any]:
    """Export a run's best weights, score them on the test images and draw its trees."""
    model = out / f"{run.name}.safetensors"
    if not (run / "best.safetensors").is_file():
        return {"state": "stopped", "message": "before the first epoch was over: give it more time"}
    shutil.copyfile(run / "log.jsonl", out / f"{run.name}.jsonl")
    export_model(model, load(run, "cpu"), load_recipe(run))
    predictor = load(model)
    scores = score(predictor, images, batch_size=recipe.training.evaluation_batch, seed=recipe.seed)
    groups = find_groups(images.names, recipe.data.split)
    about = {"model": run.name, "task": recipe.task, "split": "test", "groups": groups}
    table = report(predictor, scores, **about)
    table |= {"seconds_per_image": seconds_per_image(predictor, images), "nfe": 1}
    store.write_json(out / f"{run.name}.json", table)
    store.write(out / f"{run.name}_scores.safetensors", scores, {"names": images.names})
    figure = out / f"{run.name}.jpg"
    shown: dict[str, Any] = {"count": SHOWN, "seed": recipe.seed, "dpi": 140}
    save_examples(figure, predictor, images, **shown)
    hole = predictor.measurement.hole
    if hole is not None and hole.float().mean() < SMALL:  # the picture shows mostly what is known
        closer = figure.with_stem(f"{run.name}_closer")
        save_examples(closer, predictor, images, **shown, is_closer=True)
    last = read_log(run / "log.jsonl")[-1]
    is_done = last["epoch"] == recipe.training.epochs
    row = {"state": "done" if is_done else "stopped", "epochs": last["epoch"]}
    row |= {"training_seconds": last["seconds"], "commit": predictor.about.get("commit")}
    return row | gains(scores, run.name, out, images.names, groups)


def gains(
    scores: dict[str, Tensor], name: str, out: Path, images: list[str], groups: Tensor | None = None
) -> dict[str, Any]:
    """PSNR (of the hole, if there is one) that each level adds to the one above, over test images,
    and what the root of a tree has over the plain network, if that was judged on them before."""
    quality = scores.get("psnr_hole", scores["psnr"])
    steps = [summarize(step, groups=groups)._asdict() for step in quality.diff(dim=1).T]
    found: dict[str, Any] = {"psnr_gain_per_level": steps}
    is_plain, base = name.endswith(PLAIN), name.removesuffix(PLAIN)
    other = out / f"{base if is_plain else base + PLAIN}_scores.safetensors"
    if other.is_file():
        stored, facts = store.read(other)
        theirs = stored.get("psnr_hole", stored["psnr"])[:, 0]
        if facts.get("names") == images:
            difference = (-1 if is_plain else 1) * (quality[:, 0] - theirs)
            found["tree_root_over_plain"] = summarize(difference, groups=groups)._asdict()
    return found
