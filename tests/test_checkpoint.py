"""Checkpoints: a model comes back as it was, and what is not a model says so."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from posterior_trees import cli, load, store, wrap
from posterior_trees.errors import ModelError, RunError
from posterior_trees.measure import Denoise, Inpaint
from posterior_trees.models import checkpoint
from posterior_trees.models.build import build_predictor
from posterior_trees.models.card import describe_model
from posterior_trees.models.checkpoint import find_model, load_recipe, save_model
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import read_recipe, write_recipe
from posterior_trees.training.trainer import fit


@pytest.fixture
def model(tmp_path, recipe):
    """A predictor with random weights, its recipe, and the file they are saved in."""
    torch.manual_seed(1)
    chosen = recipe("tree.depth=2")
    predictor = build_predictor(chosen).eval()
    torch.nn.init.normal_(predictor.network.head.layers[-1].weight)
    file = tmp_path / "best.safetensors"
    save_model(file, predictor, chosen, about={"note": "a test"})
    return predictor, chosen, file


def y_for(predictor) -> torch.Tensor:
    return predictor.measure(torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_a_model_comes_back_bit_for_bit(model):
    predictor, chosen, file = model
    loaded = load(file, device="cpu")
    assert load_recipe(file) == chosen
    assert loaded.about == {"note": "a test", "card": {"task": "Rows 1 to 5 of 8 are hidden"}}
    assert loaded.name == chosen.task
    assert loaded.branching == (2, 2)
    weights = predictor.network.state_dict()
    assert weights.keys() == loaded.network.state_dict().keys()
    assert all(torch.equal(v, weights[k]) for k, v in loaded.network.state_dict().items())
    y = y_for(predictor)
    assert torch.equal(loaded(y).leaves, predictor(y).leaves)
    assert torch.equal(loaded(y).log_probs[-1], predictor(y).log_probs[-1])


def test_a_loaded_model_is_ready_for_inference(model):
    loaded = load(model[2], device="cpu")
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    assert not loaded(y_for(loaded)).root.requires_grad


def test_bf16_halves_the_file_and_is_used_in_float32(model, tmp_path):
    predictor, chosen, file = model
    save_model(tmp_path / "small", predictor, chosen, dtype=torch.bfloat16)
    facts = len(json.dumps(store.read_facts(file)))
    assert (tmp_path / "small").stat().st_size < 0.62 * (file.stat().st_size - facts) + facts
    loaded = load(tmp_path / "small", device="cpu")
    assert loaded.dtype == torch.float32
    for name, weight in predictor.network.state_dict().items():
        assert torch.equal(loaded.network.state_dict()[name], weight.bfloat16().float())
    assert load(tmp_path / "small", device="cpu", dtype=torch.bfloat16).dtype == torch.bfloat16
    assert (
        load(file, device="cpu", dtype=torch.float64)(y_for(predictor)).root.dtype == torch.float64
    )


def test_batch_norm_counters_survive_bf16(tmp_path, recipe):
    chosen = recipe("network.head_norm=batch")
    predictor = build_predictor(chosen)
    predictor(y_for(predictor))  # training mode: the running statistics move
    save_model(tmp_path / "m", predictor, chosen, dtype=torch.bfloat16)
    loaded = load(tmp_path / "m", device="cpu").network.state_dict()
    counters = [k for k in loaded if k.endswith("num_batches_tracked")]
    assert [loaded[k].item() for k in counters] == [1, 1]


def test_a_run_folder_is_a_model(model):
    _, chosen, file = model
    assert find_model(file.parent) == file
    assert load_recipe(file.parent) == chosen


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"holds no best\.safetensors: .* first epoch is over"):
        load(tmp_path)


def test_a_missing_name_lists_the_models_that_are_here():
    with pytest.raises(ModelError, match=r"no model 'digit'.*are here \(cells, digits.*models\)"):
        load("digit")


def test_a_shipped_name_is_found_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()  # of data, say
    monkeypatch.chdir(tmp_path)
    found = find_model("digits")
    assert found.name == "digits.safetensors"
    assert found.parent == Path(checkpoint.__file__).parents[1] / "assets"


@pytest.mark.parametrize("keep", [0, 30, 2000, -1])
def test_a_corrupt_checkpoint_is_named(model, keep):
    file = model[2]
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=re.escape(str(file)) + " is damaged"):
        load(file)
    with pytest.raises(ModelError, match="is damaged"):
        load_recipe(file)


def test_a_checkpoint_of_another_layout_names_the_first_difference(model, recipe):
    predictor, _, file = model
    save_model(file, predictor, recipe("tree.branching=3", "tree.depth=2"))
    with pytest.raises(
        ModelError, match=r"another layout than its recipe: \d+ weights differ, first"
    ):
        load(file)
    save_model(file, predictor, recipe("tree.depth=2", "network.head_norm=batch"))
    with pytest.raises(ModelError, match=r"is missing, expected"):
        load(file)


@pytest.mark.parametrize("facts", [{"state": {"step": 3}}, {"tree": 1, "branching": [2]}])
def test_a_state_or_a_tree_is_not_a_model(tmp_path, facts):
    store.write(tmp_path / "f", {"x": torch.zeros(1)}, facts)
    for open_model in (load, load_recipe):
        with pytest.raises(ModelError, match="holds a run's state or a tree, not a model"):
            open_model(tmp_path / "f")


def test_a_newer_schema_asks_for_an_upgrade(model):
    predictor, chosen, file = model
    facts = {"model": checkpoint.CERTIFIED + 1, "recipe": write_recipe(chosen), "about": {}}
    store.write(file, predictor.network.state_dict(), facts)
    with pytest.raises(ModelError, match=r"model schema 3, this version reads up to 2: upgrade"):
        load(file)


def test_errors_are_value_errors_so_the_command_line_explains_them():
    assert issubclass(ModelError, ValueError)


def test_provenance_says_when_and_with_which_code():
    about = checkpoint.provenance()
    assert set(about) == {"version", "commit", "date", "device", "torch"}
    assert all(about.values())


def test_weights_of_a_predictor_of_ones_own_come_back(tmp_path, recipe, blobs):
    def mine() -> TreePredictor:
        backbone = nn.Conv2d(1, 4, 3, padding=1)
        options = {"branching": 2, "depth": 1, "measurement": Denoise(0.1)}
        return wrap(backbone, features=4, channels=1, **options)

    denoise = ("measurement.kind=denoise", "measurement.sigma=0.1")
    chosen = recipe("training.epochs=1", "tree.branching=2", "tree.depth=1", *denoise)
    trained = fit(chosen, tmp_path, images=(blobs(16), None), predictor=mine(), accelerator="cpu")
    loaded = load(tmp_path, device="cpu", predictor=mine())
    y = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(loaded(y).leaves, trained(y).leaves)
    assert loaded.about["epochs"] == 1
    with pytest.raises(ModelError, match=r"predictor of your own\? Give it"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["tree.depth=2"], r"layout \(2,\), the recipe \(2, 2\)"),
        (["tree.branching=3"], r"layout \(2,\), the recipe \(3,\)"),
        (["measurement.sigma=0.3"], r"\(Denoise\) is not the recipe's \(Denoise,"),
        (["measurement.kind=colorize"], r"\(Denoise\) is not the recipe's \(Colorize,"),
    ],
)
def test_a_predictor_that_contradicts_the_recipe_is_refused(
    tmp_path, recipe, blobs, changes, message
):
    """The recipe is kept with the run, and would say something else than what was trained."""
    options = {"branching": 2, "depth": 1, "measurement": Denoise(0.1)}
    mine = wrap(nn.Conv2d(1, 4, 3, padding=1), features=4, channels=1, **options)
    chosen = recipe("measurement.kind=denoise", "measurement.sigma=0.1", *changes)
    with pytest.raises(ValueError, match=message):
        fit(chosen, tmp_path / "run", images=(blobs(16), None), predictor=mine, accelerator="cpu")
    assert not (tmp_path / "run").exists()


OWN = """
from torch import nn
from posterior_trees import wrap
from posterior_trees.models.build import build_measurement
from posterior_trees.recipe import read_recipe

