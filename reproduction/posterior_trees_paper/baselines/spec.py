"""A baseline's recipe: that of a tree (data, measurement, optimiser, training) and a section
`[baseline]` that says which model is trained in the tree's place."""

import dataclasses
from dataclasses import dataclass
from os import PathLike
from typing import Annotated, Any, Literal

from msgspec import Meta

from posterior_trees.errors import RecipeError
from posterior_trees.recipe import Recipe, build_recipe, build_section, parse_table, read_text
from posterior_trees.recipe.section import Section
from posterior_trees.recipe.sections import Count, MeasurementSpec

Positive = Annotated[int, Meta(ge=1)]
FOR_TREES = (
    "tree", "network", "loss", "balancer", "optimizer.head_lr",
    "training.precision", "training.average_half_life", "training.calibrate",
    "training.picture_every", "training.evaluation_batch",
)  # fmt: skip
"""What a recipe may say, for a tree of the same data, and a baseline does not go by."""


@dataclass(frozen=True)
class BaselineSpec(Section):
    """Which model learns to sample. `also` are further measurements that a conditional model learns
    together with the recipe's own; `attention` counts steps down from the full resolution."""

    kind: Literal["prior", "conditional", "cgan", "rcgan"] = "conditional"
    base: Positive = 48  # channels of the first resolution
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    blocks: Positive = 2  # residual blocks per resolution
    attention: tuple[int, ...] = (2,)
    dropout: float = 0.0
    schedule: Literal["linear", "cosine"] = "linear"
    noise_levels: int = 1000
    target: Literal["noise", "edm"] = "noise"  # what the network learns, see diffusion.py
    sigma_data: Annotated[float, Meta(gt=0)] = 0.5  # edm: deviation of the data in [-1, 1]
    log_sigma: tuple[float, Annotated[float, Meta(gt=0)]] = (-0.8, 1.6)  # edm: of ln σ in training
    also: tuple[MeasurementSpec, ...] = ()
    width: Positive = 36  # GANs: channels of the generator's first resolution
    critic: Positive = 64  # GANs: channels of the critic's first layer
    pixel_weight: float = 50.0  # cgan: weight of the L1 term
    penalty: float = 1.0  # cgan: R1 γ; rcgan: 10 is usual
    adversarial_weight: float = 0.005  # rcgan
    log_every: Positive = 500  # steps
    patience: Count = 0  # log lines without a lower held-out loss before training ends; 0 = never


def read_baseline(
    file: str | PathLike[str], changes: tuple[str, ...] | list[str] = ()
) -> tuple[Recipe, BaselineSpec]:
    """Read a TOML file with a section `[baseline]`; `changes` are `key.sub=value` strings."""
    return parse_baseline(read_text(file, "recipes/baselines/"), changes, origin=str(file))


def parse_baseline(
    text: str, changes: tuple[str, ...] | list[str] = (), origin: str = "the recipe"
) -> tuple[Recipe, BaselineSpec]:
    _refuse_idle(changes)
    table = parse_table(text, changes, origin)
    if "baseline" not in table:
        raise RecipeError(
            f"{origin} has no section [baseline]; `ptrees train` trains trees, and "
            "recipes/baselines/ holds recipes of baselines"
        )
    section = table.pop("baseline")
    recipe = build_recipe(table, origin)
    if recipe.optimizer.name != "adam":
        raise RecipeError(
            f"{origin}: optimizer.name is {recipe.optimizer.name!r}; baselines learn with 'adam'"
        )
    return recipe, spec_from_facts(section, origin)


def _refuse_idle(changes: tuple[str, ...] | list[str]) -> None:
    """A change that would change nothing is a mistake."""
    for change in changes:
        key = change.partition("=")[0].strip()
        if any(f"{key}.".startswith(f"{idle}.") for idle in FOR_TREES):
            raise RecipeError(
                f"--set {change}: {key} is for trees, and changes nothing of a baseline; its "
                "network is described in [baseline], and it has bfloat16 and averaged weights of "
                "its own"
            )


def spec_to_facts(spec: BaselineSpec) -> dict[str, Any]:
    """As plain JSON, for a run's state and a model's file."""
    facts = dataclasses.asdict(spec)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in facts.items()}


def spec_from_facts(facts: dict[str, Any], origin: str) -> BaselineSpec:
    """A spec from its TOML section, or from what `spec_to_facts` made of it."""
    section = dict(facts)
    also = [
        build_section(MeasurementSpec, table, origin, "baseline.also.")
        for table in section.pop("also", [])
    ]
    spec = build_section(BaselineSpec, section, origin, "baseline.")
    return dataclasses.replace(spec, also=tuple(also))
