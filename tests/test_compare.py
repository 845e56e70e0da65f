"""The comparison: calibration tests that can tell samplers apart, tables, and the commands."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from posterior_trees_paper.baselines.calibration import (
    accept,
    chi_square,
    choose_directions,
    expected_v,
    nearest_distance,
    ranks,
    spread_and_skill,
    spread_skill,
    usable_count,
)
from posterior_trees_paper.baselines.diffusion import DiffusionModel
from posterior_trees_paper.baselines.digits import draw_digits, judge_digits
from posterior_trees_paper.baselines.folder import (
    SampleError,
    choose_images,
    find_samples,
    read_samples,
    write_samples,
)
from posterior_trees_paper.baselines.sampling import Baseline
from posterior_trees_paper.baselines.spec import parse_baseline
from posterior_trees_paper.cli.baseline import parse_options
from posterior_trees_paper.compare import fingerprint, joint, methods
from posterior_trees_paper.compare.comparison import SET_UP, Comparison, best_psnr, root_psnr
from posterior_trees_paper.compare.fingerprint import of_images
from posterior_trees_paper.compare.inputs import save_inputs
from posterior_trees_paper.compare.methods import (
    Answer,
    Inputs,
    Method,
    choose_inputs,
    folder_method,
    sampler_method,
)
from posterior_trees_paper.compare.table import accepted, coverage, make_row, to_latex, to_markdown
from tiny import RECIPE, make_blobs

from posterior_trees import cli, toys
from posterior_trees.baselines import hierarchical_kmeans
from posterior_trees.data import load_split
from posterior_trees.data.stream import Item, StreamedImageSet, Window
from posterior_trees.errors import InputError
from posterior_trees.measure import Colorize, Free
from posterior_trees.metrics import nll, per_depth, psnr
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import load, save_model
from posterior_trees.networks.head import Leaves
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import parse_recipe

BASELINE = """
[baseline]
base = 8
multipliers = [1, 2]
blocks = 1
attention = []
width = 4
critic = 4
"""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def calibrated_world(inputs: int, width: float, seed: int = 0):
    """Truths of the mixture, and 99 posterior samples of each, `width` times as spread out."""
    mixture, sigma = toys.GaussianMixture(), 2.0
    x = mixture.sample(inputs, seeded(seed))
    y = x + sigma * torch.randn(inputs, 2, generator=seeded(seed + 1))
    samples = mixture.sample_posterior(y, sigma, 99, seeded(seed + 2))
    mean = samples.mean(dim=1, keepdim=True)
    return mean + width * (samples - mean), x


def judge(width: float) -> tuple[float, float]:
    samples, x = calibrated_world(600, width)
    bins = ranks(samples, x, torch.eye(2).expand(600, 2, 2)[:, :1], seeded(3))
    return spread_skill(*spread_and_skill(samples, x)), chi_square(bins)


def test_exact_samples_are_calibrated_and_others_are_told_apart() -> None:
    v, chi2 = judge(1.0)
    assert v == pytest.approx(expected_v(99), abs=3 * 0.027)
    assert chi2 < 21.7
    narrow, narrow_chi2 = judge(0.7)
    wide, wide_chi2 = judge(1.4)
    assert narrow < 0.6 < 1.4 < wide
    assert min(narrow_chi2, wide_chi2) > 40


def test_the_averaging_law_holds_exactly_for_any_samples() -> None:
    """Mean error of one sample = error of the mean + spread; so their ratio is 1 + v."""
    samples = torch.randn(5, 8, 3, dtype=torch.float64, generator=seeded())
    x = torch.randn(5, 3, dtype=torch.float64, generator=seeded(1))
    variance, error = spread_and_skill(samples, x)
    one = (samples - x.unsqueeze(1)).square().mean(dim=(1, 2))
    torch.testing.assert_close(one, error + variance)
    assert expected_v(100) == pytest.approx(0.980, abs=1e-3)


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_rounding_does_not_rank_samples_that_equal_the_truth(draw) -> None:
    """Along random directions terms cancel: what rounding leaves is much of a small sum."""
    x = torch.rand(4000, 64, generator=seeded())
    lines = draw(4, 64, generator=seeded(1)).expand(4000, -1, -1)
    bins = ranks(x[:, None].expand(-1, 9, -1), x, lines, seeded(2))
    assert chi_square(bins) < 27


def test_ranks_of_equal_samples_are_drawn_by_lot() -> None:
    samples = torch.zeros(4000, 9, 1)
    bins = ranks(samples, torch.zeros(4000, 1), torch.ones(4000, 1, 1), seeded())
    assert chi_square(bins) < 27
    above = ranks(samples, torch.ones(4000, 1), torch.ones(4000, 1, 1), seeded())
    assert (above == 9).all()
    assert [usable_count(n) for n in (8, 9, 99, 100, 1000)] == [0, 9, 99, 99, 999]
    with pytest.raises(ValueError, match="8 samples are too few"):
        ranks(samples[:, :8], torch.zeros(4000, 1), torch.ones(4000, 1, 1))


def test_directions_of_an_image_come_from_the_other_half_of_the_images() -> None:
    spreads = torch.zeros(4, 3, 5)
    spreads[::2, :, 0] = torch.tensor([1.0, -2.0, 3.0])
    spreads[1::2, :, 4] = 1.0
    directions = choose_directions((5,), 4, spreads, count=1, seed=0)
    assert directions.shape == (4, 2, 5)
    assert directions[0, 1].abs().argmax() == 4
    assert directions[1, 1].abs().argmax() == 0
    assert torch.equal(directions[0, 0], directions[3, 0])


def read(folder: Path, number: int, name: str, shape: tuple[int, ...], limit: int) -> torch.Tensor:
    (place,) = find_samples(folder, [number], [name])
    return read_samples(place, shape, limit)


def test_samples_written_are_samples_read(tmp_path) -> None:
    samples = torch.rand(2, 5, 3, 4, 6, generator=seeded()).mul(255).round() / 255
    write_samples(tmp_path, torch.tensor([3, 17]), samples)
    found = read(tmp_path, 17, "t10k/00017", (3, 4, 6), 100)
    torch.testing.assert_close(found, samples[1])
    assert len(read(tmp_path, 3, "", (3, 4, 6), 2)) == 2


@pytest.mark.parametrize("place", ["0007", "7", "a_b", "a/b"])
def test_pictures_of_any_numbering_are_found(tmp_path, place: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    for number, value in enumerate((0, 51, 255)):
        Image.fromarray(np.full((4, 6), value, np.uint8)).save(
            tmp_path / place / f"{number:04d}.png"
        )
    samples = read(tmp_path, 7, "a/b", (1, 4, 6), 10)
    assert samples.shape == (3, 1, 4, 6)
    assert samples[:, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 1])


def test_sixteen_bits_keep_their_values(tmp_path) -> None:
    """As pictures and as arrays; nobody knows what is white in wider integers."""
    values = np.random.default_rng(0).integers(0, 65536, (3, 4, 6), dtype=np.uint16)
    (tmp_path / "7").mkdir()
    for number, pixels in enumerate(values):
        Image.fromarray(pixels).save(tmp_path / "7" / f"{number}.png")
    np.save(tmp_path / "8.npy", values)
    for image in (7, 8):
        found = read(tmp_path, image, "", (1, 4, 6), 10)
        assert np.allclose(found[:, 0], values / 65535, atol=1e-6)
    np.save(tmp_path / "9.npy", values.astype(np.int64))
    with pytest.raises(SampleError, match=r"has int64 numbers.*save uint8, uint16 or floating"):
        read(tmp_path, 9, "", (1, 4, 6), 10)


def test_samples_that_cannot_be_used_are_named(tmp_path) -> None:
    with pytest.raises(SampleError, match="there is no folder"):
        read(tmp_path / "none", 0, "0", (1, 4, 4), 10)
    with pytest.raises(SampleError, match=r"no samples of 1 of the 1 images.*00005"):
        read(tmp_path, 5, "five", (1, 4, 4), 10)
    np.save(tmp_path / "5.npy", np.zeros((9, 3, 3)))
    with pytest.raises(SampleError, match=r"shape \(9, 1, 3, 3\); .* are \(s, 4, 4, 1\)"):
        read(tmp_path, 5, "", (1, 4, 4), 10)
    np.save(tmp_path / "6.npy", np.full((9, 4, 4), 255.0))
    with pytest.raises(SampleError, match="values from 255 to 255"):
        read(tmp_path, 6, "", (1, 4, 4), 10)
    (tmp_path / "8.npy").write_bytes(b"nonsense")
    with pytest.raises(SampleError, match=r"not a readable \.npy"):
        read(tmp_path, 8, "", (1, 4, 4), 10)
    (tmp_path / "9").mkdir()
    with pytest.raises(SampleError, match="holds no pictures"):
        read(tmp_path, 9, "", (1, 4, 4), 10)


def test_names_that_look_like_numbers_are_not_mixed_up(tmp_path) -> None:
    """Image 4 is called 00007 here, and image 7 is called 00004: one way of naming for all."""
    numbers, names = [4, 7], ["00007.webp", "00004.webp"]
    for stem in ("00004", "00007"):
        (tmp_path / stem).mkdir()
    with pytest.raises(SampleError, match=r"of image 4 both \S+00004 and \S+00007\. Keep one of"):
        find_samples(tmp_path, numbers, names)
    (tmp_path / "00007").rename(tmp_path / "00009")
    found = find_samples(tmp_path, [4, 7], ["00009.webp", "00004.webp"])
    assert [place.name for place in found] == ["00009", "00004"]
    found = find_samples(tmp_path, [4, 9], ["00001.webp", "00004.webp"])
    assert [place.name for place in found] == ["00004", "00009"]
    with pytest.raises(SampleError, match="no samples of 1 of the 2 images"):
        find_samples(tmp_path, [4, 7], ["00001.webp", "00009.webp"])


def test_samples_of_one_image_are_in_one_place(tmp_path) -> None:
    np.save(tmp_path / "00004.npy", np.zeros((9, 4, 4)))
    (tmp_path / "4").mkdir()
    with pytest.raises(SampleError, match=r"00004\.npy and \S+4 are samples of the same image"):
        find_samples(tmp_path, [4], ["a"])
    (tmp_path / "x").mkdir()
    with pytest.raises(SampleError, match=r"\S+x would hold the samples of 2 images,.*00001"):
        find_samples(tmp_path, [1, 2], ["a/x.png", "b/x.png"])


def test_fewer_images_are_among_those_of_more() -> None:
    few, many = (set(choose_images(100, count, seed=3).tolist()) for count in (5, 20))
    assert len(few) == 5
    assert len(many) == 20
    assert few < many
    assert few != set(choose_images(100, 5, seed=4).tolist())
    with pytest.raises(ValueError, match="--limit is 101; the split has 100: give 1 to 100"):
        choose_images(100, 101)


def test_options_of_samplers_are_numbers() -> None:
    assert parse_options(["steps=100", "eta=0.5"]) == {"steps": 100, "eta": 0.5}
    for wrong in ("steps", "steps=many"):
        with pytest.raises(ValueError, match="option 'steps"):
            parse_options([wrong])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A data folder, a tree that was never trained, two baselines and somebody's samples."""
    import struct

    folder = tmp_path_factory.mktemp("world")
    (folder / "blobs").mkdir()
    for part, images in (("train", make_blobs(32)), ("t10k", make_blobs(24, seed=1))):
        header = struct.pack(">4B3I", 0, 0, 8, 3, len(images), 8, 8)
        file = folder / "blobs" / f"{part}-images-idx3-ubyte"
        file.write_bytes(header + images.x.numpy().tobytes())
    recipe = parse_recipe(RECIPE)
    torch.manual_seed(0)
    save_model(folder / "tree.safetensors", build_predictor(recipe), recipe, {"commit": "abc"})
    flat = parse_recipe(RECIPE, ["tree.depth=0"])
    save_model(folder / "mse.safetensors", build_predictor(flat), flat, {})
    for kind in ("prior", "conditional", "cgan"):
        (folder / f"{kind}.toml").write_text(RECIPE + BASELINE)
        cli.main(["baseline", "train", str(folder / f"{kind}.toml"), "--data", str(folder), "--out",
                  str(folder / kind), "--set", f"baseline.kind={kind}", "--set",
                  "training.epochs=1", "--device", "cpu"])  # fmt: skip
    x, _ = make_blobs(24, seed=1).batch(range(24))
    noise = torch.rand(24, 12, 1, 8, 8, generator=seeded())
    exact = torch.where(torch.arange(8).reshape(8, 1) < 5, noise, x.unsqueeze(1))
    write_samples(folder / "theirs", torch.arange(24), exact)
    return folder