def make():
    measurement = build_measurement(read_recipe("blobs.toml"))
    backbone = nn.Conv2d(1, 4, 3, padding=1)
    return wrap(backbone, features=4, channels=1, branching=2, depth=1, measurement=measurement)

def nothing():
    return None

def other():
    return wrap(nn.Conv2d(1, 4, 1), features=4, channels=1, branching=3, depth=1)

def broken():
    return {}["x"]
"""


def test_what_no_recipe_can_say_contradicts_none(tmp_path, recipe, blobs):
    """Another branching on each level, and a measurement of one's own."""

    class Dimmed(Denoise):
        def forward(self, x, generator=None):
            return 0.5 * super().forward(x, generator)

    backbone = nn.Conv2d(1, 4, 3, padding=1)
    mine = wrap(backbone, features=4, channels=1, branching=(3, 2), measurement=Dimmed(0.1))
    fit(recipe("training.epochs=1"), tmp_path, images=(blobs(16), None), predictor=mine,
        accelerator="cpu")  # fmt: skip
    assert load(tmp_path, device="cpu", predictor=mine).branching == (3, 2)


def test_another_network_does_not_continue_a_run(tmp_path, recipe, blobs):
    def train(width: int) -> None:
        hole = Inpaint.box((0, 4), (0, 7), size=(8, 8))
        mine = wrap(nn.Conv2d(1, width, 3, padding=1), features=width, channels=1, branching=2,
                    depth=1, measurement=hole)  # fmt: skip
        fit(recipe("training.epochs=1"), tmp_path, images=(blobs(16), None), predictor=mine,
            accelerator="cpu")  # fmt: skip

    train(4)
    with pytest.raises(RunError, match=r"begun with another network: \d+ weights differ, first"):
        train(6)


