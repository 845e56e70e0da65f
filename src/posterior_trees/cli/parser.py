"""How the commands read their words: in any order.

argparse by itself refuses `ptrees explore digits --save page.html a.png`: as an option follows the
model, the list of pictures is over, and empty. And to it `ptrees figure --images 0 1 runs/photos`
has a wrong number. Here what no option takes is collected first and dealt out then, and a list of
numbers ends at the first other word.
"""

import argparse
import re
import sys
from collections.abc import Iterable
from typing import Any

from posterior_trees.cli.options import AUTO, count, level

OPEN = (argparse.ZERO_OR_MORE, argparse.ONE_OR_MORE)


class Parser(argparse.ArgumentParser):
    """Options are written out: a shortened one would mean another as soon as a new one comes.
    Where they stand is free, and what nobody takes is told with the command's own usage."""

    def __init__(self, **options: Any) -> None:
        self.has_commands = self.is_dealing = False
        super().__init__(allow_abbrev=False, **options)

    def add_subparsers(self, **options: Any) -> Any:
        self.has_commands = True
        return super().add_subparsers(**options)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        if self.has_commands or self.is_dealing:
            return super().parse_known_args(args, namespace)
        self.is_dealing = True  # until Python 3.12 the next line comes back to this method
        try:
            words = self._close(list(sys.argv[1:] if args is None else args))
            found, unknown = self.parse_known_intermixed_args(words, namespace)
        finally:
            self.is_dealing = False
        if nobody := [word for word in unknown if word != "--"]:
            self.error(f"unrecognized arguments: {' '.join(nobody)}")
        return found, []

    def _close(self, args: list[str]) -> list[str]:
        """End every open list of numbers at the first word that is none; such words go last."""
        if all(action.option_strings for action in self._actions):
            return args
        lists = {
            name
            for action in self._actions
            if action.nargs in OPEN and action.type in (int, count, level)
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
    """A number, or what stands for two."""
    return word == AUTO or re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", word) is not None
