"""The family of our errors: each refuses something on purpose, names it and says what to do.

The command line and the explorer's server turn these (and `OSError`) into messages. Anything else
is a bug: it shows its traceback.
"""

import warnings
from importlib import import_module
from typing import Any


class PosteriorTreesError(Exception):
    """A deliberate refusal.

    >>> try:
    ...     load("no such model")
    ... except PosteriorTreesError as error:
    ...     print(type(error).__name__)
    ModelError
    """


class InputError(PosteriorTreesError, ValueError):
    """A value, a picture or an option that cannot be used."""


class DataError(InputError):
    """The user's data are missing, broken or do not fit; the message names the file."""


class ModelError(InputError):
    """A model that cannot be loaded."""


class RecipeError(InputError):
    """A recipe that cannot be used."""


class StoreError(InputError):
    """A file of ours that cannot be read or written."""


class RunError(PosteriorTreesError, RuntimeError):
    """A run that cannot go on."""


class MissingError(PosteriorTreesError, RuntimeError):
    """An optional package or a device that is not there."""


class GuaranteeError(InputError):
    """A promise that cannot be given, with the reason and what would allow it."""


class MeasureError(GuaranteeError):
    """A measure without a promise, or one that fails on an image."""


class PictureWarning(UserWarning):
    """What to beware of in the tree of a picture."""


def warn_picture(message: str) -> None:
    """Warn who called `predictor.predict`, four functions away."""
    warnings.warn(message, PictureWarning, stacklevel=5)


def need(module: str, purpose: str, extra: str) -> Any:
    """An optional package; without it the message says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingError(
            f"{purpose} needs {error.name}, which is not installed: "
            f'pip install "posterior-trees[{extra}]"'
        ) from None


def plural(number: int, thing: str) -> str:
    """`1 pixel`, `2 pixels`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def words_for(error: BaseException) -> str:
    """What to tell the user; nothing if it is a bug."""
    if isinstance(error, PosteriorTreesError | OSError):
        return str(error) or type(error).__name__
    kinds = {kind.__name__ for kind in type(error).__mro__}  # torch need not be imported to ask
    text = str(error).partition("\n")[0]
    if kinds & {"MemoryError", "OutOfMemoryError"} or "can't allocate memory" in text:
        return f"out of memory: take a smaller batch, or smaller tiles of a large picture ({text})"
    return ""
