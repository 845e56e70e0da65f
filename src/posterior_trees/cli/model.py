"""MODEL on the command line: a shipped name, a run or a file, and models around a network of the
user's own; heavy imports inside."""

import argparse
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.predictor import TreePredictor

MODEL = "a name (see ptrees models), a run folder, a file or hf://owner/name"


def add_model(parser: argparse.ArgumentParser) -> None:
    """MODEL, and `--predictor` for one that was trained around a network of the user's own."""
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    parser.add_argument("--predictor", metavar="MODULE:FUNCTION", help="what makes the predictor "
                        "of a model with a network of your own, as `fit` got it")  # fmt: skip


def load_model(arguments: argparse.Namespace, device: str | None = None) -> "TreePredictor":
    """The predictor of MODEL."""
    from posterior_trees.models.checkpoint import load
    from posterior_trees.predictor import TreePredictor

    if not arguments.predictor:
        return load(arguments.model, device)
    make = find_function("--predictor", arguments.predictor)
    try:
        made = make()
    except Exception as error:  # somebody's own code: whatever it is, it is theirs to mend
        raise InputError(
            f"--predictor {arguments.predictor} failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, TreePredictor):
        raise InputError(
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
        raise InputError(
            f"{option} {text}: {type(error).__name__}: {error}; write MODULE:FUNCTION, of a "
            "module in this folder or such as posterior_trees.explore.measures:count_bright"
        ) from error
    if not callable(found):
        raise InputError(f"{option} {text}: {name} is not a function")
    return found
