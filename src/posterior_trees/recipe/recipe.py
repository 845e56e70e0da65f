"""A recipe says everything about one experiment: data, measurement, tree, network, training.

Recipes are TOML files, read here into the frozen dataclasses of `recipe_sections.py`, checked, and
written again. A named `task` fills in the data and the measurement of one of the paper's tasks;
whatever the file says itself wins. An unknown key is an error. The resolved recipe is saved with
the run and inside the checkpoint.
"""

import dataclasses
import difflib
import json
import math
import tomllib
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from posterior_trees.errors import RecipeError
from posterior_trees.recipe.sections import (
    ABOVE_ZERO,
    AT_LEAST,
    AT_MOST,
    CHOICES,
    MOST_ENTRIES,
    MOST_LEAVES,
    BalancerSpec,
    DataSpec,
    LossSpec,
    MeasurementSpec,
    NetworkSpec,
    OptimizerSpec,
    TrainingSpec,
    TreeSpec,
)
from posterior_trees.recipe.tasks import TASKS

SIZES = {"kind", "c_init", "width", "steps", "doublings", "decoder", "multipliers", "blocks"}
"""Keys of [network] by which it is named; without any, `ptrees train` chooses one."""
BEFORE = {"data": {"split_order": "sorted"}}
"""Keys whose default is not what was done before they came."""


@dataclass(frozen=True)
class Recipe:
    """One experiment; made in any way, it is checked."""

    task: str = ""
    seed: int = 0
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


