"""The paper's studies: their measures on cases that can be counted by hand, and every study from
its file to its figure on tiny stand-ins of the data."""

import dataclasses
import gzip
import itertools
import json
import math
import re
import runpy
import struct
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from posterior_trees_paper.cli.baseline import READER
from posterior_trees_paper.studies import classifier, figures
from posterior_trees_paper.studies.classifier import DigitReader
from posterior_trees_paper.studies.examine import (
    compare,
    diversity,
    expected,
    explained,
    scan,
    walk,
)
from posterior_trees_paper.studies.execute import Place, find_twin, run_all, run_job
from posterior_trees_paper.studies.minority import RunnerUp, masses
from posterior_trees_paper.studies.panels import PANELS, decoder_panels
from posterior_trees_paper.studies.plan import Plan, read_plan
from posterior_trees_paper.studies.report import write_report
from posterior_trees_paper.studies.rows import Findings, score_row
from posterior_trees_paper.studies.tables import COLUMNS, table
from posterior_trees_paper.studies.watch import load_snapshot, read_watch
from posterior_trees_paper.toy import clustering
from posterior_trees_paper.toy.clustering import Posterior, align, cluster, measure
from standins import make_standins

from posterior_trees import Tree, cli, entropy, grow, store, tree_loss
from posterior_trees.data import ImageSet
from posterior_trees.errors import DataError, RecipeError
from posterior_trees.recipe import write_recipe
from posterior_trees.toys import GaussianMixture

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "studies"
FILES = sorted((ROOT / "recipes" / "studies").glob("*.toml"))
in_repository = pytest.mark.skipif(not RESULTS.is_dir(), reason="results are not in the sdist")


@cache
def stored_logs() -> dict[str, list[dict]]:
    """The lines of all training logs that the results keep, by name without suffix."""
    files = runpy.run_path(str(ROOT / "reproduction" / "scripts" / "collect.py"))["read_archive"]()
    return {name.removesuffix(".jsonl"): [json.loads(line) for line in text.splitlines()]
            for name, text in files.items() if name.endswith(".jsonl")}  # fmt: skip


TINY = ("network.c_init=1", "training.epochs=2", "training.batch_size=8", "training.compile=false",
        "training.precision=32-true")  # fmt: skip


