"""The commands of the reproduction, beside those of the library."""

from typing import Any

from posterior_trees_paper.cli import baseline, bench, compare, reproduce, study, toy

COMMANDS = (toy, baseline, compare, bench, reproduce, study)


def add(commands: Any) -> None:
    for module in COMMANDS:
        module.add(commands)
