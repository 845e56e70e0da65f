"""Before a run begins: what it will take, whether it fits, and which network suits."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import RECIPE, make_blobs, make_recipe

from posterior_trees import cli
from posterior_trees.errors import InputError, RecipeError
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.recipe import Recipe, names_network, parse_recipe
from posterior_trees.training import prepare
from posterior_trees.training.prepare import (
    forecast,
    predictor_on,
    refuse_what_cannot_fit,
    step,
)
from posterior_trees.training.run import read_log

OPEN = RECIPE.replace("c_init = 1", "").replace("epochs = 3", "epochs = 1")
GROWING = OPEN.replace("[network]\n", '[network]\nkind = "growing"\n')
SIZE = (1, 8, 8)


@pytest.fixture
def folder(blob_folder: Path) -> Path:
    (blob_folder / "open.toml").write_text(OPEN)
    return blob_folder


def ptrees(folder: Path, *words: object) -> int:
    words = ("train", *words, "--data", folder, "--device", "cpu")
    try:
        cli.main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def timed_as(monkeypatch, seconds_per_flop: float) -> None:
    """On a machine of such a speed."""
    monkeypatch.setattr(
        prepare, "time_step", lambda recipe, size, flops, _: flops * seconds_per_flop
    )


# ---- what a run takes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("tree.depth=3",),
        ("measurement.kind=denoise",),
        ("measurement.kind=downsample",),
        ("network.kind=residual", "network.decoder=shared", "network.width=16"),
        ("network.kind=growing", "network.width=16"),
        ("data.kind=pairs", "data.inputs=a", "data.targets=b", "measurement.kind=paired"),
    ],
)
def test_a_step_takes_what_was_forecast(changes) -> None:
    """The same numbers are kept for the way back by a real step, and nothing was built for it."""
    recipe = make_recipe(*changes)
    found = forecast(recipe, SIZE)
    predictor, kept = predictor_on(recipe, "cpu"), {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        step(predictor, torch.rand(recipe.training.batch_size, *SIZE))
    for parameter in predictor.parameters():
        kept.pop(parameter.untyped_storage().data_ptr(), None)
    real = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert found.kept_bytes == pytest.approx(real, rel=0.05)
    assert found.weights == sum(p.numel() for p in predictor.parameters())
    assert found.state_bytes == 20 * found.weights


def test_more_processes_share_a_batch() -> None:
    alone, two = (forecast(make_recipe(), SIZE, processes) for processes in (1, 2))
    assert alone.weights == two.weights
    assert two.kept_bytes == pytest.approx(alone.kept_bytes / 2, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "free", "named"),
    [
        (("tree.depth=5", "tree.branching=3"), 16e9,
         r"about .* GB of memory, 16.0 GB are free.* billion weights.*Lower tree.depth \(now 5"),
        (("training.batch_size=3000",), 30e6, r"Lower training.batch_size \(now 3000\)"),
    ],
)  # fmt: skip
def test_what_cannot_fit_is_refused_with_numbers_and_keys(
    changes, free, named, monkeypatch
) -> None:
    monkeypatch.setattr(prepare, "free_bytes", lambda: int(free))
    recipe = make_recipe("network.c_init=4", *changes)
    with pytest.raises(RecipeError, match=named):
        refuse_what_cannot_fit(recipe, forecast(recipe, SIZE), "cpu")
    small = make_recipe()
    refuse_what_cannot_fit(small, forecast(small, SIZE), "cpu")


def test_nothing_is_built_of_what_cannot_fit(folder, tmp_path, monkeypatch, capsys) -> None:
    """The same words from a dry run and from a run, before a step or a weight."""
    monkeypatch.setattr(prepare, "free_bytes", lambda: 16_000_000_000)
    monkeypatch.setattr(
        "posterior_trees.training.trainer.build_predictor", lambda recipe: pytest.fail("built")
    )
    changes = "--set", "tree.branching=3", "--set", "tree.depth=5", "--set", "network.c_init=4"
    for more in ((), ("--dry-run",)):
        words = folder / "blobs.toml", "--out", tmp_path / "run", *changes, *more
        assert ptrees(folder, *words) == 1
        assert "16.0 GB are free" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("network.width=7", "width 7 cannot be dealt out evenly among 2 leaves"),
        ("measurement.rows=[0, 40]", r"measurement.rows is \[0, 40\]"),
        ("measurement.of=[16, 16]", "the mask is 16×16 but the image is 8×8"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_the_images_are_read(
    change, named, more, folder, tmp_path, monkeypatch, capsys
) -> None:
    if "of=" not in change:  # the size of the pictures must be looked at
        for name in ("data.load_images", "training.prepare.load_split"):
            monkeypatch.setattr(f"posterior_trees.{name}", lambda *_, **__: pytest.fail("read"))
    words = folder / "blobs.toml", "--out", tmp_path / "run", "--set", change, *more
    assert ptrees(folder, *words) == 1
    assert re.search(named, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_a_run_takes(folder, tmp_path, monkeypatch, capsys) -> None:
    assert ptrees(folder, folder / "blobs.toml", "--out", tmp_path / "run", "--dry-run") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert parse_recipe(out) == make_recipe()
    said = [line for line in out.splitlines() if line.startswith("#")]
    assert said[0] == "# 50,060 weights, about 1 MB of memory"
    assert "24 pictures, 3 steps an epoch" in said[1]
    assert "s a step on this cpu" in said[1]
    assert not (tmp_path / "run").exists()


# ---- a network that suits ------------------------------------------------------------------------


def chosen(count: int, speed: float, monkeypatch, size=(1, 28, 28), text: str = OPEN) -> Recipe:
    timed_as(monkeypatch, speed)
    of = f"measurement.of={list(size[1:])}"
    recipe = parse_recipe(text, [of, "training.epochs=20", "training.batch_size=32"])
    return prepare.choose_network(recipe, size, count, "cpu", lambda _: None)


def test_the_network_suits_pictures_and_machine(monkeypatch) -> None:
    laptop, server = 1 / 30e9, 1 / 5e12
    small = chosen(3000, laptop, monkeypatch).network
    assert (small.kind, small.decoder, small.steps) == ("unet", "shared", 2)
    assert chosen(3000, server, monkeypatch).network.width > small.width
    assert chosen(3000, 100 * laptop, monkeypatch).network.width == prepare.WIDTHS[0]
    few = chosen(40, server, monkeypatch).network  # fewer weights than the pictures have numbers
    assert few.width < chosen(3000, server, monkeypatch).network.width
    assert chosen(3000, server, monkeypatch, (1, 128, 128)).network.steps == 4
    growing = chosen(3000, server, monkeypatch, text=GROWING).network
    assert (growing.kind, growing.trunk, growing.decoder) == ("growing", "unet", "shared")
    assert growing.width > 8


@pytest.mark.parametrize(
    ("network", "is_named"),
    [("", False), ('kind = "growing"', False), ('kind = "unet"', True),
     ('kind = "growing"\nwidth = 8', True), ('head_norm = "batch"', False)],
)  # fmt: skip
def test_a_growing_network_of_no_size_is_chosen_too(tmp_path, network, is_named) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OPEN.replace("[network]\n", f"[network]\n{network}\n"))
    assert names_network(file) == is_named


def test_a_network_is_chosen_told_kept_and_may_be_named(
    folder, tmp_path, monkeypatch, capsys
) -> None:
    run = tmp_path / "run"
    timed_as(monkeypatch, 1e-9)
    assert ptrees(folder, folder / "open.toml", "--out", run, "--set", "tree.depth=2") == 0
    said = capsys.readouterr().err
    width = load_recipe(run).network.width
    assert f"one of width {width}, halved 1 times" in said
    assert f"width = {width}\n" in (run / "recipe.toml").read_text()
    timed_as(monkeypatch, 1.0)  # the machine is busy now: a run goes on with what it has
    assert ptrees(folder, folder / "open.toml", "--out", run, "--set", "tree.depth=2") == 0
    assert "no network is named" not in capsys.readouterr().err
    assert ptrees(folder, folder / "open.toml", "--out", run, "--set", "network.width=6") == 1
    assert f"network.width: {width} → 6" in capsys.readouterr().err
    # the weights of a model are for its network
    words = folder / "open.toml", "--from", run, "--set", "tree.depth=2"
    assert ptrees(folder, *words, "--out", tmp_path / "more") == 0
    assert load_recipe(tmp_path / "more").network == load_recipe(run).network


def test_a_recipe_that_names_a_network_keeps_it(folder, tmp_path, monkeypatch, capsys) -> None:
    for file, change in (("blobs.toml", "seed=4"), ("open.toml", "network.c_init=1")):
        out = tmp_path / file
        assert ptrees(folder, folder / file, "--out", out, "--set", change, "--dry-run") == 0
        said = capsys.readouterr().out
        assert "no network is named" not in said
        assert parse_recipe(said).network == make_recipe().network


def test_processes_choose_alike_without_measuring(monkeypatch) -> None:
    monkeypatch.setattr(prepare, "time_step", lambda *_: pytest.fail("measured"))
    recipe = parse_recipe(OPEN)
    prepare.choose_network(recipe, SIZE, 3000, "cpu", print, is_measured=False)


def write_pictures(folder: Path, count: int) -> None:
    """Grey pictures of 28×28: a light place in the upper part, over a bar that tells nothing."""
    folder.mkdir(parents=True)
    for number, image in enumerate(make_blobs(count).x.numpy()):
        large = np.kron(image[0], np.ones((4, 4), np.uint8))[:28, :28]
        Image.fromarray(large).save(folder / f"{number:04d}.png")


def test_the_recipe_for_small_pictures_makes_a_tree_better_than_its_root(tmp_path, capsys) -> None:
    """A stand-in of its example: fewer pictures, and simpler ones."""
    write_pictures(tmp_path / "pictures", 200)
    file = Path(__file__).parents[1] / "recipes" / "own_small.toml"
    run = tmp_path / "run"
    assert ptrees(tmp_path, file, "--out", run, "--set", "training.picture_every=0") == 0
    assert "no network is named" in capsys.readouterr().err
    last = read_log(run / "log.jsonl")[-1]
    root, *deeper = last["val_psnr"]
    assert min(deeper) > root + 1
    assert deeper == sorted(deeper)
    assert last["epsilon"] < 0.05


def test_a_picture_of_another_size_is_refused(folder) -> None:
    with pytest.raises(InputError, match="the mask is 8×8 but the image is 9×9"):
        forecast(make_recipe(), (1, 9, 9))
