"""The command `ptrees figure`: pictures of a model's trees on a split; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.evaluate import add_judged, load_judged
from posterior_trees.cli.options import add_limit, count
from posterior_trees.errors import InputError


def add(commands: Any) -> None:
    figure = commands.add_parser("figure", help="paper-style figure of trees of a split's images")
    add_judged(figure)
    figure.add_argument("--images", type=int, nargs="*", metavar="NUMBER",
                        help="these images of the split [evenly spaced ones]")  # fmt: skip
    add_limit(figure, "evenly spaced in the split [6]", 6)
    figure.add_argument("--grow", type=count, metavar="N", help="trees of so many nodes, the best "
                        "split first [all nodes of the model's layout]")  # fmt: skip
    figure.add_argument("--region", type=int, nargs=4, metavar=("TOP", "LEFT", "H", "W"),
                        help="grown for what may be in this box of pixels [all]")  # fmt: skip
    figure.add_argument("--closer", action="store_true", help="only the hole and what is around it")
    figure.add_argument("--out", type=Path, required=True, help=".png, .jpg, .svg or .pdf file")
    figure.set_defaults(run=run_figure)


def run_figure(arguments: argparse.Namespace) -> None:
    from posterior_trees.evaluation.examples import Grown, save_examples

    if arguments.region and arguments.grow is None:
        raise InputError("--region is for trees that are grown: say with --grow how many nodes")
    recipe, predictor, images = load_judged(arguments)
    grown = None
    if arguments.grow is not None:
        grown = Grown(predictor.begin_each, arguments.grow, arguments.region)
    save_examples(
        arguments.out, predictor, images, indices=arguments.images or None, grown=grown,
        count=arguments.limit, seed=recipe.seed, is_closer=arguments.closer,
    )  # fmt: skip
    print(arguments.out)
