"""A recipe says everything about one experiment: data, measurement, tree, network, training.

Recipes are TOML files, read here into the frozen dataclasses of `sections.py`, checked, and written
again. A named `task` fills in the data and the measurement of one of the paper's tasks; whatever
the file says itself wins. An unknown key is an error. The resolved recipe is saved with the run and
inside the checkpoint; those of earlier versions are read as what they were.
"""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from posterior_trees.errors import RecipeError
from posterior_trees.recipe.check import check
from posterior_trees.recipe.section import bare_type, convert, types_of
from posterior_trees.recipe.sections import (
    BEFORE,
    RENAMED,
    RETIRED,
    SAID,
    BalancerSpec,
    Channel,
    DataSpec,
    LossSpec,
    MeasurementSpec,
    NetworkSpec,
    OptimizerSpec,
    TrainingSpec,
    TreeSpec,
    Whole,
)

TASKS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (resources.files("posterior_trees.recipe") / "tasks.toml").read_text("utf-8")
)
"""The paper's tasks: sections of a recipe, by the name of the task."""
SIZES = {"kind", "trunk", "c_init", "width", "steps", "doublings", "decoder", "multipliers",
         "blocks"}  # fmt: skip
"""Keys of [network] by which it is named; without any, `ptrees train` chooses one."""


@dataclass(frozen=True)
class Recipe:
    """One experiment; made in any way, it is checked."""

    task: str = ""
    """one of the paper's tasks ({tasks}), or a name for your own"""
    seed: Whole = 0
    """weights, order of the images, noise and augmentation follow from it"""
    data: DataSpec = field(default_factory=DataSpec)
    measurement: MeasurementSpec = field(default_factory=MeasurementSpec)
    tree: TreeSpec = field(default_factory=TreeSpec)
    network: NetworkSpec = field(default_factory=NetworkSpec)
    loss: LossSpec = field(default_factory=LossSpec)
    optimizer: OptimizerSpec = field(default_factory=OptimizerSpec)
    balancer: BalancerSpec = field(default_factory=BalancerSpec)
    training: TrainingSpec = field(default_factory=TrainingSpec)

    def __post_init__(self) -> None:
        check(self)


def read_recipe(file: str | PathLike[str], changes: Sequence[str] = ()) -> Recipe:
    """Read a TOML recipe; `changes` are `key.sub=value` strings that win over the file."""
    return parse_recipe(read_text(file, "recipes/digits_inpaint.toml"), changes, origin=str(file))


def read_text(file: str | PathLike[str], example: str) -> str:
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; recipes are TOML files such as {example}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not a text file in UTF-8: {error}") from error


def names_network(file: str | PathLike[str], changes: Sequence[str] = ()) -> bool:
    """Whether a recipe file, its task or the changes say how large the network is to be."""
    table = parse_table(read_text(file, "recipes/"), changes, str(file))
    network = table.get("network", {})
    # A growing kind says what it does, not how large it is.
    sizes = SIZES - {"kind"} if network.get("kind") == "growing" else SIZES
    return table.get("task") in TASKS or not sizes.isdisjoint(network)


def parse_recipe(text: str, changes: Sequence[str] = (), origin: str = "the recipe") -> Recipe:
    return build_recipe(parse_table(text, changes, origin), origin)


def parse_table(text: str, changes: Sequence[str], origin: str) -> dict[str, Any]:
    """TOML as plain tables, with changes applied and nothing checked."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not valid TOML: {error}") from error
    for change in changes:
        _apply(table, change)
    return table


def build_recipe(table: dict[str, Any], origin: str) -> Recipe:
    """The recipe of a table, on top of what its task says."""
    task = str(table.get("task", ""))
    if task not in TASKS and not ("data" in table and "measurement" in table):
        known = ", ".join(TASKS)
        raise RecipeError(
            f"{origin}: task {task!r} is not one of {known}. For your own images give the recipe "
            "a [data] and a [measurement] section"
        )
    merged: dict[str, Any] = {section: dict(keys) for section, keys in TASKS.get(task, {}).items()}
    for key, value in table.items():
        merged[key] = {**merged.get(key, {}), **value} if isinstance(value, dict) else value
    return build_section(Recipe, merged, origin, prefix="")


def parse_resolved(text: str, origin: str) -> Recipe:
    """A recipe that `write_recipe` wrote, as it was then: keys that are newer have the values of a
    recipe without a task, whatever the task says today, or what was done before there was a choice
    (`BEFORE`); keys that were renamed or retired since count if they can be done as then."""
    table = parse_table(text, (), origin)
    for section, keys in BEFORE.items():
        table[section] = {**keys, **table.get(section, {})}
    for old, new in RENAMED.items():
        section, name = old.split(".")
        if name in table.get(section, {}):
            found = table[section].pop(name)
            table[section][new.split(".")[1]] = SAID.get(old, {}).get(str(found), found)
    for old, value in RETIRED.items():
        section, name = old.split(".")
        found = table.get(section, {}).pop(name, value)
        if value is not None and found != value:
            raise RecipeError(
                f"{origin}: {old} is {found!r}, and this version can only do {value!r}. Use the "
                "version that trained it, or train again without that key"
            )
    return build_section(Recipe, table, origin, prefix="")


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, every key written out."""
    lines = [f"task = {_toml(recipe.task)}", f"seed = {recipe.seed}"]
    for section in dataclasses.fields(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            lines += ["", f"[{section.name}]"]
            keys = [key.name for key in dataclasses.fields(value)]
            lines += [f"{key} = {_toml(getattr(value, key))}" for key in keys]
    return "\n".join(lines) + "\n"


def build_section(cls: type, table: dict[str, Any], origin: str, prefix: str) -> Any:
    """A dataclass from a TOML table; `prefix` is what precedes its keys in messages."""
    types = types_of(cls)
    values = {}
    for key, value in table.items():
        name = prefix + key
        if key not in types:
            raise RecipeError(f"{origin}: unknown key {name!r}; {_hint(key, types, prefix)}")
        inner: Any = bare_type(types[key])
        if not dataclasses.is_dataclass(inner):
            try:
                values[key] = convert(value, types[key], name)
            except RecipeError as error:
                raise RecipeError(f"{origin}: {error}") from error
        elif isinstance(value, dict):
            values[key] = build_section(inner, value, origin, prefix=name + ".")
        else:
            raise RecipeError(f"{origin}: {name!r} is a section, not a value")
    return cls(**values)


def _hint(key: str, known: dict[str, Any], prefix: str) -> str:
    """What the key is called now, or the nearest one of the same section, else of any section."""
    if prefix + key in RENAMED:
        return f"it is called {RENAMED[prefix + key]!r} now"
    if prefix + key in RETIRED:
        return "nobody used it, and it is gone: leave it out"
    names = {name: prefix + name for name in known}
    for section in dataclasses.fields(Recipe):
        if dataclasses.is_dataclass(section.type):
            for other in dataclasses.fields(section.type):
                names.setdefault(other.name, f"{section.name}.{other.name}")
    near = difflib.get_close_matches(key, known, n=1) or difflib.get_close_matches(key, names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else f"known: {', '.join(known)}"


def _apply(table: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals:
        raise RecipeError(f"--set {change!r}: write it as key.sub=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    *sections, last = key.strip().split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set {change!r}: {section!r} is not a section")
    table[last] = value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, Channel):
        return f"{{channel = {_toml(value.channel)}}}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # its escapes are TOML's
    return repr(value)
