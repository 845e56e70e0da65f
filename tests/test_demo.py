"""The demo: one page and a few figures, made on the spot, anywhere, without asking."""

import hashlib
import json
import re
import runpy
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from posterior_trees import demo, load, psnr
from posterior_trees.assets import SIZES, sample_digits, sample_pictures
from posterior_trees.data import evenly_spaced, read_idx
from posterior_trees.data.load import find_folder
from posterior_trees.errors import StoreError
from posterior_trees.models.build import build_predictor
from posterior_trees.models.card import describe_model
from posterior_trees.recipe import parse_recipe

MEGABYTE = 1_000_000
SCORES = {
    "n": 10_000,
    "psnr_hole": [{"depth": d, "mean": v} for d, v in enumerate((14.44, 15.52, 16.0))],
    "nll": [{"depth": d, "mean": v} for d, v in enumerate((0.0, 1.034, 2.0))],
}


def untrained(about: dict | None = None):
    torch.manual_seed(0)
    recipe = parse_recipe('task = "digits_inpaint"\n[tree]\nbranching = 2\n[network]\nc_init = 1')
    predictor = build_predictor(recipe).eval()
    predictor.about |= about or {}
    return predictor


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A demo, made twice into one folder where another file lies already."""
    out = tmp_path_factory.mktemp("demo") / "a folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load", lambda name: untrained({"test": SCORES}))
        demo.make_demo(out)
        (out / "index.html").write_text("old")
        (out / "notes.txt").write_text("mine")
        (out / "message.txt").write_text(demo.make_demo(out))
    return out


def content(folder: Path) -> dict:
    text = (folder / "index.html").read_text("utf-8")
    found = re.search(r'<script type="application/json" id="trees">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_the_message_names_every_file_and_only_these_are_written(folder: Path) -> None:
    message = (folder / "message.txt").read_text()
    made = {path.name for path in folder.iterdir()} - {"notes.txt", "message.txt"}
    assert made == {"index.html", "overview.png", *(f"tree_{i}.png" for i in (0, 2500, 5000, 7500))}
    assert all(name in message for name in made)
    assert (folder / "index.html").as_uri() in message
    assert (folder / "notes.txt").read_text() == "mine"
    for file in folder.glob("*.png"):
        with Image.open(file) as image:
            image.load()


def test_the_page_holds_all_digits_with_their_truths(folder: Path) -> None:
    page = content(folder)
    assert len(page["examples"]) == 48
    assert [example["name"] for example in page["examples"]][:3] == [
        "test 0",
        "test 208",
        "test 416",
    ]
    for example in page["examples"]:
        assert example["truth"].startswith("data:image/png")
        assert len(example["truth_path"]) == 3
        for level in example["levels"]:
            assert sum(node["p"] for node in level) == pytest.approx(1, abs=1e-5)


def test_the_footer_says_who_made_the_digits_and_the_method(folder: Path) -> None:
    words = " ".join(content(folder)["model"].values())
    for name in ("LeCun", "Cortes", "Burges", "CC BY-SA 3.0", "Nehme, Mulayoff and Michaeli"):
        assert name in words


def test_the_footer_shows_scores_only_where_the_model_carries_them(folder: Path) -> None:
    assert content(folder)["model"]["scores"] == (
        "Measured on 10,000 test images, by depth: "
        "PSNR of the hidden part 14.4 / 15.5 / 16.0 dB, NLL 1.03 / 2.00"
    )
    assert "scores" not in describe_model(untrained())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot make the folder .*file.*choose another"):
        demo.make_demo(tmp_path / "file")


def test_the_sample_digits_are_evenly_spaced_test_digits() -> None:
    digits = sample_digits()
    assert digits.shape == (48, 1, 28, 28)
    pixels = (digits * 255).round().byte()
    assert torch.equal(pixels.float() / 255, digits)
    checksum = hashlib.sha256(pixels.numpy().tobytes()).hexdigest()
    assert checksum == "4f6d3c347b0e0cc29c9ded95310db059060cf182beffc206abfdba252e94185c"


def test_every_kind_of_samples_is_a_sheet_of_whole_pictures() -> None:
    shapes = {kind: tuple(sample_pictures(kind).shape) for kind in SIZES}
    assert shapes == {"digits": (48, 1, 28, 28), "shoes": (4, 1, 128, 128),
                      "cells": (1, 1, 260, 348)}  # fmt: skip


def test_the_sample_shoes_are_what_the_script_draws_and_are_thin(tmp_path: Path) -> None:
    script = Path(__file__).parents[1] / "reproduction" / "scripts" / "draw_shoes.py"
    runpy.run_path(str(script))["main"](tmp_path / "shoes.png")
    drawn = np.asarray(Image.open(tmp_path / "shoes.png").convert("L"))
    sheet = torch.cat(list(sample_pictures("shoes")[:, 0]), dim=1)
    np.testing.assert_array_equal(drawn, (255 * sheet).byte().numpy())
    assert 0.02 < (sheet == 0).double().mean() < 0.06


def test_the_sample_digits_are_those_of_mnist() -> None:
    try:
        file = find_folder(None) / "mnist" / "t10k-images-idx3-ubyte.gz"
        images = torch.from_numpy(read_idx(file))
    except ValueError:
        pytest.skip("PTREES_DATA names no folder with mnist/")
    chosen = images[evenly_spaced(demo.TEST_DIGITS, 48)].unsqueeze(1)
    assert torch.equal(chosen, (sample_digits() * 255).round().byte())


def test_the_shipped_model_is_small_and_trained() -> None:
    """Hidden-part PSNR of the 48 digits: their own mean image would have 11.6 dB."""
    file = Path(str(resources.files("posterior_trees") / "assets" / "digits.safetensors"))
    assert file.stat().st_size <= 14 * MEGABYTE
    with safe_open(file, framework="pt") as stored:
        names = [name for name in stored.keys() if not name.startswith("guarantee.")]  # noqa: SIM118
        kinds = {stored.get_tensor(name).dtype for name in names}
    assert kinds == {torch.bfloat16}
    predictor = load("digits", device="cpu")
    assert "input_brightness" in predictor.about
    x = sample_digits()
    with torch.inference_mode():
        tree = predictor(predictor.measure(x))
    root, middle, leaf = psnr(tree, x, predictor.measurement.hole).mean(dim=0).tolist()
    assert root > 13.4
    assert leaf > middle > root + 0.5
    assert tree.shape == (1, 28, 28)
