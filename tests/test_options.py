"""Every option of every command says what it is, and one name means one thing."""

import argparse
from collections import defaultdict
from collections.abc import Iterator

from posterior_trees.cli import make_parser

SHOWN = {"--help", "--version"}


def commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """All commands below a parser, with the help that the list of commands has of them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield " ".join([*path, name]), below, texts[name]
                yield from commands(below, (*path, name))


def options() -> Iterator[tuple[str, str, argparse.Action]]:
    for command, parser, _ in commands(make_parser()):
        for action in parser._actions:
            name = action.option_strings[-1] if action.option_strings else action.dest
            if name not in SHOWN and not isinstance(action, argparse._SubParsersAction):
                yield command, name, action


def test_every_command_and_option_has_help() -> None:
    assert [name for name, _, text in commands(make_parser()) if not text] == []
    assert [f"{command} {name}" for command, name, action in options() if not action.help] == []


def test_a_name_has_one_type_in_all_commands() -> None:
    kinds = defaultdict(lambda: defaultdict(list))
    for command, name, action in options():
        kinds[name][action.type, type(action), _many(action)].append(command)
    differing = {name: list(found.values()) for name, found in kinds.items() if len(found) > 1}
    assert not differing, differing
    assert len(kinds["--device"][next(iter(kinds["--device"]))]) > 5


def _many(action: argparse.Action) -> str:
    """One value, several, or a fixed number."""
    return "many" if action.nargs in ("*", "+") else str(action.nargs)


def test_the_words_of_options_are_kept_apart() -> None:
    """What `--limit`, `--images` and `--count` mean, in the commands that have them."""
    having = defaultdict(set)
    for command, name, _ in options():
        having[name].add(command)
    assert having["--count"] == {"predict"}  # nuclei
    assert having["--images"] == {"figure"}  # numbers of images
    assert having["--limit"] >= {"evaluate", "figure"}  # how many images
    assert having["--device"] >= {"train", "evaluate", "predict", "explore", "figure"}
    assert not having["--accelerator"]
