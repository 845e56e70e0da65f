"""A recipe says everything about one experiment: data, measurement, tree, network, training.

Recipes are TOML files read into the frozen dataclasses below. A named `task` fills in the data and
the measurement of one of the paper's tasks; whatever the file says itself wins. An unknown key is
an error. The resolved recipe is saved with the run and inside the checkpoint.
"""

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from posterior_trees.tasks import TASKS


class RecipeError(ValueError):
    """A recipe that cannot be used, with the reason and the fix."""


@dataclass(frozen=True)
class DataSpec:
    """Which images, how they are split and augmented."""

    name: str = ""  # the set: a folder, a tar file, or the folder of IDX files
    kind: str = "images"  # "images", "edges", "pairs" or "idx"
    channels: int = 3  # of x
    size: tuple[int, ...] = ()  # height and width to crop and resize to; () = as stored
    inputs: str = ""  # pairs: folder of the measurements
    targets: str = ""  # pairs: folder of the clean images
    input_channels: int = 1  # pairs: channels of y
    shift: tuple[float, ...] = ()  # pairs: rows and columns that move y onto x; () = none
    split: str = "name"  # "name", "well" (name up to the first _) or "files" (IDX)
    validation: float = 0.05
    test: float = 0.1
    patch: int = 0  # train on random crops of this size
    repeat: int = 1  # how often an epoch takes each image; crops of large ones differ
    augment: tuple[str, ...] = ()  # "flip", "symmetries", "affine"


@dataclass(frozen=True)
class MeasurementSpec:
    """How x becomes y; see `posterior_trees.measure`."""

    kind: str = ""  # "inpaint", "colorize", "denoise", "downsample" or "paired"
    rows: tuple[int, ...] = ()  # inpaint: first and last hidden row, inclusive
    columns: tuple[int, ...] = ()
    of: tuple[int, ...] = ()  # inpaint: size of the images the rows and columns are given for
    fill: float = 0.5
    sigma: float = 0.1  # denoise
    factor: int = 4  # downsample
    is_residual: bool = True  # paired


@dataclass(frozen=True)
class TreeSpec:
    branching: int = 3
    depth: int = 2


@dataclass(frozen=True)
class NetworkSpec:
    c_init: int = 4
    width: int = 0  # channels of the first level; 0 = c_init · number of leaves
    steps: int = 4  # how often the image is halved; the paper's number
    doublings: int = 4  # … and the first so many times its channels doubled
    decoder: str = "disjoint"  # or "shared"
    padding: str = "reflect"  # or "zeros": how images are padded to a multiple of 2^steps
    head_layers: int = 3
    head_norm: str = "layer"  # or "batch", the paper's
    is_head_detached: bool = False  # True: the head's gradient does not enter the decoder
    dropout: float = 0.0
    head_dropout: float = 0.0


@dataclass(frozen=True)
class LossSpec:
    probability: str = "cross_entropy"  # or "paper"
    beta: float = 0.4  # weight of the cross-entropy, in units of the root's squared error
    epsilon_start: float = 5.0  # epochs of plain MSE
    epsilon_scale: float = 2.0
    epsilon_floor: float = 0.0  # below this the losers' weight does not fall
    rate: float = 0.0  # what the surprise of a child costs it, in units of the root's error
    conscience: float = 0.0  # 1: siblings share images equally for the first half; 0 = off


@dataclass(frozen=True)
class OptimizerSpec:
    name: str = "adam"  # or "sgd"
    lr: float = 1e-3
    head_lr: float = 1e-3  # the paper's is 2e-4; see results/digits/options
    weight_decay: float = 0.0  # decoupled, on convolution and linear weights
    momentum: float = 0.9  # sgd
    schedule: str = "plateau"  # or "cosine"
    patience: int = 10  # plateau: epochs without progress before lr · 0.1
    min_lr: float = 5e-6
    warmup_steps: int = 0
    clip: float = 0.0  # largest norm of the gradient; 0 = no limit


@dataclass(frozen=True)
class BalancerSpec:
    is_on: bool = False
    start: float = 6.0  # epoch; one after epsilon starts to fall
    ridge: float = 1e-3
    floor: float = 0.1
    is_exact: bool = False
    is_greedy: bool = True  # False: draw from q
    is_windowed: bool = False  # True: greedy as in the paper, which forgets within an epoch
    refresh_every: int = 1


@dataclass(frozen=True)
class TrainingSpec:
    epochs: int = 70
    batch_size: int = 32
    precision: str = "auto"  # "32-true", "bf16-mixed", …: as Lightning Fabric names them
    ema: float = 0.0  # half-life of the weight average in epochs; 0 = off
    calibrate: bool = False  # fit the probabilities to the validation images at the end
    compile: bool = False  # fuse the network's operations; pays on CUDA after half a minute
    capture: bool = True  # replay the whole step as one CUDA graph, where there is CUDA
    save_seconds: float = 60.0  # how often the state is saved
    picture_every: int = 10  # epochs between pictures of trees; 0 = none
    evaluation_batch: int = 256


@dataclass(frozen=True)
class Recipe:
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


CHOICES = {
    "data.kind": ("images", "edges", "pairs", "idx"),
    "data.split": ("name", "well", "files"),
    "data.channels": (1, 3),
    "measurement.kind": ("inpaint", "colorize", "denoise", "downsample", "paired"),
    "network.decoder": ("disjoint", "shared"),
    "network.padding": ("reflect", "zeros"),
    "network.head_layers": (3, 4),
    "network.head_norm": ("layer", "batch"),
    "loss.probability": ("cross_entropy", "paper"),
    "optimizer.name": ("adam", "sgd"),
    "optimizer.schedule": ("plateau", "cosine"),
}

AT_LEAST = {
    "tree.branching": 2,
    "tree.depth": 0,
    "network.c_init": 1,
    "network.width": 0,
    "network.steps": 1,
    "network.doublings": 0,
    "optimizer.patience": 0,
    "optimizer.clip": 0.0,
    "training.ema": 0.0,
    "training.save_seconds": 0.0,
    "training.picture_every": 0,
    "training.epochs": 1,
    "training.batch_size": 1,
    "training.evaluation_batch": 1,
    "loss.beta": 0.0,
    "loss.epsilon_start": 0.0,
    "loss.epsilon_floor": 0.0,
    "loss.conscience": 0.0,
    "loss.rate": 0.0,
    "data.patch": 0,
    "data.repeat": 1,
}


def read_recipe(file: str | PathLike[str], changes: tuple[str, ...] | list[str] = ()) -> Recipe:
    """Read a TOML recipe; `changes` are `key.sub=value` strings that win over the file."""
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; recipes are TOML files such as "
                          "recipes/digits_inpaint.toml")  # fmt: skip
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not a text file in UTF-8: {error}") from error
    return parse_recipe(text, changes, origin=str(path))


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
    recipe without a task, whatever the task says today."""
    return build_section(Recipe, parse_table(text, (), origin), origin, prefix="")


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
    if len(recipe.data.size) not in (0, 2):
        size = list(recipe.data.size)
        raise RecipeError(f"data.size is {size}; write [height, width], or [] for as stored")
    if not 0 <= recipe.balancer.floor < 1:
        raise RecipeError(f"balancer.floor is {recipe.balancer.floor}; it must be in [0, 1)")
    if recipe.loss.epsilon_floor > 1:
        raise RecipeError(f"loss.epsilon_floor is {recipe.loss.epsilon_floor}; it is at most 1")
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
