"""Models that are found by name: those in the package, and those in `models/` of a checkout.

Whatever lies there counts, each under the name of its file. Of the recipes' tasks those without a
file are known, too: who asks for one hears how to get it.
"""

from pathlib import Path

from posterior_trees.recipe import TASKS

HOME = Path(__file__).parents[1]
PACKAGE = HOME / "assets"
CHECKOUT = HOME.parents[1]
"""Where a checkout has its `pyproject.toml`; above an installed package there is none."""
FOLDER, ENDING = "models", ".safetensors"
KNOWN = tuple(name for name in TASKS if name not in ("digits_inpaint", "cells_actin_to_dna"))
"""Tasks with a model of their own name; the other two are `digits` and `cells`, in the package."""


def list_models() -> dict[str, Path]:
    """The files that are here, by name; those of the package first, and before others."""
    found: dict[str, Path] = {}
    for folder in (PACKAGE, CHECKOUT / FOLDER) if is_checkout() else (PACKAGE,):
        for file in sorted(folder.glob(f"*{ENDING}")):
            found.setdefault(file.stem, file)
    return found


def is_checkout() -> bool:
    return (CHECKOUT / "pyproject.toml").is_file()


def how_to_get(name: str) -> str:
    """What to do for the model of a task that is not here."""
    file, train = (
        f"{FOLDER}/{name}{ENDING}",
        f"ptrees train recipes/{name}.toml --data DIR --out RUN",
    )
    if is_checkout():
        return f"this checkout has no {file} (git pull may bring it); or train it: {train}"
    return (
        f"{file} comes with a checkout of the repository and not with the package: clone it, or "
        f"fetch this one file and give its path; or train it: {train}"
    )