def random_tree(branching: int | tuple[int, ...], leaves: int, b: int = 7, seed: int = 0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(b, leaves, 1, 4, 4, generator=generator, dtype=torch.float64)
    logits = torch.randn(b, leaves, generator=generator, dtype=torch.float64)
    return grow(images, logits.log_softmax(dim=1), branching)


# --- looks ----------------------------------------------------------------------------------------


def show(tree: Tree, wanted: tuple[int, ...], is_list: bool) -> int:
    """Show pictures one by one, as to a user, and count until the wanted leaf is seen."""
    if is_list:
        queue = sorted(tree.paths(tree.depth), key=lambda p: -tree.node(p).prob.item())
        return 1 + queue.index(wanted)
    seen, here = 0, ()
    while here != wanted:
        children = [(*here, k) for k in range(tree.branching[len(here)])]
        for child in sorted(children, key=lambda p: -tree.node(p).prob.item()):
            seen += 1
            if child == wanted[: len(child)]:
                here = child
                break
    return seen


@pytest.mark.parametrize("branching", [(9,), (3, 3), (2, 2, 2), (4, 2), (2, 3, 2)])
def test_looks_are_what_showing_pictures_one_by_one_counts(branching: tuple[int, ...]) -> None:
    trees = random_tree(branching, math.prod(branching))
    for number, path in enumerate(trees.paths(trees.depth)):
        leaf = torch.full((len(trees),), number)
        scanned, walked = scan(trees, leaf).tolist(), walk(trees, leaf).tolist()
        assert scanned == [show(tree, path, is_list=True) for tree in trees]
        assert walked == [show(tree, path, is_list=False) for tree in trees]


def test_equal_probabilities_take_five_looks_in_a_list_and_four_in_a_tree() -> None:
    flat = torch.full((1, 9), 1 / 9, dtype=torch.float64).log()
    tree = grow(torch.zeros(1, 9, 1, dtype=torch.float64), flat, (3, 3))
    assert expected(tree, scan).item() == pytest.approx(5)
    assert expected(tree, walk).item() == pytest.approx(4)


def test_in_a_flat_set_walking_is_scanning_and_a_sure_leaf_is_seen_first() -> None:
    tree = random_tree(8, 8)
    leaf = torch.arange(7)
    assert torch.equal(walk(tree, leaf), scan(tree, leaf))
    sure = grow(torch.zeros(1, 9, 1), torch.tensor([[-60.0] * 5 + [0.0] + [-60.0] * 3]), (3, 3))
    assert walk(sure, torch.tensor([5])).item() == 2
    assert scan(sure, torch.tensor([5])).item() == 1


def test_siblings_may_be_permuted_without_a_change_in_looks() -> None:
    tree = random_tree((3, 2), 6)
    order = torch.tensor([4, 5, 0, 1, 3, 2])
    other = grow(tree.leaves[:, order], tree.log_probs[-1][:, order], (3, 2))
    for how in (walk, scan):
        torch.testing.assert_close(expected(tree, how), expected(other, how))


# --- what else is asked of a model ----------------------------------------------------------------


def test_the_root_s_error_is_the_variance_between_leaves_when_the_truth_is_a_leaf() -> None:
    tree = random_tree((2, 2), 4, b=3)
    total = torch.zeros(3, dtype=torch.float64)
    for leaf in range(4):
        values = compare(tree, tree.leaves[:, leaf])
        total += tree.probs[-1][:, leaf] * values["root_error"]
        assert values["best"].tolist() == [leaf] * 3
        assert values["best_nll"].tolist() == pytest.approx((-tree.log_probs[-1][:, leaf]).tolist())
    torch.testing.assert_close(total, explained(tree))


def test_diversity_is_the_mean_over_pairs_and_vanishes_for_equal_leaves() -> None:
    tree = random_tree((3,), 3, b=2)
    pairs = [
        (tree.leaves[:, i] - tree.leaves[:, j]).square().mean(dim=(1, 2, 3)).sqrt()
        for i, j in itertools.combinations(range(3), 2)
    ]
    mean, nearest = diversity(tree)
    torch.testing.assert_close(mean, torch.stack(pairs).mean(dim=0))
    torch.testing.assert_close(nearest, torch.stack(pairs).amin(dim=0))
    twins = grow(tree.leaves[:, [0, 0, 1]], tree.log_probs[-1], (3,))
    assert diversity(twins)[1].abs().max() == 0
    assert diversity(twins)[0].min() > 0


def test_means_over_the_hole_follow_from_means_over_all_pixels() -> None:
    """The upper half is hidden: known pixels have no error and leaves agree there."""
    tree = random_tree((2, 2), 4)
    x = torch.rand(7, 1, 4, 4, dtype=torch.float64)
    free = torch.zeros(4, 4, dtype=torch.bool)
    free[:2] = True
    whole = grow(torch.where(free, tree.leaves, x.unsqueeze(1)), tree.log_probs[-1], (2, 2))
    hole = grow(whole.leaves[..., :2, :], tree.log_probs[-1], (2, 2))
    scaled, direct = compare(whole, x, 2.0), compare(hole, x[..., :2, :])
    for name, value in direct.items():
        torch.testing.assert_close(scaled[name], value, msg=name)


# --- the runner-up digit --------------------------------------------------------------------------


def make_runs() -> dict[str, dict[str, torch.Tensor]]:
    """Two images; in the first a 1 (80 %) or a 4 (20 %), in the second always a 7."""
    flat = {
        "leaf_digits": torch.tensor([[1, 1, 1, 4], [7, 7, 7, 7]]),
        "probs": torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25]]),
        "digit": torch.tensor([4, 7]),
    }
    deep = {**flat, "leaf_digits": torch.tensor([[1, 1, 4, 4], [7, 7, 7, 7]])}
    deep["probs"] = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.25, 0.25, 0.25, 0.25]])
    return {"flat": flat, "deep": deep}


def test_the_runner_up_has_the_same_probability_and_more_leaves() -> None:
    runs = make_runs()
    found = RunnerUp.among(runs)
    assert (found.images.tolist(), found.digit.tolist()) == ([0], [4])
    flat, deep = (found.row(name, runs[name]) for name in runs)
    assert flat["runner_up_mass"] == pytest.approx(0.2)
    assert deep["runner_up_mass"] == pytest.approx(0.2)
    assert (flat["runner_up_leaves"], deep["runner_up_leaves"]) == (1, 2)
    assert (flat["runner_up_leaf_share"], deep["runner_up_leaf_share"]) == (0.25, 0.5)
    assert flat["runner_up_truth"] == deep["runner_up_truth"] == 1
    assert found.more_leaves("deep", "flat")["mean"] == 1
    assert found.first_above(0.15) == found.first_above(0.9) == 0