def test_commands_take_a_network_of_ones_own(tmp_path, blob_folder, monkeypatch, capsys):
    """Trained by `fit`, evaluated, drawn, compared, predicted and exported by its name."""
    monkeypatch.chdir(blob_folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (blob_folder / "own_network.py").write_text(OWN)
    (blob_folder / "no_python.py").write_text("def")
    sys.path.append(str(blob_folder))
    import own_network

    recipe = read_recipe("blobs.toml")
    fit(recipe, "run", data=".", predictor=own_network.make(), accelerator="cpu")
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("a.png")
    mine = ["run", "--predictor", "own_network:make"]
    for words in (
        ["evaluate", *mine, "--data", "."],
        ["figure", *mine, "--data", ".", "--limit", "1", "--out", "f.png"],
        ["compare", *mine, "--data", ".", "--limit", "4", "--device", "cpu", "--out", "table"],
        ["predict", *mine, "a.png", "--out", "trees"],
        ["explore", *mine, "a.png", "--save", "page.html"],
        ["export", *mine, "--out", "small.safetensors"],
        ["export", *mine, "--onnx", "small.onnx"],
    ):
        cli.main(words)
    capsys.readouterr()
    for words, message in (
        (["run"], "--predictor MODULE:FUNCTION on the command line"),
        (["run", "--predictor", "own_network:absent"], "write MODULE:FUNCTION"),
        (["run", "--predictor", "own_network:nothing"], "made a NoneType; it must return what"),
        (["run", "--predictor", "own_network:nn"], "nn is not a function"),
        (["run", "--predictor", "own_network:other"], "the predictor has the layout (3,)"),
        (["run", "--predictor", "own_network:broken"], "own_network:broken failed: KeyError: 'x'"),
        (["run", "--predictor", "no_python:make"], "SyntaxError"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["evaluate", *words, "--data", "."])
        assert message in capsys.readouterr().err


def test_the_shipped_cells_are_those_of_the_recipe_and_carry_their_card():
    """Small, in bfloat16, both levels better than the one above, and one pass for a whole field."""
    file = find_model("cells")
    weights, _ = checkpoint.read_tensors(file)
    assert file.stat().st_size < 14e6
    assert {w.dtype for w in weights.values() if w.is_floating_point()} == {torch.bfloat16}

    shipped = load_recipe("cells")
    changes = ["data.split_order=sorted"]  # it was trained before splits were drawn by hash
    recipe = read_recipe(Path(__file__).parents[1] / "recipes/cells_actin_to_dna.toml", changes)
    for part in ("task", "data", "tree", "network", "loss", "optimizer", "balancer", "measurement"):
        assert getattr(shipped, part) == getattr(recipe, part), part

    predictor = load("cells", "cpu")
    test = predictor.about["test"]
    assert (test["n"], test["branching"]) == (88, [3, 3])
    means = [level["mean"] for level in test["psnr"]]
    assert means == sorted(means)
    tree = predictor(torch.rand(1, 1, 52, 68))
    assert [tuple(level.shape) for level in tree.images] == [
        (1, nodes, 1, 52, 68) for nodes in (1, 3, 9)
    ]


@pytest.mark.parametrize(("name", "terms"), [("digits", "CC BY-SA 3.0"), ("cells", ": CC0")])
def test_a_model_says_on_what_terms_its_data_are(name: str, terms: str) -> None:
    assert terms in load(name, "cpu").about["terms"]
    assert terms in describe_model(load(name, "cpu"))["terms"]


def test_nothing_is_said_about_the_terms_of_your_own_data(model) -> None:
    _, _, file = model
    assert "terms" not in load(file, "cpu").about
    assert "terms" not in describe_model(load(file, "cpu"))


def test_terms_are_those_of_the_data_not_of_the_task(tmp_path) -> None:
    changes = ["data.name=mine", "network.c_init=1"]
    recipe = read_recipe(Path(__file__).parents[1] / "recipes" / "faces_colorize.toml", changes)
    save_model(tmp_path / "mine.safetensors", build_predictor(recipe), recipe)
    assert "terms" not in load(tmp_path / "mine.safetensors", "cpu").about
