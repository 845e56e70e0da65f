"""Options that several commands have."""

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path

SPLITS = ("train", "validation", "test")


def count(text: str) -> int:
    """The type of options that say how many."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"is {number}; it must be at least 1")
    return number


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder [$PTREES_DATA]")


def add_changes(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help=text)  # fmt: skip


def command_line(*words: object, data: Path | None) -> str:
    """A command to copy; `data` is what was given to this one, None where a variable said it."""
    return shlex.join(map(str, [*words, *(("--data", data) if data else ())]))


def print_paths(paths: Iterable[Path]) -> None:
    for path in paths:
        print(path)
