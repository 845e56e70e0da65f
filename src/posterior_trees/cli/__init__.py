"""The `ptrees` command line: a file for each command, heavy imports inside.

Exit codes: 0 done, 1 a problem that the message explains, 2 wrong usage, 130 stopped by Ctrl-C.
"""

import argparse
import os
import sys
import traceback
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from importlib.util import find_spec

from posterior_trees.cli.parser import Parser
from posterior_trees.errors import InputError, MissingError, words_for

FILES = ("demo", "images", "train", "evaluate", "calibrate", "figure", "inspect", "predict",
         "explore", "export", "card")  # fmt: skip
"""Of the commands, in the order in which the help lists them."""
REPRODUCTION = "posterior_trees_paper"
PAPER = ("baseline", "bench", "compare", "reproduce", "study", "toy")
"""The commands of the reproduction, which come with a checkout and not with a wheel."""
WITHOUT = "Without the option the best device there is does the work"


def main(argv: list[str] | None = None) -> None:
    """Run one command; a user's mistake ends in a message, and only a bug in a traceback."""
    try:
        check_is_here(sys.argv[1:] if argv is None else argv)
        arguments = make_parser().parse_args(argv)
        try:
            check_hardware(arguments)
            with held(arguments):
                arguments.run(arguments)
        except Exception as error:
            if os.environ.get("PTREES_DEBUG"):
                raise
            if not (words := words_for(error)):
                traceback.print_exc()
                words = "this is a bug, please report it with the lines above"
            print(f"ptrees {arguments.command}: {words}", file=sys.stderr)
            raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\nptrees: stopped", file=sys.stderr)
        raise SystemExit(130) from None


def check_hardware(arguments: argparse.Namespace) -> None:
    """Refuse `--device` and `--devices` that this computer cannot serve."""
    if getattr(arguments, "dry_run", False):
        return
    device, devices = getattr(arguments, "device", None) or "", getattr(arguments, "devices", 1)
    if device == "cpu" or (not device and devices == 1):
        return
    import torch

    if device.startswith("cuda") and not torch.cuda.is_available():
        why = "finds no CUDA GPU: does `nvidia-smi` list one?"
        if torch.version.cuda is None:
            why = "is a build without CUDA: install one with it from pytorch.org."
        raise MissingError(f"--device is {device}, but torch {torch.__version__} {why} {WITHOUT}")
    if device == "mps" and not torch.backends.mps.is_available():
        raise MissingError(f"--device is {device}, but torch finds no GPU of Apple's. {WITHOUT}")
    if "," in device and not hasattr(arguments, "workers"):
        raise InputError(f"--device is {device}; several are for the workers of ptrees predict")
    if devices > 1 and ":" in device:
        raise InputError(f"--device is {device}, one GPU; --devices is {devices}: leave one out")
    if 0 < (there := torch.cuda.device_count()) < devices:
        raise InputError(f"--devices is {devices}; this computer has {there} CUDA GPUs")


def held(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Nobody else writes into the folder that a command fills: its parser's default `fills` names
    the options that may say which."""
    options = () if getattr(arguments, "dry_run", False) else getattr(arguments, "fills", ())
    folders = [getattr(arguments, name) for name in options if getattr(arguments, name)]
    if not folders:
        return nullcontext()
    from posterior_trees.lock import hold

    return hold(folders[0])


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ptrees", description="Trees of answers for image restoration, in one forward pass."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for file in FILES:
        import_module(f"{__name__}.{file}").add(commands)
    if find_spec(REPRODUCTION):
        import_module(f"{REPRODUCTION}.cli").add(commands)
    else:
        parser.epilog = f"With a checkout also: {', '.join(PAPER)}."
    return parser


def check_is_here(words: list[str]) -> None:
    """Say where the commands of the reproduction are, if only the library is installed."""
    if words and words[0] in PAPER and not find_spec(REPRODUCTION):
        raise SystemExit(
            f"ptrees {words[0]}: belongs to the reproduction of the paper, which comes with a "
            "checkout and not with the package: clone the repository, then `pip install -e .`"
        )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"posterior-trees {version('posterior-trees')}"
    except PackageNotFoundError:
        return "posterior-trees (not installed)"


if __name__ == "__main__":
    main()
