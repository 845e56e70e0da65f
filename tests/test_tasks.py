"""The paper's tasks: every recipe runs on tiny stand-ins of its data, and is what it says."""

import json
import math
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch
from posterior_trees_paper.tasks import plain_of, run_study
from standins import make_standins

from posterior_trees import cli, grow, load, store
from posterior_trees.data import grid_patches, load_evaluation, load_split
from posterior_trees.errors import RecipeError
from posterior_trees.measure import Colorize, Inpaint, Paired
from posterior_trees.models.build import build_measurement, build_predictor
from posterior_trees.recipe import TASKS, Recipe, parse_recipe, read_recipe, write_recipe
from posterior_trees.training.association.conscience import LIMIT, RATE, Conscience, strength_at
from posterior_trees.training.feed import Feed
from posterior_trees.training.objective import objective
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit

FOLDER = Path(__file__).parents[1] / "recipes"
RECIPES = [file for file in sorted(FOLDER.glob("*.toml")) if file.stem in TASKS]
TINY = ("network.c_init=1", "training.epochs=1", "training.batch_size=8", "training.compile=false",
        "training.picture_every=0", "training.precision=32-true")  # fmt: skip


def tiny(file: Path, *changes: str) -> Recipe:
    """A recipe of ours cut down to two steps on the stand-ins."""
    small = ("data.size=[32, 32]",) if file.stem.startswith(("faces", "cats")) else ()
    if file.stem.startswith("cells"):
        small = ("data.patch=16", "data.repeat=1")
    return read_recipe(file, [*TINY, *small, *changes])


def file_of(name: str) -> Path:
    return next(file for file in RECIPES if file.stem == name)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_standins(tmp_path_factory.mktemp("data"))


# --- what the recipes say -------------------------------------------------------------------------


def test_every_task_has_its_recipe_with_the_paper_s_layout() -> None:
    assert {file.stem for file in RECIPES} == TASKS.keys()
    for file in RECIPES:
        recipe = read_recipe(file)
        assert recipe.task == file.stem
        assert (recipe.tree.branching, recipe.tree.depth) == (3, 2)


@pytest.mark.parametrize("task", [name for name in TASKS if name != "digits_inpaint"])
def test_the_header_tells_the_commands_the_data_and_their_terms(task: str) -> None:
    header = file_of(task).read_text(encoding="utf-8").split("task =")[0]
    assert f"ptrees train recipes/{task}.toml --data DIR --out runs/{task}" in header
    assert "docs/data.md" in header
    assert any(terms in header for terms in ("research", "CC", "academic"))
    words = next(line for line in header.splitlines() if "tree.depth=0" in line).split()[1:]
    plain = read_recipe(file_of(task), [word for word in words if word != "--set"])
    assert plain == plain_of(read_recipe(file_of(task)))


@pytest.mark.parametrize(
    ("task", "rows", "columns"),
    [("faces_eyes", (80, 149), (40, 214)), ("faces_mouth", (165, 249), (55, 199))],
)
def test_the_holes_are_those_of_the_paper_and_scale(task, rows, columns) -> None:
    full = build_measurement(parse_recipe(f'task = "{task}"'))
    assert isinstance(full, Inpaint)
    expected = torch.zeros(256, 256, dtype=torch.bool)
    expected[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] = True
    assert torch.equal(full.hole, expected)
    half = build_measurement(parse_recipe(f'task = "{task}"', ["data.size=[128, 128]"]))
    assert half.hole.double().mean().item() == pytest.approx(
        expected.double().mean().item(), rel=0.02
    )


def test_each_task_has_its_measurement_and_augmentation() -> None:
    kinds = {name: type(build_measurement(parse_recipe(f'task = "{name}"'))) for name in TASKS}
    assert kinds == {
        "digits_inpaint": Inpaint,
        "faces_colorize": Colorize,
        "faces_eyes": Inpaint,
        "faces_mouth": Inpaint,
        "cats_colorize": Colorize,
        "shoes_from_edges": Paired,
        "cells_actin_to_dna": Paired,
    }
    for name in TASKS:
        recipe = parse_recipe(f'task = "{name}"')
        assert ("flip" in recipe.data.augment) == name.startswith(("faces", "cats", "shoes"))
        assert ("symmetries" in recipe.data.augment) == name.startswith("cells")
        assert recipe.balancer.is_on == (name in ("faces_eyes", "faces_mouth"))


