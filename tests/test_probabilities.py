"""Calibration: the optimum of a convex problem, folded into the head, once per run."""

import math
from pathlib import Path

import pytest
import torch
from posterior_trees_paper.toy.network import TreeMLP
from torch import Tensor, nn

import posterior_trees.training.probabilities as module
from posterior_trees import load, store, wrap
from posterior_trees.data import ImageSet
from posterior_trees.errors import RunError
from posterior_trees.evaluation.score import score
from posterior_trees.measure import Denoise
from posterior_trees.models.build import build_predictor
from posterior_trees.networks import Leaves
from posterior_trees.predictor import TreePredictor
from posterior_trees.training.probabilities import (
    Calibration,
    calibrate,
    calibrate_run,
    choose,
    find_logits,
    solve,
    unchanged,
)
from posterior_trees.training.run import Run, read_log
from posterior_trees.training.trainer import fit

FAST = ("optimizer.lr=0.02", "optimizer.head_lr=0.02", "training.epochs=4")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw_world(n: int, leaves: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits that tell the truth, and leaves drawn from them."""
    logits = torch.randn(n, leaves, dtype=torch.float64, generator=seeded(seed))
    logits = logits + torch.linspace(-1, 1, leaves, dtype=torch.float64)
    drawn = torch.multinomial(logits.softmax(dim=1), 1, generator=seeded(seed + 1)).squeeze(1)
    return logits, drawn


def last_layer(predictor: TreePredictor) -> nn.Linear:
    return [layer for layer in predictor.network.modules() if isinstance(layer, nn.Linear)][-1]


def mean_nll(calibration: Calibration, logits: Tensor, leaf: Tensor) -> float:
    return calibration.nll(logits, leaf).mean().item()


@pytest.mark.parametrize("times", [0.5, 3.0, 40.0])
def test_logits_that_are_t_times_too_large_are_divided_by_t(times):
    logits, leaf = draw_world(10_000)
    found = choose(times * logits, leaf)
    assert found.strength * times == pytest.approx(1, abs=0.03)
    assert found.offsets.abs().max() < 0.15
    assert mean_nll(found, times * logits, leaf) <= mean_nll(unchanged(9), logits, leaf) + 2e-4


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_well_calibrated_logits_stay_within_noise(spread):
    """Standard errors: 1 / √(N · variance of the logits) of the strength, about 0.01, and
    1 / √(N · probability) of an offset, up to 0.06."""
    found = solve(*draw_world(10_000), spread)
    assert found.strength == pytest.approx(1, abs=0.03)
    assert found.offsets.abs().max() < 0.15


def test_biased_logits_get_their_bias_back():
    logits, leaf = draw_world(10_000)
    bias = torch.linspace(0.8, -0.8, 9, dtype=torch.float64)
    found = choose(logits + bias, leaf)
    torch.testing.assert_close(found.offsets, -bias, atol=0.15, rtol=0)


def test_pure_noise_is_silenced_and_frequencies_remain():
    odds = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    leaf = torch.multinomial(odds, 20_000, replacement=True, generator=seeded())
    logits = 2 * torch.randn(20_000, 4, dtype=torch.float64, generator=seeded(1))
    found = choose(logits, leaf)
    frequency = leaf.bincount(minlength=4) / 20_000
    assert found.strength == pytest.approx(0, abs=0.01)
    torch.testing.assert_close(found.offsets.softmax(0), frequency.double(), atol=0.01, rtol=0)
    constant = torch.special.entr(frequency).sum().item()
    assert mean_nll(found, logits, leaf) <= constant + 1e-4


def test_logits_that_say_the_opposite_are_silenced_not_turned_round():
    logits, leaf = draw_world(2_000)
    assert choose(-logits, leaf).strength == 0


def penalised(logits: Tensor, leaf: Tensor, spread: float, s: Tensor, c: Tensor) -> Tensor:
    """J, written down from its definition."""
    offsets = c - (1 - s) * logits.mean(dim=0)
    offsets = offsets - offsets.mean()
    nll = nn.functional.cross_entropy(s * logits + c, leaf, reduction="sum")
    return nll + (s - 1) ** 2 / 2 + offsets.square().sum() / (2 * spread**2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_the_gradient_vanishes_at_the_optimum(sign, spread):
    """Karush, Kuhn and Tucker: zero gradient, or a strength of 0 that would rather be negative."""
    logits, leaf = draw_world(300)
    found = solve(sign * 5 * logits, leaf, spread)
    s = torch.tensor(found.strength, dtype=torch.float64, requires_grad=True)
    c = found.offsets.clone().requires_grad_()
    by_s, by_c = torch.autograd.grad(penalised(sign * 5 * logits, leaf, spread, s, c), (s, c))
    assert by_c.abs().max() < 1e-8
    if sign > 0:
        assert found.strength > 0
        assert abs(by_s) < 1e-8
    else:
        assert found.strength == 0
        assert by_s > 1


def test_without_offsets_only_the_strength_is_optimal():
    logits, leaf = draw_world(300)
    found = solve(4 * logits, leaf, 0.0)
    center = (4 * logits).mean(dim=0)
    center = center - center.mean()
    torch.testing.assert_close(found.offsets, (1 - found.strength) * center)
    s = torch.tensor(found.strength, dtype=torch.float64, requires_grad=True)
    nll = nn.functional.cross_entropy(center + s * (4 * logits - center), leaf, reduction="sum")
    (slope,) = torch.autograd.grad(nll + (s - 1) ** 2 / 2, s)
    assert abs(slope) < 1e-8


def test_logits_and_log_probabilities_give_the_same_calibration():
    logits, leaf = draw_world(200)
    one, other = choose(3 * logits, leaf), choose((3 * logits).log_softmax(dim=1), leaf)
    assert one.strength == pytest.approx(other.strength, abs=1e-9)
    torch.testing.assert_close(one.offsets, other.offsets, atol=1e-9, rtol=0)
    assert one.offsets.sum().abs() < 1e-9


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_few_images_cost_little_on_new_ones(times):
    """250 images, logits that vary too much from image to image: the fit comes near the truth on
    fresh images, where one with free offsets loses 0.02 nats."""
    means = torch.linspace(-1, 1, 9, dtype=torch.float64)

    def exaggerate(logits: Tensor) -> Tensor:
        return means + times * (logits - means)

    fresh, reached = draw_world(5_000, seed=99)
    best = mean_nll(unchanged(9), fresh, reached)
    losses, free = [], []
    for seed in range(20):
        logits, leaf = draw_world(250, seed=7 + 2 * seed)
        logits = exaggerate(logits)
        losses.append(mean_nll(choose(logits, leaf), exaggerate(fresh), reached) - best)
        free.append(mean_nll(solve(logits, leaf, 1e3), exaggerate(fresh), reached) - best)
    assert sum(losses) / 20 < 0.007
    assert 0.014 < sum(free) / 20 < 0.03


@pytest.mark.parametrize("images", [1, 4, 5, 12])
def test_a_handful_of_images_gives_finite_numbers(images):
    logits, leaf = draw_world(images)
    found = choose(100 * logits, leaf)
    assert math.isfinite(found.strength)
    assert found.offsets.isfinite().all()
    if images < module.FOLDS:
        assert found.strength == 1
        assert not found.offsets.any()


def test_a_head_that_says_the_same_of_every_image_gets_only_offsets():
    leaf = torch.arange(600) % 3
    leaf[leaf == 2] = 0
    found = choose(torch.zeros(600, 3, dtype=torch.float64), leaf)
    assert found.strength == 1
    assert found.offsets.softmax(0)[0] == pytest.approx(2 / 3, abs=0.02)


def sure_predictor(recipe, *changes: str, times: float = 30.0) -> TreePredictor:
    """A predictor whose head talks loudly about nothing."""
    torch.manual_seed(0)
    predictor = build_predictor(recipe("tree.depth=2", *changes)).eval()
    last = last_layer(predictor)
    nn.init.normal_(last.weight, std=times / 8)
    nn.init.normal_(last.bias)
    return predictor


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_folding_gives_the_calibrated_probabilities_and_keeps_the_leaves(recipe, blobs, norm):
    chosen = recipe("tree.depth=2")
    times = 30.0 if norm == "layer" else 300.0  # features hardly vary before a batch is seen
    predictor = sure_predictor(recipe, f"network.head_norm={norm}", times=times).double()
    y = predictor.measure(blobs(16).batch(range(16))[0].double())
    before = predictor(y)
    record = calibrate(predictor, blobs(64, seed=2), chosen)
    after = predictor(y)
    found = Calibration(record["strength"], torch.tensor(record["offsets"], dtype=torch.float64))
    assert found.strength < 0.9
    torch.testing.assert_close(after.log_probs[-1], found.apply(before.log_probs[-1]))
    assert torch.equal(after.leaves, before.leaves)
    assert not torch.equal(after.root, before.root)


def test_a_tree_of_one_level_keeps_its_paths(recipe, blobs):
    images, chosen = blobs(64), recipe()
    torch.manual_seed(0)
    predictor = build_predictor(chosen).eval()
    nn.init.normal_(last_layer(predictor).weight, std=4)
    before = score(predictor, images)
    record = calibrate(predictor, images, chosen)
    after = score(predictor, images)
    assert torch.equal(after["leaf"], before["leaf"])
    assert record["strength"] != 1


def test_the_record_says_what_scoring_says(recipe, blobs):
    images, predictor = blobs(64), sure_predictor(recipe)
    before = score(predictor, images)
    record = calibrate(predictor, images, recipe("tree.depth=2"))
    after = score(predictor, images)
    assert record["images"] == 64
    for moment, scores in (("before", before), ("after", after)):
        for name, values in (("nll", "nll"), ("entropy", "entropy"), ("psnr", "psnr_hole")):
            found = scores[values].double().mean(dim=0).tolist()
            assert record[f"{name}_{moment}"] == pytest.approx(found, abs=1e-6)
    assert record["nll_after"][-1] < record["nll_before"][-1]
    assert record["nll_after"][-1] < math.log(4) + 0.01
    assert record["nll_after"][0] == pytest.approx(0, abs=1e-6)


def test_what_would_be_worse_is_undone(recipe, blobs, monkeypatch):
    """Paths may change with the probabilities, so a good fit need not make a good tree."""
    images, predictor = blobs(64), build_predictor(recipe()).eval()
    before = {k: v.clone() for k, v in predictor.network.state_dict().items()}
    rare = score(predictor, images)["leaf"].bincount(minlength=2).argmin()
    harmful = Calibration(1.0, 9.0 * nn.functional.one_hot(rare, 2).double())
    monkeypatch.setattr(module, "choose", lambda logits, leaf: harmful)
    record = calibrate(predictor, images, recipe())
    assert record["strength"] == 1
    assert record["offsets"] == [0.0, 0.0]
    assert record["nll_after"] == record["nll_before"]
    assert all(torch.equal(v, before[k]) for k, v in predictor.network.state_dict().items())


def test_the_layer_of_the_logits_is_found_in_every_network(recipe):
    y = torch.rand(3, 1, 8, 8, generator=seeded())
    unet = build_predictor(recipe())
    assert find_logits(unet, y) is last_layer(unet)
    wrapped = wrap(nn.Conv2d(1, 2, 3, padding=1), features=2, channels=1, branching=2, depth=1)
    assert find_logits(wrapped, y) is last_layer(wrapped)
    toy = TreePredictor(TreeMLP(4, width=4), Denoise(1.0), branching=2, depth=2, channels=2)
    assert find_logits(toy, torch.rand(3, 2)) is last_layer(toy)


class Decoys(nn.Module):
    """Three layers with two outputs: of what precedes the logits, the logits, and beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.beside, self.logits, self.before = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
        self.to_image = nn.Conv2d(1, 2, 1)

    def forward(self, y: Tensor) -> Leaves:
        maps = self.to_image(y)
        features = self.before(maps.mean(dim=(2, 3)))
        log_probs = self.logits(features).log_softmax(dim=1)
        maps = maps + self.beside(features)[:, :, None, None]
        return Leaves(maps.unsqueeze(2), log_probs)


@pytest.mark.parametrize("is_identity", [False, True])
def test_layers_of_the_same_size_are_told_apart_by_what_they_compute(is_identity):
    """If the layer before gives the logits too, it is the later one that makes them."""
    torch.manual_seed(0)
    network = Decoys()
    if is_identity:
        nn.init.eye_(network.logits.weight)
        nn.init.zeros_(network.logits.bias)
    mine = TreePredictor(network, Denoise(0.1), branching=2, depth=1, channels=1)
    assert find_logits(mine, torch.rand(3, 1, 8, 8, generator=seeded())) is network.logits


class Equal(nn.Module):
    """Two leaves with probabilities from no layer at all, or from one without a bias."""

    def __init__(self, has_layer: bool) -> None:
        super().__init__()
        self.to_image = nn.Conv2d(1, 2, 1)
        self.head = nn.Linear(2, 2, bias=False) if has_layer else None

    def forward(self, y: Tensor) -> Leaves:
        maps = self.to_image(y)
        logits = maps.mean(dim=(2, 3))
        logits = self.head(logits) if self.head else logits
        return Leaves(maps.unsqueeze(2), logits.log_softmax(dim=1))


@pytest.mark.parametrize("has_layer", [False, True])
def test_a_network_without_such_a_layer_is_refused_before_it_is_trained(
    tmp_path, recipe, blobs, has_layer
):
    mine = TreePredictor(Equal(has_layer), Denoise(0.1), branching=2, depth=1, channels=1)
    denoise = ("measurement.kind=denoise", "measurement.sigma=0.1")
    chosen = recipe("training.calibrate=true", *denoise)
    with pytest.raises(RunError, match=r"2 leaves.*ProbabilityHead.*training.calibrate=false"):
        fit(chosen, tmp_path, images=(blobs(8), blobs(8)), predictor=mine, accelerator="cpu")
    assert not (tmp_path / "log.jsonl").exists()


def test_a_run_without_validation_images_is_refused(tmp_path, recipe, blobs):
    with pytest.raises(RunError, match=r"0 validation images.*training.calibrate=false"):
        fit(recipe("training.calibrate=true"), tmp_path, images=(blobs(8), None), accelerator="cpu")


def train(recipe, folder: Path, images, *changes: str, **options) -> TreePredictor:
    chosen = recipe("tree.depth=2", *FAST, *changes)
    return fit(chosen, folder, images=images, accelerator="cpu", **options)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.is_file()}


