"""The command `ptrees figure`: pictures of a model's trees on a split; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.evaluate import load_judged
from posterior_trees.cli.model import add_device, add_model
from posterior_trees.cli.options import SPLITS, add_data, count


def add(commands: Any) -> None:
    figure = commands.add_parser("figure", help="paper-style figure of trees of a split's images")
    add_model(figure)
    add_data(figure)
    add_device(figure)
    figure.add_argument("--split", choices=SPLITS, default="test")
    figure.add_argument("--images", type=int, nargs="*", help="image numbers [evenly spaced]")
    figure.add_argument("--count", type=count, default=6, help="how many evenly spaced images [6]")
    figure.add_argument("--closer", action="store_true", help="only the hole and what is around it")
    figure.add_argument("--out", type=Path, required=True, help=".png, .jpg, .svg or .pdf file")
    figure.set_defaults(run=run_figure)


def run_figure(arguments: argparse.Namespace) -> None:
    from posterior_trees.evaluation.examples import save_examples

    recipe, predictor, images = load_judged(arguments)
    save_examples(
        arguments.out,
        predictor,
        images,
        indices=arguments.images or None,
        count=arguments.count,
        seed=recipe.seed,
        is_closer=arguments.closer,
    )
    print(arguments.out)