def compare(world, out, *more: object) -> None:
    words = ["compare", world / "tree.safetensors", "--data", world, "--limit", 6, "--samples", 12,
             "--group", 4, "--device", "cpu", "--out", out, *more]  # fmt: skip
    cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def compared(world, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    compare(world, out, "--method", f"conditional={world / 'conditional'}::steps=4", "--method",
            f"ddnm={world / 'prior'}:ddnm:steps=4", "--method", f"gan={world / 'cgan'}",
            "--method", f"theirs={world / 'theirs'}",
            "--mse", world / "mse.safetensors")  # fmt: skip
    return out


def test_our_network_is_set_up_before_the_clock_starts(world, tmp_path, monkeypatch) -> None:
    calls, inside = [], methods.tree_method

    def counted(*words):
        method = inside(*words)

        def answer(inputs, part):
            calls.append(part.start)
            return method.answer(inputs, part)

        return dataclasses.replace(method, answer=answer)

    monkeypatch.setattr(methods, "tree_method", counted)
    compare(world, tmp_path, "--limit", "6", "--group", "3")
    assert calls == [0] * (SET_UP + 1) + [3]
    (tmp_path / "parts" / "ours" / "00003.safetensors").unlink()  # stopped there, and continued
    calls.clear()
    compare(world, tmp_path, "--limit", "6", "--group", "3")
    assert calls == [3] * (SET_UP + 1)


def test_a_comparison_writes_one_row_per_method(compared) -> None:
    table = json.loads((compared / "table.json").read_text())
    rows = {row["name"]: row for row in table["methods"]}
    assert list(rows) == ["ours", "conditional", "ddnm", "gan", "theirs"]
    evaluations = {name: row["evaluations"] for name, row in rows.items()}
    assert evaluations == {"ours": 1, "conditional": 48, "ddnm": 48, "gan": 12, "theirs": None}
    for row in rows.values():
        assert row["n"] == 6
        assert [depth["depth"] for depth in row["psnr_hole"]] == [0, 1]
        assert row["nll"][0]["mean"] == pytest.approx(0, abs=1e-6)
    assert rows["ours"]["spread_skill"] is None
    assert rows["theirs"]["seconds_per_image"] is None
    assert rows["theirs"]["seconds_of_groups"] is None
    assert len(rows["ddnm"]["seconds_of_groups"]) == 2
    assert rows["ddnm"]["seconds_per_image"] == pytest.approx(
        sum(rows["ddnm"]["seconds_of_groups"]) / 2
    )
    assert rows["theirs"]["ranks"] == 6 * 8 or rows["theirs"]["ranks"] == 6 * (4 + 2)
    assert "versus_ours" not in rows["ours"]
    assert table["clip"] is False
    assert rows["ours"]["made"]["commit"]
    named = [rows["ours"]["settings"]["model"], rows["ddnm"]["settings"]["run"]]
    assert named == ["tree.safetensors", "prior"], "no one else has our folders"


def test_ours_is_compiled_where_the_samplers_are(world, compared, tmp_path, monkeypatch) -> None:
    """Else one method's seconds are those of fused networks, the other's not."""
    fused = []

    def compile(predictor):
        fused.append(predictor)
        return predictor

    monkeypatch.setattr(TreePredictor, "compile", compile)
    monkeypatch.setattr(DiffusionModel, "compile", lambda model, **options: fused.append(model))
    compare(world, tmp_path, "--compile", "--method", f"prior={world / 'prior'}:ddnm:steps=2")
    assert [type(model) for model in fused] == [TreePredictor, DiffusionModel]
    rows = json.loads((tmp_path / "table.json").read_text())["methods"]
    plain = json.loads((compared / "table.json").read_text())["methods"]
    assert rows[0]["settings"] == {**plain[0]["settings"], "compiled": True}
    assert rows[0]["psnr"] == plain[0]["psnr"]
    assert "Compiled networks: ours, prior." in (tmp_path / "table.md").read_text()
    monkeypatch.undo()
    again = ("--minutes", 0, "--method", f"prior={world / 'prior'}:ddnm:steps=2")
    with pytest.raises(SystemExit):  # times of compiled networks are not those of others
        compare(world, tmp_path, *again)


def test_anybodys_samples_get_the_scores_of_their_own_tree(world, compared) -> None:
    table = json.loads((compared / "table.json").read_text())
    row = next(row for row in table["methods"] if row["name"] == "theirs")
    x, _ = make_blobs(24, seed=1).batch(table["images"])
    samples = torch.stack([read(world / "theirs", i, "", (1, 8, 8), 12) for i in table["images"]])
    tree = hierarchical_kmeans(samples, 2, 1, generator=seeded(0))
    assert row["psnr"][0]["mean"] == pytest.approx(psnr(tree, x)[:, 0].mean().item(), abs=1e-4)
    assert row["nll"][1]["mean"] == pytest.approx(nll(tree, x)[:, 1].mean().item(), abs=0.3)
    whole, hole = row["psnr"][0]["mean"], row["psnr_hole"][0]["mean"]
    assert whole - hole == pytest.approx(10 * np.log10(8 / 5), abs=1e-3)


def test_samples_are_held_against_the_training_images(world, compared) -> None:
    rows = {r["name"]: r for r in json.loads((compared / "table.json").read_text())["methods"]}
    values = json.loads((compared / "per_image.json").read_text())["theirs"]
    x, _ = make_blobs(24, seed=1).batch(json.loads((compared / "table.json").read_text())["images"])
    train, _ = make_blobs(32).batch(range(24))  # a quarter of the 32 validates
    expected = torch.cdist(x[..., :5, :].flatten(1), train[..., :5, :].flatten(1)).amin(dim=1)
    assert values["nearest_truth"] == pytest.approx(expected.tolist(), abs=1e-3)
    assert rows["theirs"]["nearest"] > 1, "white noise is like no image"
    assert rows["ours"]["nearest"] is None


def test_a_diffusion_model_passes_or_fails_by_name(compared) -> None:
    table = json.loads((compared / "table.json").read_text())
    rows = {row["name"]: row["acceptance"] for row in table["methods"]}
    assert [name for name, verdict in rows.items() if verdict] == ["conditional", "ddnm"]
    root = next(r for r in table["methods"] if r["name"] == "ddnm")["psnr_hole"][0]["mean"]
    assert rows["ddnm"]["root"]["value"] == pytest.approx(root - table["reference"]["psnr"])
    assert rows["ddnm"]["chi2"]["passed"] is None, "48 ranks decide nothing"
    head, cells = accepted(table)
    assert [line[0] for line in cells] == ["conditional", "ddnm"]
    assert len(head) == len(cells[0])


def test_a_sampler_that_fails_its_tests_stays_and_is_marked(compared) -> None:
    table = json.loads((compared / "table.json").read_text())
    rows = {row["name"]: row for row in table["methods"]}
    rows["ddnm"]["acceptance"]["passed"], rows["conditional"]["acceptance"]["passed"] = False, None
    text = to_markdown(table)
    assert text.count("| ddnm (failed) |") == 2, "in the table and among the differences"
    assert "| conditional |" in text
    assert "conditional (failed)" not in text
    assert "ddnm (failed) &" in to_latex(table)


def test_comparisons_of_several_tasks_are_one_table_below_the_paper_s_rows(
    compared, tmp_path
) -> None:
    table = json.loads((compared / "table.json").read_text())
    for task in ("faces_eyes", "blobs"):
        (tmp_path / task).mkdir()
        title = f"Trees compared: {task} (unfinished: repaint)"
        (tmp_path / task / "table.json").write_text(json.dumps(table | {"title": title}))
    joint.main([str(tmp_path / "faces_eyes"), str(tmp_path / "blobs"), "--out", str(tmp_path)])
    lines = (tmp_path / "table1.md").read_text().splitlines()
    methods = [line.split(" | ")[:3] for line in lines if line.startswith("| faces_eyes")]
    assert methods[0][1] == "*the paper's (other faces, does not compare)*"
    assert methods[1][1:] == ["ours", f"{table['methods'][0]['trained_on']}"]
    assert sum(line.startswith("| blobs") for line in lines) == len(table["methods"])
    with pytest.raises(InputError, match="holds no comparison"):
        joint.main([str(tmp_path), "--out", str(tmp_path)])


def test_differences_from_ours_are_paired(compared) -> None:
    values = json.loads((compared / "per_image.json").read_text())
    table = json.loads((compared / "table.json").read_text())
    ours, gan = (torch.tensor(values[name]["psnr"]) for name in ("ours", "gan"))
    row = next(row for row in table["methods"] if row["name"] == "gan")
    assert row["versus_ours"]["psnr"] == per_depth(gan - ours)
    low, high = (row["versus_ours"]["psnr"][1][end] for end in ("low", "high"))
    assert low <= (gan - ours)[:, 1].mean().item() <= high


def test_tables_are_readable_and_say_what_is_biased(compared) -> None:
    table = json.loads((compared / "table.json").read_text())
    text = (compared / "table.md").read_text()
    assert text == to_markdown(table)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in lines[:7]}) == 1
    assert "not exact posterior samplers" in text
    assert text.count("undecided") + text.count("FAIL") >= 4
    assert "below the MSE network" in text
    ours, other = (table["methods"][i]["seconds_per_image"] for i in (0, 2))
    assert f"| {other / ours:,.1f} × |" in text
    latex = (compared / "table.tex").read_text()
    assert latex == to_latex(table)
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(body) == 6
    assert len({line.count("&") for line in body}) == 1


