"""Another magnification than the model's is noticed, by the size of what its tree shows."""

import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Measurement, Tree, TreePredictor, cli, grow, load
from posterior_trees.data import ImageSet, load_split
from posterior_trees.data.facts import region_quantiles
from posterior_trees.imaging.regions import SIDE, median_region
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import load_recipe, save_model
from posterior_trees.pictures.nuclei.magnification import describe_magnification
from posterior_trees.pictures.reading import Reading
from posterior_trees.recipe import parse_recipe
from posterior_trees.serve.ask import ask
from posterior_trees.training.trainer import fit


def discs(radius: int, rows: int = 4, columns: int = 5, gap: int = 6) -> torch.Tensor:
    """A grid of bright discs in the dark, and how many pixels each of them has."""
    side = 2 * radius + 1 + gap
    place = torch.arange(side) - side // 2
    disc = (place[:, None].square() + place.square() <= radius**2).double()
    return (0.1 + 0.7 * disc).repeat(rows, columns)


def pixels_of(radius: int) -> int:
    return int((discs(radius, 1, 1) > 0.5).sum())


def knows(**about) -> TreePredictor:
    """A model that remembers this of its training."""
    made = {"branching": 2, "depth": 1, "channels": 1, "name": "cells", "about": about}
    return TreePredictor(torch.nn.Linear(1, 1), Measurement(), **made)


def tree_of(image: torch.Tensor) -> Tree:
    return grow(image.expand(1, 3, 1, *image.shape), torch.zeros(1, 3).log_softmax(1), 3)


@pytest.mark.parametrize("radius", [5, 7, 11])
def test_the_median_is_the_area_of_the_discs(radius: int) -> None:
    assert median_region(discs(radius)) == pixels_of(radius)


def test_few_regions_have_no_median() -> None:
    assert median_region(discs(7, 3, 3)) is None
    assert median_region(torch.zeros(40, 40)) is None


def test_of_a_huge_picture_the_middle_is_looked_at() -> None:
    huge = torch.full((SIDE + 600, SIDE + 600), 0.1, dtype=torch.float64)
    huge[: 4 * 21, : 5 * 21] = discs(7)
    assert median_region(huge) is None
    huge[600 : 600 + 4 * 21, 700 : 700 + 5 * 21] = discs(7)
    assert median_region(huge) == pixels_of(7)


def pairs(radii: list[int]) -> ImageSet:
    fields = torch.stack([discs(r, gap=40 - 2 * r - 1)[None] for r in radii])
    x = (255 * fields).round().byte()
    return ImageSet(x, x)


def test_quantiles_are_those_of_the_images_medians() -> None:
    radii = [6] * 3 + [8] * 15 + [10] * 2
    medians = torch.tensor([pixels_of(r) for r in radii]).double()
    wanted = medians.quantile(torch.tensor([0.05, 0.5, 0.95]).double()).tolist()
    assert region_quantiles(pairs(radii)) == pytest.approx(wanted)


def test_some_large_fields_may_be_empty() -> None:
    """Of fields of a megapixel thirty are looked at; ten with enough regions will do."""
    one, two = torch.zeros(2, 1, SIDE, SIDE, dtype=torch.uint8)
    one[0, : 4 * 23, : 5 * 23] = (255 * discs(8)).round().byte()
    for filled, known in ((12, [197.0] * 3), (9, None)):
        x = torch.stack([one] * filled + [two] * (30 - filled))
        assert region_quantiles(ImageSet(x, x)) == known


def test_long_thin_strokes_take_no_time_and_are_no_region() -> None:
    """One that hangs on a disc and winds through the picture, row by row: 37,000 pixels long, each
    of which would be a step of its own."""
    image = discs(8, 4, 16)
    image[-3:, 11] = 0.8
    winding = torch.full((400, image.shape[1]), 0.1, dtype=torch.float64)
    for row in range(0, 400, 4):
        winding[row] = 0.8
        winding[row : row + 4, -1 if row % 8 == 0 else 0] = 0.8
    start = time.process_time()
    assert median_region(torch.cat([image, winding])) == pixels_of(8)
    assert time.process_time() - start < 2


