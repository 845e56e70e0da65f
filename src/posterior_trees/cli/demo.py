"""The command `ptrees demo`: trees of sample digits; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    demo = commands.add_parser("demo", help="trees of sample digits with the shipped model")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder to write [demo]")
    demo.set_defaults(run=run, fills=("out",))


def run(arguments: argparse.Namespace) -> None:
    from posterior_trees.demo import make_demo

    print(make_demo(arguments.out))