def test_the_plain_counterpart_has_the_same_encoder() -> None:
    tree = tiny(file_of("faces_eyes"))
    one, other = (build_predictor(recipe).network for recipe in (tree, plain_of(tree)))
    shapes = [[tuple(p.shape) for p in network.encoder.parameters()] for network in (one, other)]
    assert shapes[0] == shapes[1]
    assert build_predictor(plain_of(tree)).num_leaves == 1
    growing = tiny(RECIPES[0].parent / "growing" / "faces_eyes.toml")
    plain = plain_of(growing).network
    assert (plain.kind, plain.width) == ("unet", growing.network.width)


# --- two steps of everything ----------------------------------------------------------------------


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in RECIPES])
def test_the_recipe_runs_for_two_steps_and_is_judged(file: Path, data: Path, tmp_path) -> None:
    recipe = tiny(file)
    fit(recipe, tmp_path / "run", data=data, accelerator="cpu")
    log = read_log(tmp_path / "run" / "log.jsonl")
    assert log[-1]["step"] == 2
    if recipe.data.validation:
        assert all(math.isfinite(v) for v in (*log[-1]["val_psnr"], *log[-1]["val_nll"]))
    words = ["evaluate", tmp_path / "run", "--data", data, "--json", tmp_path / "scores.json"]
    cli.main([str(word) for word in words])
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["task"] == file.stem
    assert len(scores["leaves"]) == 9
    assert (scores["psnr_hole"] is not None) == (recipe.measurement.kind == "inpaint")
    # every node agrees with the measurement, where the measurement says something for sure
    predictor = load(tmp_path / "run", device="cpu")
    x, y = load_evaluation(recipe.data, data, "test").batch([0])
    if y is None:
        y = predictor.measure(x)
        for level in predictor(y).images:
            nodes = level[0]
            again = predictor.measure(nodes)
            torch.testing.assert_close(again, y.expand_as(again), rtol=0, atol=1e-5)


# --- windows of fields ----------------------------------------------------------------------------

CELLS = ("tree.depth=1", "data.patch=16")


def test_fields_are_judged_on_a_fixed_grid_of_windows(data: Path) -> None:
    recipe = tiny(file_of("cells_actin_to_dna"))
    fields, windows = (f(recipe.data, data, "test") for f in (load_split, load_evaluation))
    assert fields.shape == (1, 40, 56)
    assert windows.shape == (1, 16, 16)
    # 40×56 holds 2×3 windows of 16, centred: from row 4 and column 4 on
    assert [name.split("@")[1] for name in windows.names[:6]] == [
        "4,4", "4,20", "4,36", "20,4", "20,20", "20,36",
    ]  # fmt: skip
    assert len(windows) == 6 * len(fields) == 12
    assert torch.equal(windows.x[4], fields.x[0, :, 20:36, 20:36])
    assert torch.equal(windows.y[4], fields.y[0, :, 20:36, 20:36])
    assert {name.split("_")[0] for name in windows.names} == {"A04"}  # one well, by hash


