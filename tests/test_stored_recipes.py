"""Recipes of earlier versions, as they lie in runs and models: each is still what it was.

`stored_recipes/` has one of every schema there has been, written by the commit in its name.
"""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny import make_blobs

from posterior_trees import load, store
from posterior_trees.errors import RecipeError
from posterior_trees.evaluation.score import score
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.recipe import parse_recipe, parse_resolved, read_recipe, write_recipe
from posterior_trees.recipe.sections import RENAMED, RETIRED
from posterior_trees.training.trainer import fit

ROOT = Path(__file__).parents[1]
STORED = sorted((ROOT / "tests" / "stored_recipes").glob("*.toml"))
OLD_NAMES = ROOT / "tests" / "stored_recipes" / "17_cb196bb.toml"
"""The last with the keys that were renamed and retired."""
PAGE = ROOT / "reproduction" / "scripts" / "recipe_page.py"
IMAGES = make_blobs(24), make_blobs(8, seed=1)


@pytest.mark.parametrize("file", STORED, ids=lambda file: file.stem)
def test_a_run_of_an_earlier_version_goes_on_and_its_model_is_judged(
    file: Path, tmp_path: Path
) -> None:
    """Its folder and model have the recipe's old text; it ends as if it had never been stopped."""
    text = file.read_text(encoding="utf-8")
    recipe = parse_resolved(text, file.name)
    order = "hash" if 'split_order = "hash"' in text else "sorted"
    assert recipe.data.split_order == order, "as was done then"
    assert recipe.training.average_half_life == 0.5
    whole = fit(recipe, tmp_path / "whole", images=IMAGES, accelerator="cpu")

    def first_four(steps, first, total):
        for _, step in zip(range(4), steps, strict=False):
            yield step

    run = tmp_path / "run"
    fit(recipe, run, images=IMAGES, accelerator="cpu", watch=first_four)
    (run / "recipe.toml").write_text(text, encoding="utf-8")
    weights, facts = store.read(run / "best.safetensors")
    store.write(run / "best.safetensors", weights, {**facts, "recipe": text})
    model = load(run, "cpu")
    assert load_recipe(run) == recipe
    assert score(model, IMAGES[1])["psnr"].isfinite().all()
    resumed = fit(recipe, run, images=IMAGES, accelerator="cpu")
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, resumed.network.state_dict()[name]), name
    assert read_written(run) == recipe


def read_written(run: Path):
    return parse_resolved((run / "recipe.toml").read_text(encoding="utf-8"), "the run")


def test_there_is_one_of_every_schema() -> None:
    """And each old name and retired key is in some of them."""
    texts = [file.read_text(encoding="utf-8") for file in STORED]
    keys = [frozenset(line.partition(" = ")[0] for line in text.splitlines()) for text in texts]
    assert len(set(keys)) >= 15
    for old in (*RENAMED, *RETIRED):
        assert any(old.split(".")[1] in found for found in keys), old
    renamed = parse_resolved(OLD_NAMES.read_text(encoding="utf-8"), "renamed")
    assert (renamed.loss.surprise, renamed.loss.guided_epochs) == ((0.02,), 0.5)
    by_shape = [parse_resolved(text, "it") for text in texts if "is_by_shape = true" in text]
    assert [found.loss.features for found in by_shape] == ["shape"]
    assert "is_by_shape = false" in OLD_NAMES.read_text(encoding="utf-8")
    assert renamed.loss.features == "pixels"


@pytest.mark.parametrize("name", ["digits", "cells"])
def test_shipped_models_keep_their_recipes(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.training.average_half_life == 1.0
    assert parse_resolved(write_recipe(recipe), name) == recipe
    assert recipe.loss.surprise == ((0.02,) if name == "digits" else (0.0,))


@pytest.mark.parametrize(
    ("key", "value", "is_read"),
    [
        ("head_layers = 3", "head_layers = 4", False),
        ("is_head_detached = false", "is_head_detached = true", False),
        ("is_rate_relative = false", "is_rate_relative = true", False),
        ("momentum = 0.9", "momentum = 0.5", False),
        ("capture = true", "capture = false", True),
    ],
)
def test_what_a_retired_key_asked_for_is_refused_unless_it_did_not_matter(
    key: str, value: str, is_read: bool
) -> None:
    text = OLD_NAMES.read_text(encoding="utf-8")
    assert f"\n{key}\n" in text
    changed = text.replace(key, value)
    if is_read:
        assert parse_resolved(changed, "old") == parse_resolved(text, "old")
        return
    with pytest.raises(RecipeError, match=rf"old: \w+\.{value.split(' = ')[0]} is .* can only do"):
        parse_resolved(changed, "old")


def test_new_recipes_are_told_the_new_names() -> None:
    """Aliases are for what was stored: a recipe that is written today has one name for a thing."""
    own = 'task = "digits_inpaint"\n'
    for old, new in RENAMED.items():
        with pytest.raises(RecipeError, match=f"unknown key '{old}'; it is called '{new}' now"):
            parse_recipe(own, [f"{old}=1"])
    for old in RETIRED:
        with pytest.raises(RecipeError, match=f"unknown key '{old}'; nobody used it"):
            parse_recipe(own, [f"{old}=1"])


@pytest.mark.parametrize("file", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda f: f.stem)
def test_what_is_written_is_read_back(file: Path) -> None:
    recipe = read_recipe(file)
    assert parse_resolved(write_recipe(recipe), file.name) == recipe


def test_the_reference_is_made_of_the_declarations(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    command = "python reproduction/scripts/recipe_page.py docs/recipes.md"
    assert runpy.run_path(str(PAGE))["renew"](page) == page, f"run {command}"
    assert command in page
    stale = tmp_path / "recipes.md"
    stale.write_text(page.replace("| `depth` | `2` |", "| `depth` | `7` |"), encoding="utf-8")
    subprocess.run([sys.executable, str(PAGE), str(stale)], check=True)
    assert stale.read_text(encoding="utf-8") == page