def test_masses_add_up_to_one_and_no_runner_up_is_an_error() -> None:
    runs = make_runs()
    totals = masses(runs["flat"]["leaf_digits"], runs["flat"]["probs"])
    torch.testing.assert_close(totals.sum(dim=1), torch.ones(2))
    only = {"sure": {name: value[1:] for name, value in runs["flat"].items()}}
    with pytest.raises(ValueError, match="no image has a runner-up digit of at least 5%"):
        RunnerUp.among(only)


# --- flat against hierarchical K-means ------------------------------------------------------------


def test_the_posterior_of_the_study_is_that_of_the_mixture() -> None:
    mixture = GaussianMixture()
    y = torch.tensor([[-3.5, 4.5], [0.3, 1.0]], dtype=torch.float64)
    for point, mean in zip(y, mixture.posterior_mean(y, 2.0), strict=True):
        posterior = Posterior.at(point, 2.0, torch.zeros(1, 2, dtype=torch.float64))
        torch.testing.assert_close(posterior.weights @ posterior.centers, mean)
        torch.testing.assert_close(posterior.responsibilities().sum(dim=1), torch.ones(1).double())
    assert posterior.deviation == pytest.approx(math.sqrt(0.8))


def test_centres_are_aligned_by_the_best_order() -> None:
    target = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0]])
    shuffled = torch.stack([target[[2, 0, 1]], target[[1, 2, 0]] + torch.tensor([0.0, 0.5])])
    torch.testing.assert_close(align(shuffled, target), torch.tensor([[0.0] * 3, [0.5] * 3]))


def test_equal_starts_have_no_spread_and_a_leaf_on_the_rarest_mode_is_at_distance_zero() -> None:
    y = torch.tensor([-3.5, 4.5])
    samples = GaussianMixture().sample_posterior(
        y[None], 2.0, 2000, torch.Generator().manual_seed(0)
    )[0]
    posterior = Posterior.at(y, 2.0, samples)
    assert (posterior.modes, posterior.rarest) == (4, 3)
    leaves = posterior.centers.expand(3, -1, -1)
    exact = grow(leaves, posterior.weights.log().expand(3, -1), 4)
    numbers = measure(exact, posterior)
    assert numbers["objective_spread_percent"] == pytest.approx(0, abs=1e-5)
    assert (numbers["good_starts"], numbers["rarest_distance"]) == (1, 0)
    assert numbers["centre_spread"] == pytest.approx(0, abs=1e-3)
    assert numbers["rarest_share"] > 0.6
    found = {
        name: measure(cluster(samples, k, 8), posterior) for name, k in clustering.LAYOUTS.items()
    }
    assert found["hierarchical"]["centre_spread"] < 0.2 < found["flat"]["centre_spread"]
    assert found["hierarchical"]["rarest_distance"] < found["flat"]["rarest_distance"]


