"""Options that several commands have. A name means the same everywhere, and has one type."""

import argparse
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

AUTO = "auto"
SPLITS = ("train", "validation", "test")


def count(text: str) -> int:
    """The type of options that say how many."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"is {number}; it must be at least 1")
    return number


def device(text: str) -> str:
    """One, or several GPUs for several workers."""
    if not re.fullmatch(r"cuda(:\d+)?|mps|cpu|cuda:\d+(,cuda:\d+)+", text):
        raise argparse.ArgumentTypeError(f"is {text}; it is cuda, cuda:1, mps or cpu")
    return text


def level(text: str) -> float | str:
    """The type of `--levels`: numbers, or `auto`."""
    return text if text == AUTO else float(text)


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=device, help="cuda, mps or cpu [the best there is]")


def add_split(parser: argparse.ArgumentParser, splits: tuple[str, ...] = SPLITS) -> None:
    parser.add_argument("--split", choices=splits, default="test",
                        help="which images of the data set [test]")  # fmt: skip


def add_limit(parser: argparse.ArgumentParser, text: str, default: int | None = None) -> None:
    """`--limit N`: how many images; the text says which."""
    parser.add_argument("--limit", type=count, metavar="N", default=default,
                        help=f"so many images: {text}")  # fmt: skip


def add_measure(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--measure", action="append", default=[], metavar="NAME",
                        help=f"{text} ink, share=0.5, box=T,L,H,W, nuclei or MODULE:FUNCTION of "
                        "your own; repeat it for more")  # fmt: skip


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