def test_trees_of_all_methods_are_drawn_side_by_side(compared) -> None:
    figures = sorted(compared.glob("trees_*.png"))
    assert len(figures) == 4
    with Image.open(figures[0]) as picture:
        assert picture.height > 1.5 * picture.width


def test_a_finished_comparison_is_not_done_again(world, compared, monkeypatch) -> None:
    before = (compared / "table.json").read_text()
    monkeypatch.setattr("posterior_trees_paper.compare.methods.hierarchical_kmeans", None)
    compare(world, compared, "--method", f"theirs={world / 'theirs'}")
    rows = json.loads((compared / "table.json").read_text())["methods"]
    old = {row["name"]: row for row in json.loads(before)["methods"]}
    assert rows == [old["ours"], old["theirs"]]


def test_a_comparison_stopped_early_says_what_is_missing(world, tmp_path, capsys) -> None:
    with pytest.raises(SystemExit):
        compare(world, tmp_path / "a", "--minutes", 0)
    assert "nothing is finished yet" in capsys.readouterr().err
    compare(world, tmp_path / "b")
    compare(world, tmp_path / "b", "--minutes", 0, "--method", f"theirs={world / 'theirs'}")
    assert "unfinished: theirs" in (tmp_path / "b" / "table.md").read_text()


def test_what_another_comparison_left_is_not_reported(world, tmp_path) -> None:
    """Without time to sample again, a row would be that of other samples, or of other images."""
    ddnm = ("--method", f"ddnm={world / 'prior'}:ddnm:steps=2")
    compare(world, tmp_path, *ddnm)
    compare(world, tmp_path, *ddnm, "--minutes", 0, "--samples", 10)
    table = json.loads((tmp_path / "table.json").read_text())
    assert [row["name"] for row in table["methods"]] == ["ours"]
    assert "unfinished: ddnm" in table["title"]
    with pytest.raises(SystemExit):
        compare(world, tmp_path, "--minutes", 0, "--seed", 1)
    compare(world, tmp_path, "--minutes", 0, *ddnm)
    assert "unfinished" not in json.loads((tmp_path / "table.json").read_text())["title"]


