"""MODEL on the command line: a shipped name, a run or a file, and models around a network of the
user's own; heavy imports inside."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from posterior_trees.errors import InputError
from posterior_trees.functions import find_function

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


def find_measures(predictor: "TreePredictor", names: Sequence[str]) -> dict[str, Any]:
    """Measures by name; those that the model's guarantee knows by it answer with a promise."""
    from posterior_trees.guarantee.measures import find_measure

    found = {name: find_measure(name) for name in names}
    if predictor.guarantee is not None:
        predictor.guarantee.measures |= found
    return found
