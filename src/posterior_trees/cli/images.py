"""The command `ptrees data`: which data sets are there; heavy imports inside."""

import argparse
from contextlib import nullcontext
from typing import Any

from posterior_trees.cli.options import add_data, print_paths


def add(commands: Any) -> None:
    data = commands.add_parser("data", help="which data sets are there, and how to get the others")
    add_data(data)
    data.add_argument("--download", metavar="NAME", help="fetch a set that may be fetched: mnist")
    data.add_argument("--edges", metavar="NAME", help="keep edge maps beside a set: shoes128")
    data.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from posterior_trees.data import download, find_folder, report, store_edges
    from posterior_trees.lock import hold
    from posterior_trees.progress import track

    folder = find_folder(arguments.data, default="data")
    with hold(folder) if arguments.download or arguments.edges else nullcontext():
        if arguments.download:
            print_paths(download(arguments.download, folder))
        if arguments.edges:
            print_paths([store_edges(folder, arguments.edges, track("drawing edges"))])
    Console().print(report(folder))