def test_what_was_written_over_is_not_reported_either(world, tmp_path, capsys) -> None:
    """Other samples, weights or images under the old names: each is scored anew, and only that."""
    for name in ("blobs", "theirs"):
        shutil.copytree(world / name, tmp_path / name)
    shutil.copy(world / "tree.safetensors", tmp_path)
    method = ("--method", f"theirs={tmp_path / 'theirs'}")

    def rows() -> list[dict[str, Any]]:
        compare(tmp_path, tmp_path / "out", *method)
        return json.loads((tmp_path / "out" / "table.json").read_text())["methods"]

    first = rows()
    assert "groups of images are there" not in capsys.readouterr().err
    assert rows() == first
    assert "4 of 4 groups of images are there already" in capsys.readouterr().err
    number = choose_images(24, 6).tolist()[5]
    np.save(tmp_path / "theirs" / f"{number:05d}.npy", np.zeros((12, 8, 8, 1), np.uint8))
    second = rows()
    assert "2 of 4 groups" in capsys.readouterr().err  # those of ours
    assert second[0] == first[0]
    assert second[1]["psnr"] != first[1]["psnr"]
    recipe = parse_recipe(RECIPE)
    torch.manual_seed(1)
    save_model(tmp_path / "tree.safetensors", build_predictor(recipe), recipe, {"commit": "abc"})
    third = rows()  # our trees say along which directions theirs are ranked
    assert "groups of images are there" not in capsys.readouterr().err
    assert third[0]["psnr"] != second[0]["psnr"]
    compare(tmp_path, tmp_path / "fresh", *method)
    fresh = json.loads((tmp_path / "fresh" / "table.json").read_text())["methods"]
    for key in ("psnr", "rank_chi2", "nearest", "spread_skill", "settings"):
        assert third[1][key] == fresh[1][key], key
    file = tmp_path / "blobs" / "t10k-images-idx3-ubyte"
    stored = np.frombuffer(file.read_bytes(), np.uint8)
    file.write_bytes(stored[:16].tobytes() + (255 - stored[16:]).tobytes())
    fourth = rows()
    assert "groups of images are there" not in capsys.readouterr().err
    assert fourth[1]["psnr"] != third[1]["psnr"]


def test_a_sampler_of_ones_own_gets_what_all_methods_get(world, tmp_path, capsys) -> None:
    """The inputs as files; their samples, sent back, are those of these images."""
    words = ["compare", world / "tree.safetensors", "--data", world, "--limit", 6, "--inputs",
             tmp_path / "in"]  # fmt: skip
    cli.main([str(word) for word in words])
    facts = json.loads((tmp_path / "in" / "inputs.json").read_text())
    assert [image["number"] for image in facts["images"]] == choose_images(24, 6).tolist()
    assert (facts["measurement"], facts["size"]) == ("Inpaint", [1, 8, 8])
    hole = np.load(tmp_path / "in" / "hole.npy")
    (tmp_path / "mine").mkdir()
    for image in facts["images"]:
        y, x = (np.load(tmp_path / "in" / image[kind]) for kind in ("y", "x"))
        assert y.dtype == np.float32
        assert (y[hole] == 0.5).all()
        assert (y[~hole] == x[~hole]).all()
        noise = np.random.default_rng(image["number"]).random((50, *x.shape), np.float32)
        mine = np.where(hole[..., None], noise, y)
        np.save(tmp_path / "mine" / f"{image['number']:05d}.npy", mine)
    capsys.readouterr()
    compare(world, tmp_path / "out", "--samples", 50, "--method", f"mine={tmp_path / 'mine'}")
    assert "mine" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*map(str, words), "--method", "a=b"])
    assert "leave --method out" in capsys.readouterr().err


def test_noise_is_written_as_it_is_compared(tmp_path) -> None:
    """Noise is drawn for each image by its number: no one else would draw the same."""
    recipe = parse_recipe(RECIPE, ["measurement.kind=denoise", "measurement.sigma=0.3"])
    predictor = build_predictor(recipe)
    inputs = choose_inputs(predictor, make_blobs(24, seed=1), 5, seed=2)
    np.save(tmp_path / "hole.npy", np.zeros((8, 8), bool))  # of another comparison
    save_inputs(tmp_path, inputs, {})
    again = choose_inputs(predictor, make_blobs(24, seed=1), 5, seed=2)
    for number, y in zip(again.indices.tolist(), again.y, strict=True):
        stored = np.load(tmp_path / "y" / f"{number:05d}.npy")
        assert np.array_equal(stored, y.permute(1, 2, 0).numpy())
    assert not (tmp_path / "hole.npy").exists()


def test_few_samples_and_those_of_other_images_are_doubted(world, tmp_path, capsys) -> None:
    numbers = choose_images(24, 6).tolist()
    (tmp_path / "other").mkdir()
    for one, other in zip(numbers, numbers[1:] + numbers[:1], strict=True):
        shutil.copy(world / "theirs" / f"{other:05d}.npy", tmp_path / "other" / f"{one:05d}.npy")
    compare(world, tmp_path / "out", "--samples", 7, "--method", f"other={tmp_path / 'other'}",
            "--method", f"theirs={world / 'theirs'}")  # fmt: skip
    said, text = capsys.readouterr().err, (tmp_path / "out" / "table.md").read_text()
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    _, other, theirs = table["methods"]
    assert other["samples"] == theirs["samples"] == 7
    assert other["disagreement"] > 0.05 > 0.005 > theirs["disagreement"]
    for words in (
        "theirs has 7 samples of an image for 2 leaves",
        f"samples of other were off the measurement by up to {other['disagreement']:.2f}",
        f"in {other['disagreeing']} of 6 images",
    ):
        assert words in said
        assert words in text
    assert "samples of theirs were off" not in text
    assert f"v is about {expected_v(7):.2f} and" in text


