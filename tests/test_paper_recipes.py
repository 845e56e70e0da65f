"""recipes/paper: the paper to the letter, and the table that holds ours against it."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from posterior_trees_paper.against import compare_ways, find_judged, to_markdown, write_ways
from standins import make_standins
from torch import nn

from posterior_trees import cli, store
from posterior_trees.metrics import summarize
from posterior_trees.models.build import build_measurement, build_network
from posterior_trees.networks import UNet
from posterior_trees.recipe import TASKS, Recipe, parse_recipe, read_recipe, write_recipe

FOLDER = Path(__file__).parents[1] / "recipes"
PAPER = sorted((FOLDER / "paper").glob("*.toml"))
HOLES = ("digits_inpaint", "faces_eyes", "faces_mouth")
LETTER = {
    "tree.branching": 3,  # Table 1
    "tree.depth": 2,
    "network.kind": "unet",  # App. A.1, all of [network]
    "network.c_init": 8,  # "in {4, 8}"
    "network.width": 0,
    "network.steps": 4,
    "network.decoder": "disjoint",
    "network.head_norm": "batch",
    "network.dropout": 0.0,
    "network.head_dropout": 0.0,
    "loss.probability": "paper",  # Sec. 3.2: no loss but the squared errors
    "loss.epsilon_start": 5.0,  # Eq. 8 and App. B
    "loss.epsilon_scale": 2.0,
    "loss.epsilon_floor": 0.0,
    "optimizer.name": "adam",  # App. A.3, all of [optimizer]
    "optimizer.lr": 1e-3,
    "optimizer.head_lr": 2e-4,
    "optimizer.weight_decay": 0.0,
    "optimizer.schedule": "plateau",
    "optimizer.patience": 10,
    "optimizer.min_lr": 5e-6,
    "optimizer.warmup_steps": 0,
    "optimizer.clip": 0.0,
    "training.epochs": 70,
    "training.batch_size": 32,
    "balancer.start": 6.0,  # App. C: one epoch after ε starts to fall
    "balancer.floor": 0.0,
    "balancer.is_windowed": True,
    "balancer.is_greedy": True,
    "balancer.is_exact": False,
    "balancer.refresh_every": 1,
    "data.augment": (),
    "data.extra": (),
}
"""What the paper says of all tasks."""
OURS = ("data.repeat", "data.validation", "balancer.is_on", "training.compile",
        "training.evaluation_batch")  # fmt: skip
"""What it leaves open, or says of some tasks only; tested below."""


def keys_of(recipe: Recipe) -> dict[str, Any]:
    sections = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe)}
    return {
        f"{name}.{f.name}": getattr(section, f.name)
        for name, section in sections.items()
        if dataclasses.is_dataclass(section)
        for f in dataclasses.fields(section)
    }


def test_every_task_has_a_recipe_of_the_paper() -> None:
    assert [file.stem for file in PAPER] == sorted(TASKS)


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_a_recipe_of_the_paper_departs_nowhere(file: Path) -> None:
    """Each key has the paper's value, and what it has no word on is as a recipe without options:
    no seeds, focus, conscience, average, calibration. Images and splits are those of our recipe."""
    recipe, found = read_recipe(file), keys_of(read_recipe(file))
    assert {key: found[key] for key in LETTER} == LETTER
    task = keys_of(parse_recipe(f'task = "{file.stem}"'))
    others = found.keys() - LETTER.keys() - set(OURS)
    assert {key: found[key] for key in others} == {key: task[key] for key in others}
    assert recipe.balancer.is_on == (file.stem in HOLES), "the paper has it for inpainting"
    ours = read_recipe(FOLDER / file.name)
    same = dataclasses.replace(ours.data, augment=(), validation=recipe.data.validation)
    assert recipe.data == same
    assert recipe.data.validation == (ours.data.validation or 0.05), "the schedule needs images"
    assert (recipe.measurement, recipe.tree) == (ours.measurement, ours.tree)


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_the_paper_s_network_is_built(file: Path) -> None:
    """App. A.1: channels, grouped decoders, batch-normalised head; 25.9 million weights for RGB."""
    recipe = read_recipe(file)
    in_channels = build_measurement(recipe).channels(recipe.data.channels)
    with torch.device("meta"):
        network = build_network(recipe, in_channels)
    assert isinstance(network, UNet)
    widths = [block.out_channels for block in convolutions(network.encoder)[1::2]]
    assert widths == [72, 144, 288, 576, 1152]
    assert {c.groups for c in convolutions(network.decoder)} == {9}
    layers = network.head.layers
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    assert [linear[0].in_features, *[layer.out_features for layer in linear]] == [1080, 256, 64, 9]
    assert sum(isinstance(layer, nn.BatchNorm1d) for layer in layers) == 2
    count = sum(weight.numel() for weight in network.parameters())
    assert count / 1e6 == pytest.approx(25.9, abs=0.1)


def convolutions(part: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in part.modules() if isinstance(layer, nn.Conv2d)]


@pytest.mark.parametrize("file", PAPER, ids=lambda file: file.stem)
def test_a_recipe_of_the_paper_says_how_to_run_it_and_promises_nothing(file: Path) -> None:
    head = file.read_text(encoding="utf-8").split("task =")[0]
    assert f"ptrees train recipes/paper/{file.name} --data DIR" in head
    assert "not run yet" in head
    assert " dB" not in head


# --- paper | ours | difference --------------------------------------------------------------------

TINY = ("network.c_init=1", "network.width=0", "network.steps=1", "training.epochs=1",
        "training.batch_size=8", "training.compile=false", "training.picture_every=0",
        "training.precision=32-true", "data.size=[32, 32]", "data.test=0.4")  # fmt: skip


@pytest.fixture(scope="module")
def studied(tmp_path_factory) -> Iterator[Path]:
    """Eyes, the paper's way and ours, with two seeds each, on stand-ins; drawing them is slow."""
    folder = tmp_path_factory.mktemp("studied")
    data = make_standins(folder / "data")
    for way, file in (("ours", FOLDER / "faces_eyes.toml"), ("letter", PAPER[4])):
        (folder / way).mkdir()
        assert file.name == "faces_eyes.toml"
        text = write_recipe(read_recipe(file, TINY))
        (folder / way / file.name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("posterior_trees_paper.tasks.save_examples", lambda *words, **more: None)
        study(folder, data, "--seeds", "2")
        yield folder


def study(folder: Path, data: Path, *words: str) -> None:
    cli.main(["study", str(folder / "ours" / "faces_eyes.toml"), "--against",
              str(folder / "letter"), "--data", str(data), "--runs", str(folder / "runs"), "--out",
              str(folder / "out"), "--device", "cpu", *words])  # fmt: skip


def test_a_study_trains_both_ways_and_writes_their_difference(studied: Path) -> None:
    names = ["faces_eyes", "faces_eyes_paper", "faces_eyes_seed1", "faces_eyes_paper_seed1"]
    rows = json.loads((studied / "out" / "study.json").read_text())
    assert [(row["name"], row["state"]) for row in rows] == [(name, "done") for name in names]
    task = json.loads((studied / "out" / "paper.json").read_text())["tasks"][0]
    assert task["paper"]["seeds"] == task["ours"]["seeds"] == 2
    assert [(row["quantity"], row["depth"]) for row in task["rows"]] == [
        ("PSNR", 0), ("PSNR", 1), ("PSNR", 2), ("NLL", 1), ("NLL", 2), ("entropy", 1),
        ("entropy", 2),
    ]  # fmt: skip
    scores = [store.read(studied / "out" / f"{name}_scores.safetensors")[0] for name in names]
    nll = [kept["nll"].double() for kept in scores]
    ours, letter = ((nll[i] + nll[i + 2])[:, 2] / 2 for i in (0, 1))
    row = next(row for row in task["rows"] if (row["quantity"], row["depth"]) == ("NLL", 2))
    assert row["ours"]["mean"] == pytest.approx(ours.mean().item())
    seeds = torch.stack([scores[i]["nll"][:, 2].double().mean() for i in (0, 2)])
    assert row["ours"]["std_of_seeds"] == pytest.approx(seeds.std().item())
    assert row["difference"] == pytest.approx(summarize(ours - letter)._asdict(), nan_ok=True)
    table = (studied / "out" / "paper.md").read_text()
    assert "| task | | paper | ours | difference |" in table
    assert "| faces_eyes (8 images) | PSNR d=0 |" in table


def test_a_finished_study_is_not_trained_again_and_studies_side_by_side_are_one_table(
    studied: Path, tmp_path: Path, capsys
) -> None:
    before = (studied / "runs" / "faces_eyes" / "state.safetensors").stat().st_mtime_ns
    study(studied, studied / "data")
    assert (studied / "runs" / "faces_eyes" / "state.safetensors").stat().st_mtime_ns == before
    for name in ("faces_eyes", "faces_eyes_paper"):  # as if each had been studied by itself
        (tmp_path / name).mkdir()
        for file in (studied / "out").glob(f"{name}[._]*"):
            if "_seed" not in file.name and ("_paper" in file.name) == ("_paper" in name):
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    capsys.readouterr()
    cli.main(["study", str(FOLDER / "faces_eyes.toml"), str(FOLDER / "cats_colorize.toml"), "--out",
              str(tmp_path), "--table"])  # fmt: skip
    text = capsys.readouterr().out
    assert text == (tmp_path / "paper.md").read_text()
    assert "Not judged yet, one way or both: cats_colorize." in text
    (task,) = json.loads((tmp_path / "paper.json").read_text())["tasks"]
    assert task["ours"] | {"minutes": 0} == {
        "seeds": 1, "rarest_leaf": task["ours"]["rarest_leaf"], "minutes": 0, "is_done": True,
        "dead_leaves": task["ours"]["dead_leaves"],
    }  # fmt: skip


def test_what_a_table_says_of_leaves_and_of_runs_that_were_stopped(studied: Path) -> None:
    ours, letter = (find_judged(studied / "out", name)[:1] for name in
                    ("faces_eyes", "faces_eyes_paper"))  # fmt: skip
    shares = torch.tensor([0.5, 0.0, 0.25, 0.25, 0, 0, 0, 0, 0])
    stopped = [letter[0]._replace(shares=shares, is_done=False, minutes=1.25)]
    table = {"tasks": [compare_ways("eyes", stopped, ours)], "missing": []}
    text = to_markdown(table)
    assert "| rarest leaf | 0.0%, 6 dead |" in text
    assert "| minutes | 1.2 (stopped early) |" in text
    other = [letter[0]._replace(names=["another"] * 8)]
    with pytest.raises(ValueError, match="judged on other images or in other trees"):
        compare_ways("eyes", other, ours)


def test_a_table_of_nothing_says_so(tmp_path: Path) -> None:
    assert write_ways(tmp_path, ["faces_eyes"])["missing"] == ["faces_eyes"]