def test_the_clustering_study_writes_numbers_table_and_figure(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("posterior_trees_paper.toy.figure.SIDE", 21)
    numbers = clustering.run(tmp_path, samples=300, seeds=3, points=4)
    assert json.loads((tmp_path / "numbers.json").read_text()) == numbers
    assert sum(group["points"] for group in numbers["by_modes"].values()) == 4
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert len(lines) == 3 + len(clustering.NAMES)
    assert len({line.count("|") for line in lines}) == 1
    assert (tmp_path / "figure.png").stat().st_size > 1000


@in_repository
def test_the_committed_table_says_what_the_committed_numbers_say() -> None:
    folder = RESULTS / "flat_vs_hierarchical"
    numbers = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    assert len(rows) > 4
    assert set(rows) <= set(clustering.table(numbers).splitlines())
    assert (numbers["samples"], numbers["seeds"]) == (10_000, 20)


# --- the digit reader -----------------------------------------------------------------------------


def make_bars(n: int, seed: int) -> tuple[ImageSet, torch.Tensor]:
    """ "Digits" that are bars at ten heights."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (n,), generator=generator)
    images = torch.randint(60, (n, 1, 28, 28), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 2 + 2 * label : 4 + 2 * label + label // 5, 4:24] = 255
    return ImageSet(images), labels


def write_labelled(folder: Path, part: str, images: ImageSet, labels: torch.Tensor) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pixels, digits = images.x[:, 0].numpy(), labels.numpy().astype(np.uint8)
    for name, values in (
        (f"{part}-images-idx3-ubyte", pixels),
        (f"{part}-labels-idx1-ubyte", digits),
    ):
        header = struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
        (folder / f"{name}.gz").write_bytes(gzip.compress(header + values.tobytes()))


def test_the_reader_learns_is_stored_and_read_back(tmp_path: Path, capsys) -> None:
    write_labelled(tmp_path / "mnist", "train", *make_bars(1280, 0))
    write_labelled(tmp_path / "mnist", "t10k", *make_bars(100, 1))
    file = tmp_path / "reader.safetensors"
    classifier.main(
        ["--data", str(tmp_path), "--out", str(file), "--epochs", "2", "--device", "cpu"]
    )
    assert "of the test digits are read correctly" in capsys.readouterr().out
    share = store.read_facts(file)["test_accuracy"]
    assert share > 0.3  # by chance 0.1
    reader = classifier.load_reader(file)
    assert classifier.accuracy(reader, *make_bars(100, 1)) == pytest.approx(share)
    leaves = make_bars(12, 2)[0].batch(range(12))[0].reshape(3, 4, 1, 28, 28)
    assert torch.equal(reader.read(leaves).flatten(), reader.read(leaves.flatten(0, 1)))


def test_soft_digits_are_blends_of_one_class() -> None:
    labels = torch.arange(8) % 2
    images = ImageSet((100 * labels + torch.arange(8)).to(torch.uint8).reshape(8, 1, 1, 1))
    chosen = torch.arange(8)
    x = 255 * classifier.soften(images, chosen, labels, torch.Generator().manual_seed(0)).flatten()
    assert torch.equal(x[::2].round(), images.x[::2].flatten().float())
    assert ((x > 50) == (labels == 1)).all()
    assert (x[1::2] != images.x[1::2].flatten()).any()


def test_missing_labels_and_other_files_are_refused(tmp_path: Path) -> None:
    data = make_standins(tmp_path)
    with pytest.raises(DataError, match="needs the original label files"):
        classifier.load_labelled(data, "train")
    file = tmp_path / "other.safetensors"
    store.write(file, {"a": torch.zeros(1)}, {"model": 1})
    with pytest.raises(ValueError, match="is not a digit classifier"):
        classifier.load_reader(file)


def test_the_committed_reader_reads_nearly_all_test_digits() -> None:
    file = READER
    assert file.stat().st_size < 300_000
    assert store.read_facts(file)["test_accuracy"] >= 0.985
    assert not classifier.load_reader(file).training


# --- plans ----------------------------------------------------------------------------------------


def test_there_is_a_file_a_table_and_a_figure_for_each_study() -> None:
    assert {file.stem for file in FILES} == COLUMNS.keys() == PANELS.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_all_runs_of_a_study_differ(file: Path) -> None:
    plan = read_plan(file)
    assert f"bash reproduction/scripts/studies.sh {plan.name}" in file.read_text(encoding="utf-8")
    assert len({write_recipe(job.recipe) for job in plan.jobs}) == len(plan.jobs)
    variants = list(dict.fromkeys(job.variant for job in plan.jobs))
    assert len({job.label for job in plan.jobs}) == len(variants)
    assert all(job.recipe.seed == job.seed for job in plan.jobs)
    first = [job.variant for job in plan.jobs[: len(variants)]]
    assert first == variants  # with too little time every variant has one seed


def test_mistakes_in_a_study_s_file_are_named(tmp_path: Path) -> None:
    text = f'title = "t"\nrecipe = "{ROOT}/recipes/digits_inpaint.toml"\n'
    cases = {
        "variants = []": "unknown key 'variants'",
        "": "has no 'variant'",
        '[[variant]]\nname = "a"\ncolour = 1': "unknown key 'colour'",
        '[[variant]]\nname = "a"\nchanges = ["loss.epsilon=1"]': "unknown key 'loss.epsilon'",
        '[[variant]]\nname = "a"\n[[variant]]\nname = "a"': "two runs of one name",
        "[[variant": "is not valid TOML",
    }
    for ending, message in cases.items():
        (tmp_path / "s.toml").write_text(text + ending)
        with pytest.raises(RecipeError, match=message):
            read_plan(tmp_path / "s.toml")
    with pytest.raises(RecipeError, match="there is no study"):
        read_plan(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="has no run 'x'; its runs are"):
        read_plan(FILES[0]).job("x")


# --- from the file to the figure ------------------------------------------------------------------


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return make_standins(tmp_path_factory.mktemp("data"))


class CountingReader(DigitReader):
    """Reads the leaves of an image as 0, 1, 2, 0, … whatever they show, and every truth as 1."""

    def read(self, x, batch: int = 0):
        numbers = torch.arange(x.shape[1]) % 3 if x.ndim == 5 else torch.ones(1, dtype=torch.long)
        return numbers.expand(x.shape[:-3])


def tiny_plan(name: str, runs: int) -> Plan:
    file = next(file for file in FILES if file.stem == name)
    small = [] if name in ("epsilon", "layouts", "tree_or_flat") else ["data.size=[32, 32]"]
    if name == "balancer":
        small += ["balancer.start=1.0", "training.epochs=3"]
    plan = read_plan(file, [*TINY, *small])
    return dataclasses.replace(plan, jobs=plan.jobs[:runs], snapshots=(1,) * (name == "epsilon"))


@pytest.mark.parametrize(
    ("name", "runs"), [("epsilon", 3), ("balancer", 4), ("layouts", 4), ("decoders", 3)]
)
def test_a_study_ends_in_numbers_a_table_and_a_figure(
    name: str, runs: int, data: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("posterior_trees_paper.tasks.save_examples", lambda *_, **__: None)
    plan, quiet = tiny_plan(name, runs), {"say": lambda text: None}
    for job in plan.jobs:
        row = run_job(plan, job, tmp_path, data, accelerator="cpu", **quiet)
        assert row["state"] == "done"
    place, out = Place(tmp_path, plan), tmp_path / "out"
    rows = write_report(plan, tmp_path, out, data, reader=CountingReader(), **quiet)
    stored = json.loads((out / "runs.json").read_text())
    assert [row["run"] for row in stored["runs"]] == [job.name for job in plan.jobs]
    lines = (out / "table.md").read_text().splitlines()
    assert len(lines) == 2 + len({job.variant for job in plan.jobs})
    assert len({line.count("|") for line in lines}) == 1
    assert (out / "figure.png").stat().st_size > 5000
    for job, row in zip(plan.jobs, rows, strict=True):
        watched = read_watch(place.run(job))
        assert [line["epoch"] for line in watched] == list(range(1, row["epochs"] + 1))
        leaves = job.recipe.tree.branching**job.recipe.tree.depth
        assert len(watched[-1]["leaf_mse"]) == row["leaves"] == leaves
        assert sum(watched[-1]["leaf_share"]) == pytest.approx(1, abs=0.01)
        assert row["good"] + row["weak"] + row["dead"] == leaves
        assert row["best_psnr"] >= row["psnr"][-1] - 1e-4
        assert row["walk"] >= 1
    if name == "epsilon":
        assert load_snapshot(place.run(plan.jobs[0]), 1).branching == (3, 3)
        assert [line["epsilon"] for line in read_watch(place.run(plan.jobs[1]))] == [0, 0]
    if name == "layouts":
        assert stored["more_leaves"].keys() == {"2x2_0 over 4x1_0", "2x4_0 over 4x2_0"}
        assert rows[0]["runner_up_mass"] > 0


def test_the_last_weights_watched_are_those_that_were_judged(data, tmp_path, monkeypatch) -> None:
    """Without a running average the last line of the watch is the error of the stored model."""
    monkeypatch.setattr("posterior_trees_paper.tasks.save_examples", lambda *_, **__: None)
    plan = tiny_plan("tree_or_flat", 1)
    job = plan.jobs[0]
    recipe = dataclasses.replace(
        job.recipe, training=dataclasses.replace(job.recipe.training, average_half_life=0.0)
    )
    plan = dataclasses.replace(plan, jobs=(dataclasses.replace(job, recipe=recipe),))
    run_job(plan, plan.jobs[0], tmp_path, data, accelerator="cpu", say=lambda text: None)
    rows = write_report(plan, tmp_path, tmp_path / "out", data, say=lambda text: None)
    last = read_watch(Place(tmp_path, plan).run(job))[-1]
    judged = json.loads(
        (tmp_path / "tree_or_flat" / "judged" / job.name / f"{job.name}.json").read_text()
    )
    assert last["leaf_share"] == pytest.approx([leaf["frequency"] for leaf in judged["leaves"]])
    assert 10 * math.log10(1 / min(last["leaf_mse"])) <= rows[0]["best_psnr"] + 0.1


def test_a_study_trains_in_processes_and_the_same_command_continues_it(
    data: Path, tmp_path: Path, capsys
) -> None:
    """No time at all: nothing starts. Then a process trains; then only the report is left."""
    (tmp_path / "tree_or_flat.toml").write_text(
        f'title = "t"\nrecipe = "{ROOT}/recipes/digits_inpaint.toml"\n'
        '[[variant]]\nname = "flat"\nchanges = ["tree.branching=3", "tree.depth=1"]\n'
    )
    options = {"--data": data, "--runs": tmp_path / "runs", "--out": tmp_path / "out"}
    options |= {"--jobs": 2, "--device": "cpu"}
    words = ["reproduce", tmp_path / "tree_or_flat.toml", *itertools.chain(*options.items())]
    command = [*map(str, words), *itertools.chain(*(("--set", change) for change in TINY))]
    with pytest.raises(SystemExit):
        cli.main([*command, "--minutes", "0"])
    message = capsys.readouterr().err
    assert "1 of 1 runs are not finished (flat_0): the same command continues" in message
    cli.main(command)
    text = capsys.readouterr().out
    assert "flat_0: done" in text
    assert "| flat | 1 |" in text
    (tmp_path / "out" / "table.md").unlink()
    cli.main([*command, "--minutes", "0"])
    assert "1 of 1 runs are finished" in capsys.readouterr().out
    assert (tmp_path / "out" / "table.md").is_file()


def test_nobody_trains_the_recipe_of_a_finished_run_again(data, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("posterior_trees_paper.tasks.save_examples", lambda *_, **__: None)
    done = tiny_plan("tree_or_flat", 2)
    run_job(done, done.jobs[1], tmp_path, data, accelerator="cpu", say=lambda text: None)
    twin, said = dataclasses.replace(done.jobs[1], name="mine_0", variant="mine"), []
    plan = dataclasses.replace(done, name="decoders", jobs=(twin, done.jobs[0]), snapshots=())
    left = run_all("f.toml", plan, tmp_path, [], minutes=0, say=said.append)
    assert [job.name for job in left] == [done.jobs[0].name]
    assert said[0] == "mine_0: the same recipe as tree_or_flat/tree_0, taken from there"
    rows = write_report(plan, tmp_path, tmp_path / "out", data, say=said.append)
    assert [(row["run"], row["variant"]) for row in rows] == [("mine_0", "mine")]
    assert find_twin(twin, dataclasses.replace(plan, name="x", snapshots=(9,)), tmp_path) is None
    other = dataclasses.replace(twin, recipe=dataclasses.replace(twin.recipe, seed=5))
    assert find_twin(other, dataclasses.replace(plan, name="x"), tmp_path) is None


def test_a_few_processes_run_at_a_time_and_a_failure_stops_no_other(tmp_path, monkeypatch) -> None:
    plan, alive, most, said = tiny_plan("balancer", 5), set(), [], []
    place = Place(tmp_path, plan)

    class Process(subprocess.Popen):
        _child_created = False  # nothing to wait for at its end

        def __init__(self, words, stdout, stderr) -> None:
            self.name, self.polls = words[words.index("--only") + 1], 0
            self.returncode = 1 if self.name == "sgd_0" else 0
            stdout.write(b"something went wrong\n")
            alive.add(self.name)
            most.append(len(alive))

        def poll(self) -> int | None:
            self.polls += 1
            if self.polls < 3:
                return None
            alive.discard(self.name)
            if self.returncode == 0:
                place.judged(plan.job(self.name)).mkdir(parents=True)
                (place.judged(plan.job(self.name)) / "row.json").write_text('{"state": "done"}')
            return self.returncode

    monkeypatch.setattr("posterior_trees_paper.studies.execute.subprocess.Popen", Process)
    monkeypatch.setattr("posterior_trees_paper.studies.execute.time.sleep", lambda seconds: None)
    left = run_all("f.toml", plan, tmp_path, [], side_by_side=2, minutes=5, say=said.append)
    assert [job.name for job in left] == ["sgd_0"]
    assert (max(most), len(most)) == (2, 5)
    assert "sgd_0: failed with exit code 1: something went wrong" in said
    assert "drawn_0: done" in said


def test_a_run_stops_in_time_and_continues(data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("posterior_trees_paper.tasks.save_examples", lambda *_, **__: None)
    plan = tiny_plan("tree_or_flat", 1)
    options = {"accelerator": "cpu", "say": lambda text: None}
    job, place = plan.jobs[0], Place(tmp_path, plan)
    clock = SimpleNamespace(monotonic=itertools.count().__next__)  # a second per step; 4 in all
    with monkeypatch.context() as patch:
        patch.setattr("posterior_trees_paper.tasks.time", clock)
        for minutes in (0, 18 / 60):
            row = run_job(plan, job, tmp_path, data, minutes=minutes, **options)
            assert row == {"state": "stopped"}
            assert not place.is_done(job)
    assert [line["epoch"] for line in read_watch(place.run(job))] == [1]
    with pytest.raises(ValueError, match="no run of tree_or_flat is finished"):
        write_report(plan, tmp_path, tmp_path / "out", data, say=lambda text: None)
    assert run_job(plan, job, tmp_path, data, **options)["state"] == "done"
    assert place.is_done(job)


def test_a_study_that_reads_digits_is_refused_without_a_classifier(data, tmp_path, capsys) -> None:
    file = ROOT / "recipes" / "studies" / "layouts.toml"
    words = ["reproduce", file, "--data", data, "--runs", tmp_path, "--classifier", tmp_path / "no"]
    with pytest.raises(SystemExit):
        cli.main([*map(str, words)])
    assert "layouts needs the digit classifier: give --classifier" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main([*map(str, words), "--jobs", "0"])
    assert "argument --jobs: is 0; it must be at least 1" in capsys.readouterr().err


# --- tables ---------------------------------------------------------------------------------------


def test_leaves_are_good_dead_or_weak() -> None:
    numbers = [(0.5, 20.0, 18.0), (0.3, 17.0, 18.0), (0.195, 19.0, 18.0), (0.005, 30.0, 10.0)]
    leaves = [{"frequency": f, "probability": f, "psnr": p, "root_psnr": r} for f, p, r in numbers]
    levels = [{"mean": 1.0}, {"mean": 2.0}]
    judged = {"psnr": levels, "psnr_hole": None, "nll": levels, "entropy": levels, "n": 10,
              "branching": [4], "leaves": leaves}  # fmt: skip
    row = score_row(judged)
    assert (row["good"], row["weak"], row["dead"], row["rarest"]) == (2, 1, 1, 0.005)
    assert row["psnr"] == [1.0, 2.0]


def test_a_table_has_means_and_ranges_over_seeds() -> None:
    common = {"label": "A", "variant": "a", "nll": [0.0, 1.0], "calibration": 0.01, "good": 9,
              "dead": 0, "weak": 0, "diversity": 0.1, "training_seconds": 1.0}  # fmt: skip
    rows = [{**common, "psnr": [14.0, 15.0]}, {**common, "psnr": [14.2, 15.0]}]
    rows.append({**common, "variant": "b", "label": "B", "psnr": [10.0]})
    _, _, a, b = table("some", rows).splitlines()
    assert a.startswith("| A | 2 | 14.10±0.10 | 15.00±0.00 | 1.000±0.000 | +0.010±0.000 |")
    assert b.startswith("| B | 1 | 10.00 | 10.00 |")
    for psnr in (-40.0, math.nan):
        lost = table("some", [rows[0], {**rows[1], "psnr": [psnr, 15.0]}])
        assert "| A (**1 diverged**) | 2 |" in lost


@in_repository
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_committed_study_shows_the_table_of_its_runs_and_holds_their_logs(file: Path) -> None:
    plan, folder = read_plan(file), RESULTS / file.stem
    facts = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    readme = (folder / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if line.startswith("|")]
    assert len(rows) > 3
    assert set(rows) <= set(table(plan.name, facts["runs"]).splitlines())
    assert {row["commit"][:7] for row in facts["runs"]} == set(
        re.findall(r"commit (\w{7})", readme)
    )
    assert [row["run"] for row in facts["runs"]] == [job.name for job in plan.jobs]
    logs = stored_logs()
    for job in plan.jobs:
        log, leaves = (logs[f"studies/{plan.name}/{job.name}{end}"] for end in ("", "_leaves"))
        assert len(log) == len(leaves) == job.recipe.training.epochs
    assert (folder / "figure.png").stat().st_size < 700_000


# --- logs -----------------------------------------------------------------------------------------


def least_count(nats: float, n: int) -> float:
    """The smallest 1 / Σ α² of n probabilities of an entropy: one of them is the largest and the
    others are equal (Harremoës & Topsøe, 2001)."""
    low, high = 1 / n, 1.0
    for _ in range(60):
        p = (low + high) / 2
        q = (1 - p) / (n - 1)
        is_even = -p * math.log(p) - (n - 1) * (q * math.log(q) if q else 0.0) > nats
        low, high = (p, high) if is_even else (low, p)
    return 1 / (p * p + (n - 1) * q * q)


def is_possible(line: dict) -> bool:
    """May all nodes of a tree together have so small an error beside its root, at ε = 1? A theorem
    where entropies are alike from image to image; a log has their mean."""
    n = len(line["leaf_usage"])
    count = least_count(line["entropy"], n) if n > 1 else 0.0
    return line["squared"] >= line["root_mse"] * (1 + count)


@pytest.mark.parametrize(("branching", "leaves"), [(2, 4), (3, 9), (9, 9), ((2, 3), 6)])
def test_at_epsilon_one_the_nodes_outweigh_the_root_by_their_effective_number(
    branching: int | tuple[int, ...], leaves: int
) -> None:
    """Cauchy and Schwarz: a root that is Σ α x has at most Σ α² times the errors of a level."""
    tree = random_tree(branching, leaves, b=200)
    x = torch.rand(200, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    counts = [1 / level.square().sum(dim=1) for level in tree.probs]
    root = tree.errors(x)[0][:, 0]
    assert (tree_loss(tree, x, 1.0) >= root * torch.stack(counts).sum(dim=0)).all()
    offsets = tree.probs[-1].reshape(200, leaves, 1, 1, 1) * torch.ones_like(x).unsqueeze(1)
    worst = grow(x.unsqueeze(1) + offsets, tree.log_probs[-1], leaves)
    bound = worst.errors(x)[0][:, 0] * (1 + counts[-1])
    torch.testing.assert_close(tree_loss(worst, x, 1.0), bound)
    entropies = entropy(tree)[:, -1].tolist()
    least = torch.tensor([least_count(nats, leaves) for nats in entropies])
    assert (counts[-1] >= least - 1e-9).all()
    one_large = torch.tensor([[0.3] + [0.7 / (leaves - 1)] * (leaves - 1)], dtype=torch.float64)
    nats = -(one_large * one_large.log()).sum().item()
    assert least_count(nats, leaves) == pytest.approx(1 / one_large.square().sum().item())


def test_the_log_of_a_wrongly_compiled_training_is_not_possible() -> None:
    """The first epochs of digits with a shared decoder, with padded strides (`compiling.py`)."""
    for squared, root, nats in ((0.77093, 0.10397, 2.12449), (0.73529, 0.10335, 2.12905)):
        line = {"squared": squared, "root_mse": root, "entropy": nats, "leaf_usage": [1 / 9] * 9}
        assert not is_possible(line)
        assert is_possible(line | {"root_mse": root / 2})


@in_repository
def test_all_committed_logs_are_possible() -> None:
    lines = [(name, line) for name, log in stored_logs().items() if not name.endswith("_leaves")
             for line in log if line.get("epsilon") == 1]  # fmt: skip
    assert len({name for name, _ in lines}) > 50
    assert [f"{name}: epoch {line['epoch']}" for name, line in lines if not is_possible(line)] == []


# --- figures --------------------------------------------------------------------------------------


def test_decoders_are_drawn_task_by_task_and_a_diverged_run_is_only_named(tmp_path: Path) -> None:
    plan = read_plan(next(file for file in FILES if file.stem == "decoders"))
    found = Findings(plan, Place(tmp_path, plan), None)
    found.jobs = list(plan.jobs)
    for job in plan.jobs:
        psnr = [-40.0, 10.0, 10.0] if job.name == "digits_shared_0" else [20.0, 20.5, 20.7]
        found.rows.append({"run": job.name, "psnr": psnr, "diversity": 0.1})
    digits, eyes, distances = map(draw_panel, decoder_panels(found))
    assert [np.size(line.get_xdata()) for line in digits.lines] == [3, 0]
    assert [np.size(line.get_xdata()) for line in eyes.lines] == [3] * 4
    assert [patch.get_extents().width > 0 for patch in distances.patches] == [True, False] + [
        True
    ] * 4
    colors = [line.get_color() for line in (*digits.lines, *eyes.lines)]
    assert colors == list(figures.COLORS[:6])
    assert distances.texts[1].get_text() == " digits, shared: diverged"


def test_leaves_beyond_the_limits_are_counted() -> None:
    lines = [{"epoch": 1, "rmse": [0.3, 0.2, 0.9]}, {"epoch": 2, "rmse": [0.24, 0.9, 1.0]}]
    axes = draw_panel(figures.leaf_lines("t", lines, "rmse", "RMSE", (0.1, 0.25)))
    assert [text.get_text() for text in axes.texts] == ["2 of 3 leaves end above:\n0.90 to 1.00"]
    assert axes.get_ylim() == (0.1, 0.25)
    near = draw_panel(figures.leaf_lines("t", lines, "rmse", "RMSE", (0.1, 1.1)))
    assert not near.texts


def draw_panel(panel: figures.Panel) -> Axes:
    axes = Figure().subplots()
    panel(axes)
    return axes
