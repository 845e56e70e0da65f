"""The toy study: its measures against trees whose answers are known, its files, and the example."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from posterior_trees_paper.toy import figure as toy_figure
from posterior_trees_paper.toy import study as toy_study
from posterior_trees_paper.toy.network import SIGMA, TreeMLP
from posterior_trees_paper.toy.study import Exam, score

from posterior_trees import Tree, grow
from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.toys import GaussianMixture

EXAMPLE = Path(__file__).parents[1] / "examples" / "posterior_tree_from_scratch.py"


@pytest.fixture(scope="module")
def exam() -> Exam:
    return Exam.draw(count=12)


def shaken(tree: Tree, size: float) -> Tree:
    noise = size * torch.randn(tree.leaves.shape, generator=torch.Generator().manual_seed(0))
    return grow(tree.leaves + noise, tree.log_probs[-1], tree.branching)


def test_scores_are_the_distortions_and_masses_of_the_greedy_cells() -> None:
    """Four leaves on a line: the cells are intervals, checked sample by sample."""
    leaves = torch.tensor([[[0.0], [2.0], [6.0], [8.0]]], dtype=torch.float64)
    tree = grow(leaves, torch.full((1, 4), 0.25, dtype=torch.float64).log(), 2)
    samples = torch.tensor([[[-1.0], [0.9], [1.1], [3.9], [4.1], [6.9], [7.1], [9.0]]]).double()
    distortion, masses = score(tree, samples)
    assert [level.tolist() for level in masses] == [[[1.0]], [[0.5, 0.5]], [[0.25] * 4]]
    nearest = samples - torch.tensor([0.0, 0, 2, 2, 6, 6, 8, 8]).reshape(1, 8, 1)
    middle = samples - torch.tensor([1.0] * 4 + [7.0] * 4).reshape(1, 8, 1)
    expected = [(samples - 4).square().mean(), middle.square().mean(), nearest.square().mean()]
    torch.testing.assert_close(distortion[0], torch.stack(expected))


def test_distortion_is_a_mean_over_coordinates() -> None:
    samples = torch.tensor([[[3.0, 4.0], [-3.0, -4.0]]])
    tree = grow(torch.zeros(1, 2, 2), torch.full((1, 2), 0.5).log(), 2)
    distortion, _ = score(tree, samples)
    assert distortion.tolist() == [[12.5, 12.5]]


def test_clusters_of_other_samples_grade_as_perfect(exam: Exam) -> None:
    mixture, generator = GaussianMixture(), torch.Generator().manual_seed(5)
    samples = mixture.sample_posterior(exam.y, SIGMA, 10_000, generator)
    grades = exam.compare(hierarchical_kmeans(samples, 2, 2, generator=generator))
    assert grades["root_rmse"] < 0.05
    assert grades["distortion_1"] == pytest.approx(1.0, abs=0.01)
    assert grades["distortion_2"] == pytest.approx(1.0, abs=0.01)
    assert grades["kl_1"] < 1e-3
    assert grades["kl_2"] < 2e-3


def test_the_distortion_tells_a_worse_tree_from_a_better_one(exam: Exam) -> None:
    grades = [exam.compare(shaken(exam.clustered, size)) for size in (0.0, 0.3, 1.0)]
    for name in ("root_rmse", "distortion_1", "distortion_2"):
        values = [grade[name] for grade in grades]
        assert values == sorted(values)
        assert values[2] > values[0] + 0.02


def test_the_divergence_tells_wrong_probabilities_of_the_right_cells(exam: Exam) -> None:
    """Halving the odds of every first child moves no border much, but costs nats."""
    sharper = (2 * exam.clustered.log_probs[-1]).log_softmax(dim=1)
    wrong = grow(exam.clustered.leaves, sharper, 2)
    flat = grow(exam.clustered.leaves, torch.full_like(sharper, math.log(0.25)), 2)
    right = exam.compare(exam.clustered)
    assert right["kl_2"] < 2e-3
    for tree in (wrong, flat):
        grades = exam.compare(tree)
        assert grades["kl_2"] > 0.03
        assert grades["kl_2"] >= grades["kl_1"] - 1e-6


def test_the_network_returns_leaves_in_the_units_of_the_world() -> None:
    network = TreeMLP(6, 3, center=[10.0, 20.0, 30.0], scale=0.5, gain=2.0)
    images, log_probs = network(torch.zeros(5, 3))
    assert images.shape == (5, 6, 3)
    assert log_probs.shape == (5, 6)
    torch.testing.assert_close(log_probs.exp().sum(dim=1), torch.ones(5))
    assert (images.mean(dim=(0, 1)) - network.center).abs().max() < 1


def test_the_papers_network_has_two_mlps_of_five_layers() -> None:
    network = TreeMLP(4, sees_leaves=False)
    widths = [(2, 256), (256, 256), (256, 256), (256, 256)]
    for mlp, out in ((network.leaves, 8), (network.probabilities, 4)):
        linear = [m for m in mlp if isinstance(m, torch.nn.Linear)]
        assert [(m.in_features, m.out_features) for m in linear] == [*widths, (256, out)]
        assert [type(m) for m in mlp[1::2]] == [torch.nn.SiLU] * 4


@pytest.mark.parametrize("sees_leaves", [True, False])
def test_probabilities_send_no_gradient_into_the_leaves(sees_leaves: bool) -> None:
    network = TreeMLP(4, width=16, sees_leaves=sees_leaves)
    network(torch.randn(3, 2)).log_probs[:, 0].sum().backward()
    assert all(p.grad is None for p in network.leaves.parameters())
    assert all(p.grad is not None for p in network.probabilities.parameters())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """A run far too short to pass, with a small exam."""
    out = tmp_path_factory.mktemp("toy") / "new" / "folder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toy_study, "TEST_POINTS", 10)
        return toy_study.run(out, steps=12, seeds=2, progress=False), out


def test_a_run_writes_its_numbers_and_its_pictures(study: tuple[dict, Path]) -> None:
    metrics, out = study
    assert json.loads((out / "metrics.json").read_text()) == metrics
    assert metrics["test_points"] == 10
    assert len(metrics["per_seed"]) == 2
    assert set(metrics["median"]) == set(toy_study.LABELS)
    assert all(math.isfinite(value) for value in metrics["median"].values())
    for name, limit in metrics["limits"].items():
        assert metrics["passed"][name] == (metrics["median"][name] <= limit)
    assert not metrics["passed"]["root_rmse"]
    for name in ("toy.png", "toy_more.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
        assert (out / name).stat().st_size > 50_000


def test_a_seed_decides_the_training() -> None:
    torch.manual_seed(1)
    first = toy_study.train(5, seed=0).state_dict()
    torch.manual_seed(2)
    second = toy_study.train(5, seed=0).state_dict()
    other = toy_study.train(5, seed=1).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["leaves.0.weight"], other["leaves.0.weight"])


def test_the_papers_probability_loss_differs_from_ours() -> None:
    ours, papers = (
        toy_study.train(5, 0, name).probabilities[0].weight for name in ("cross_entropy", "paper")
    )
    assert not torch.equal(ours, papers)


def test_a_short_training_already_moves_the_root_to_the_mean(exam: Exam) -> None:
    untrained = exam.grade(toy_study.build(0))
    trained = exam.grade(toy_study.train(150, 0))
    assert trained["root_rmse"] < 0.3 < untrained["root_rmse"]
    assert trained["distortion_1"] < 1.25 < untrained["distortion_1"]


@pytest.mark.slow
def test_the_numbers_promised_for_the_toy(tmp_path: Path) -> None:
    metrics = toy_study.run(tmp_path)
    assert all(metrics["passed"].values()), metrics["median"]


def test_progress_is_plain_lines_without_a_terminal(
    capsys: pytest.CaptureFixture[str], study: tuple[dict, Path]
) -> None:
    with toy_study._watch(20, is_shown=True) as tick:
        for _ in range(20):
            tick()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"training: {n} of 20 steps" for n in range(2, 21, 2)]
    with pytest.raises(RuntimeError, match="stopped"):
        tick()
    toy_study._report(*study)
    report = capsys.readouterr().out
    assert "fail" in report
    assert "2 × 12 steps" in report


def test_pictures_put_siblings_in_the_order_of_another_tree() -> None:
    leaves = torch.tensor([[[5.0, 0], [6, 0], [1, 0], [2, 0]]])
    tree = grow(leaves, torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), 2)
    ordered = toy_figure.sort_siblings(tree)
    assert ordered.leaves[0, :, 0].tolist() == [1.0, 2.0, 5.0, 6.0]
    torch.testing.assert_close(ordered.probs[2], torch.tensor([[0.3, 0.4, 0.1, 0.2]]))
    again = toy_figure.match_siblings(ordered, tree)
    assert torch.equal(again.leaves, tree.leaves)
    flat = grow(leaves[:, [2, 0, 3, 1]], tree.log_probs[-1], (4,))
    assert torch.equal(toy_figure.match_siblings(flat, tree).leaves, tree.leaves)


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'papers'; choose one of cross_entropy, paper"):
        toy_study.run(tmp_path, probability="papers")
    with pytest.raises(ValueError, match="steps is 0"):
        toy_study.run(tmp_path, steps=0)


def test_the_example_from_scratch_is_short_and_imports_torch_only() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) < 120
    imports = {line.split()[1] for line in lines if line.startswith(("import", "from"))}
    assert imports - {"argparse", "math", "itertools"} == {"torch"}


def test_the_example_from_scratch_runs() -> None:
    command = [sys.executable, str(EXAMPLE), "--steps", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "root against the analytic posterior mean: RMSE 0." in done.stdout
    assert done.stdout.count("p = ") == 7


def test_the_example_computes_the_losses_of_the_package() -> None:
    """The lesson and the library are one method: same levels, same loss, at any ε."""
    from runpy import run_path

    from posterior_trees import probability_loss, tree_loss

    lesson = run_path(str(EXAMPLE))
    generator = torch.Generator().manual_seed(0)
    leaves = 3 * torch.randn(16, 4, 2, generator=generator)
    log_probs = torch.randn(16, 4, generator=generator).log_softmax(dim=1)
    x = 3 * torch.randn(16, 2, generator=generator)
    ours, theirs = grow(leaves, log_probs, 2), lesson["grow"](leaves, log_probs)
    for level, (nodes, logs) in enumerate(theirs):
        torch.testing.assert_close(nodes, ours.images[level])
        torch.testing.assert_close(logs, ours.log_probs[level])
    root_error = (ours.root - x).square().mean()
    for epsilon in (0.0, 0.3, 1.0):
        expected = tree_loss(ours, x, epsilon) + 0.4 * root_error * probability_loss(ours, x)
        torch.testing.assert_close(lesson["tree_loss"](theirs, x, epsilon), expected.mean())
    y = x + 1
    expected = GaussianMixture().posterior_mean(y, SIGMA)
    torch.testing.assert_close(lesson["posterior_mean"](y), expected)
