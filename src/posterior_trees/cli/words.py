"""How the commands read their words: in any order, and the same word for the same thing.

argparse by itself refuses `ptrees explore digits --save page.html a.png`: as an option follows the
model, the list of pictures is over, and empty. And to it `ptrees figure --images 0 1 runs/photos`
has a wrong number. Here what no option takes is collected first and dealt out then, and a list of
numbers ends at the first other word.
"""

import argparse
import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posterior_trees.predictor import TreePredictor

SPLITS = ("train", "validation", "test")
MODEL = "a name (digits, cells), a run folder or a file"
OPEN = (argparse.ZERO_OR_MORE, argparse.ONE_OR_MORE)


class Parser(argparse.ArgumentParser):
    """Options are written out: a shortened one would mean another as soon as a new one comes.
    Where they stand is free, and what nobody takes is told with the command's own usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._is_dealing = False

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        has_commands = any(isinstance(a, argparse._SubParsersAction) for a in self._actions)
        if has_commands or self._is_dealing:
            return super().parse_known_args(args, namespace)
        self._is_dealing = True  # until Python 3.12 the next line comes back to this method
        try:
            words = self._close(list(sys.argv[1:] if args is None else args))
            found, unknown = self.parse_known_intermixed_args(words, namespace)
        finally:
            self._is_dealing = False
        if nobody := [word for word in unknown if word != "--"]:
            self.error(f"unrecognized arguments: {' '.join(nobody)}")
        return found, []

    def _close(self, args: list[str]) -> list[str]:
        """End every open list of numbers at the first word that is none; such words go last."""
        if not self._get_positional_actions():
            return args
        lists = {
            name
            for action in self._get_optional_actions()
            if action.nargs in OPEN and action.type in (int, count)
            for name in action.option_strings
        }
        stop = args.index("--") if "--" in args else len(args)
        kept: list[str] = []
        late: list[str] = []
        is_open = False
        for word in args[:stop]:
            if word.startswith("-") and not _is_number(word):
                is_open = word in lists
            elif is_open and not _is_number(word):
                late.append(word)
                continue
            kept.append(word)
        late += args[stop + 1 :]
        return [*kept, "--", *late] if late else kept


def _is_number(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def count(text: str) -> int:
    """The type of options that say how many."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"is {number}; it must be at least 1")
    return number


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, and `--predictor` for one that was trained around a network of the user's own."""
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--predictor", metavar="MODULE:FUNCTION", help="what makes the predictor "
                        "of a model with a network of your own, as `fit` got it")  # fmt: skip


def load_model(arguments: argparse.Namespace, device: str | None = None) -> "TreePredictor":
    """The predictor of MODEL."""
    from posterior_trees.checkpoint import load
    from posterior_trees.predictor import TreePredictor

    if not arguments.predictor:
        return load(arguments.model, device)
    make = find_function("--predictor", arguments.predictor)
    try:
        made = make()
    except Exception as error:  # somebody's own code: whatever it is, it is theirs to mend
        raise ValueError(
            f"--predictor {arguments.predictor} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, TreePredictor):
        raise ValueError(
            f"--predictor {arguments.predictor} made a {type(made).__name__}; it must return what "
            "`fit` got, a TreePredictor (of `wrap`)"
        )
    return load(arguments.model, device, predictor=made)


def predictor_files(arguments: argparse.Namespace) -> list[Path]:
    """The file in which a predictor of the user's own is made, if there is one."""
    if not arguments.predictor:
        return []
    file = inspect.getsourcefile(find_function("--predictor", arguments.predictor))
    return [Path(file)] if file else []


def find_function(option: str, text: str) -> Callable[..., Any]:
    """The function of `module:function`; a module may lie in the present folder."""
    module, _, name = text.replace(".py:", ":").partition(":")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user's own may fail in any way
        raise ValueError(
            f"{option} {text}: {type(error).__name__}: {error}; write MODULE:FUNCTION, of a "
            "module in this folder or such as posterior_trees.explore.measures:count_bright"
        ) from error
    if not callable(found):
        raise ValueError(f"{option} {text}: {name} is not a function")
    return found


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder [$PTREES_DATA]")


def add_changes(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                        help=text)  # fmt: skip


def data_folder(arguments: argparse.Namespace, default: Path | None = None) -> Path:
    """The folder of `--data`, or of the variable PTREES_DATA."""
    folder = arguments.data or os.environ.get("PTREES_DATA") or default
    if folder is None:
        raise ValueError("which data? Give --data DIR or set PTREES_DATA; `ptrees data` helps")
    return Path(folder)


def command_line(*words: object, data: Path | None) -> str:
    """A command to copy; `data` is what was given to this one, None where a variable said it."""
    return shlex.join(map(str, [*words, *(("--data", data) if data else ())]))
