"""docs/recipes.md, whose tables are made of what `sections.py` declares.

    python -m posterior_trees.recipe.page docs/recipes.md

writes all that follows the page's first table row anew; what precedes it is written by hand.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from posterior_trees.recipe.recipe import Recipe
from posterior_trees.recipe.section import bare_type, descriptions, types_of
from posterior_trees.recipe.tasks import TASKS

HEAD = "| key | default | meaning |\n|---|---|---|\n"


def renew(page: str) -> str:
    """The page with its tables as they are today."""
    return page.partition(HEAD)[0] + tables()


def tables() -> str:
    """The keys of all sections, each with its default and its meaning."""
    plain = {key: types_of(Recipe)[key].__metadata__[-1].description for key in ("task", "seed")}
    tasks = ", ".join(f"`{task}`" for task in TASKS)
    top = [field for field in dataclasses.fields(Recipe) if field.name in plain]
    parts = [HEAD + "".join(_row(f, plain[f.name].format(tasks=tasks)) for f in top)]
    for field in dataclasses.fields(Recipe):
        cls = bare_type(types_of(Recipe)[field.name])
        if field.name not in plain:
            title, _, more = (cls.__doc__ or "").strip().partition("\n")
            notes = "\n".join(line.strip() for line in more.strip().splitlines())
            rows = "".join(_row(*described) for described in descriptions(cls))
            between = f"\n{notes}\n" if notes else ""
            parts.append(f"## `[{field.name}]`: {title}\n{between}\n{HEAD}{rows}")
    return "\n".join(parts)


def _row(field: dataclasses.Field, meaning: str) -> str:
    return f"| `{field.name}` | `{_toml(field.default)}` | {meaning} |\n"


def _toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(renew(file.read_text(encoding="utf-8")), encoding="utf-8")
