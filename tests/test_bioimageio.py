"""Packages for bioimage.io: read by the format's own library, they give our trees."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from posterior_trees import Paired, TreePredictor, load, wrap
from posterior_trees.data import ImageSet
from posterior_trees.errors import InputError, MissingError
from posterior_trees.export.bioimageio import Nodes, names_of, save_bioimageio
from posterior_trees.guarantee.certify import calibrate
from posterior_trees.imaging.adjust import Adjustment

CAMERA = Adjustment.of((150.0, 2600.0), 0.5, False)


class Blurs(nn.Module):
    """A small network of free size, whose maps depend on where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.SiLU(),
                                    nn.Conv2d(6, 6, 3, padding=1), nn.SiLU())  # fmt: skip

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.layers(y)


def make_predictor(channels: int = 1) -> TreePredictor:
    torch.manual_seed(0)
    return wrap(
        Blurs(), features=6, channels=channels, branching=2, depth=2,
        measurement=Paired(channels, 1, is_residual=False),
    ).eval()  # fmt: skip


def make_certified() -> TreePredictor:
    """With promises, as the models that ship have them."""
    predictor = make_predictor()
    noise = torch.randint(256, (30, 1, 8, 8), dtype=torch.uint8)
    predictor.guarantee = calibrate(predictor, ImageSet(noise, noise), groups="image")
    return predictor


def test_promises_stay_at_home() -> None:
    """They are about what runs here; looking at weights while they are traced fails."""
    predictor = make_certified()
    assert Nodes(predictor, 1.0).predictor.guarantee is None
    assert predictor.guarantee is not None


@pytest.fixture(scope="module")
def core() -> Any:
    reason = "needs an environment of its own: make bioimageio"
    return pytest.importorskip("bioimageio.core", reason=reason, exc_type=Exception)


@pytest.fixture(scope="module")
def package(core: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written by a program of its own: tracing does not see through the tests' type checker."""
    file = tmp_path_factory.mktemp("package") / "model.zip"
    program = (
        "import sys\nfrom test_bioimageio import CAMERA, make_certified, save_bioimageio\n"
        "save_bioimageio(make_certified(), sys.argv[1], CAMERA)"
    )
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True,
                          text=True, env=os.environ | {"PYTHONPATH": paths})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return file


@pytest.mark.parametrize("form", ["onnx", "torchscript"])
def test_the_format_s_own_library_accepts_it_and_gives_our_trees(
    core: Any, package: Path, form: str
) -> None:
    assert core.test_model(package, weight_format=form).status == "passed"
    stored = np.random.default_rng(1).integers(0, 4000, (1, 1, 72, 96)).astype(np.uint16)
    pipeline = core.create_prediction_pipeline(core.load_model(package), weight_format=form)
    sample = core.predict(model=pipeline, inputs={"input": stored})
    tree = make_predictor()(CAMERA.apply(stored[0]))
    nodes = torch.cat([level[:, :, 0] for level in tree.images], dim=1)
    shown = torch.from_numpy(np.asarray(sample.members["nodes"].data))
    torch.testing.assert_close(shown, nodes, rtol=0, atol=1e-5)
    probs = torch.from_numpy(np.asarray(sample.members["probabilities"].data))
    torch.testing.assert_close(probs, torch.cat(tree.probs, dim=1), rtol=0, atol=1e-5)


def test_it_says_which_channel_is_which_node(core: Any, package: Path) -> None:
    model = core.load_model(package)
    names = model.outputs[0].axes[1].channel_names
    assert names == ["root", "n_0", "n_1", "n_0_0", "n_0_1", "n_1_0", "n_1_1"]
    assert names == names_of(make_predictor())
    assert model.config.posterior_trees["branching"] == [2, 2]
    assert len(json.dumps(model.config.posterior_trees)) < 2000
    assert all(axis.unit is None for axis in model.inputs[0].axes[2:])  # nobody knows it


@pytest.mark.parametrize(
    ("adjustment", "words"),
    [(Adjustment(), "--levels"), (Adjustment.of((0.0, 9.0), 1.0, True), "--invert")],
)
def test_what_the_format_cannot_say_is_refused(
    tmp_path: Path, adjustment: Adjustment, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        save_bioimageio(make_predictor(), tmp_path / "m.zip", adjustment)
    assert list(tmp_path.iterdir()) == []


def test_models_that_it_cannot_hold_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hides or degrades"):
        save_bioimageio(load("digits", "cpu"), tmp_path / "m.zip", CAMERA)
    with pytest.raises(InputError, match="1 channels in and 3 out"):
        save_bioimageio(make_predictor(3), tmp_path / "m.zip", CAMERA)
    assert list(tmp_path.iterdir()) == []


def test_a_pydantic_that_is_too_new_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pydantic.VERSION", "2.14.3")
    monkeypatch.setitem(sys.modules, "bioimageio.core", None)
    with pytest.raises(MissingError, match=r'2\.14\.3.*"pydantic<2\.14"'):
        save_bioimageio(make_predictor(), tmp_path / "m.zip", CAMERA)


def test_without_the_extra_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydantic.VERSION", "2.13.5")
    monkeypatch.setitem(sys.modules, "bioimageio.core", None)
    with pytest.raises(MissingError, match=r"\[bioimageio\]"):
        save_bioimageio(make_predictor(), tmp_path / "m.zip", CAMERA)
