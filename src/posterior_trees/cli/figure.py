"""The command `ptrees figure`: pictures of a model's trees on a split; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.evaluate import load_judged
from posterior_trees.cli.model import add_model
from posterior_trees.cli.options import add_data, add_device, add_limit, add_split


def add(commands: Any) -> None:
    figure = commands.add_parser("figure", help="paper-style figure of trees of a split's images")
    add_model(figure)
    add_data(figure)
    add_device(figure)
    add_split(figure)
    figure.add_argument("--images", type=int, nargs="*", metavar="NUMBER",
                        help="these images of the split [evenly spaced ones]")  # fmt: skip
    add_limit(figure, "evenly spaced in the split [6]", 6)
    figure.add_argument("--closer", action="store_true", help="only the hole and what is around it")
    figure.add_argument("--out", type=Path, required=True, help=".png, .jpg, .svg or .pdf file")
    figure.set_defaults(run=run_figure)


def run_figure(arguments: argparse.Namespace) -> None:
    from posterior_trees.evaluation.examples import save_examples

    recipe, predictor, images = load_judged(arguments)
    options = {"count": arguments.limit, "seed": recipe.seed, "is_closer": arguments.closer}
    save_examples(arguments.out, predictor, images, indices=arguments.images or None, **options)
    print(arguments.out)
