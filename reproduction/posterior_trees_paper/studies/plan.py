"""A study's file → the runs it consists of.

    title = "Role of ε"
    recipe = "../digits_inpaint.toml"        # relative to this file
    seeds = [0, 1]
    changes = ["training.epochs=26"]         # of all variants
    snapshots = [5]                          # epochs whose trees are kept

    [[variant]]
    name = "no_warm_up"
    label = "ε = 0 from the start"
    changes = ["loss.epsilon_start=0.0"]     # of this one; it may have its own `seeds`, `recipe`

Every variant is trained with every seed; a run is named `<variant>_<seed>`. An unknown key is an
error, as in recipes.
"""

import tomllib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from posterior_trees.errors import InputError, RecipeError
from posterior_trees.recipe import Recipe, read_recipe

STUDY_KEYS = {"title", "recipe", "seeds", "changes", "snapshots", "variant"}
VARIANT_KEYS = {"name", "label", "recipe", "seeds", "changes"}


@dataclass(frozen=True)
class Job:
    """One run: a variant with a seed."""

    name: str
    variant: str
    label: str
    seed: int
    recipe: Recipe


@dataclass(frozen=True)
class Plan:
    """A study: its name (that of the file) and its runs, the first seeds of all variants first."""

    name: str
    title: str
    jobs: tuple[Job, ...]
    snapshots: tuple[int, ...] = ()

    def job(self, name: str) -> Job:
        for job in self.jobs:
            if job.name == name:
                return job
        known = ", ".join(job.name for job in self.jobs)
        raise InputError(f"{self.name} has no run {name!r}; its runs are {known}")


def read_plan(file: str | PathLike[str], changes: list[str] | tuple[str, ...] = ()) -> Plan:
    """Read a study's file; `changes` win over everything it says."""
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no study {path}; studies are the files of recipes/studies/")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not valid TOML: {error}") from error
    _check(path, table, STUDY_KEYS)
    for variant in table.get("variant", []):
        _check(path, variant, VARIANT_KEYS)
    for key in ("title", "recipe", "variant"):
        if key not in table:
            raise RecipeError(f"{path} has no {key!r}; a study needs title, recipe and variants")
    jobs = [job for variant in table["variant"] for job in _jobs(path, table, variant, changes)]
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise RecipeError(f"{path} has two runs of one name among {', '.join(names)}")
    first_seeds_first = tuple(sorted(jobs, key=lambda job: _turn(job, jobs)))
    return Plan(path.stem, table["title"], first_seeds_first, tuple(table.get("snapshots", [])))


def _jobs(path: Path, table: dict[str, Any], variant: dict[str, Any], changes) -> list[Job]:
    recipe = path.parent / variant.get("recipe", table["recipe"])
    words = [*table.get("changes", []), *variant.get("changes", []), *changes]
    name, seeds = variant["name"], variant.get("seeds", table.get("seeds", [0]))
    about = name, variant.get("label", name)
    return [
        Job(f"{name}_{seed}", *about, seed, read_recipe(recipe, [*words, f"seed={seed}"]))
        for seed in seeds
    ]


def _turn(job: Job, jobs: list[Job]) -> int:
    """Which of its variant's runs a run is: with too little time all variants have one seed."""
    return [other.seed for other in jobs if other.variant == job.variant].index(job.seed)


def _check(path: Path, table: dict[str, Any], known: set[str]) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise RecipeError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
