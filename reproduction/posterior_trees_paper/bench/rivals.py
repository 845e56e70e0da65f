"""Packages that a benchmark compares with, and that nothing else here needs."""

import importlib
from types import ModuleType

from posterior_trees.errors import MissingError


def find_rivals(names: tuple[str, ...], extra: str = "bench") -> list[ModuleType]:
    """The packages, or an error that says which of our extras installs them."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        missing = (error.name or names[0]).partition(".")[0]
        raise MissingError(
            f"{missing} is not installed, so nothing can be compared with it: "
            f'pip install ".[{extra}]" in a checkout'
        ) from None


def find_rivals_or_note(names: tuple[str, ...], skip_missing: bool, notes: list[str]) -> list:
    """The packages; an empty list and a note if one is missing and we are to `skip_missing`."""
    try:
        return find_rivals(names)
    except RuntimeError as error:
        if not skip_missing:
            raise MissingError(f"{error}; or leave it out with --skip-missing") from None
        notes.append(str(error))
        return []