def read_recipe(file: str | PathLike[str], changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a TOML recipe; `changes` are `key.sub=value` strings that win over the file."""
    return parse_recipe(read_text(file, "recipes/digits_inpaint.toml"), changes, origin=str(file))


def read_text(file: str | PathLike[str], example: str) -> str:
    """The text of a TOML file."""
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; recipes are TOML files such as {example}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not a text file in UTF-8: {error}") from error


def names_network(file: str | PathLike[str], changes: tuple[str, ...] | list[str] = ()) -> bool:
    """Whether a recipe file, its task or the changes say how large the network is to be."""
    table = parse_table(read_text(file, "recipes/"), changes, str(file))
    return table.get("task") in TASKS or not SIZES.isdisjoint(table.get("network", {}))


def parse_recipe(
    text: str, changes: tuple[str, ...] | list[str] = (), origin: str = "the recipe"
) -> Recipe:
    return build_recipe(parse_table(text, changes, origin), origin)


def parse_table(
    text: str, changes: tuple[str, ...] | list[str] = (), origin: str = "the recipe"
) -> dict[str, Any]:
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
    (`BEFORE`)."""
    table = parse_table(text, (), origin)
    for section, keys in BEFORE.items():
        table[section] = {**keys, **table.get(section, {})}
    return build_section(Recipe, table, origin, prefix="")


def write_recipe(recipe: Recipe) -> str:
    """The recipe as TOML, every key written out."""
    lines = [f"task = {_toml(recipe.task)}", f"seed = {recipe.seed}"]
    for section in dataclasses.fields(recipe):
        value = getattr(recipe, section.name)
        if dataclasses.is_dataclass(value):
            lines += ["", f"[{section.name}]"]
            lines += [
                f"{key.name} = {_toml(getattr(value, key.name))}"
                for key in dataclasses.fields(value)
            ]
    return "\n".join(lines) + "\n"


def check(recipe: Recipe) -> None:
    """Refuse values no run could use."""
    for key, choices in CHOICES.items():
        value = _get(recipe, key)
        if value not in choices:
            listed = ", ".join(map(repr, choices))
            raise RecipeError(f"{key} is {value!r}; choose one of {listed}")
    for key, low in AT_LEAST.items():
        if not _get(recipe, key) >= low:
            raise RecipeError(f"{key} is {_get(recipe, key)}; it must be at least {low}")
    for key in ABOVE_ZERO:
        if not _get(recipe, key) > 0:
            raise RecipeError(f"{key} is {_get(recipe, key)}; it must be above 0")
    if len(recipe.data.size) not in (0, 2):
        size = list(recipe.data.size)
        raise RecipeError(f"data.size is {size}; write [height, width], or [] for as stored")
    _check_focus(recipe.loss.focus)
    _check_rate(recipe.loss.rate, recipe.tree.depth)
    if not 0 <= recipe.balancer.floor < 1:
        raise RecipeError(f"balancer.floor is {recipe.balancer.floor}; it must be in [0, 1)")
    if recipe.loss.epsilon_floor > 1:
        raise RecipeError(f"loss.epsilon_floor is {recipe.loss.epsilon_floor}; it is at most 1")
    _check_together(recipe)
    _check_numbers(recipe)


def _check_numbers(recipe: Recipe) -> None:
    """Refuse NaN and infinities, and what is too large to be built or to end."""
    if not -(2**63) <= recipe.seed < 2**63:
        raise RecipeError(f"seed is {recipe.seed}; it must fit into 64 bits")
    for section in dataclasses.fields(recipe):
        value = getattr(recipe, section.name)
        for entry in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
            key, found = f"{section.name}.{entry.name}", getattr(value, entry.name)
            entries = found if isinstance(found, tuple) else (found,)
            if len(entries) > MOST_ENTRIES:
                raise RecipeError(f"{key} has {len(entries)} entries; it may have {MOST_ENTRIES}")
            for number in entries:
                if isinstance(number, float) and not math.isfinite(number):
                    raise RecipeError(f"{key} is {number}; it must be a finite number")
                if key in AT_MOST and number > AT_MOST[key]:
                    raise RecipeError(f"{key} is {number}; it must be at most {AT_MOST[key]}")
                if isinstance(number, int) and not -(2**63) <= number < 2**63:
                    raise RecipeError(f"{key} is {number}; it must fit into 64 bits")
    leaves = recipe.tree.branching**recipe.tree.depth
    if leaves > MOST_LEAVES:
        raise RecipeError(
            f"tree.branching is {recipe.tree.branching} and tree.depth {recipe.tree.depth}: "
            f"{leaves} leaves, at most {MOST_LEAVES} are built"
        )


def _check_focus(focus: tuple[float, ...]) -> None:
    top, bottom, left, right = focus if len(focus) == 4 else (0.0, 0.0, 0.0, 0.0)
    if focus and not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
        raise RecipeError(
            f"loss.focus is {list(focus)}; write [top, bottom, left, right] as shares of "
            "height and width, such as [0.5, 1.0, 0.25, 0.75], or [] for the whole picture"
        )


def _check_rate(rate: tuple[float, ...], depth: int) -> None:
    fits = len(rate) in (1, depth) or (rate and not depth)
    if not fits or not all(r >= 0 for r in rate):
        raise RecipeError(
            f"loss.rate is {list(rate)}; write one number of at least 0, or {depth} of them, one "
            "for each level of the tree"
        )


def _check_together(recipe: Recipe) -> None:
    """Refuse values that are fine by themselves and exclude each other."""
    if recipe.balancer.is_on and recipe.data.repeat > 1:
        raise RecipeError(
            f"data.repeat is {recipe.data.repeat} and the balancer is on: it counts which leaf "
            "each image reaches, so an epoch must take each image once"
        )
    if recipe.training.calibrate and not recipe.data.validation > 0:
        raise RecipeError(
            f"training.calibrate is true and data.validation is {recipe.data.validation}: "
            "probabilities are calibrated on held-out images. Set data.validation=0.05 or so, or "
            "training.calibrate=false"
        )
    if recipe.training.calibrate and not recipe.tree.depth:
        raise RecipeError(
            "training.calibrate is true and tree.depth is 0: a root alone has no probabilities to "
            "calibrate. Set tree.depth to at least 1, or training.calibrate=false"
        )
    if recipe.optimizer.clip and recipe.training.precision == "16-mixed":
        raise RecipeError(
            f"optimizer.clip is {recipe.optimizer.clip} and training.precision is 16-mixed, where "
            "gradients are scaled until the optimiser has them, and cannot be clipped. Use "
            "training.precision=bf16-mixed or 32-true, or optimizer.clip=0"
        )
    is_disjoint = recipe.tree.depth > 0 and recipe.network.decoder == "disjoint"
    if recipe.network.kind == "residual" and is_disjoint:
        raise RecipeError(
            'network.kind "residual" has one decoder for all leaves: set network.decoder="shared", '
            'or network.kind="unet"'
        )
    if recipe.measurement.kind == "paired" and recipe.data.kind not in ("pairs", "edges"):
        raise RecipeError('measurement.kind "paired" needs data.kind "pairs" or "edges"')


def build_section(cls: type, table: dict[str, Any], origin: str, prefix: str) -> Any:
    """A dataclass from a TOML table; `prefix` is what precedes its keys in messages."""
    types = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        name = prefix + key
        if key not in types:
            raise RecipeError(f"{origin}: unknown key {name!r}; {_hint(key, types, prefix)}")
        wanted = types[key]
        if dataclasses.is_dataclass(wanted):
            if not isinstance(value, dict):
                raise RecipeError(f"{origin}: {name!r} is a section, not a value")
            inner: Any = wanted
            values[key] = build_section(inner, value, origin, prefix=name + ".")
        else:
            values[key] = _convert(value, wanted, name, origin)
    return cls(**values)


def _hint(key: str, known: dict[str, Any], prefix: str) -> str:
    """The nearest key of the same section, else of any section."""
    names = {name: prefix + name for name in known}
    for section in dataclasses.fields(Recipe):
        if dataclasses.is_dataclass(section.type):
            for other in dataclasses.fields(section.type):
                names.setdefault(other.name, f"{section.name}.{other.name}")
    near = difflib.get_close_matches(key, known, n=1) or difflib.get_close_matches(key, names, n=1)
    return f"did you mean {names[near[0]]!r}?" if near else f"known: {', '.join(known)}"


def _convert(value: Any, wanted: Any, name: str, origin: str) -> Any:
    if get_origin(wanted) is tuple:
        entries = value if isinstance(value, list | tuple) else [value]
        return tuple(_convert(entry, get_args(wanted)[0], name, origin) for entry in entries)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted:
        raise RecipeError(f"{origin}: {name} is {value!r}; it must be {wanted.__name__}")
    return value


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


def _get(recipe: Recipe, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(recipe, section), name)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # its escapes are TOML's
    return repr(value)