def test_samples_that_are_training_images_are_doubted(world, tmp_path, capsys) -> None:
    """Of each test image the twelve training images whose visible part is nearest."""
    training = make_blobs(32).subset(range(24)).batch(range(24))[0]
    folder = tmp_path / "recited"
    numbers = choose_images(24, 6)
    x, _ = make_blobs(24, seed=1).batch(numbers)
    near = torch.cdist(x[:, :, 5:].flatten(1), training[:, :, 5:].flatten(1)).argsort(dim=1)[:, :12]
    write_samples(folder, numbers, training[near])
    compare(world, tmp_path / "out", "--method", f"recited={folder}")
    said = capsys.readouterr().err
    assert "samples of recited are 0.0" in said
    assert "does it recite what it was trained on?" in (tmp_path / "out" / "table.md").read_text()


def test_all_images_are_compared_where_there_are_fewer_than_a_hundred(world) -> None:
    predictor = load(world / "tree.safetensors")
    assert len(choose_inputs(predictor, make_blobs(24)).indices) == 24
    assert len(choose_inputs(predictor, make_blobs(120)).indices) == 100


def test_anybodys_samples_are_made_to_agree_with_the_measurement(world, tmp_path) -> None:
    """Noise outside the hole is no answer, and 1.4 is no brightness. Ten samples count as ten."""
    folder = tmp_path / "loud"
    folder.mkdir()
    for number in choose_images(24, 6).tolist():
        loud = torch.rand(10, 8, 8, generator=seeded(number)) * 1.9 - 0.45
        np.save(folder / f"{number:05d}.npy", loud.numpy())
    compare(world, tmp_path / "out", "--method", f"loud={folder}")
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    row = table["methods"][1]
    whole, hole = row["psnr"][0]["mean"], row["psnr_hole"][0]["mean"]
    assert whole - hole == pytest.approx(10 * np.log10(8 / 5), abs=1e-3)
    assert row["expected_v"] == pytest.approx(expected_v(10))


def test_samples_of_a_baseline_become_a_method(world, tmp_path) -> None:
    """`baseline sample` and `compare` choose the same images."""
    words = ["baseline", "sample", world / "conditional", "--data", world, "--limit", 6,
             "--samples", 9, "--option", "steps=3", "--device", "cpu", "--out",
             tmp_path / "samples"]  # fmt: skip
    cli.main([str(word) for word in words])
    assert len(list((tmp_path / "samples").glob("*.npy"))) == 6
    compare(world, tmp_path / "out", "--method", f"folder={tmp_path / 'samples'}")
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["methods"]
    assert rows[1]["kind"] == "folder"
    assert rows[1]["ranks"] is not None


def test_a_baseline_samples_other_tasks_on_the_same_images() -> None:
    text = 'task = "faces_eyes"\n[data]\nsize = [32, 32]\n' + BASELINE
    recipe, spec = parse_baseline(text, ["baseline.kind=prior"])
    baseline = Baseline(recipe, spec)
    eyes, mouth = baseline.measurement_of(), baseline.measurement_of("faces_mouth")
    assert torch.equal(eyes.hole, baseline.measurement_of("faces_eyes").hole)
    assert not torch.equal(eyes.hole, mouth.hole)
    assert isinstance(baseline.measurement_of("faces_colorize"), Colorize)
    with pytest.raises(ValueError, match="'cats_colorize' is about cats256; this model knows face"):
        baseline.measurement_of("cats_colorize")
    with pytest.raises(ValueError, match="task 'ears' is not one of"):
        baseline.measurement_of("ears")


def test_a_folder_without_samples_is_told_all_images_beforehand(world, tmp_path, capsys) -> None:
    numbers = choose_images(24, 6).tolist()
    write_samples(tmp_path / "some", torch.tensor(numbers[:1]), torch.zeros(1, 2, 1, 8, 8))
    with pytest.raises(SystemExit):
        compare(world, tmp_path / "out", "--method", f"theirs={tmp_path / 'some'}")
    text = capsys.readouterr().err
    assert "no samples of 5 of the 6 images" in text
    assert f": {', '.join(map(str, numbers[1:]))}. Put those of image {numbers[1]} into" in text
    assert not (tmp_path / "out" / "parts").exists()


def train_prior(world, out, *changes: str) -> None:
    words = ["baseline", "train", world / "prior.toml", "--data", world, "--out", out, "--device",
             "cpu", "--set", "baseline.kind=prior", "--set", "training.epochs=1"]  # fmt: skip
    cli.main([str(word) for word in words] + [w for c in changes for w in ("--set", c)])


