"""The command `ptrees evaluate`: numbers of a model on a split; heavy imports inside."""

import argparse
import sys
from pathlib import Path
from typing import Any

from posterior_trees.cli.model import add_model, load_model
from posterior_trees.cli.options import SPLITS, add_data, add_device, add_limit, add_split
from posterior_trees.errors import plural

SEEN_APART = 0.25
"""Pixels between the truth and the root of pairs from which on `evaluate` speaks of it."""


def add(commands: Any) -> None:
    evaluate = commands.add_parser("evaluate", help="PSNR, NLL and leaf use of a model on a split")
    add_judged(evaluate)
    add_limit(evaluate, "the first of the split [all]")
    evaluate.add_argument("--json", type=Path, metavar="FILE", help="file for the numbers")
    evaluate.set_defaults(run=run_evaluate)


def add_judged(parser: argparse.ArgumentParser, splits: tuple[str, ...] = SPLITS) -> None:
    """MODEL, and the images that it is judged on."""
    add_model(parser)
    add_data(parser)
    add_device(parser)
    add_split(parser, splits)


def run_evaluate(arguments: argparse.Namespace) -> None:
    from posterior_trees.data import find_groups
    from posterior_trees.evaluation.score import report, score, seconds_per_image
    from posterior_trees.metrics import information
    from posterior_trees.progress import track
    from posterior_trees.store import make_folder_of, write_json

    if arguments.json:
        make_folder_of(arguments.json)
    recipe, predictor, images = load_judged(arguments)
    if arguments.limit is not None:
        images = images.subset(range(min(arguments.limit, len(images))))
    how = {"batch_size": recipe.training.evaluation_batch, "seed": recipe.seed}
    scores = score(predictor, images, **how, watch=track("evaluating"))
    names = {"model": str(arguments.model), "task": recipe.task, "split": arguments.split}
    groups = find_groups(images.names, recipe.data.split)
    table: dict[str, Any] = report(predictor, scores, **names, groups=groups)
    table |= {"seconds_per_image": seconds_per_image(predictor, images), "nfe": 1}
    print_scores(table)
    if predictor.num_leaves > 1:
        told = information(scores["probs"])
        print(f"probabilities tell {told:.3f} nats about single images (0: all get the same ones)")
    if arguments.json:
        write_json(arguments.json, table)


def load_judged(arguments: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A model's recipe, the model and the images of a split; a message if these may not be what
    they are called."""
    from posterior_trees.data import describe_other_images
    from posterior_trees.models.checkpoint import load_recipe

    recipe, predictor = load_recipe(arguments.model), load_model(arguments, arguments.device)
    images = load_images(recipe, arguments, arguments.split)
    known = None if arguments.split == "train" else predictor.about.get("train_names")
    if doubt := describe_other_images(recipe.data, arguments.data, known):
        print(f"ptrees {arguments.command}: {doubt}", file=sys.stderr)
    return recipe, predictor, images


def load_images(recipe: Any, arguments: argparse.Namespace, split: str) -> Any:
    """The images of a split as the model is judged on them, or `--whole`."""
    from posterior_trees.data import load_evaluation, load_split

    is_whole = getattr(arguments, "whole", False)
    return (load_split if is_whole else load_evaluation)(recipe.data, arguments.data, split)


def print_scores(table: dict[str, Any]) -> None:
    """The numbers of an evaluation, a row per depth and a row per leaf."""
    from rich.console import Console
    from rich.table import Column, Table

    from posterior_trees.metrics import LEAST_PROBABILITY

    console = Console()
    seen = plural(table["n"], "image")
    seen += f" in {plural(table['groups'], 'group')}" if "groups" in table else ""
    names = [k for k in ("psnr_hole", "psnr", "nll", "entropy") if table[k]]
    grid = Table(
        *(Column(name, justify="right") for name in ("depth", *names)),
        title=f"{table['model']} · {table['task']} · {table['split']} ({seen})",
        caption="mean ± standard deviation over images",
    )
    for depth in range(len(table["branching"]) + 1):
        cells = [f"{table[n][depth]['mean']:.3f} ± {table[n][depth]['std']:.3f}" for n in names]
        grid.add_row(str(depth), *cells)
    console.print(grid)
    columns = ("leaf", "frequency", "probability", "psnr", "root psnr")
    leaves = Table(*(Column(name, justify="right") for name in columns), title="leaves")
    for number, leaf in enumerate(table["leaves"]):
        cells = ["–" if v is None else f"{v:.3f}" for v in leaf.values()]
        leaves.add_row(str(number), *cells)
    console.print(leaves)
    down, right = table.get("offset", (0.0, 0.0))
    if max(abs(down), abs(right)) >= SEEN_APART:
        console.print(
            f"x lies {down:+.2f} rows and {right:+.2f} columns from where the root expects it. If "
            "the images of a pair were recorded apart, add this to data.shift and train again",
            soft_wrap=True,
        )
    if clamped := table.get("nll_clamped"):
        console.print(f"of {clamped} images the branch of the truth had less than "
                      f"{LEAST_PROBABILITY:g}, and counts as that", soft_wrap=True)  # fmt: skip
    console.print(f"{1000 * table['seconds_per_image']:.3f} ms per image, one network evaluation")
