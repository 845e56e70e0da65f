"""The command `ptrees toy`: the paper's 2-D mixture; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import count


def add(commands: Any) -> None:
    toy = commands.add_parser("toy", help="train and judge a tree on the paper's 2-D mixture")
    toy.add_argument("--out", type=Path, required=True, help="folder for figures and numbers")
    toy.add_argument("--probability", choices=("cross_entropy", "paper"), default="cross_entropy",
                     help="how probabilities are learned [cross_entropy]")  # fmt: skip
    toy.add_argument("--seeds", type=count, default=3, help="so many networks are trained [3]")
    toy.set_defaults(run=run, fills=("out",))


def run(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.toy.study import run

    run(arguments.out, probability=arguments.probability, seeds=arguments.seeds)