def test_a_baseline_that_has_seen_what_it_is_judged_on_is_refused(world, tmp_path, capsys) -> None:
    """Ours was trained on 24 of 32 images and is compared on the other 8."""
    train_prior(world, tmp_path / "greedy", "data.validation=0.0")
    method = "--method", f"greedy={tmp_path / 'greedy'}:ddnm:steps=2"
    with pytest.raises(SystemExit):
        compare(world, tmp_path / "out", "--split", "validation", *method)
    text = capsys.readouterr().err
    assert "trained on 6 of the 6 images that it would be judged on" in text
    assert "data.validation = 0.0 and data.test = 0.1, the model's 0.25 and 0.1" in text
    compare(world, tmp_path / "out", *method)  # the test images it has not seen


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A data folder with two sets of image files, and a tree for the first, never trained."""
    folder = tmp_path_factory.mktemp("photos")
    for name, seed in (("own", 0), ("more", 5)):
        (folder / name).mkdir()
        for number, image in enumerate(make_blobs(40, seed=seed).x):
            Image.fromarray(image[0].numpy()).save(folder / name / f"{number:02d}.png")
    recipe = parse_recipe(RECIPE, FILES)
    torch.manual_seed(0)
    save_model(folder / "tree.safetensors", build_predictor(recipe), recipe, {})
    (folder / "prior.toml").write_text(RECIPE + BASELINE)
    return folder


FILES = ["data.name=own", "data.kind=images", "data.split=name", "data.split_order=hash",
         "data.test=0.2"]  # fmt: skip


def test_a_table_says_how_many_images_each_method_saw(photos, tmp_path) -> None:
    """Trained with more of them, a baseline is held against those, too."""
    train_prior(photos, tmp_path / "prior", *FILES, "data.extra=['more']")
    compare(photos, tmp_path / "out", "--limit", 3, "--method",
            f"prior={tmp_path / 'prior'}:ddnm:steps=2")  # fmt: skip
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    own = len(load_split(parse_recipe(RECIPE, FILES).data, photos, "train"))
    assert [row["trained_on"] for row in table["methods"]] == [own, own + 40]
    assert f"| {own + 40} |" in (tmp_path / "out" / "table.md").read_text()
    assert "training" in table["methods"][1]["settings"], "others than ours learned from"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (("data.name=more", "data.extra=['own']"), "its recipe has data.extra = ['own']. Train it"),
        (("data.split_order=sorted",), "in the order 'sorted', the model's 'hash'"),
    ],
)
def test_judged_images_that_came_by_another_way_are_found(
    photos, tmp_path, capsys, changes, message
) -> None:
    train_prior(photos, tmp_path / "prior", *FILES, *changes)
    with pytest.raises(SystemExit):
        compare(photos, tmp_path / "out", "--limit", 3, "--method",
                f"prior={tmp_path / 'prior'}:ddnm:steps=2")  # fmt: skip
    text = capsys.readouterr().err
    assert message in text
    assert "images that it would be judged on" in text


def test_a_baseline_of_other_images_need_not_bring_them(world, tmp_path) -> None:
    shutil.copytree(world, tmp_path / "world")
    (tmp_path / "world" / "blobs").rename(tmp_path / "world" / "other")
    train_prior(tmp_path / "world", tmp_path / "prior", "data.name=other")
    compare(world, tmp_path / "out", "--method", f"prior={tmp_path / 'prior'}:ddnm:steps=2")


def test_samples_are_held_against_what_their_own_model_learned_from(world, tmp_path) -> None:
    """An image that only the baseline has seen is recited all the same."""
    train_prior(world, tmp_path / "other", "data.validation=0.5")
    method = "--method", f"prior={tmp_path / 'other'}:ddnm:steps=2"
    compare(world, tmp_path / "out", *method)
    values = json.loads((tmp_path / "out" / "per_image.json").read_text())["prior"]
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    x, _ = make_blobs(24, seed=1).batch(table["images"])
    hole = torch.zeros(8, 8, dtype=torch.bool)
    hole[:5] = True
    expected = nearest_distance(x, make_blobs(32).subset(range(16)), hole)
    assert values["nearest_truth"] == pytest.approx(expected.tolist(), rel=1e-4)


def test_a_network_of_another_measurement_is_no_reference(world, tmp_path, capsys) -> None:
    other = parse_recipe(RECIPE, ["tree.depth=0", "measurement.rows=[0, 3]"])
    save_model(tmp_path / "other.safetensors", build_predictor(other), other, {})
    with pytest.raises(SystemExit):
        compare(world, tmp_path / "out", "--mse", tmp_path / "other.safetensors")
    assert "trained for another measurement" in capsys.readouterr().err


def test_what_does_not_fit_is_told_apart_batch_by_batch(monkeypatch) -> None:
    pixels = make_blobs(150).x.numpy()
    items = [Item(str(i), str(i), Window(0, 0, 8, 8)) for i in range(150)]
    streamed = StreamedImageSet(lambda file: (pixels[int(file)], None), items, (1, 8, 8), 10**12)
    inside = StreamedImageSet.load
    monkeypatch.setattr(fingerprint, "BATCH", 64)
    monkeypatch.setattr(StreamedImageSet, "load", lambda self, *words: (
        inside(self, *words) if len(self) <= 64 else pytest.fail("all at once")))  # fmt: skip
    first = of_images(streamed)
    assert first == of_images(make_blobs(150)), "the same as of images in memory"
    pixels[149, 0, 0, 0] ^= 1
    assert of_images(streamed) != first


def test_wrong_methods_are_named(world, tmp_path, capsys) -> None:
    for method, message in (
        ("oops", "write it as NAME=RUN:SAMPLER"),
        (f"a={world / 'prior'}:conditional", "a prior model cannot sample by 'conditional'"),
        (f"a={world / 'prior'}:ddnm:stride=3", "ddnm has no option 'stride'"),
        (f"a={world / 'tree.safetensors'}", "not a baseline's model"),
        (f"a={world / 'nowhere'}", "neither a baseline"),
        (f"ours={world / 'theirs'}", "two methods have the same name"),
    ):
        with pytest.raises(SystemExit) as stop:
            compare(world, tmp_path, "--method", method)
        assert stop.value.code == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ((0.95, 9.0, 800, -0.1), True),
        ((1.09, 9.0, 800, -0.1), False),
        ((0.87, 9.0, 800, -0.1), False),
        ((0.95, 25.1, 800, -0.1), False),
        ((0.95, 9.0, 800, -0.31), False),
        ((0.95, 9.0, 599, 1.0), None),
        ((0.95, None, 0, 1.0), None),
        ((0.5, None, 0, 1.0), False),
        ((expected_v(9), 9.0, 800, -0.1, 9), True),
        ((0.95, 9.0, 800, -0.1, 9), False),  # samples a tenth too wide
        ((0.0, 9.0, 800, -0.1, 1), None),  # one sample has no spread
    ],
)
def test_a_model_is_accepted_by_spread_ranks_and_root(given, verdict) -> None:
    assert accept(*given)["passed"] is verdict


def test_a_recited_image_is_at_distance_zero_mirrored_or_not() -> None:
    training = make_blobs(50)
    x, _ = training.batch([7, 31])
    fresh, _ = make_blobs(2, seed=9).batch([0, 1])
    for chunk in (7, 50):
        assert nearest_distance(x, training, chunk=chunk).max().item() < 1e-2
        assert nearest_distance(fresh, training, chunk=chunk).min().item() > 0.1
    flipped = x.flip(-1)
    assert nearest_distance(flipped, training).min().item() > 0.1
    assert nearest_distance(flipped, training, is_mirrored=True).max().item() < 1e-2
    mask = torch.zeros(8, 8, dtype=torch.bool)
    mask[:, :2] = True
    x[..., 2:] = 0
    assert nearest_distance(x, training, mask).max().item() < 1e-2


def test_the_best_of_all_nodes_is_never_worse_than_the_path() -> None:
    samples = torch.rand(6, 20, 1, 3, 3, dtype=torch.float64, generator=seeded())
    x = torch.rand(6, 1, 3, 3, dtype=torch.float64, generator=seeded(1))
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    gain = best_psnr(tree, x) - psnr(tree, x)
    assert gain.min().item() >= -1e-9
    assert gain[:, :2].abs().max().item() < 1e-9, "the path is greedy at depth 1"
    leaf = tree.leaves[:, 4]
    assert best_psnr(tree, leaf)[:, 2].min().item() == pytest.approx(100)
    pair = hierarchical_kmeans(samples[:, :2], 3, 1, generator=seeded())  # one child is absent
    assert best_psnr(pair, pair.root)[:, 1].max().item() < 30


def test_digits_that_are_blends_or_of_too_few_classes_are_told_from_real_ones() -> None:
    """A world of ten classes, each its own bright column of ten."""
    labels = torch.arange(500) % 10
    real = torch.nn.functional.one_hot(labels, 10).float().reshape(500, 1, 1, 10)
    reader = lambda x: 20 * x.flatten(1)  # noqa: E731
    assert judge_digits(real, real, labels, reader)["passed"]
    blends = (real + real.roll(1, 0)) / 2
    unsure = judge_digits(blends, real, labels, reader)
    assert (unsure["sure"]["passed"], unsure["passed"]) == (False, False)
    forgotten = judge_digits(real[labels != 3], real, labels, reader)
    assert forgotten["class_gap"]["value"] == pytest.approx(0.1, abs=1e-6)
    assert not forgotten["passed"]
    assert forgotten["sure_of_real"] == 1.0


def test_unconditional_digits_are_images(world, monkeypatch) -> None:
    from posterior_trees_paper.baselines.sampling import load_baseline

    model = load_baseline(world / "prior", "cpu").model
    monkeypatch.setattr("posterior_trees_paper.baselines.digits.BATCH", 2)
    samples = draw_digits(model, (1, 8, 8), 5, steps=3, generator=seeded())
    assert samples.shape == (5, 1, 8, 8)
    assert 0 <= samples.min() < samples.max() <= 1


def test_the_bias_command_writes_the_table(tmp_path, monkeypatch) -> None:
    from posterior_trees_paper.baselines import bias

    monkeypatch.setattr(bias, "SAMPLERS", {"ddrm-20": bias.SAMPLERS["ddrm-20"]})
    cli.main(["baseline", "bias", "--samples", "50", "--out", str(tmp_path / "a" / "bias.json")])
    (row,) = json.loads((tmp_path / "a" / "bias.json").read_text())
    assert row["name"] == "ddrm-20"
    assert row["evaluations"] == 20
    assert len(row["w1"]) == len(row["tv"]) == len(row["sd_ratio"]) == 3


def test_the_mixture_command_writes_checks(tmp_path, monkeypatch, capsys) -> None:
    from posterior_trees_paper.baselines import learned

    monkeypatch.setattr(learned, "Plan", partial(learned.Plan, samples=100, chain=5))
    cli.main(["baseline", "mixture", "--steps", "1", "--out", str(tmp_path / "mixture.json")])
    result = json.loads((tmp_path / "mixture.json").read_text())
    assert result["training"]["prior"]["steps"] == 1
    assert "FAIL check denoiser t 600" in capsys.readouterr().out


def test_the_digits_command_says_where_a_reader_comes_from(
    world, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["baseline", "digits", str(world / "prior"), "--device", "cpu", "--out", "a.json"]
    with pytest.raises(SystemExit):
        cli.main([*words, "--classifier", "gone.safetensors"])
    text = capsys.readouterr().err
    assert "no digit reader gone.safetensors: leave --classifier out, or make one with" in text


def test_the_digits_command_needs_a_prior(world, capsys) -> None:
    with pytest.raises(SystemExit):
        cli.main(["baseline", "digits", str(world / "conditional"), "--out", "a.json"])
    assert "unconditional samples need one trained with" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_comparison_can_be_rehearsed(tmp_path) -> None:
    """Every stage of reproduction/scripts/comparison.sh on stand-ins of the data, those of faces by
    the script that runs unattended."""
    from standins import IMAGES, make_standins

    root = Path(__file__).parents[1]
    variables = {"DATA": str(make_standins(tmp_path / "data")), "RUNS": str(tmp_path / "runs"),
                 "OUT": str(tmp_path / "out"), "TRY": "1", "OMP_NUM_THREADS": "1",
                 "HOME64": str(tmp_path / "faces"), "PYTHON": sys.executable,
                 "PTREES": f"{sys.executable} -m posterior_trees"}  # fmt: skip
    scripts = root / "reproduction" / "scripts"
    for stage in ("digits-train", "digits-compare", "digits-1000"):
        words = ["bash", str(scripts / "comparison.sh"), stage]
        subprocess.run(words, cwd=root, env=os.environ | variables, check=True)
    words = ["bash", str(scripts / "faces64.sh")]
    subprocess.run(words, cwd=tmp_path, env=os.environ | variables, check=True)
    print((tmp_path / "faces" / "log").read_text())
    assert (tmp_path / "faces" / "finished").exists()
    with tarfile.open(tmp_path / "faces" / "comparison.tar.gz") as tar:
        assert "comparison/table1.md" in tar.getnames()
    faces = [tmp_path / "faces" / "comparison" / f"faces64_{t}" for t in ("eyes", "mouth")]
    colours = faces[0].with_name("faces64_colorize")
    folders = [tmp_path / "out" / "digits", tmp_path / "out" / "digits_1000", *faces, colours]
    tables = [json.loads((folder / "table.json").read_text())["methods"] for folder in folders]
    assert [len(table) for table in tables] == [8, 3, 6, 6, 5]
    trained_on = {row["trained_on"] for table in tables[2:] for row in table}
    assert trained_on == {IMAGES - 2 - 2 + IMAGES}, "all methods learn from the same faces"
    lines = (tmp_path / "faces" / "comparison" / "table1.md").read_text().splitlines()
    assert [line.split("|")[2].strip() for line in lines if line.startswith("| faces_eyes")][
        :2
    ] == [
        "*the paper's (other faces, does not compare)*",
        "ours",
    ]


class Given(torch.nn.Module):
    """A network whose answers to the images of a batch are given."""

    def __init__(self, leaves: torch.Tensor, probs: list[float]) -> None:
        super().__init__()
        self.leaves = torch.nn.Parameter(leaves)
        self.log_probs = torch.tensor(probs).log()

    def forward(self, y: torch.Tensor) -> Leaves:
        return Leaves(self.leaves[: len(y)], self.log_probs.expand(len(y), -1))


def given(leaves: torch.Tensor, probs: list[float]) -> TreePredictor:
    return TreePredictor(Given(leaves, probs), Free(1), branching=4, depth=1, channels=1)


def random_answers() -> TreePredictor:
    """Answers to each image that spread in another way."""
    return given(torch.randn(64, 4, 1, 2, 3, generator=seeded(2)), [0.25] * 4)


def inputs_of(x: torch.Tensor) -> Inputs:
    names = [f"{number}" for number in range(len(x))]
    return Inputs(torch.arange(len(x)), names, x, x, Free(1))


def method_of(samples: torch.Tensor) -> Method:
    """Somebody whose samples are these."""

    def answer(inputs: Inputs, part: slice) -> Answer:
        tree = hierarchical_kmeans(samples[part], 2, 1, generator=seeded())
        return Answer(tree, samples[part], None)

    return Method("somebody", answer, {"kind": "folder"})


def scored(comparison: Comparison, method: Method) -> dict[str, torch.Tensor]:
    for part in comparison.parts:
        comparison.run(method, part)
    return comparison.collect(method)[0]


def test_samplers_are_judged_along_the_axes_of_the_largest_variance(tmp_path) -> None:
    """A rare answer that is far away is more of it than a frequent one that is near: along the
    first axis the variance is 2 · 0.05 · 16 = 1.6, along the second 2 · 0.45 · 1 = 0.9."""
    leaves = torch.tensor([[4.0, 0, 0], [-4, 0, 0], [0, 1, 0], [0, -1, 0]])[:, None, None]
    predictor = given(leaves.expand(4, -1, -1, -1, -1), [0.05, 0.05, 0.45, 0.45])
    comparison = Comparison(tmp_path, inputs_of(torch.zeros(4, 1, 1, 3)), predictor)
    first, second = comparison.directions[0, 4:6].flatten(1).abs()
    torch.testing.assert_close(first, torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(second, torch.tensor([0.0, 1, 0]))


def test_groups_change_neither_ranks_nor_scores(tmp_path) -> None:
    """Every image has its own directions, whatever group it is in."""
    x = torch.rand(7, 1, 2, 3, generator=seeded())
    samples = torch.rand(7, 9, 1, 2, 3, generator=seeded(1))
    method, found = method_of(samples), []
    for group in (3, 7):
        folder = tmp_path / f"{group}"
        comparison = Comparison(folder, inputs_of(x), random_answers(), group=group)
        found.append(scored(comparison, method))
    assert not torch.equal(comparison.directions[0], comparison.directions[1])
    assert torch.equal(found[0]["ranks"], found[1]["ranks"])
    for key in ("variance", "error"):
        torch.testing.assert_close(found[0][key], found[1][key])


def test_every_group_draws_lots_of_its_own(tmp_path) -> None:
    """All samples are the truth: only lots tell the ranks, and not the same ones in each group."""
    x = torch.rand(60, 1, 2, 3, generator=seeded())
    method = method_of(x[:, None].expand(-1, 9, -1, -1, -1))
    comparison = Comparison(tmp_path, inputs_of(x), random_answers(), group=1)
    bins = scored(comparison, method)["ranks"]
    assert len(bins.unique(dim=0)) > 50
    assert chi_square(bins) < 27


def test_every_group_is_sampled_with_random_numbers_of_its_own(monkeypatch) -> None:
    """And with the same ones again: a comparison that was stopped goes on as if it had not been."""

    def sample(self, measurement, y, count, *, method, generator):
        return torch.rand(len(y), count, *y.shape[1:], generator=generator), 7

    monkeypatch.setattr(Baseline, "sample", sample)
    baseline = Baseline(*parse_baseline(RECIPE + BASELINE, ["baseline.kind=prior"]))
    options: Any = {"branching": (2,), "samples": 3, "options": {}, "settings": {}}
    inputs = inputs_of(torch.zeros(4, 1, 2, 2))
    first, second, again = (
        sampler_method("a", baseline, "ddnm", seed=0, **options).answer(inputs, part)
        for part in (slice(0, 2), slice(2, 4), slice(0, 2))
    )
    assert torch.equal(first.samples, again.samples)
    assert not torch.equal(first.samples, second.samples)
    assert first.evaluations == 7 * 3
    other = sampler_method("a", baseline, "ddnm", seed=1, **options).answer(inputs, slice(0, 2))
    assert not torch.equal(first.samples, other.samples)


def make_facts(seconds: float, size: int, peak: int) -> dict[str, Any]:
    facts = {"seconds": seconds, "size": size, "peak_bytes": peak, "evaluations": 1}
    return {**facts, "settings": {"kind": "tree"}}


def test_time_is_that_of_the_usual_group_and_memory_that_of_the_hungriest() -> None:
    """Groups take 2, 2 and 9 s per image; the last one has fewer of them."""
    values = {key: torch.zeros(7, 2) for key in ("psnr", "psnr_best", "nll", "entropy")}
    facts = [make_facts(6.0, 3, 10), make_facts(6.0, 3, 30), make_facts(9.0, 1, 20)]
    row = make_row("a", values, facts, None, root=0.0)
    assert row["seconds_of_groups"] == [2.0, 2.0, 9.0]
    assert row["seconds_per_image"] == 2.0
    assert row["peak_bytes"] == 30


def test_a_table_says_what_trees_hold_of_what_they_claim_and_what_they_must_claim() -> None:
    """Of 19 truths 17 have at most 0.9 of the leaves likelier than theirs."""
    likelier = torch.tensor([0.05 * i for i in range(17)] + [0.95, 0.99])
    found = coverage(likelier, None)
    assert found["held"] == pytest.approx(17 / 19)
    assert found["claim"] == pytest.approx(0.95)  # the 18th of 19: ⌈20 · 0.9⌉
    assert coverage(likelier[:8], None)["claim"] is None
    assert coverage(likelier, torch.arange(19) // 2)["held"] == pytest.approx((8 + 0.5) / 10)


def test_tables_have_means_spreads_and_intervals(compared) -> None:
    """Mean ± deviation of the values, mean [low, high] of the differences."""
    table = json.loads((compared / "table.json").read_text())
    texts = (compared / "table.md").read_text(), (compared / "table.tex").read_text()
    for row in table["methods"]:
        for value in (*row["psnr_hole"], *row["nll"][1:]):
            for text, sign in zip(texts, ("±", r"$\pm$"), strict=True):
                assert f" {value['mean']:.2f} {sign} {value['std']:.2f} " in text
        held = f"{row['coverage']['held']:.2f} ("
        assert all(held in text for text in texts)
        for value in row.get("versus_ours", {}).get("psnr_hole", []):
            assert value["low"] <= value["mean"] <= value["high"]
            numbers = f"{value['mean']:+.3f} [{value['low']:+.3f}, {value['high']:+.3f}]"
            assert f"| {numbers} |" in texts[0]


def test_images_with_unequal_numbers_of_samples_are_refused(world, tmp_path) -> None:
    inputs = choose_inputs(load(world / "tree.safetensors"), make_blobs(24, seed=1), 3)
    for number, count in zip(inputs.indices.tolist(), (9, 12, 10), strict=True):
        np.save(tmp_path / f"{number:05d}.npy", np.zeros((count, 8, 8)))
    options: Any = {"branching": (2,), "seed": 0}
    wrong = folder_method("a", tmp_path, inputs, samples=100, **options)
    with pytest.raises(ValueError, match=r"has from 9 to 12 samples per image.*--samples 9"):
        wrong.answer(inputs, slice(0, 3))
    right = folder_method("a", tmp_path, inputs, samples=9, **options)
    assert right.answer(inputs, slice(0, 3)).samples.shape == (3, 9, 1, 8, 8)


def test_how_far_samples_miss_the_measurement_is_told_over_what_is_seen(world, tmp_path) -> None:
    """Off by 0.1 in every pixel: by 0.1 over those that are seen, whatever share they have. What is
    too bright is clamped."""
    inputs = choose_inputs(load(world / "tree.safetensors"), make_blobs(24, seed=1), 3)
    write = dict(zip(inputs.indices.tolist(), inputs.x, strict=True))
    for number, x in write.items():
        loud = (x + 0.1).expand(9, -1, -1, -1).clone()
        loud[:, :, :2] = 1.3
        np.save(tmp_path / f"{number:05d}.npy", loud.permute(0, 2, 3, 1).numpy())
    options: Any = {"branching": (2,), "samples": 9, "seed": 0}
    answer = folder_method("a", tmp_path, inputs, **options).answer(inputs, slice(0, 3))
    torch.testing.assert_close(answer.disagreement, torch.full((3,), 0.1))
    assert answer.samples.max() == 1
    seen = ~inputs.hole
    torch.testing.assert_close(answer.samples[:, 0][..., seen], inputs.x[..., seen])


def test_a_reference_is_judged_over_the_hole(world) -> None:
    """What is seen is exact: over 40 of 64 pixels the same squares are a larger mean."""
    predictor = load(world / "mse.safetensors")
    inputs = choose_inputs(predictor, make_blobs(24, seed=1), 5)
    whole = psnr(predictor(inputs.y), inputs.x)[:, 0]
    torch.testing.assert_close(
        root_psnr(predictor, inputs), whole - 10 * np.log10(64 / 40), rtol=0, atol=1e-3
    )


def test_a_miss_within_rounding_is_no_disagreement() -> None:
    """0.01 is what rounding to bytes or JPEG may do; what is beyond is counted image by image."""
    values = {key: torch.zeros(4, 2) for key in ("psnr", "psnr_best", "nll", "entropy")}
    values["disagreement"] = torch.tensor([0.0, 0.009, 0.011, 0.3])
    facts = [make_facts(1.0, 4, 1)]
    row = make_row("a", values, facts, None, root=0.0)
    assert row["disagreeing"] == 2
    assert row["disagreement"] == pytest.approx(0.3)
