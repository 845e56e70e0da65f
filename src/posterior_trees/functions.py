"""Functions of the user's own, named MODULE:FUNCTION on the command line."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from posterior_trees.errors import InputError


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
