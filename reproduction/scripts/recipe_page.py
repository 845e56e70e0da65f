"""docs/recipes.md, whose tables are made of what `recipe/sections.py` declares.

    python reproduction/scripts/recipe_page.py docs/recipes.md

writes all that follows the page's first table row anew; what precedes it is written by hand.
"""

import ast
import dataclasses
import inspect
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from posterior_trees.recipe import TASKS
from posterior_trees.recipe.recipe import Recipe
from posterior_trees.recipe.section import types_of

HEAD = "| key | default | meaning |\n|---|---|---|\n"


def renew(page: str) -> str:
    """The page with its tables as they are today."""
    return page.partition(HEAD)[0] + tables()


def tables() -> str:
    """The keys of all sections, each with its default and its meaning."""
    tasks = ", ".join(f"`{task}`" for task in TASKS)
    parts = [HEAD + _rows(Recipe).replace("{tasks}", tasks)]
    for name, cls in types_of(Recipe).items():
        if dataclasses.is_dataclass(cls):
            title, _, notes = inspect.cleandoc(cls.__doc__ or "").partition("\n")
            between = f"\n{notes.strip()}\n" if notes else ""
            parts.append(f"## `[{name}]`: {title}\n{between}\n{HEAD}{_rows(cls)}")
    return "\n".join(parts)


def _rows(cls: Any) -> str:
    """A row for each key of a section, whose meaning stands below it in the source."""
    defaults = {field.name: field.default for field in dataclasses.fields(cls)}
    (declared,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(declared, ast.ClassDef)
    return "".join(
        f"| `{key.target.id}` | `{_toml(defaults[key.target.id])}` | {_text(below)} |\n"
        for key, below in pairwise(declared.body)
        if isinstance(key, ast.AnnAssign)
        and isinstance(key.target, ast.Name)
        and isinstance(below, ast.Expr)
    )


def _text(node: ast.Expr) -> str:
    return " ".join(ast.literal_eval(node.value).split())


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
