"""Names that find models: those of the package, and whatever lies in a checkout's `models/`."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from posterior_trees import cli, load
from posterior_trees.errors import ModelError
from posterior_trees.models import shelf
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import find_model, save_model
from posterior_trees.recipe import TASKS, parse_recipe

SMALL = ("data.size=[32,32]", "tree.depth=1", "network.c_init=1", "network.steps=2")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose `models/` holds a tiny model of one task, with random weights."""
    (tmp_path / "models").mkdir()
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(shelf, "CHECKOUT", tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    recipe = parse_recipe('task = "faces_colorize"', SMALL)
    torch.manual_seed(0)
    save_model(tmp_path / "models" / "faces_colorize.safetensors", build_predictor(recipe), recipe)
    return tmp_path


def test_a_model_of_the_checkout_is_found_by_its_name(checkout: Path) -> None:
    assert find_model("faces_colorize") == checkout / "models" / "faces_colorize.safetensors"
    assert load("faces_colorize", "cpu").channels == 3
    assert find_model("digits").parent == shelf.PACKAGE


def test_a_model_that_is_not_here_says_how_to_get_it(checkout: Path) -> None:
    with pytest.raises(ModelError, match=r"no models/faces_eyes\.safetensors \(git pull .*train"):
        load("faces_eyes")
    (checkout / "pyproject.toml").unlink()  # as above an installed package
    with pytest.raises(ModelError, match=r"comes with a checkout .* clone it, or fetch this one"):
        load("faces_colorize")


def test_every_task_has_a_model_of_some_name() -> None:
    assert len({*shelf.KNOWN, "digits", "cells"}) == len(TASKS) == 7
    recipes = Path(__file__).parents[1] / "recipes"
    assert all((recipes / f"{name}.toml").is_file() for name in shelf.KNOWN)


def test_the_table_has_a_row_for_each_whatever_the_files_are(checkout: Path, capsys) -> None:
    whole = (checkout / "models" / "faces_colorize.safetensors").read_bytes()
    (checkout / "models" / "half.safetensors").write_bytes(whole[:500])
    (checkout / "models" / "notes.txt").write_text("no model")
    cli.main(["models"])
    said = capsys.readouterr().out
    for name in ("cells", "digits", "faces_colorize", "half", "faces_eyes", "shoes_from_edges"):
        assert re.search(rf"│ {name} +│", said), name
    assert re.search(r"faces_colorize +│[^\n]*Colour is lost +│ non-commercial[^\n]*MB", said)
    assert "is damaged" in said
    assert re.search(r"cats_colorize +│[^\n]*not here", said)
    assert "notes" not in said
    assert "What is not here: " in said


def test_no_name_is_broken_in_a_narrow_terminal(
    checkout: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("shoes_from_edges", "a_name_of_my_own_that_is_longer"):
        shutil.copy(checkout / "models" / "faces_colorize.safetensors",
                    checkout / "models" / f"{name}.safetensors")  # fmt: skip
    for columns in (80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        cli.main(["models"])
        said = capsys.readouterr().out
        assert re.search(r"│ shoes_from_edges +│", said)
        assert "│ a_name_of_my_own_that_is_longer │" in said
        assert max(map(len, said.split("What")[0].splitlines())) <= columns


def test_a_model_of_the_checkout_is_not_changed_by_certifying(checkout: Path, capsys) -> None:
    before = (file := checkout / "models" / "faces_colorize.safetensors").read_bytes()
    with pytest.raises(SystemExit):
        cli.main(["calibrate", "faces_colorize", "--data", str(checkout)])
    assert "give --out FILE" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_the_card_says_how_to_prepare_a_picture_and_what_it_is_not_for(checkout: Path) -> None:
    from posterior_trees.models.card import write_card

    model = load("faces_colorize", "cpu")
    model.about |= {
        "speed": {"seconds": 0.1234, "threads": 2, "size": [32, 32]},
        "command": "bash small.sh",
        "test": {"n": 9, "psnr": [{"depth": 0, "mean": 20.0, "low": 19.5, "high": 20.25}]},
    }
    card = write_card(model)
    said = ("mark both eyes", "Not for", "123 ms for 32×32 pixels on 2 threads", "small.sh",
            "| 0 | 20.000 [19.500, 20.250] |", "non-commercial research", "MB in bf")  # fmt: skip
    for words in said:
        assert words in card, words


@pytest.mark.parametrize("name", ["cats_colorize", "faces_colorize", "shoes_from_edges"])
def test_a_small_model_is_what_its_card_and_its_results_say(name: str) -> None:
    """Of the checkout itself: small, for non-commercial use, true to its measurement, scored."""
    file = Path(__file__).parents[1] / "models" / f"{name}.safetensors"
    assert file.stat().st_size <= 8e6
    predictor = load(str(file), "cpu")
    assert re.search("non-commercial|CC BY-NC", predictor.about["terms"])
    numbers = Path(__file__).parents[1] / "results" / "models" / "numbers.json"
    scored = json.loads(numbers.read_text("utf-8"))["whole_test_pictures"].values()
    found = next(row for row in scored if row["task"] == name)
    assert [row["mean"] for row in predictor.about["test"]["psnr"]] == pytest.approx(
        [row["mean"] for row in found["psnr"]]
    )
    x = torch.rand(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    y = predictor.measure(x) if predictor.measurement.is_computable else x[:, :1].round()
    with torch.inference_mode():
        tree = predictor(y)
    assert tree.branching == (3, 3)
    if predictor.measurement.is_computable:  # every node has the grey values that were given
        for nodes in tree.images:
            torch.testing.assert_close(nodes.mean(dim=2), y.expand(-1, nodes.shape[1], -1, -1))
