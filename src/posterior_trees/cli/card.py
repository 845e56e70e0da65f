"""The commands `ptrees card` and `ptrees push`: what a model says of itself, and where others find
it; heavy imports inside."""

import argparse
from typing import Any

from posterior_trees.cli.model import MODEL


def add(commands: Any) -> None:
    card = commands.add_parser("card", help="what a model says of itself")
    card.add_argument("model", metavar="MODEL", help=MODEL)
    card.set_defaults(run=run_card)
    push = commands.add_parser("push", help="put a model and its card on a hub")
    push.add_argument("model", metavar="MODEL", help=MODEL)
    push.add_argument("address", metavar="ADDRESS", help="hf://owner/name")
    push.set_defaults(run=run_push)


def run_card(arguments: argparse.Namespace) -> None:
    from posterior_trees.models.card import write_card
    from posterior_trees.models.checkpoint import load

    print(write_card(load(arguments.model, "cpu")), end="")


def run_push(arguments: argparse.Namespace) -> None:
    from posterior_trees.models.card import write_card
    from posterior_trees.models.checkpoint import find_model, load
    from posterior_trees.models.hub import push

    text = write_card(load(arguments.model, "cpu"))
    print(f"there now: {push(find_model(arguments.model), arguments.address, text)}")
