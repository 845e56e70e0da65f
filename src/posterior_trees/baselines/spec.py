"""A baseline's recipe: that of a tree (data, measurement, optimiser, training) and a section
`[baseline]` that says which model is trained in the tree's place."""

import dataclasses
import tomllib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from posterior_trees import recipe as recipes
from posterior_trees.recipe import MeasurementSpec, Recipe, RecipeError

KINDS = ("prior", "conditional", "cgan", "rcgan")


@dataclass(frozen=True)
class BaselineSpec:
    """Which model learns to sample. `also` are further measurements that a conditional model learns
    together with the recipe's own; `attention` counts steps down from the full resolution."""

    kind: str = "conditional"  # "prior", "conditional", "cgan" or "rcgan"
    base: int = 48  # channels of the first resolution
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    blocks: int = 2  # residual blocks per resolution
    attention: tuple[int, ...] = (2,)
    dropout: float = 0.0
    schedule: str = "linear"  # or "cosine"
    noise_levels: int = 1000
    also: tuple[MeasurementSpec, ...] = ()
    width: int = 36  # GANs: channels of the generator's first resolution
    critic: int = 64  # GANs: channels of the critic's first layer
    pixel_weight: float = 50.0  # cgan: weight of the L1 term
    penalty: float = 1.0  # cgan: R1 γ; rcgan: 10 is usual
    adversarial_weight: float = 0.005  # rcgan
    log_every: int = 500  # steps

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            listed = ", ".join(map(repr, KINDS))
            raise RecipeError(f"baseline.kind is {self.kind!r}; choose one of {listed}")
        if self.schedule not in ("linear", "cosine"):
            raise RecipeError(f"baseline.schedule is {self.schedule!r}; 'linear' or 'cosine'")
        for key in ("base", "blocks", "width", "critic", "log_every"):
            if getattr(self, key) < 1:
                raise RecipeError(f"baseline.{key} is {getattr(self, key)}; it must be 1 or more")

    @property
    def is_gan(self) -> bool:
        return self.kind in ("cgan", "rcgan")


def read_baseline(
    file: str | PathLike[str], changes: tuple[str, ...] | list[str] = ()
) -> tuple[Recipe, BaselineSpec]:
    """Read a TOML file with a section `[baseline]`; `changes` are `key.sub=value` strings."""
    path = Path(file)
    if not path.is_file():
        raise RecipeError(f"there is no recipe {path}; see recipes/baselines/")
    return parse_baseline(path.read_text(encoding="utf-8"), changes, origin=str(path))


def parse_baseline(
    text: str, changes: tuple[str, ...] | list[str] = (), origin: str = "the recipe"
) -> tuple[Recipe, BaselineSpec]:
    own = [change for change in changes if change.startswith("baseline.")]
    shared = [change for change in changes if not change.startswith("baseline.")]
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{origin} is not valid TOML: {error}") from error
    if "baseline" not in table:
        raise RecipeError(
            f"{origin} has no section [baseline]; `ptrees train` trains trees, and "
            "recipes/baselines/ holds recipes of baselines"
        )
    lines, keep = [], True
    for line in text.splitlines():
        if line.lstrip().startswith("["):
            keep = not line.lstrip().startswith(("[baseline]", "[[baseline."))
        lines.append(line if keep else "")
    recipe = recipes.parse_recipe("\n".join(lines), shared, origin)
    for change in own:
        recipes._apply(table, change)
    section = dict(table["baseline"])
    also = [recipes._build(MeasurementSpec, t, origin, "baseline.also.")
            for t in section.pop("also", [])]  # fmt: skip
    spec = recipes._build(BaselineSpec, section, origin, "baseline.")
    return recipe, dataclasses.replace(spec, also=tuple(also))


def spec_to_facts(spec: BaselineSpec) -> dict[str, Any]:
    """As plain JSON, for a run's state and a model's file."""
    facts = dataclasses.asdict(spec)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}


def spec_from_facts(facts: dict[str, Any], origin: str) -> BaselineSpec:
    """Undo `spec_to_facts`."""
    section = dict(facts)
    also = [recipes._build(MeasurementSpec, t, origin, "also.") for t in section.pop("also", [])]
    spec = recipes._build(BaselineSpec, section, origin, "baseline.")
    return dataclasses.replace(spec, also=tuple(also))
