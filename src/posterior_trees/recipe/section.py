"""A section of a recipe: a frozen dataclass whose fields say what they may be.

A field's limits are msgspec's (`Annotated[int, Meta(ge=2)]`), and so is the check; what is wrong is
said in our words: the key, its value, the limit. What a field means stands below it.
"""

import math
import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from posterior_trees.errors import RecipeError

LIMIT = re.compile(r"Expected `\w+` (>=|<=|>|<) (\S+?)(?: - |$)")
WORDS = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}


class Section:
    """Made in any way, it is checked."""

    def __post_init__(self) -> None:
        prefix = name_of(type(self))
        for name, wanted in types_of(type(self)).items():
            convert(getattr(self, name), wanted, prefix + name)


@cache
def types_of(cls: type) -> dict[str, Any]:
    """The type of every field, limits included."""
    return get_type_hints(cls, include_extras=True)


def name_of(cls: type) -> str:
    """What precedes the keys of a section: `DataSpec` is `data.`"""
    return cls.__name__.removesuffix("Spec").lower() + "."


def convert(value: Any, wanted: Any, key: str) -> Any:
    """A value of TOML as the type that a field wants: a whole number may stand for any number, and
    one entry for a list. What it cannot be is refused by name."""
    bare = bare_type(wanted)
    if get_origin(bare) is tuple and not isinstance(value, list | tuple):
        value = [value]
    try:
        found = msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        raise RecipeError(describe(str(error), value, bare, key)) from error
    for entry in found if isinstance(found, tuple) else (found,):
        if isinstance(entry, float) and not math.isfinite(entry):
            raise RecipeError(f"{key} is {entry}; it must be a finite number")
    return found


def bare_type(wanted: Any) -> Any:
    return bare_type(get_args(wanted)[0]) if get_origin(wanted) is Annotated else wanted


def describe(error: str, value: Any, wanted: Any, key: str) -> str:
    """The key, its value, or the entry that is wrong, and what it must be."""
    if "length" in error:
        most = re.findall(r"\d+", error)[0]
        return f"{key} has {len(value)} entries; it may have {most}"
    if place := re.search(r"`\$\[(\d+)\]`", error):
        value, wanted = value[int(place[1])], bare_type(get_args(wanted)[0])
    if get_origin(wanted) is Literal:
        listed = ", ".join(repr(choice) for choice in get_args(wanted) if choice != "")
        return f"{key} is {value!r}; choose one of {listed}"
    if limit := LIMIT.search(error):
        return f"{key} is {value!r}; it must be {WORDS[limit[1]]} {limit[2]}"
    return f"{key} is {value!r}; it must be {' or '.join(map(_say, get_args(wanted) or [wanted]))}"


def _say(wanted: Any) -> str:
    """A type; of a table its keys."""
    keys = getattr(wanted, "__struct_fields__", ())
    return f"{{{', '.join(f'{key} = …' for key in keys)}}}" if keys else wanted.__name__
