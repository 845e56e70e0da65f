"""Facts from outside, checked before they are believed: JSON may be valid and of a wrong type.

A form is a type (`int`, `str | None`; a float may be written as an integer, a bool is no number),
`dict[str, form]`, `list[form]`, a tuple of forms (a list of just these), or a dict of forms by key:
other keys are free, and those in it may be missing unless they are `required`. `Maybe(form)` may be
null.
"""

import json
import math
from dataclasses import dataclass
from types import GenericAlias, UnionType
from typing import Any, get_args, get_origin

from posterior_trees.errors import InputError


class SchemaError(InputError):
    """What was read is not of the form it should have; the message says where."""


@dataclass(frozen=True)
class Maybe:
    """A form, or null."""

    form: Any


def parse_json(text: str, form: Any, where: str) -> Any:
    """JSON of a form."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where} are not readable JSON ({error})") from None
    return check(value, form, where)


def check(value: Any, form: Any, where: str, required: tuple[str, ...] = ()) -> Any:
    """The value, if it is of the form; NaN and infinities are no numbers either."""
    if isinstance(form, Maybe):
        return value if value is None else check(value, form.form, where)
    if isinstance(form, dict):
        check(value, dict, where)
        if missing := [key for key in required if key not in value]:
            raise SchemaError(f"{where} lack {missing[0]!r}")
        for key in form.keys() & value.keys():
            check(value[key], form[key], f"{where}.{key}")
    elif isinstance(form, tuple):
        if len(check(value, list, where)) != len(form):
            raise SchemaError(f"{where} has {len(value)} entries; it must have {len(form)}")
        for i, (entry, part) in enumerate(zip(value, form, strict=True)):
            check(entry, part, f"{where}[{i}]")
    elif isinstance(form, GenericAlias):
        entries = check(value, get_origin(form), where)
        pairs = entries.items() if isinstance(entries, dict) else enumerate(entries)
        for key, entry in pairs:
            check(entry, get_args(form)[-1], f"{where}[{key!r}]")
    elif form is not Any and not _is(value, form):
        name = getattr(form, "__name__", str(form))
        text = " ".join(repr(value).split())
        text = text if len(text) <= 40 else f"{text[:37]}…"
        raise SchemaError(f"{where} is {text}; it must be {name}")
    return value


def _is(value: Any, form: Any) -> bool:
    if isinstance(form, UnionType):
        return any(_is(value, part) for part in get_args(form))
    if isinstance(value, bool):
        return form is bool
    if isinstance(value, int) and abs(value) >= 2**63:  # tensors hold no such numbers
        return False
    if form is float:
        return isinstance(value, int | float) and abs(value) < math.inf
    return isinstance(value, list | tuple if form is list else form)
