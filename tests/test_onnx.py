"""ONNX files: the same trees as the predictor's, at every batch and size they promise."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor

from posterior_trees import Colorize, Tree, TreePredictor, UNet, cli, load, wrap
from posterior_trees.data.registry import terms_of
from posterior_trees.export.onnx import output_names, properties, save_onnx
from posterior_trees.networks import ResidualUNet

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOLERANCE = 1e-4


def colour_predictor(kind: str = "unet") -> TreePredictor:
    """A tiny colourisation with random weights, probabilities included."""
    torch.manual_seed(0)
    network = UNet(1, 3, 4, width=8)
    if kind == "residual":
        options = {"multipliers": (1, 2), "blocks": 1, "attention": (1,)}
        network = ResidualUNet(1, 3, 4, width=8, **options)
        for parameter in network.parameters():  # none at its start, where blocks do nothing
            torch.nn.init.normal_(parameter, std=0.2)
    torch.nn.init.normal_(network.head.layers[-1].weight)
    known = {"name": "faces_colorize", "about": {"terms": terms_of("faces256")}}
    return TreePredictor(
        network, Colorize(), branching=2, depth=2, channels=3, multiple=16, **known
    ).eval()


@contextmanager
def unchecked() -> Iterator[None]:
    """Without shape checks: while torch traces a graph, sizes are symbols and not numbers."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", params=["unet", "residual"])
def colour(request, tmp_path_factory: pytest.TempPathFactory) -> tuple[TreePredictor, Path]:
    file = tmp_path_factory.mktemp("onnx") / "colour.onnx"
    predictor = colour_predictor(request.param)
    with unchecked():
        save_onnx(predictor, file)
    return predictor, file


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[TreePredictor, Path]:
    file = tmp_path_factory.mktemp("onnx") / "digits.onnx"
    with unchecked():
        cli.main(["export", "digits", "--onnx", str(file)])
    return load("digits", device="cpu"), file


def run(file: Path, y: Tensor) -> dict[str, Tensor]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {"y": y.numpy()})
    return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}


def assert_same(got: dict[str, Tensor], tree: Tree) -> None:
    want = {f"level_{level}": images for level, images in enumerate(tree.images)}
    want |= {f"probs_{level}": tree.probs[level] for level in range(1, tree.depth + 1)}
    want |= {"leaves": tree.leaves, "probabilities": tree.probs[-1]}
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].shape == tensor.shape, name
        assert (got[name] - tensor).abs().max() <= TOLERANCE, name


@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (3, 1, 64, 48), (2, 1, 16, 128)])
def test_a_colour_model_gives_the_same_trees_at_any_batch_and_size(colour, shape) -> None:
    predictor, file = colour
    y = torch.rand(shape)
    assert_same(run(file, y), predictor(y))


@pytest.mark.parametrize("batch", [1, 4])
def test_the_shipped_digits_give_the_same_trees(digits, batch: int) -> None:
    predictor, file = digits
    y = predictor.measure(torch.rand(batch, 1, 28, 28))
    assert_same(run(file, y), predictor(y))


def test_the_hole_may_hold_anything_and_the_rest_is_kept(digits) -> None:
    predictor, file = digits
    x = torch.rand(1, 1, 28, 28)
    got = run(file, x)
    assert_same(got, predictor(predictor.measure(x)))
    seen = ~predictor.measurement.hole
    assert torch.equal(got["leaves"][0, :, 0, seen], x[0, 0, seen].expand(9, -1))


def test_every_colour_node_has_the_grey_that_was_measured(colour) -> None:
    y = torch.rand(1, 1, 32, 32)
    for name, images in run(colour[1], y).items():
        if name.startswith("level"):
            assert (images.mean(dim=2) - y).abs().max() < 1e-5


def test_the_usage_in_the_file_works_as_it_stands(colour, tmp_path: Path, monkeypatch) -> None:
    predictor, file = colour
    (tmp_path / "model.onnx").write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    meta = onnxruntime.InferenceSession(file).get_modelmeta().custom_metadata_map
    assert meta == properties(predictor)
    assert len(meta["usage"].splitlines()) == 6
    names: dict = {"y": np.random.default_rng(0).random((1, 1, 32, 32), np.float32)}
    exec(meta["usage"], names)
    assert names["leaves"].shape == (1, 4, 3, 32, 32)
    assert names["p"].sum() == pytest.approx(1)
    assert meta["branching"] == "2,2"
    assert "MIT" in meta["licence"]
    assert meta["data_terms"].startswith("faces256, ")
    assert "research only" in meta["data_terms"]


def test_sizes_off_the_grid_are_refused(colour) -> None:
    with pytest.raises(Exception, match=r"Got invalid dimensions|shape|dimension"):
        run(colour[1], torch.rand(1, 1, 40, 33))


def test_a_predictor_of_any_input_is_told_what_a_graph_needs(tmp_path: Path) -> None:
    net = wrap(torch.nn.Conv2d(3, 8, 1), features=8, channels=1, branching=2, depth=1)
    with pytest.raises(ValueError, match=r"measurement=Paired\(1, N, is_residual=False\)"):
        save_onnx(net.eval(), tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_outputs_are_named_root_first() -> None:
    assert output_names(colour_predictor()) == [
        "leaves", "probabilities", "level_0", "level_1", "level_2", "probs_1", "probs_2",
    ]  # fmt: skip


def test_a_predictor_in_half_precision_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bfloat16 on cpu.*float32"):
        save_onnx(colour_predictor().to(torch.bfloat16), tmp_path / "half.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--onnx", "a.onnx", "--dtype", "bfloat16"], 1, "leave --dtype out"),
        (["--onnx", "a.onnx", "--out", "a.safetensors"], 2, "not allowed with"),
        ([], 2, "one of the arguments --out --onnx --bioimageio is required"),
    ],
)
def test_wrong_exports_are_explained(words, code: int, says: str, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["export", "digits", *words])
    assert stop.value.code == code
    assert says in capsys.readouterr().err


def test_the_file_says_its_tree_and_its_origin() -> None:
    """As many levels below the root as there are numbers of children."""
    predictor = colour_predictor()
    predictor.about |= {"commit": "abc", "date": "2026-01-02", "epochs": 3}
    said = properties(predictor)
    assert (said["branching"], said["depth"]) == ("2,2", "2")
    assert said["depth"] == output_names(predictor)[-1].removeprefix("probs_")
    assert (said["task"], said["commit"], said["date"]) == ("faces_colorize", "abc", "2026-01-02")
    assert "epochs" not in said
    plain = wrap(torch.nn.Conv2d(3, 8, 3), features=8, channels=3, branching=3, depth=1)
    assert properties(plain)["data_terms"] == "those of your own data"
    assert properties(plain)["task"] == "own"