def test_few_images_photographs_and_single_images_have_none() -> None:
    assert region_quantiles(pairs([8] * 9)) is None
    alone = ImageSet(pairs([8] * 12).x)
    assert region_quantiles(alone) is None
    colour = alone.x.expand(-1, 3, -1, -1).contiguous()
    assert region_quantiles(ImageSet(colour, alone.x)) is None


@pytest.mark.parametrize(
    ("radius", "is_doubted"), [(5, True), (6, True), (7, False), (9, False), (10, True)]
)
def test_another_size_is_doubted_with_a_size_to_try(radius: int, is_doubted: bool) -> None:
    """Discs of 81, 113, 149, 253 and 317 pixels, where those of 179 to 217 are usual."""
    usual = [pixels_of(8) / 1.1, pixels_of(8), pixels_of(8) * 1.1]
    said = describe_magnification(tree_of(discs(radius)), knows(region_pixels=usual))
    assert bool(said) == is_doubted
    if is_doubted:
        assert f"have {pixels_of(radius)} pixels" in said
        assert f"--scale {(pixels_of(8) / pixels_of(radius)) ** (2 / 3):.3g})" in said
        again = describe_magnification(tree_of(discs(radius)), knows(region_pixels=usual), 0.5)
        assert f"--scale {0.5 * (pixels_of(8) / pixels_of(radius)) ** (2 / 3):.3g})" in again


def test_the_advice_is_a_scale_that_is_taken() -> None:
    huge = [1e4 * pixels_of(8)] * 3
    assert "--scale 16)" in describe_magnification(tree_of(discs(8)), knows(region_pixels=huge))
    tiny = [1e-4 * pixels_of(8)] * 3
    assert "--scale 0.0625)" in describe_magnification(tree_of(discs(8)), knows(region_pixels=tiny))


def test_nobody_is_doubted_who_knows_nothing() -> None:
    assert describe_magnification(tree_of(discs(12)), knows()) == ""
    assert describe_magnification(tree_of(discs(12, 2, 2)), knows(region_pixels=[1, 2, 3])) == ""


@pytest.fixture(scope="module")
def recipe():
    changes = ["network.c_init=1", "tree.branching=2", "tree.depth=1", "data.patch=32",
               "training.epochs=1", "training.picture_every=0", "data.validation=0"]  # fmt: skip
    return parse_recipe('task = "cells_actin_to_dna"', changes)


def test_a_training_on_pairs_keeps_the_quantiles(tmp_path: Path, recipe) -> None:
    images = pairs([8] * 16)
    fit(recipe, tmp_path, images=(images, None), accelerator="cpu")
    assert load(tmp_path).about["region_pixels"] == region_quantiles(images)


@pytest.fixture(scope="module")
def model(tmp_path_factory, recipe) -> Path:
    """Answers with its input, and has learned from discs of radius 8."""
    predictor = build_predictor(recipe)
    torch.nn.init.zeros_(predictor.network.to_image.weight)
    torch.nn.init.zeros_(predictor.network.to_image.bias)
    file = tmp_path_factory.mktemp("model") / "cells.safetensors"
    save_model(file, predictor, recipe, {"region_pixels": region_quantiles(pairs([8] * 12))})
    return file


def save(image: torch.Tensor, file: Path) -> Path:
    Image.fromarray((255 * image).round().byte().numpy().astype(np.uint8)).save(file)
    return file


def test_predict_says_so_in_the_terminal_on_its_page_and_in_its_file(
    model: Path, tmp_path: Path, capsys
) -> None:
    same, other = (save(discs(r), tmp_path / f"{r}.png") for r in (8, 13))
    cli.main(["predict", str(model), str(same), str(other), "--out", str(tmp_path / "o")])
    said = capsys.readouterr().err
    assert f"{other}: the picture may be at another magnification" in said
    assert str(same) not in said
    tables = [json.loads((tmp_path / "o" / n / "tree.json").read_text()) for n in ("8", "13")]
    assert "note" not in tables[0]
    assert tables[1]["note"] in said
    assert tables[1]["note"] in (tmp_path / "o" / "index.html").read_text()