def without_seconds(log: list[dict]) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in log]


@pytest.fixture
def images(blobs) -> tuple[ImageSet, ImageSet]:
    return blobs(24), blobs(40, seed=1)


LOUD = ("loss.beta=30", "network.head_norm=batch")
"""Twenty-four images learned by heart: the head is over-confident."""


def test_a_calibrated_training_ends_with_a_lower_nll_and_differs_in_nothing_else(
    tmp_path, recipe, images
):
    plain = train(recipe, tmp_path / "plain", images, *LOUD)
    returned = train(recipe, tmp_path / "fitted", images, *LOUD, "training.calibrate=true")
    states = [store.read(tmp_path / f / "state.safetensors")[0] for f in ("plain", "fitted")]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    weights = plain.network.state_dict(), returned.network.state_dict()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    models = [load(tmp_path / folder, device="cpu") for folder in ("plain", "fitted")]
    before, after = (score(model, images[1], seed=3)["nll"].mean(dim=0) for model in models)
    record = models[1].about["calibration"]
    assert record["strength"] < 1
    assert after[-1] < before[-1] - 0.01
    assert record["nll_before"] == pytest.approx(before.tolist(), abs=1e-6)
    assert record["nll_after"] == pytest.approx(after.tolist(), abs=1e-6)
    changed = {
        name
        for name, weight in models[0].network.state_dict().items()
        if not torch.equal(weight, models[1].network.state_dict()[name])
    }
    assert changed == {"head.layers.6.weight", "head.layers.6.bias"}
    plain_log, log = (read_log(tmp_path / f / "log.jsonl") for f in ("plain", "fitted"))
    assert log[-1].pop("calibration") == record
    assert without_seconds(log) == without_seconds(plain_log)


