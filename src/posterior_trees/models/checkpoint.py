"""A trained model in one safetensors file: weights, recipe and where they come from."""

import datetime
import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from posterior_trees import store
from posterior_trees.errors import ModelError, plural
from posterior_trees.guarantee.certificate import PREFIX, Guarantee
from posterior_trees.models.build import build_predictor, check_own, terms
from posterior_trees.models.card import ABOUT, facts_of
from posterior_trees.models.hub import SCHEME, fetch
from posterior_trees.models.shelf import KNOWN, how_to_get, list_models
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe, parse_resolved, write_recipe
from posterior_trees.schema import SchemaError, check

SCHEMA = 1
CERTIFIED = 2
"""Schema of a file that holds a guarantee: older versions would take its tensors for weights."""
Tensors = dict[str, torch.Tensor]
Shapes = Mapping[str, tuple[int, ...]]
FORM = {"model": int, "recipe": str, "about": ABOUT}
"""Of the facts; a guarantee, if there is one, has its own."""


def save_model(
    file: str | PathLike[str],
    predictor: TreePredictor,
    recipe: Recipe,
    about: dict[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the network's weights (in `dtype`) with all that is needed to use them again."""
    weights = predictor.network.state_dict()
    if dtype is not None:
        weights = {k: v.to(dtype) if v.is_floating_point() else v for k, v in weights.items()}
    facts = {"model": SCHEMA, "recipe": write_recipe(recipe), "about": about or predictor.about}
    store.write(file, weights, facts)


def load(
    name_or_path: str | PathLike[str],
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    *,
    predictor: TreePredictor | None = None,
) -> TreePredictor:
    """A predictor ready for inference; `name_or_path` is a name of `ptrees models`, a run
    folder, a file, or a hub's address, `hf://owner/name[@revision]`.

    Weights are used in float32 unless `dtype` says otherwise; the device is the best there is
    unless `device` says otherwise. A `predictor` of your own, as it was given to `fit`, receives
    the weights; without one the recipe's network is built.

    >>> predictor = load("digits", device="cpu")
    >>> predictor.branching, predictor.channels
    ((3, 3), 1)
    """
    file = find_model(name_or_path)
    shapes, facts = _read_header(file)
    recipe = parse_resolved(facts["recipe"], str(file))
    if predictor is None:
        check_layout(build_predictor(recipe, "meta").network, shapes, str(file))
        predictor = build_predictor(recipe)
    else:
        check_own(predictor, recipe)
        check_layout(predictor.network, shapes, str(file))
    weights, kept = read_tensors(file)
    said = facts_of(recipe)  # an older file says less
    card = said["card"] | facts["about"].get("card", {})
    predictor.about = {**said, **facts["about"], "card": card, **terms(recipe)}
    if recipe.data.split == "well":
        predictor.about["kept_whole"] = "well"
    predictor.network.load_state_dict(weights)
    predictor.to(device=device or best_device(), dtype=dtype)
    if "guarantee" in facts:  # whether it holds for this dtype is looked at when it predicts
        try:
            predictor._guarantee = Guarantee.of(kept, check(facts["guarantee"], dict, "the facts"))
        except (ValueError, TypeError, LookupError) as error:
            raise ModelError(f"{file} has a guarantee that cannot be read: {error}") from error
    return predictor.eval().requires_grad_(False)


def keep_guarantee(
    name_or_path: str | PathLike[str], guarantee: Guarantee, out: str | PathLike[str] | None = None
) -> Path:
    """Write a guarantee into a model's file, or into a copy `out` of it; weights stay as they
    are."""
    file = find_model(name_or_path)
    weights, _ = read_tensors(file)
    facts = _read_header(file)[1] | {"model": CERTIFIED, "guarantee": guarantee.facts}
    store.write(out or file, weights | guarantee.tensors(), facts)
    return Path(out or file)


def start_from(predictor: TreePredictor, name_or_path: str | PathLike[str]) -> None:
    """Give a predictor that is to be trained the weights of a model of the same layout."""
    file = find_model(name_or_path)
    weights, _ = read_tensors(file)
    if difference := find_difference(predictor.network, shapes_of(weights)):
        raise ModelError(
            f"training cannot begin with the weights of {name_or_path}: {difference}. Give the "
            "recipe the model's [tree], [network] and channels"
        )
    predictor.network.load_state_dict(weights)
    predictor.about = {**predictor.about, "start": Path(name_or_path).name}


def export_model(
    file: str | PathLike[str],
    predictor: TreePredictor,
    recipe: Recipe,
    *,
    dtype: torch.dtype = torch.bfloat16,
    scores: dict[str, Any] | None = None,
) -> None:
    """Write a model for others to use: weights in `dtype`, and its test scores in its card."""
    about = dict(predictor.about)
    if scores:  # a card names the model, not the folder it lay in when it was scored
        about["test"] = scores | {"model": Path(scores["model"]).name}
    save_model(file, predictor, recipe, about, dtype)


def load_recipe(name_or_path: str | PathLike[str]) -> Recipe:
    """The recipe a model was trained with."""
    file = find_model(name_or_path)
    return parse_resolved(_read_header(file)[1]["recipe"], str(file))


def _read_header(file: Path) -> tuple[Shapes, dict[str, Any]]:
    """The shapes of the weights and the facts, of the right types."""
    try:
        shapes, facts = store.read_shapes(file)
    except store.StoreError as error:
        raise ModelError(str(error)) from error
    if "model" not in facts:
        raise ModelError(
            f"{file} holds a run's state or a tree, not a model; a run's model is best.safetensors"
        )
    try:
        check(facts, FORM, "its facts", required=tuple(FORM))
    except SchemaError as error:
        raise ModelError(f"{file} is damaged: {error}; copy or train it again") from error
    if facts["model"] > CERTIFIED:
        raise ModelError(
            f"{file} has model schema {facts['model']}, this version reads up to {CERTIFIED}: "
            "upgrade posterior-trees"
        )
    return {name: s for name, s in shapes.items() if not name.startswith(PREFIX)}, facts


def read_tensors(file: Path) -> tuple[Tensors, Tensors]:
    """Of a model's file the weights, all of them finite numbers, and what its guarantee keeps."""
    try:
        tensors, _ = store.read(file)
    except store.StoreError as error:
        raise ModelError(str(error)) from error
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    weights = {name: tensor for name, tensor in tensors.items() if name not in kept}
    bad = [name for name, values in weights.items() if not bool(values.isfinite().all())]
    if bad:
        raise ModelError(
            f"{file} has NaN or infinite weights in {plural(len(bad), 'tensor')}, first "
            f"{bad[0]!r}: its training diverged, or the file is damaged. Copy or train it again"
        )
    return weights, kept


def find_model(name_or_path: str | PathLike[str]) -> Path:
    """The file of a name (`shelf`), a run folder (its best weights), a file, or a hub's address."""
    if (name := str(name_or_path)).startswith(SCHEME):
        return fetch(name)
    path = Path(name_or_path)
    if path.is_file() and path.suffix == ".toml":
        raise ModelError(
            f"{path} is a recipe, not a model: train it (ptrees train {path} --out RUN), then give "
            "the run folder RUN"
        )
    for file in (path, path / "best.safetensors", path / "model.safetensors"):
        if file.is_file():
            return file
    here = list_models()
    if file := here.get(name):
        return file
    if name in KNOWN:
        raise ModelError(f"the model {name} is not here: {how_to_get(name)}")
    if path.is_dir():
        raise ModelError(
            f"the folder {path} holds no best.safetensors: a run writes its first one when its "
            "first epoch is over. Continue it by the command that began it"
        )
    raise ModelError(
        f"there is no model {name!r}: give a file, a run folder, one of the models that are here "
        f"({', '.join(here)}; ptrees models), or an address hf://owner/name"
    )


def load_weights(network: torch.nn.Module, weights: dict, origin: str) -> None:
    """Copy weights into a network of the same layout, or say what differs."""
    check_layout(network, shapes_of(weights), origin)
    network.load_state_dict(weights)


def check_layout(network: torch.nn.Module, shapes: Shapes, origin: str) -> None:
    """Refuse weights of other shapes than the network's, before anything is built or read."""
    if difference := find_difference(network, shapes):
        raise ModelError(
            f"{origin} has another layout than its recipe: {difference}. "
            "Trained with a predictor of your own? Give it: load(…, predictor=mine), or "
            "--predictor MODULE:FUNCTION on the command line"
        )


def shapes_of(weights: Mapping[str, torch.Tensor]) -> Shapes:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}


def find_difference(network: torch.nn.Module, given: Shapes) -> str:
    """In what the layout of weights of these shapes differs from the network's, or nothing."""
    have = shapes_of(network.state_dict())
    if have == given:
        return ""
    names = [n for n in sorted({*have, *given}) if have.get(n) != given.get(n)]
    first = names[0]
    return (
        f"{plural(len(names), 'weight')} differ{'' if names[1:] else 's'}, first {first!r} "
        f"is {given.get(first, 'missing')}, expected {have.get(first, 'none')}"
    )


def best_device() -> torch.device:
    """CUDA, else Apple's GPU, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def provenance() -> dict[str, str]:
    """When, where and with which code something was made.

    The commit is git's, or the variable PTREES_COMMIT where a copy of the code has no history.
    """
    from posterior_trees import __version__

    commit = os.environ.get("PTREES_COMMIT", "")
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    with suppress(OSError, subprocess.TimeoutExpired):
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True,
                               text=True, timeout=5)  # fmt: skip
        commit = commit or found.stdout.strip()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    return {
        "version": __version__,
        "commit": commit or "unknown",
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "device": device,
        "torch": torch.__version__,
    }
