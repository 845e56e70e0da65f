"""The commands `ptrees models`, `ptrees card` and `ptrees push`: which models there are, what one
says of itself, and where others find it; heavy imports inside."""

import argparse
from typing import Any

from posterior_trees.cli.model import MODEL
from posterior_trees.errors import InputError


def add(commands: Any) -> None:
    models = commands.add_parser("models", help="which models there are by name")
    models.set_defaults(run=run_models)
    card = commands.add_parser("card", help="what a model says of itself")
    card.add_argument("model", metavar="MODEL", help=MODEL)
    card.set_defaults(run=run_card)
    push = commands.add_parser("push", help="put a model and its card on a hub")
    push.add_argument("model", metavar="MODEL", help=MODEL)
    push.add_argument("address", metavar="ADDRESS", help="hf://owner/name")
    push.set_defaults(run=run_card)


def run_models(_: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from posterior_trees.models.shelf import KNOWN, PACKAGE, how_to_get, list_models

    table, here = Table(show_lines=True), list_models()
    for title in ("name", "task", "terms", "where"):
        table.add_column(title, overflow="fold", no_wrap=title == "name")
    for name, file in here.items():
        where = "in the package" if file.parent == PACKAGE else str(file.parent)
        table.add_row(name, *describe(name), f"{file.stat().st_size / 1e6:.1f} MB {where}")
    missing = [name for name in KNOWN if name not in here]
    for name in missing:
        table.add_row(name, *describe(name, is_here=False), "not here")
    Console().print(table)
    if missing:
        print(f"What is not here: {how_to_get('NAME')}")


def describe(name: str, is_here: bool = True) -> tuple[str, str]:
    """A model's task and terms, by its own recipe or by the task of its name; what is wrong with a
    file that cannot be read."""
    from posterior_trees.data.registry import find_known
    from posterior_trees.models.card import card_of
    from posterior_trees.models.checkpoint import load_recipe
    from posterior_trees.recipe import parse_recipe

    try:
        recipe = load_recipe(name) if is_here else parse_recipe(f"task = '{name}'")
    except InputError as error:
        return str(error), ""
    card, known = card_of(recipe), find_known(recipe.data.name)
    words = ": ".join(card[key] for key in ("takes", "task") if key in card)
    return words, known.terms if known else "those of its own data"


def run_card(arguments: argparse.Namespace) -> None:
    """Show a model's card, or push both."""
    from posterior_trees.models.card import write_card
    from posterior_trees.models.checkpoint import find_model, load
    from posterior_trees.models.hub import push

    text = write_card(load(arguments.model, "cpu"))
    if "address" not in arguments:
        print(text, end="")
    else:
        print(f"there now: {push(find_model(arguments.model), arguments.address, text)}")
