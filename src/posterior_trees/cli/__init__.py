"""The `ptrees` command line: a file for each command, heavy imports inside.

Exit codes: 0 done, 1 a problem that the message explains, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import argparse
import os
import sys
from pathlib import Path

from posterior_trees.cli.baseline import add_baseline
from posterior_trees.cli.bench import add_bench
from posterior_trees.cli.compare import add_compare
from posterior_trees.cli.evaluate import add_evaluate
from posterior_trees.cli.explore import add_explore
from posterior_trees.cli.export import add_export
from posterior_trees.cli.figure import add_figure
from posterior_trees.cli.hardware import check_hardware
from posterior_trees.cli.options import add_data, count, print_paths
from posterior_trees.cli.parser import Parser
from posterior_trees.cli.predict import add_predict
from posterior_trees.cli.reproduce import add_reproduce
from posterior_trees.cli.study import add_study
from posterior_trees.cli.train import add_train


def main(argv: list[str] | None = None) -> None:
    """Run one command; a user's mistake ends in a message, not in a traceback."""
    try:
        arguments = make_parser().parse_args(argv)
        try:
            check_hardware(arguments)
            arguments.run(arguments)
        except (ValueError, RuntimeError, OSError) as error:
            if os.environ.get("PTREES_DEBUG"):
                raise
            print(f"ptrees {arguments.command}: {error}", file=sys.stderr)
            raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\nptrees: stopped", file=sys.stderr)
        raise SystemExit(130) from None


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ptrees", description="Trees of answers for image restoration, in one forward pass."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="trees of sample digits with the shipped model")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder to write [demo]")
    demo.set_defaults(run=run_demo)

    add_train(commands)
    add_study(commands)
    add_evaluate(commands)
    add_figure(commands)

    toy = commands.add_parser("toy", help="train and judge a tree on the paper's 2-D mixture")
    toy.add_argument("--out", type=Path, required=True, help="folder for figures and numbers")
    toy.add_argument("--probability", choices=("cross_entropy", "paper"), default="cross_entropy")
    toy.add_argument("--seeds", type=count, default=3)
    toy.set_defaults(run=run_toy)

    data = commands.add_parser("data", help="which data sets are there, and how to get the others")
    add_data(data)
    data.add_argument("--download", metavar="NAME", help="fetch a set that may be fetched: mnist")
    data.add_argument("--edges", metavar="NAME", help="keep edge maps beside a set: shoes128")
    data.set_defaults(run=run_data)

    add_predict(commands)
    add_export(commands)
    add_explore(commands)
    add_baseline(commands)
    add_compare(commands)
    add_bench(commands)
    add_reproduce(commands)
    return parser


def run_demo(arguments: argparse.Namespace) -> None:
    from posterior_trees.demo import make_demo

    print(make_demo(arguments.out))


def run_toy(arguments: argparse.Namespace) -> None:
    from posterior_trees.studies.toy import run

    run(arguments.out, probability=arguments.probability, seeds=arguments.seeds)


def run_data(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from posterior_trees.data import download, find_folder, report, store_edges
    from posterior_trees.progress import track

    folder = find_folder(arguments.data, default="data")
    if arguments.download:
        print_paths(download(arguments.download, folder))
    if arguments.edges:
        print_paths([store_edges(folder, arguments.edges, track("drawing edges"))])
    Console().print(report(folder))


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"posterior-trees {version('posterior-trees')}"
    except PackageNotFoundError:
        return "posterior-trees (not installed)"


if __name__ == "__main__":
    main()