def test_who_takes_the_advice_is_not_doubted_again(model: Path, tmp_path: Path, capsys) -> None:
    """… neither by `predict` nor by the explorer; the files say what was done. (This model answers
    with its input, whose regions grow with the square of the scale: a small step is right.)"""
    file = save(discs(11), tmp_path / "a.png")
    out = tmp_path / "o"
    cli.main(["predict", str(model), str(file), "--out", str(out)])
    advised = re.search(r"--scale ([\d.]+)", capsys.readouterr().err)
    assert advised
    assert float(advised[1]) == pytest.approx((8 / 11) ** (4 / 3), rel=0.05)
    options = ["--count", "--scale", advised[1]]
    cli.main(["predict", str(model), str(file), "--out", str(out), *options])
    said = capsys.readouterr()
    assert said.err == ""
    assert f"at {advised[1]} of its size" in " ".join(said.out.split())
    size = [round(side * float(advised[1])) for side in discs(11).shape]
    table = json.loads((out / "a" / "tree.json").read_text())
    words = f"resized from 116×145 to {size[0]}×{size[1]} (height×width)"
    assert (table["scale"], table["size"], table["resized"]) == (float(advised[1]), size, words)
    made = ask(load(model), file.read_bytes(), "a.png", Reading(scale=float(advised[1])))
    assert made.remarks == {"resized": words}
    torch.testing.assert_close(made.tree.leaves, Tree.load(out / "a" / "tree.safetensors").leaves)


def test_a_count_keeps_what_is_doubted_about_its_picture(model: Path, tmp_path: Path) -> None:
    file = save(discs(13), tmp_path / "a.png")
    for scale in (1, 0.9):  # both doubted
        out = tmp_path / "o"
        cli.main(["predict", str(model), str(file), "--out", str(out), "--count",
                  "--scale", str(scale)])  # fmt: skip
        tree, count = (json.loads((out / "a" / f"{n}.json").read_text()) for n in ("tree", "count"))
        assert "another magnification" in count["note"]
        kept = {key: count.get(key) for key in ("note", "resized", "scale")}
        assert kept == {key: tree.get(key) for key in kept}
        assert (count.get("scale"), round(count["mean"])) == (None if scale == 1 else 0.9, 20)


def test_the_explorer_says_so_too(model: Path, tmp_path: Path) -> None:
    """Beside what else is doubted, and of large pictures, which it predicts whole."""
    predictor = load(model)
    content = save(discs(13), tmp_path / "a.png").read_bytes()
    assert "another magnification" in ask(predictor, content, "a.png").remarks["note"]
    predictor.about["input_brightness"] = [0.9, 1.0]
    note = ask(predictor, content, "a.png").remarks["note"]
    assert "mean brightness" in note
    assert "another magnification" in note
    del predictor.about["input_brightness"]
    content = save(discs(13, 18, 18), tmp_path / "b.png").read_bytes()  # 594 pixels a side
    assert "another magnification" in ask(predictor, content, "b.png").remarks["note"]
    content = save(discs(8, 28, 28), tmp_path / "c.png").read_bytes()
    assert ask(predictor, content, "c.png").remarks == {}


def test_the_shipped_model_knows_the_sizes_of_its_training_fields() -> None:
    known = load("cells").about["region_pixels"]
    assert known == sorted(known)
    folder = Path(os.environ.get("PTREES_DATA") or "")
    if not (folder / "cells_actin_dna.tar").is_file():
        pytest.skip("PTREES_DATA names no folder with cells_actin_dna.tar")
    fields = load_split(load_recipe("cells").data, folder, "train")
    assert region_quantiles(fields) == pytest.approx(known)


def test_what_is_too_faint_to_be_counted_has_no_size_either() -> None:
    """Otsu would part discs of 0.18 from a ground of 0.1; noise in the dark is no nucleus."""
    faint = 0.1 + 0.08 * (discs(7) > 0.5)
    assert median_region(faint) is None
    assert median_region(faint + 0.1) == pixels_of(7)