def test_the_trainer_validates_on_the_grid(data: Path, tmp_path, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(
        "posterior_trees.training.trainer.validate",
        lambda predictor, images, recipe: seen.append(images) or {"val_loss": 1.0},
    )
    recipe = tiny(file_of("cells_actin_to_dna"))
    fit(recipe, tmp_path, data=data, accelerator="cpu")
    expected = grid_patches(load_split(recipe.data, data, "validation"), 16)
    assert seen[0].names == expected.names
    assert torch.equal(seen[0].x, expected.x)


def test_an_epoch_takes_each_field_as_often_as_it_is_repeated(data, tmp_path, monkeypatch) -> None:
    recipe = tiny(file_of("cells_actin_to_dna"), "data.repeat=4")
    drawn: list[int] = []
    measured = Feed.measured

    def spy(self, mine, step):
        drawn.extend(mine.tolist())
        x, y = measured(self, mine, step)
        assert x.shape == y.shape == (8, 1, 16, 16)
        return x, y

    monkeypatch.setattr(Feed, "measured", spy)
    fit(recipe, tmp_path, data=data, accelerator="cpu")
    assert read_log(tmp_path / "log.jsonl")[-1]["step"] == 8  # 16 fields · 4 / 8
    assert Counter(drawn) == dict.fromkeys(range(16), 4)


def test_repeating_and_balancing_exclude_each_other() -> None:
    with pytest.raises(RecipeError, match=r"data.repeat is 4 and the balancer is on"):
        tiny(file_of("cells_actin_to_dna"), "data.repeat=4", "balancer.is_on=true")


# --- losers that keep learning --------------------------------------------------------------------


def test_epsilon_stays_above_its_floor(data: Path, tmp_path) -> None:
    epsilon = ("loss.epsilon_start=0", "loss.epsilon_scale=0.5", "loss.epsilon_floor=0.05")
    changes = ("training.epochs=4", "tree.depth=1", "loss.surprise=0.1")
    recipe = tiny(file_of("faces_eyes"), *epsilon, *changes)
    fit(recipe, tmp_path, data=data, accelerator="cpu")
    found = [line["epsilon"] for line in read_log(tmp_path / "log.jsonl")]
    assert found == pytest.approx([math.exp(-2), 0.05, 0.05, 0.05])


@pytest.mark.parametrize("value", ["-0.1", "1.5"])
def test_a_floor_is_between_0_and_1(value: str) -> None:
    with pytest.raises(RecipeError, match=f"loss.epsilon_floor is {value}; it"):
        tiny(file_of("faces_eyes"), f"loss.epsilon_floor={value}")


# --- winners with a conscience -------------------------------------------------------------------


def prices(strength: float, *bias: float) -> Conscience:
    """Of a binary tree of two levels."""
    conscience = Conscience((2, 2), torch.tensor(strength, dtype=torch.float64))
    conscience.bias = torch.tensor(bias or [0.0] * 7, dtype=torch.float64)
    return conscience


def test_a_bias_is_a_price_level_by_level() -> None:
    tree = grow(torch.rand(1, 4, 2), torch.zeros(1, 4).log_softmax(1), 2)
    x, ones = torch.zeros(1, 2), [torch.ones(1, n) for n in (1, 2, 4)]
    bias = 0.0, 0.5, -0.5, 1.0, -1.0, 0.0, 0.0
    root, middle, leaves = (level[0] for level in prices(0.5, *bias).adjust(tree, x, ones))
    assert root.tolist() == [1.0]
    assert middle.tolist() == pytest.approx([math.exp(0.25), math.exp(-0.25)])
    assert leaves.tolist() == pytest.approx([math.exp(0.5), math.exp(-0.5), 1.0, 1.0])
    for level in prices(0.0, *bias).adjust(tree, x, ones):
        assert level.tolist() == [[1.0] * level.shape[1]]


def test_the_price_fades_out_before_the_end() -> None:
    assert [strength_at(p, 0.4) for p in (0, 0.5, 0.625, 0.75, 1)] == [0.4, 0.4, 0.2, 0.0, 0.0]


def test_fair_shares_change_no_price_and_unfair_ones_keep_its_mean() -> None:
    conscience = prices(1.0)
    bias = conscience.bias
    conscience.note(torch.arange(4))
    assert bias.abs().max() == 0
    conscience.note(torch.tensor([0, 0, 0, 3]))
    _, middle, leaves = bias.split([1, 2, 4])
    assert middle.tolist() == pytest.approx([RATE * 2 * 0.25, -RATE * 2 * 0.25])
    assert leaves.tolist() == pytest.approx([RATE * 4 * v for v in (0.375, -0.375, -0.125, 0.125)])
    for _ in range(1000):
        conscience.note(torch.tensor([0, 0, 0, 3]))
    assert bias.abs().max() == LIMIT


def test_prices_climb_to_an_assignment_with_equal_shares() -> None:
    """Three fixed nodes, one far better placed: without prices it takes nearly everything."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3000, 1, generator=generator)
    leaves = torch.tensor([[0.0], [2.0], [-3.0]]).expand(3000, 3, 1)
    tree = grow(leaves, torch.full((3000, 3), -math.log(3)), 3)
    conscience = Conscience((3,), torch.tensor(1.0))
    plain = objective(tree, x).leaf.bincount(minlength=3) / 3000
    for _ in range(400):
        taught = objective(tree, x, 0.0, [conscience]).taught
        conscience.note(taught)
    shares = taught.bincount(minlength=3) / 3000
    assert plain.max() > 0.7
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)


def test_a_handicap_decides_who_learns_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    leaves = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    log_probs = torch.randn(5, 4, generator=generator, dtype=torch.float64).log_softmax(1)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    tree = grow(leaves, log_probs, 2)
    plain, even = objective(tree, x), objective(tree, x, 0.0, [prices(1.0)])
    assert torch.equal(plain.squared, even.squared)
    # a child that pays a fortune never learns: its sibling does instead
    dear = prices(1.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    handicapped = objective(tree, x, 0.0, [dear])
    errors = tree.errors(x)
    expected = errors[0][:, 0] + errors[1][:, 1] + errors[2][:, 2:].min(dim=1).values
    torch.testing.assert_close(handicapped.squared, expected)
    assert (handicapped.taught >= 2).all()
    for name in ("nll", "leaf", "root", "entropy"):
        assert torch.equal(getattr(handicapped, name), getattr(plain, name)), name


def test_a_conscience_revives_a_leaf_that_would_never_win(tmp_path, recipe, blobs) -> None:
    """One leaf starts far from every image: plain training leaves it dead, this does not."""
    usage = {}
    for conscience in (0.0, 1.0):
        chosen = recipe("optimizer.lr=0.01", "training.epochs=8", "loss.epsilon_start=0",
                        "loss.epsilon_scale=0.01", f"loss.conscience={conscience}")  # fmt: skip
        torch.manual_seed(0)
        predictor = build_predictor(chosen)
        with torch.no_grad():
            predictor.network.to_image.bias[1] = 0.5
        folder = tmp_path / str(conscience)
        fit(chosen, folder, images=(blobs(64), blobs(16, seed=1)), predictor=predictor,
            accelerator="cpu")  # fmt: skip
        usage[conscience] = read_log(folder / "log.jsonl")[-1]["leaf_usage"][1]
    assert usage[0.0] == 0.0
    assert 0.3 < usage[1.0] < 0.7  # the odds of the blobs are even


def test_a_conscience_survives_a_stop(data: Path, tmp_path) -> None:
    recipe = tiny(file_of("shoes_from_edges"), "training.epochs=2", "tree.depth=1",
                  "loss.conscience=0.5")  # fmt: skip

    def first_one(steps, first, total):
        yield next(steps)

    whole = fit(recipe, tmp_path / "whole", data=data, accelerator="cpu")
    fit(recipe, tmp_path / "parts", data=data, accelerator="cpu", watch=first_one)
    parts = fit(recipe, tmp_path / "parts", data=data, accelerator="cpu")
    one, other = (store.read(tmp_path / n / "state.safetensors")[0] for n in ("whole", "parts"))
    assert torch.equal(one["bias"], other["bias"])
    assert one["bias"].abs().max() > 0
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, parts.network.state_dict()[name]), name


# --- several recipes in a row ---------------------------------------------------------------------


def test_a_run_that_is_ended_early_continues_as_if_it_had_not_been(data: Path, tmp_path) -> None:
    recipe = tiny(file_of("shoes_from_edges"), "training.epochs=3", "tree.depth=1")

    def first_three(steps, first, total):
        for _, step in zip(range(3), steps, strict=False):
            yield step

    whole = fit(recipe, tmp_path / "whole", data=data, accelerator="cpu")
    fit(recipe, tmp_path / "parts", data=data, accelerator="cpu", watch=first_three)
    assert store.read(tmp_path / "parts" / "state.safetensors")[1]["state"]["step"] == 3
    parts = fit(recipe, tmp_path / "parts", data=data, accelerator="cpu")
    for name, weight in whole.network.state_dict().items():
        assert torch.equal(weight, parts.network.state_dict()[name]), name


def small_recipe(folder: Path, task: str, *lines: str) -> Path:
    """A file of a tiny recipe, for commands that take files."""
    changes = ("tree.depth=1", "loss.surprise=0.1", *lines)
    file = folder / f"{task}.toml"
    file.write_text(write_recipe(tiny(file_of(task), *changes)), encoding="utf-8")
    return file


def test_a_study_trains_judges_draws_and_exports(data, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("posterior_trees_paper.tasks.SHOWN", 1)  # drawing is slow
    file = small_recipe(tmp_path, "cells_actin_to_dna")
    words = ["study", file, "--out", tmp_path / "out", "--runs", tmp_path / "runs", "--data", data]
    cli.main([str(w) for w in words] + ["--plain", "--minutes", "5", "--device", "cpu"])
    assert "cells_actin_to_dna_plain: done" in capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "study.json").read_text())
    assert [row["state"] for row in rows] == ["done", "done"]
    assert len(rows[0]["psnr_gain_per_level"]) == 1
    assert rows[1]["psnr_gain_per_level"] == []
    scores, facts = store.read(tmp_path / "out" / "cells_actin_to_dna_scores.safetensors")
    plain, _ = store.read(tmp_path / "out" / "cells_actin_to_dna_plain_scores.safetensors")
    difference = scores["psnr"][:, 0] - plain["psnr"][:, 0]
    assert rows[1]["tree_root_over_plain"]["mean"] == pytest.approx(difference.mean().item())
    assert len(facts["names"]) == len(scores["leaf"]) == 12
    for name in ("cells_actin_to_dna", "cells_actin_to_dna_plain"):
        table = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert table["psnr"][0]["mean"] == pytest.approx(
            (scores if name.endswith("dna") else plain)["psnr"][:, 0].mean().item(), abs=1e-5
        )
        weights, _ = store.read(tmp_path / "out" / f"{name}.safetensors")
        dtypes = {weight.dtype for weight in weights.values()}
        assert dtypes - {torch.int64} == {torch.bfloat16}  # batch normalisation counts its batches
        for ending in ("jpg", "jsonl"):
            assert (tmp_path / "out" / f"{name}.{ending}").stat().st_size > 100


def test_a_study_outlives_failures_and_a_lack_of_time(data, tmp_path, monkeypatch) -> None:
    missing = small_recipe(tmp_path, "faces_eyes", "data.name=nobody")
    slow = small_recipe(tmp_path, "shoes_from_edges")
    options = {"data": data, "runs": tmp_path / "runs", "accelerator": "cpu"}
    rows = run_study([missing, slow], tmp_path / "out", minutes=0, say=lambda text: None, **options)
    assert [row["state"] for row in rows] == ["failed", "stopped"]
    assert "the set 'nobody' is not in" in rows[0]["message"]
    assert "give it more time" in rows[1]["message"]
    spoilt = make_standins(tmp_path / "spoilt")
    with tarfile.open(spoilt / "shoes128.tar") as tar:
        last = max(tar.getmembers(), key=lambda member: member.name)  # a test image
    with (spoilt / "shoes128.tar").open("r+b") as file:
        file.seek(last.offset_data)
        file.write(bytes(last.size))
    rows = run_study([slow], tmp_path / "out", say=lambda text: None, **options | {"data": spoilt})
    assert last.name in rows[0]["message"]
    assert not (tmp_path / "runs" / "shoes_from_edges" / "log.jsonl").exists()
    drawn = []
    monkeypatch.setattr(
        "posterior_trees_paper.tasks.save_examples", lambda file, *_, **__: drawn.append(file.name)
    )
    rows = run_study([slow], tmp_path / "out", say=lambda text: None, **options)
    assert [row["state"] for row in rows] == ["done"]
    mouths = small_recipe(tmp_path, "faces_mouth")
    run_study([mouths], tmp_path / "out", say=lambda text: None, **options)
    assert drawn == ["shoes_from_edges.jpg", "faces_mouth.jpg", "faces_mouth_closer.jpg"]