def test_a_finished_run_is_not_calibrated_again(tmp_path, recipe, images):
    train(recipe, tmp_path, images, *LOUD, "training.calibrate=true")
    before = bytes_of(tmp_path)
    for _ in range(2):
        train(recipe, tmp_path, images, *LOUD, "training.calibrate=true")
        assert bytes_of(tmp_path) == before


def test_a_finished_run_can_be_calibrated_later(tmp_path, recipe, images):
    train(recipe, tmp_path / "later", images, *LOUD)
    for folder in ("later", "at_once"):
        train(recipe, tmp_path / folder, images, *LOUD, "training.calibrate=true")
    later, at_once = (load(tmp_path / folder, device="cpu") for folder in ("later", "at_once"))
    assert later.about["calibration"] == at_once.about["calibration"]
    weights = [model.network.state_dict() for model in (later, at_once)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_that_is_not_over_is_not_calibrated(tmp_path, recipe, images):
    def half(steps, first, total):
        for step in steps:
            if step == 6:
                return
            yield step

    train(recipe, tmp_path, images, *LOUD, "training.calibrate=true", watch=half)
    assert "calibration" not in store.read_facts(tmp_path / "best.safetensors")["about"]
    assert [line["epoch"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2]


def test_calibrating_a_run_leaves_the_predictor_its_own_weights(tmp_path, recipe, images):
    train(recipe, tmp_path, images, *LOUD)
    chosen = recipe("tree.depth=2", *FAST, *LOUD)
    other = build_predictor(chosen)
    before = {k: v.clone() for k, v in other.network.state_dict().items()}
    calibrate_run(Run(tmp_path, chosen), other, images[1])
    assert all(torch.equal(v, before[k]) for k, v in other.network.state_dict().items())
    assert "calibration" in load(tmp_path, device="cpu").about


class KilledError(Exception):
    pass


@pytest.mark.parametrize("moment", ["calibrate", "read_log", "save_model"])
def test_killed_while_calibrating_it_ends_the_same(tmp_path, recipe, images, monkeypatch, moment):
    """Before anything, before the log and before the model is written."""
    chosen = (*LOUD, "training.calibrate=true")
    train(recipe, tmp_path / "whole", images, *chosen)

    def kill(*_, **__):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(module, moment, kill)
        with pytest.raises(KilledError):
            train(recipe, tmp_path / "parts", images, *chosen)
    assert "calibration" not in store.read_facts(tmp_path / "parts" / "best.safetensors")["about"]
    train(recipe, tmp_path / "parts", images, *chosen)
    one, other = (store.read(tmp_path / f / "best.safetensors") for f in ("parts", "whole"))
    assert all(torch.equal(one[0][name], other[0][name]) for name in other[0])
    assert one[1] == other[1]
    logs = [read_log(tmp_path / f / "log.jsonl") for f in ("parts", "whole")]
    assert without_seconds(logs[0]) == without_seconds(logs[1])


def test_a_new_run_from_a_calibrated_model_is_calibrated_itself(tmp_path, recipe, images):
    chosen = (*LOUD, "training.calibrate=true")
    train(recipe, tmp_path / "first", images, *chosen)
    train(recipe, tmp_path / "second", images, *chosen, start=tmp_path / "first")
    abouts = [store.read_facts(tmp_path / f / "best.safetensors")["about"] for f in
              ("first", "second")]  # fmt: skip
    assert abouts[0]["calibration"] != abouts[1]["calibration"]


def test_groups_in_the_order_of_their_names_are_warned_of_once(tmp_path, recipe, images):
    """The wells that follow each other on a plate are not like the others."""
    training, validation = images

    def name(kept: ImageSet) -> ImageSet:
        fields = [f"E{i // 4:02d}_s{i % 4}.png" for i in range(len(kept))]
        return ImageSet(kept.x, kept.y, fields)

    wells = name(training), name(validation)
    changes = ("data.kind='images'", "data.split='well'", "training.calibrate=true")
    for order, heard in (("sorted", 1), ("hash", 0)):
        chosen = recipe(*FAST, *changes, f"data.split_order='{order}'")
        fit(chosen, tmp_path / order, images=wells, accelerator="cpu")
        said = "".join(
            str(line.get("warnings", [])) for line in read_log(tmp_path / order / "log.jsonl")
        )
        assert said.count("data.split_order='hash'") == heard
