"""What a model says of itself: its card, in its file; nothing is guessed from a shape."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import make_recipe

from posterior_trees import cli, load, store
from posterior_trees.errors import ModelError
from posterior_trees.models.build import build_predictor
from posterior_trees.models.card import card_of, describe_model, says
from posterior_trees.models.checkpoint import find_model, save_model
from posterior_trees.pictures.reading import Reading
from posterior_trees.recipe import parse_recipe, parse_resolved
from posterior_trees.serve.ask import Limits
from posterior_trees.serve.server import describe_server
from posterior_trees.serve.start import describe_start
from posterior_trees.training.trainer import fit

CLOTHES = """
task = "clothes"
[data]
name = "fashion"
kind = "idx"
channels = 1
split = "files"
[measurement]
kind = "inpaint"
rows = [0, 19]
columns = [0, 27]
of = [28, 28]
[tree]
depth = 1
[network]
c_init = 1
"""
WEIGHTS = {
    "digits": "c6084116251a9daf35facdb1477b9db86e2d6958bd0b659ac5feeb638ff5575f",
    "cells": "9a1de2d002bcad9a94676524c088fcba44d7097d79c26ada1891a4fa8573bbc6",
}
"""SHA-256 of the shipped weights, as they were before they had a card."""


def digest(weights: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def stored(folder: Path, text: str, *, has_card: bool = True) -> Path:
    """A model with random weights, as training or an older version writes it."""
    recipe = parse_recipe(text)
    torch.manual_seed(0)
    predictor = build_predictor(recipe)
    about = dict(predictor.about) if has_card else {"version": "0.1.0"}
    save_model(folder / "model.safetensors", predictor, recipe, about)
    return folder / "model.safetensors"


@pytest.mark.parametrize("has_card", [True, False])
def test_a_model_of_clothes_says_nothing_of_digits(tmp_path, has_card, capsys) -> None:
    """Grey, 28×28, its upper rows hidden: all that `digits` is but for what it shows."""
    file = stored(tmp_path, CLOTHES, has_card=has_card)
    model = load(file, "cpu")
    assert describe_start(model, []) == [], "no samples of MNIST"
    assert describe_server(model, Limits(), Reading())["digit"] is None, "no photograph of a digit"
    words = " ".join(describe_model(model).values())
    assert "MNIST" not in words
    assert "LeCun" not in words
    assert "digit" not in words
    assert describe_model(model)["task"] == "Rows 1 to 20 of 28 are hidden"
    Image.fromarray(np.full((60, 50), 90, np.uint8)).save(tmp_path / "shoe.png")
    shoe = str(tmp_path / "shoe.png")
    with pytest.raises(SystemExit):
        cli.main(["predict", str(file), shoe, "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert "--resize" in said
    assert "digit" not in said
    cli.main(["predict", str(file), shoe, "--out", str(tmp_path / "out"), "--resize"])
    page = (tmp_path / "out" / "index.html").read_text("utf-8")
    content = re.search(r'id="trees">(.*?)</script>', page)
    assert content is not None
    assert "MNIST" not in json.dumps(json.loads(content[1])["model"])
    with pytest.raises(SystemExit):
        cli.main(["predict", str(file), shoe, "--out", str(tmp_path / "out"), "--digit"])
    assert "whose card says" in capsys.readouterr().err


def test_a_model_of_digits_says_so_with_a_card_or_a_recipe_of_their_data(tmp_path) -> None:
    text = 'task = "digits_inpaint"\n[network]\nc_init = 1\n[tree]\ndepth = 1\n'
    for has_card in (True, False):
        model = load(stored(tmp_path, text, has_card=has_card), "cpu")
        assert says(model, "importer") == "digit"
        assert says(model, "samples") == "digits"
        assert "LeCun" in describe_model(model)["data"]
        assert len(describe_start(model, [])) == 12


def test_a_task_with_other_data_is_not_the_task_s_data(tmp_path) -> None:
    """`digits_inpaint` with `data.name` of one's own: the hole is the same, the pictures not."""
    model = load(stored(tmp_path, 'task = "digits_inpaint"\n[data]\nname = "fashion"\n'
                        "[network]\nc_init = 1\n"), "cpu")  # fmt: skip
    assert not says(model, "credit")
    assert not says(model, "importer")


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_shipped_models_have_a_card_and_their_weights(name: str) -> None:
    weights, facts = store.read(find_model(name))
    own = {key: tensor for key, tensor in weights.items() if not key.startswith("guarantee.")}
    assert digest(own) == WEIGHTS[name]
    known = card_of(parse_resolved(facts["recipe"], name))
    assert facts["about"]["card"].items() <= known.items()
    assert load(name, "cpu").about["card"] == known, "what later versions say is added"


def test_training_writes_the_card(tmp_path, blobs) -> None:
    recipe = make_recipe("training.epochs=1")
    fit(recipe, tmp_path, images=(blobs(16), None), accelerator="cpu")
    about = store.read_facts(tmp_path / "best.safetensors")["about"]
    assert about["card"] == {"task": "Rows 1 to 5 of 8 are hidden"} == card_of(recipe)


@pytest.mark.parametrize(
    ("key", "wrong"),
    [("card", 3), ("card", {"task": 1}), ("test", []), ("test", {"psnr": [{"mean": "x"}]}),
     ("input_brightness", "ab"), ("input_brightness", [1]), ("region_pixels", {}), ("terms", 5)],
)  # fmt: skip
def test_facts_of_a_wrong_type_are_refused(tmp_path, key, wrong) -> None:
    weights, facts = store.read(file := stored(tmp_path, CLOTHES))
    store.write(file, weights, facts | {"about": facts["about"] | {key: wrong}})
    with pytest.raises(ModelError, match=rf"damaged: its facts\.about\.{key}"):
        load(file, "cpu")
