"""Training: trees specialise, every option acts, and a stopped run goes on as if never stopped."""

import contextlib
import errno
import io
import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch._functorch.config as tracing
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from PIL import Image
from rich.console import Console
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from posterior_trees import LeafBalancer, Tree, cli, load, store
from posterior_trees.data import ImageSet, fingerprint
from posterior_trees.errors import DataError, ModelError, RunError
from posterior_trees.fast.graph import Capture
from posterior_trees.loss import epsilon_at, probability_loss, tree_loss
from posterior_trees.measure import Inpaint
from posterior_trees.models.build import build_predictor
from posterior_trees.predictor import TreePredictor
from posterior_trees.progress import Progress, in_words, track
from posterior_trees.recipe import read_recipe
from posterior_trees.recipe.sections import OptimizerSpec
from posterior_trees.seeding import seed_device
from posterior_trees.training import learn, optimize
from posterior_trees.training.devices import make_fabric
from posterior_trees.training.feed import Feed, Order
from posterior_trees.training.health import (
    Health,
    idle_options,
    perplexity,
    warn_of_deafness,
)
from posterior_trees.training.objective import Objective
from posterior_trees.training.optimize import Schedule, load_slots, make_optimizer
from posterior_trees.training.run import Run, read_log
from posterior_trees.training.trainer import Trainer, fit

FAST = ("optimizer.lr=0.02", "optimizer.head_lr=0.02")
EVERYTHING = (
    "tree.depth=2",
    "measurement.kind=denoise",
    "measurement.sigma=0.2",
    "data.augment=[\"flip\", \"affine\"]",
    "network.dropout=0.1",
    "network.head_dropout=0.1",
    "network.head_norm=batch",
    "balancer.is_on=true",
    "balancer.start=1.5",
    "balancer.refresh_every=2",
    "optimizer.clip=1.0",
    "optimizer.warmup_steps=3",
    "optimizer.patience=0",
    "optimizer.weight_decay=0.01",
    "training.average_half_life=0.5",
)  # fmt: skip
"""Everything random and everything with a memory at once."""


def train(recipe, folder: Path, images, **options) -> TreePredictor:
    return fit(recipe, folder, images=images, accelerator="cpu", **options)


def state_of(folder: Path) -> dict[str, Tensor]:
    return store.read(folder / "state.safetensors")[0]


def best_of(folder: Path) -> dict[str, Tensor]:
    return store.read(folder / "best.safetensors")[0]


def log_of(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in
            read_log(folder / "log.jsonl")]  # fmt: skip


def assert_same_run(found: Path, expected: Path) -> None:
    """Weights, optimiser, balancer, best model and log agree bit for bit."""
    for read in (state_of, best_of):
        one, other = read(found), read(expected)
        assert one.keys() == other.keys()
        differing = [name for name in one if not torch.equal(one[name], other[name])]
        assert differing == []
    assert log_of(found) == log_of(expected)


def assert_stops_change_nothing(chosen, folder: Path, images, stops: tuple[int, ...]) -> None:
    """A run that ended after some steps, and went on, is that which never stopped."""
    train(chosen, folder / "whole", images)
    for last in stops:
        with pytest.raises(StoppedError):
            train(chosen, folder / "parts", images, watch=stop_at(last))
    train(chosen, folder / "parts", images)
    assert_same_run(folder / "parts", folder / "whole")


@pytest.fixture
def images(blobs) -> tuple[ImageSet, ImageSet]:
    return blobs(24), blobs(8, seed=1)


@pytest.mark.parametrize("probability", ["cross_entropy", "paper"])
def test_leaves_stay_together_at_epsilon_1_and_then_specialise(
    tmp_path, recipe, blobs, probability
):
    chosen = recipe(*FAST, "seed=0", "training.epochs=16", "loss.epsilon_start=4",
                    "loss.epsilon_scale=1.5", f"loss.probability={probability}")  # fmt: skip
    predictor = train(chosen, tmp_path, (blobs(64), blobs(32, seed=1)))
    log = log_of(tmp_path)
    assert [line["epoch"] for line in log] == list(range(1, 17))
    assert [line["epsilon"] for line in log] == [epsilon_at(e, 4, 1.5) for e in range(1, 17)]
    assert all(line["epsilon"] == 1 for line in log[:4])
    assert log[-1]["squared"] < 0.5 * log[0]["squared"]
    assert log[-1]["val_loss"] < 0.7 * log[0]["val_loss"]
    root, leaf = log[3]["val_psnr"]
    assert abs(leaf - root) < 0.5
    root, leaf = log[-1]["val_psnr"]
    assert leaf > root + 4
    # two answers with even odds: ln 2 of surprise, and the tree knows it
    assert log[-1]["val_nll"][-1] == pytest.approx(math.log(2), abs=0.05)
    assert log[-1]["val_entropy"][-1] == pytest.approx(math.log(2), abs=0.05)
    # one leaf is the blob on the left, the other the blob on the right
    x, _ = blobs(1, seed=5).batch([0])
    leaves = predictor(predictor.measure(x)).leaves[0, :, 0]
    lefts = leaves[:, 1:4, 0:3].mean(dim=(1, 2)) > leaves[:, 1:4, 4:7].mean(dim=(1, 2))
    assert sorted(lefts.tolist()) == [False, True]


def train_by_hand(recipe, x: Tensor, steps: int, loss_of) -> dict[str, Tensor]:
    """The recipe's network after some steps of SGD on the whole set, without the library's loop."""
    torch.manual_seed(recipe.seed)
    predictor = build_predictor(recipe)
    optimizer = torch.optim.SGD(predictor.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        loss_of(predictor(predictor.measure(x)), step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return predictor.network.state_dict()


SGD = ("optimizer.name=sgd", "optimizer.lr=0.1", "optimizer.head_lr=0.1", "training.batch_size=24",
       "training.epochs=5")  # fmt: skip


def test_depth_0_is_plain_mse_training(tmp_path, recipe, images):
    chosen = recipe(*SGD, "tree.depth=0", "network.width=4")
    trained = train(chosen, tmp_path, images).network.state_dict()
    x, _ = images[0].batch(range(24))
    by_hand = train_by_hand(chosen, x, 5, lambda tree, step: (tree.root - x).square().mean())
    for name, weight in by_hand.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-4, atol=1e-6)
    start = train_by_hand(chosen, x, 0, None)
    assert max((trained[k] - start[k]).abs().max() for k in start) > 0.01
    assert {line["leaf_usage"][0] for line in log_of(tmp_path)} == {1.0}


@pytest.mark.parametrize(("probability", "beta"), [("cross_entropy", 0.7), ("paper", 0.0)])
def test_the_loop_minimises_the_losses_of_the_contract(tmp_path, recipe, images, probability, beta):
    """Squared errors at the epoch's ε, plus β · (squared error of the root) · cross-entropy."""
    chosen = recipe(*SGD, "tree.depth=2", "loss.beta=0.7", f"loss.probability={probability}")
    trained = train(chosen, tmp_path, images).network.state_dict()
    x, _ = images[0].batch(range(24))

    def loss_of(tree: Tree, step: int) -> Tensor:
        scale = (tree.root - x).square().mean().detach()
        squared = tree_loss(tree, x, epsilon_at(step, 1.0, 0.5))
        return (squared + beta * scale * probability_loss(tree, x)).mean()

    for name, weight in train_by_hand(chosen, x, 5, loss_of).items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-3, atol=1e-5, msg=name)


def test_the_average_has_the_half_life_it_was_given(tmp_path, recipe, images):
    chosen = recipe("training.average_half_life=0.5", "training.epochs=4", *FAST)
    predictor, history = build_predictor(chosen), []
    mean = {k: v.clone() for k, v in predictor.network.state_dict().items()}

    def watch(steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        for step in steps:
            yield step
            history.append({k: v.clone() for k, v in predictor.network.state_dict().items()})

    train(chosen, tmp_path, images, predictor=predictor, watch=watch)
    for step, weights in enumerate(history):
        decay = min(0.5 ** (1 / 1.5), (1 + step) / (10 + step))  # 3 steps an epoch
        mean = {k: decay * v + (1 - decay) * weights[k] for k, v in mean.items()}
    assert len(history) == 12
    stored = state_of(tmp_path)
    for name, expected in mean.items():
        torch.testing.assert_close(stored[f"average/{name}"], expected)
        torch.testing.assert_close(predictor.network.state_dict()[name], expected)
        assert torch.equal(stored[f"network/{name}"], history[-1][name])
    assert not torch.allclose(mean["to_image.weight"], history[-1]["to_image.weight"])


def test_the_best_weights_are_the_average(tmp_path, recipe, images):
    train(recipe("training.average_half_life=0.5", "training.epochs=1"), tmp_path, images)
    stored = state_of(tmp_path)
    assert all(torch.equal(v, stored[f"average/{k}"]) for k, v in best_of(tmp_path).items())


def test_cosine_falls_from_the_base_to_the_floor():
    schedule = Schedule(OptimizerSpec(schedule="cosine", min_lr=1e-5), total_steps=100)
    assert schedule.lr(1e-3, 0) == 1e-3
    assert schedule.lr(1e-3, 50) == pytest.approx(5e-4)
    assert schedule.lr(1e-3, 100) == schedule.lr(1e-3, 120) == 1e-5
    assert schedule.lr(2e-4, 50) == pytest.approx(1e-4)
    rates = [schedule.lr(1e-3, step) for step in range(101)]
    assert rates == sorted(rates, reverse=True)


def test_plateau_falls_tenfold_after_patience_epochs_without_progress():
    schedule = Schedule(OptimizerSpec(patience=2, min_lr=5e-6), total_steps=100)
    rates = []
    for loss in (1.0, 0.9, 0.9, 0.95, 0.91, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0):
        schedule.observe(loss)
        rates.append(schedule.lr(1e-3, 7))
    expected = [1e-3] * 4 + [1e-4] * 4 + [1e-5] * 3 + [5e-6] * 2
    assert rates == pytest.approx(expected)
    again = Schedule(OptimizerSpec(patience=2, min_lr=5e-6), total_steps=100)
    again.load_state_dict(json.loads(json.dumps(schedule.state_dict())))
    assert (again.plateau, again.best, again.bad_epochs) == (
        schedule.plateau, schedule.best, schedule.bad_epochs)  # fmt: skip


def test_a_fresh_schedule_survives_its_state():
    schedule = Schedule(OptimizerSpec(), 10)
    schedule.load_state_dict(json.loads(json.dumps(schedule.state_dict())))
    assert schedule.best == math.inf


def test_warm_up_rises_linearly():
    schedule = Schedule(OptimizerSpec(warmup_steps=4), total_steps=100)
    assert [schedule.lr(1.0, s) for s in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "rates"),
    [("schedule=cosine", (1e-3, 1e-3 / 2, 5e-6)), ("patience=0", (1e-3, 1e-4, 1e-5))],
)
def test_the_logged_rate_is_the_one_in_force(tmp_path, recipe, images, monkeypatch, change, rates):
    import posterior_trees.training.trainer as module

    real = module.validate
    monkeypatch.setattr(module, "validate", lambda *a: {**real(*a), "val_loss": 1.0})
    train(recipe(f"optimizer.{change}", "training.batch_size=24"), tmp_path, images)
    found = [line["lr"] for line in log_of(tmp_path)]
    if change == "patience=0":
        assert found == pytest.approx([1e-3, 1e-3, 1e-4])  # of the epoch, not of the next one
    else:
        assert found == pytest.approx(
            [1e-3 * 0.5 * (1 + math.cos(math.pi * s / 3)) for s in range(3)]
        )


def test_the_head_and_the_network_have_their_own_learning_rates(tmp_path, recipe, images):
    """With next to no lr the body stands still while the head moves, and the other way round."""
    for still, moving in (("lr", "head_lr"), ("head_lr", "lr")):
        chosen = recipe(f"optimizer.{still}=1e-50", f"optimizer.{moving}=0.1", "optimizer.min_lr=0",
                        "optimizer.name=sgd", "training.epochs=1")  # fmt: skip
        torch.manual_seed(chosen.seed)
        before = build_predictor(chosen).network.state_dict()
        after = train(chosen, tmp_path / still, images).network.state_dict()
        moved = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
        assert moved == ({"head"} if still == "lr" else {"encoder", "decoder", "to_image"})


def read_rates_from_tensors(monkeypatch) -> None:
    """Optimisers as on CUDA, where a recorded step reads its rates from the device."""
    import posterior_trees.training.learn as module

    def on_device(*arguments):
        optimizer = make_optimizer(*arguments)
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(group["lr"])
        return optimizer

    monkeypatch.setattr(module, "make_optimizer", on_device)


def test_rates_in_tensors_are_the_same_rates_also_after_a_stop(
    tmp_path, recipe, images, monkeypatch
):
    changes = "optimizer.warmup_steps=4", "optimizer.head_lr=0.01", "optimizer.weight_decay=0.1"
    train(recipe(*changes), tmp_path / "plain", images)
    read_rates_from_tensors(monkeypatch)
    train(recipe(*changes), tmp_path / "whole", images)

    def watch(steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        return (step for step in steps if step < 4)

    for _ in range(2):
        train(recipe(*changes), tmp_path / "parts", images, watch=watch)
        watch = None
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    plain, whole = state_of(tmp_path / "plain"), state_of(tmp_path / "whole")
    for name in plain:
        if name.startswith("network/"):
            torch.testing.assert_close(whole[name], plain[name], rtol=1e-4, atol=1e-6)


class Launches(TorchDispatchMode):
    """Counts what would be launched on a GPU. Free are views, new memory, what stays on the CPU
    there (one random number), and checks that are made only here."""

    FREE = (
        "view", "slice", "select", "unbind", "detach", "alias", "empty", "lift_fresh", "diagonal",
        "t", "transpose", "permute", "unsqueeze", "split", "random_", "bitwise_or_", "aminmax",
        "_local_scalar_dense",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function.overloadpacket.__name__
        self.names += [] if name in self.FREE else [name]
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("is_balanced", "most"), [("false", 6), ("true", 46)])
def test_a_step_is_one_recording_and_a_few_launches(
    tmp_path, recipe, blobs, monkeypatch, is_balanced, most
):
    """Images, measurement and one copy of numbers; all else is part of what CUDA replays. The
    balancer comes on top: a solution, a choice, weights and counts."""
    read_rates_from_tensors(monkeypatch)
    chosen = recipe("loss.conscience=0.5", "training.average_half_life=1.0",
                    "optimizer.head_lr=0.01", f"balancer.is_on={is_balanced}",
                    "balancer.start=0")  # fmt: skip
    fabric, run = make_fabric(chosen, "cpu"), Run(tmp_path, chosen)
    trainer = Trainer(chosen, build_predictor(chosen), blobs(24), None, fabric, run)
    monkeypatch.setattr(trainer, "_refuse_nan", lambda: None)
    winners = torch.zeros(8, dtype=torch.long)
    monkeypatch.setattr(trainer.learner, "_learn", lambda x, y, weights: winners)
    trainer.advance(0)
    with Launches() as launches:
        trainer.advance(1)
    assert len(launches.names) <= most, launches.names
    assert "randperm" not in launches.names  # numbers for all samples would have to travel


TRACED = """
import sys
from functools import partial
import torch
from posterior_trees.training import learn
from posterior_trees.training import trainer as train
from tests.tiny import make_blobs, make_recipe
trace = partial(torch.compile, backend="eager", fullgraph=True)
def compiled(function, **_):
    traced = trace(function)
    if isinstance(function, torch.nn.Module):
        return traced
    def judge(*given):
        out = traced(*given)
        assert type(out) is tuple and all(isinstance(o, torch.Tensor | None) for o in out)
        return out
    return judge
learn.compiled = compiled
for choice in ("true", "false"):
    recipe = make_recipe(*sys.argv[2:], "training.compile=" + choice)
    train.fit(recipe, sys.argv[1] + "/" + choice, images=(make_blobs(24), None), accelerator="cpu")
"""


ONE_PASS = (
    "tree.depth=2", "loss.guided_epochs=1", "loss.focus=[0.25, 0.75, 0.25, 0.75]",
    "loss.surprise=0.1", "loss.conscience=0.5", "loss.epsilon_start=0.5", "loss.features=shape",
)  # fmt: skip
GROWING = (
    "network.kind=growing", "network.levels=3", "network.steps=2", "network.c_init=2",
    "loss.surprise=0.1", "loss.epsilon_start=0.5", "loss.features=edges",
)  # fmt: skip


@pytest.mark.parametrize("options", [ONE_PASS, GROWING], ids=["one pass", "growing"])
def test_the_compiler_judges_a_batch_in_one_piece(tmp_path, options):
    """Traced as one graph, run by torch itself, and plain tensors come out: torch 2.11 refuses a
    named tuple that was replaced. In a process without our checks of types, which the compiler
    cannot trace."""
    command = [sys.executable, "-c", TRACED, str(tmp_path), *options]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[1])
    plain = state_of(tmp_path / "false")
    for name, found in state_of(tmp_path / "true").items():
        torch.testing.assert_close(found, plain[name])


class Replayed(Capture):
    """What CUDA records and replays, called."""

    def __call__(self, *inputs):
        return self.function(*inputs)


def test_a_short_recorded_step_moves_weights_as_a_plain_one(tmp_path, recipe, blobs, monkeypatch):
    """AdamW traced by the compiler, which reads rates from tensors; torch itself runs it here."""
    monkeypatch.setattr(learn, "compiled", lambda function, **_: function)
    monkeypatch.setattr(learn, "MANY", 0)
    monkeypatch.setattr(optimize, "compiled", partial(torch.compile, backend="eager"))
    weights = []
    for is_recorded in ("false", "true"):
        if is_recorded == "true":
            read_rates_from_tensors(monkeypatch)
        chosen = recipe(f"training.compile={is_recorded}", "optimizer.warmup_steps=3")
        fabric, run = make_fabric(chosen, "cpu"), Run(tmp_path / is_recorded, chosen)
        torch.manual_seed(0)
        trainer = Trainer(chosen, build_predictor(chosen), blobs(24), None, fabric, run)
        learner = trainer.learner
        learner._learn = Replayed(learner._learn)
        for group in learner.optimizer.param_groups:
            group["capturable"] = is_recorded == "true"
        for step in range(4):
            trainer.advance(step)
        assert ("step" in vars(learner.optimizer.optimizer)) == (is_recorded == "true")
        weights.append([parameter.detach() for parameter in learner.network.parameters()])
    for plain, found in zip(*weights, strict=True):
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "is_compiled"),
    [("none", True), ("few steps", False), ("much data", False), ("not recorded", False),
     ("scaled gradients", False)],
)  # fmt: skip
def test_adamw_is_compiled_only_where_it_pays_and_can_be(
    tmp_path, recipe, blobs, monkeypatch, change, is_compiled
):
    compiled = []
    monkeypatch.setattr(learn, "compiled", lambda function, **_: function)
    monkeypatch.setattr(learn, "compile_step", compiled.append)
    monkeypatch.setattr(learn, "MANY", 10**9 if change == "few steps" else 0)
    monkeypatch.setattr(learn, "LITTLE", 0 if change == "much data" else 10**9)
    chosen = recipe("training.compile=true")
    fabric, run = make_fabric(chosen, "cpu"), Run(tmp_path, chosen)
    trainer = Trainer(chosen, build_predictor(chosen), blobs(24), None, fabric, run)
    if change == "scaled gradients":
        fabric.strategy.precision.scaler = object()
    if change != "not recorded":
        trainer.learner._learn = Replayed(trainer.learner._learn)
    trainer.learner._prepare(torch.zeros(2, 1, 8, 8))
    assert compiled == ([trainer.learner.optimizer.optimizer] if is_compiled else [])


@pytest.mark.skipif(not hasattr(tracing, "backward_pass_autocast"), reason="torch before 2.9")
def test_a_network_is_compiled_with_a_plain_way_back(tmp_path, recipe, blobs):
    chosen, found = recipe(), []
    fabric, run = make_fabric(chosen, "cpu"), Run(tmp_path, chosen)
    trainer = Trainer(chosen, build_predictor(chosen), blobs(24), None, fabric, run)
    note = lambda *_: found.append(tracing.backward_pass_autocast)  # noqa: E731
    trainer.learner.network.register_forward_pre_hook(note)
    trainer.advance(0)
    assert found == ["off"]


@pytest.mark.gpu
@pytest.mark.parametrize("decoder", ["shared", "disjoint"])
def test_a_compiled_run_is_the_plain_run(tmp_path, decoder):
    """28×28 pixels: rows that the compiler of torch 2.11 lengthens, and then reads amiss. The root
    is a mean of the leaves and no worse than they are on average, so at ε = 1, with probabilities
    still equal, all 13 nodes together have at least 13 times its error."""
    seeded = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (640, 1, 28, 28), generator=seeded, dtype=torch.uint8)
    file, ratios = Path(__file__).parents[1] / "recipes" / "digits_inpaint.toml", []
    for is_compiled in ("true", "false"):
        chosen = read_recipe(file, [
            f"network.decoder={decoder}", "network.dropout=0", "loss.epsilon_start=9",
            "training.epochs=1", "training.batch_size=64", f"training.compile={is_compiled}",
            "training.picture_every=0",
        ])  # fmt: skip
        fit(chosen, tmp_path / is_compiled, images=(ImageSet(pixels), None), accelerator="cuda")
        (line,) = log_of(tmp_path / is_compiled)
        ratios.append(line["squared"] / line["root_mse"])
    assert ratios[0] == pytest.approx(ratios[1], rel=0.02)
    assert min(ratios) >= 13


class Unrecorded:
    """What takes the place of `Capture` where a step is to run as it is."""

    def __new__(cls, step):
        return step


COUNTED = ("loss.conscience=0.5", "balancer.is_on=true", "balancer.start=1", "optimizer.clip=0.1")


@pytest.mark.gpu
@pytest.mark.parametrize("more", [COUNTED, (*GROWING, "training.precision=64-true")], ids=str)
def test_a_recorded_run_is_the_plain_run(tmp_path, recipe, images, monkeypatch, more):
    """Rates, conscience, health and balancer go on while the step is replayed, and so do levels and
    regions; in float64, as rounding chooses among siblings that are still alike."""
    logs = []
    for capture in ("true", "false"):
        if capture == "false":
            monkeypatch.setattr("posterior_trees.training.learn.Capture", Unrecorded)
        chosen = recipe(
            "optimizer.schedule=cosine", "optimizer.head_lr=0.01", *more,
            "training.average_half_life=0.5", "training.epochs=6",
        )  # fmt: skip
        fit(chosen, tmp_path / capture, images=images, accelerator="cuda")
        logs.append(log_of(tmp_path / capture))
    for one, other in zip(*logs, strict=True):
        assert sum(one["leaf_usage"]) == pytest.approx(1, abs=1e-4)
        for key in ("squared", "root_mse", "nll", "entropy", "val_loss", "lr", "epsilon"):
            assert one[key] == pytest.approx(other[key], rel=0.02), key


@pytest.mark.gpu
def test_a_run_on_a_gpu_stopped_after_every_step_is_the_whole_run(tmp_path, recipe, images):
    """Fused optimisers want their moments in the order of the weights, which have channels last."""
    changes = "training.epochs=3", "training.average_half_life=0.5", "optimizer.schedule=cosine"
    fit(recipe(*changes), tmp_path / "whole", images=images, accelerator="cuda")
    for _ in range(9):
        fit(recipe(*changes), tmp_path / "cut", images=images, accelerator="cuda",
            watch=lambda steps, *_: itertools.islice(steps, 1))  # fmt: skip
    logs = log_of(tmp_path / "whole"), log_of(tmp_path / "cut")
    assert len(logs[0]) == len(logs[1]) == 3
    for one, other in zip(*logs, strict=True):
        for key in ("squared", "root_mse", "nll", "val_loss", "lr"):
            assert one[key] == pytest.approx(other[key], rel=0.02), key


def test_moments_come_back_in_the_order_of_their_weights(recipe):
    """As a file keeps them, row by row, they go into a network with channels last."""
    chosen = recipe()
    network = build_predictor(chosen).network.to(memory_format=torch.channels_last)
    fabric = Fabric(accelerator="cpu", devices=1)
    optimizer = make_optimizer(chosen, network, torch.device("cpu"))
    _, optimizer = fabric.setup(network, optimizer)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    saved = optimizer.state_dict()["state"]
    rows = {
        str(number): {name: value.contiguous() for name, value in slot.items()}
        for number, slot in saved.items()
    }
    moments = {p: slot["exp_avg"].clone() for p, slot in optimizer.state.items()}
    assert any(not p.is_contiguous() for p in moments)
    load_slots(optimizer, rows)
    for parameter, moment in moments.items():
        for name in ("exp_avg", "exp_avg_sq"):
            assert optimizer.state[parameter][name].stride() == parameter.stride()
        assert torch.equal(optimizer.state[parameter]["exp_avg"], moment)
        assert optimizer.state[parameter]["step"] == 1


def test_moments_of_other_weights_are_refused(recipe):
    chosen = recipe()
    network = build_predictor(chosen).network
    optimizer = make_optimizer(chosen, network, torch.device("cpu"))
    sum(p.square().sum() for p in network.parameters()).backward()
    optimizer.step()
    slots = {str(n): dict(s) for n, s in optimizer.state_dict()["state"].items()}
    load_slots(optimizer, slots)  # its own fit
    slots["0"], slots["1"] = slots["1"], slots["0"]
    with pytest.raises(ValueError, match="another version wrote this run"):
        load_slots(optimizer, slots)


def test_only_weights_before_a_normalisation_decay(recipe):
    """Not norms, not biases, and not the last layers: images and logits would shrink."""
    chosen = recipe("optimizer.weight_decay=0.1", "optimizer.lr=0.5", "optimizer.head_lr=0.25")
    network = build_predictor(chosen).network
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    optimizer = make_optimizer(chosen, network, torch.device("cpu"))
    grouped = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            name = names[id(parameter)]
            grouped.append(name)
            assert group["lr"] == (0.25 if name.startswith("head.") else 0.5), name
            is_last = name.startswith(("to_image.", "head.layers.6."))
            is_decayed = parameter.ndim > 1 and not is_last
            assert group["weight_decay"] == (0.1 if is_decayed else 0.0), name
    assert sorted(grouped) == sorted(names.values())


RARE = (*FAST, "seed=0", "training.epochs=8", "loss.epsilon_start=3", "loss.epsilon_scale=1")
VARIANTS = {
    "closed": (),
    "exact": ("balancer.is_exact=true",),
    "drawn": ("balancer.is_greedy=false",),
    "paper": ("balancer.is_windowed=true", "balancer.floor=0"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_balancer_lets_a_rare_answer_learn_as_often(tmp_path, recipe, blobs, variant):
    """An answer of 1 in 8 images: its leaf wins 1 in 8 images, and then every other one."""
    chosen = recipe(*RARE, "balancer.is_on=true", "balancer.start=3", *VARIANTS[variant])
    train(chosen, tmp_path, (blobs(64, odds=0.15), None))
    log = log_of(tmp_path)
    assert min(log[2]["leaf_usage"]) < 0.15
    assert min(log[-1]["leaf_usage"]) > 0.35
    assert perplexity(log[-1]["leaf_usage"]) > 1.9


def test_without_the_balancer_usage_is_the_frequency(tmp_path, recipe, blobs):
    train(recipe(*RARE), tmp_path, (blobs(64, odds=0.15), None))
    assert min(log_of(tmp_path)[-1]["leaf_usage"]) == pytest.approx(0.125)


def test_the_balancers_weights_multiply_the_loss(tmp_path, recipe, images, monkeypatch):
    """With weights of 0 nothing is learned, neither images nor probabilities."""
    monkeypatch.setattr(LeafBalancer, "weights", lambda self, indices: torch.zeros(len(indices)))
    chosen = recipe(*SGD, "balancer.is_on=true", "balancer.start=0")
    trained = train(chosen, tmp_path, images).network.state_dict()
    torch.manual_seed(chosen.seed)
    for name, weight in build_predictor(chosen).network.state_dict().items():
        assert torch.equal(trained[name], weight)


def test_patches_and_augmentation(tmp_path, recipe, blobs):
    """Training takes random 16×16 windows of 32×32 images; validation a fixed grid of four."""
    large = [
        ImageSet(s.x.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3))
        for s in (blobs(24), blobs(8, seed=1))
    ]
    chosen = recipe("measurement.kind=denoise", "data.patch=16", "data.augment=symmetries", *FAST)
    predictor, seen = build_predictor(chosen), []
    predictor.network.register_forward_pre_hook(
        lambda network, inputs: seen.append((network.training, tuple(inputs[0].shape)))
    )
    train(chosen, tmp_path, tuple(large), predictor=predictor)
    assert set(seen) == {(True, (8, 1, 16, 16)), (False, (32, 1, 16, 16))}
    log = log_of(tmp_path)
    assert log[-1]["val_loss"] < log[0]["val_loss"]


def test_pairs_come_with_their_measurements(tmp_path, recipe, blobs):
    """y is the negative of x: what was flipped and cropped together can still be inverted."""

    def pairs(n: int, seed: int) -> ImageSet:
        x = blobs(n, seed).x
        return ImageSet(x, 255 - x)

    chosen = recipe("measurement.kind=paired", "data.kind=pairs", "data.augment=flip",
                    "training.epochs=8", *FAST)  # fmt: skip
    train(chosen, tmp_path, (pairs(32, 0), pairs(8, 1)))
    log = log_of(tmp_path)
    assert log[-1]["val_loss"] < 0.6 * log[0]["val_loss"]


def test_without_validation_the_last_weights_are_the_best(tmp_path, recipe, blobs):
    train(recipe("training.epochs=2"), tmp_path, (blobs(16), None))
    stored = state_of(tmp_path)
    assert all(torch.equal(v, stored[f"average/{k}"]) for k, v in best_of(tmp_path).items())
    assert "val_loss" not in log_of(tmp_path)[-1]


def test_without_validation_the_first_epoch_leaves_a_model_too(tmp_path, recipe, blobs):
    with pytest.raises(StoppedError):
        train(recipe("training.epochs=4"), tmp_path, (blobs(24), None), watch=stop_at(4))
    assert load(tmp_path, device="cpu").about["epochs"] == 1


def test_best_is_the_epoch_of_the_lowest_validation_loss(tmp_path, recipe, images):
    train(recipe("training.epochs=6", *FAST), tmp_path, images)
    losses = [line["val_loss"] for line in log_of(tmp_path)]
    about = store.read_facts(tmp_path / "best.safetensors")["about"]
    assert about["epochs"] == losses.index(min(losses)) + 1
    assert load(tmp_path, device="cpu").about["step"] == 3 * about["epochs"]


def test_a_small_set_is_one_batch(tmp_path, recipe, blobs):
    train(recipe("training.batch_size=500", "training.epochs=2"), tmp_path, (blobs(5), None))
    assert [line["step"] for line in log_of(tmp_path)] == [1, 2]


def test_equal_seeds_train_equal_weights_and_others_do_not(tmp_path, recipe, images):
    for name, seed in (("a", 3), ("b", 3), ("c", 20260726123456789)):
        train(recipe(f"seed={seed}", *EVERYTHING[:5], "training.epochs=1"), tmp_path / name, images)
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert not torch.equal(*(best_of(tmp_path / n)["to_image.weight"] for n in "ac"))


def test_a_run_begins_with_the_weights_it_is_given(tmp_path, recipe, images):
    train(recipe(*FAST), tmp_path / "first", images)
    still = recipe("optimizer.lr=1e-12", "optimizer.head_lr=1e-12", "seed=3", "training.epochs=1")
    found = train(still, tmp_path / "second", images, start=tmp_path / "first")
    for name, weight in best_of(tmp_path / "first").items():
        torch.testing.assert_close(found.network.state_dict()[name], weight, rtol=0, atol=1e-6)
    assert load(tmp_path / "second").about["start"] == "first"
    # once it has begun it goes on from its own state
    long = recipe(*FAST, "training.epochs=4")
    train(long, tmp_path / "long", images, start=tmp_path / "first")
    saving = recipe(*FAST, "training.epochs=4", "training.save_seconds=0")
    with pytest.raises(StoppedError):
        train(saving, tmp_path / "cut", images, start=tmp_path / "first", watch=stop_at(7))
    train(long, tmp_path / "cut", images, start=tmp_path / "first")
    assert_same_run(tmp_path / "cut", tmp_path / "long")


def test_a_rate_makes_trees_more_predictable(tmp_path, recipe, blobs):
    """With a high rate all blobs, those on the right too, teach the leaf that is expected, and the
    rarer answer is given up."""
    images = blobs(64, odds=0.25), blobs(32, seed=1, odds=0.25)
    squared = {}
    changes = {
        "none": (),
        "rate": ("loss.surprise=100",),
    }
    for name, change in changes.items():
        chosen = recipe(*FAST, *change, "training.epochs=12", "loss.epsilon_start=1",
                        "loss.epsilon_scale=0.5")  # fmt: skip
        train(chosen, tmp_path / name, images)
        squared[name] = log_of(tmp_path / name)[-1]["squared"]
    assert squared["rate"] > 1.2 * squared["none"]


def test_a_run_refuses_weights_of_another_layout(tmp_path, recipe, images):
    train(recipe("training.epochs=1"), tmp_path / "first", images)
    other = recipe("tree.depth=2")
    with pytest.raises(ModelError, match=r"cannot begin with the weights of .*first: \d+ weights"):
        train(other, tmp_path / "second", images, start=tmp_path / "first")
    assert not (tmp_path / "second").exists()


def test_seeding_a_step_is_torchs_without_what_it_queues_for_other_devices():
    torch.manual_seed(17)
    want = torch.rand(5)
    queued = [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)]
    seed_device(torch.device("cpu"), 17)
    assert torch.equal(torch.rand(5), want)
    assert [len(kind._queued_calls) for kind in (torch.cuda, torch.xpu)] == queued


def test_bf16_mixed_trains_on_the_cpu(tmp_path, recipe, images):
    predictor = train(
        recipe("training.precision=bf16-mixed", "training.epochs=1"), tmp_path, images
    )
    assert predictor.dtype == torch.float32
    assert math.isfinite(log_of(tmp_path)[-1]["val_loss"])


def test_the_data_folder_is_read_and_a_missing_set_is_named(tmp_path, recipe, blob_folder):
    predictor = fit(
        recipe("training.epochs=1"), tmp_path / "run", data=blob_folder, accelerator="cpu"
    )
    assert isinstance(predictor(predictor.measure(torch.zeros(1, 1, 8, 8))), Tree)
    assert log_of(tmp_path / "run")[-1]["step"] == 3  # 24 of 32 images train, 8 validate
    with pytest.raises(DataError, match="photos"):
        fit(recipe("data.name=photos"), tmp_path / "other", data=blob_folder, accelerator="cpu")
    # the mistake can be mended in the same folder: nothing was trained there yet
    fit(recipe("training.epochs=1"), tmp_path / "other", data=blob_folder, accelerator="cpu")


def test_pictures_appear(tmp_path, recipe, images):
    train(recipe("training.picture_every=2"), tmp_path, images)
    pictures = sorted((tmp_path / "trees").iterdir())
    assert [p.name for p in pictures] == ["epoch_0002.png", "epoch_0003.png"]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in pictures)


def test_a_dead_leaf_is_announced_with_advice(tmp_path, recipe, images):
    chosen = recipe("loss.epsilon_start=0", "loss.epsilon_scale=0.1", "training.epochs=2")
    predictor = build_predictor(chosen)
    with torch.no_grad():
        predictor.network.to_image.bias[1] += 50  # far from everything
    lines = []
    train(chosen, tmp_path, images, predictor=predictor, report=lines.append)
    warning, *others = log_of(tmp_path)[-1]["warnings"]
    assert lines[-1]["warnings"] == [warning, *others]
    assert "leaves [1] are reached by fewer than 0.2%" in warning
    assert "balancer.is_on=true" in warning
    assert "loss.epsilon_scale" in warning


def test_a_dead_leaf_is_announced_at_the_end_whatever_epsilon_is(tmp_path, recipe, images):
    chosen = recipe("loss.epsilon_start=9", "training.epochs=2")
    predictor = build_predictor(chosen)
    with torch.no_grad():
        predictor.network.to_image.bias[1] += 50
    train(chosen, tmp_path, images, predictor=predictor)
    heard = ["leaves [1]" in "".join(line.get("warnings", [])) for line in log_of(tmp_path)]
    assert heard == [False, True]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ((), []),
        (("loss.guided_epochs=2", "loss.epsilon_start=1", "loss.surprise=0.1"), []),
        (("loss.guided_epochs=3", "loss.epsilon_start=1", "loss.surprise=0.1"), ["loss.surprise"]),
        (("loss.guided_epochs=3", "loss.epsilon_start=1"), []),
        (("loss.epsilon_start=4",), ["annealing"]),
        (("loss.epsilon_start=4", "tree.depth=0"), []),
        (
            ("loss.guided_epochs=3", "loss.epsilon_start=4", "loss.surprise=0.1"),
            ["annealing", "loss.guided_epochs"],
        ),
        (("balancer.is_on=true", "balancer.start=4"), ["the balancer"]),
        (("balancer.is_on=true", "balancer.start=3.5"), []),
        (("balancer.is_on=true", "balancer.start=9", "tree.depth=0"), []),
    ],
)
def test_what_the_epochs_leave_no_time_for_is_said(recipe, changes, named):
    warnings = idle_options(recipe(*changes, "training.epochs=4"))
    assert [warning.split(" acts after ")[0] for warning in warnings] == named
    assert all("the run has 4: lower " in warning for warning in warnings)


def test_an_idle_option_is_in_the_first_line_of_the_log(tmp_path, recipe, images):
    chosen = recipe("loss.guided_epochs=2", "loss.epsilon_start=2", "training.epochs=2")
    train(chosen, tmp_path, images)
    said = [
        "loss.guided_epochs acts after 2" in "".join(x.get("warnings", []))
        for x in log_of(tmp_path)
    ]
    assert said == [True, False]


def test_fit_says_what_its_epochs_leave_no_time_for_if_nobody_reads_its_log(
    tmp_path, recipe, images
):
    short = recipe("loss.epsilon_start=5", "training.epochs=1")
    with pytest.warns(UserWarning, match="annealing acts after 5 epochs, the run has 1"):
        train(short, tmp_path / "mute", images)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(short, tmp_path / "heard", images, report=lambda line: None)


def test_a_run_does_not_go_on_with_other_images(tmp_path, recipe, blobs):
    """Neither more of them nor as many under other names; their number alone says little."""
    images = blobs(24)
    named = ImageSet(images.x, names=[f"{i}.png" for i in range(24)])
    train(recipe("training.epochs=1"), tmp_path, (named, None))
    for other, count in ((ImageSet(images.x, names=[f"{i}.jpg" for i in range(24)]), 24),
                         (named.subset(range(20)), 20)):  # fmt: skip
        words = rf"begun with 24 other training images \(there are {count} now"
        with pytest.raises(RunError, match=words):
            train(recipe("training.epochs=1"), tmp_path, (other, None))
    assert load(tmp_path).about["train_names"] == fingerprint(named.names)


def test_a_run_does_not_go_on_with_other_extra_images(tmp_path, recipe, blobs):
    """Neither by its recipe nor with another file in the extra set; a model counts them, and knows
    its own set's files by their fingerprint, whatever its extras are."""
    for name, seed in (("photos", 0), ("more", 1), ("others", 2)):
        (tmp_path / name).mkdir()
        for number, image in enumerate(blobs(12, seed=seed).x):
            Image.fromarray(image[0].numpy()).save(tmp_path / name / f"{number:02d}.png")
    files = ("data.name=photos", "data.kind=images", "data.split=name", "data.test=0.25",
             "data.split_order=sorted", "training.epochs=1", "data.extra=['more']")  # fmt: skip
    fit(recipe(*files), tmp_path / "run", data=tmp_path, accelerator="cpu")
    about = load(tmp_path / "run").about
    assert about["train_images"] == 6 + 12
    assert about["train_names"] == fingerprint([f"{i:02d}.png" for i in range(6)])
    fit(recipe(*files), tmp_path / "run", data=tmp_path, accelerator="cpu")
    other = recipe(*files, "data.extra=['others']")
    with pytest.raises(RunError, match=r"data.extra: \('more',\) → \('others',\)"):
        fit(other, tmp_path / "run", data=tmp_path, accelerator="cpu")
    (tmp_path / "more" / "00.png").rename(tmp_path / "more" / "12.png")
    with pytest.raises(RunError, match="begun with 18 other training images"):
        fit(recipe(*files), tmp_path / "run", data=tmp_path, accelerator="cpu")


def test_images_that_changed_sides_are_announced(tmp_path, recipe, capsys):
    """The split goes by sorted names: one more at the front, and trained ones are tested."""
    generator = np.random.default_rng(0)

    def save(name: str) -> None:
        pixels = generator.integers(256, size=(8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / name)

    (tmp_path / "photos").mkdir()
    for number in range(20):
        save(f"{number:02d}.png")
    files = ("data.name=photos", "data.kind=images", "data.split=name", "data.test=0.2",
             "training.epochs=1")  # fmt: skip
    fit(recipe(*files), tmp_path / "run", data=tmp_path, accelerator="cpu")
    words = ["evaluate", str(tmp_path / "run"), "--data", str(tmp_path)]
    cli.main(words)
    assert "not those of the training" not in capsys.readouterr().err
    save("00_new.png")
    cli.main(words)
    assert "ptrees evaluate: the images of 'photos' are not those" in capsys.readouterr().err


def test_a_head_that_does_not_listen_is_announced_with_advice(tmp_path, recipe, images):
    fast = ("loss.epsilon_start=0", "loss.epsilon_scale=0.1", "training.epochs=4")
    train(recipe(*fast, "optimizer.head_lr=1e-12"), tmp_path, images)
    lines = log_of(tmp_path)
    assert all(line["val_information"] == pytest.approx(0, abs=1e-6) for line in lines)
    heard = ["same probabilities" in "".join(line.get("warnings", [])) for line in lines]
    assert heard == [False, True, True, True]
    assert "network.head_norm='batch'" in lines[-1]["warnings"][-1]
    assert "this is the truth, or the head has not learned" in lines[-1]["warnings"][-1]


@pytest.mark.parametrize(
    ("changes", "is_warned"),
    [({}, True), ({"epsilon": 0.5}, False), ({"val_information": 0.1}, False),
     ({"leaf_usage": [1.0]}, False)],
)  # fmt: skip
def test_deafness_needs_time_leaves_and_evidence(changes, is_warned):
    line = {"epsilon": 0.0, "leaf_usage": [0.5, 0.5], "val_information": 0.0, "warnings": ["dead"]}
    line |= changes
    warn_of_deafness(line, 0.4)
    assert line["warnings"] == ["dead"]
    warn_of_deafness(line, 0.6)
    assert len(line["warnings"]) == 1 + is_warned
    assert line["warnings"][-1].startswith("every image") == is_warned
    warn_of_deafness(line, 0.6, "batch")  # nobody is told to do what was done
    assert "head_norm" not in line["warnings"][-1]


def made_up_loss(values: Tensor, leaf: Tensor) -> Objective:
    """`values` as the squared loss, multiples of them as the other parts, and winning leaves."""
    parts = {"squared": values, "nll": 2 * values, "entropy": 3 * values, "root": 4 * values}
    return Objective(**(dict.fromkeys(Objective._fields, leaf) | parts))


def test_no_dead_leaf_is_announced_while_all_leaves_still_learn():
    health = Health(2, torch.device("cpu"))
    zeros = torch.zeros(4)
    leaf = torch.zeros(4, dtype=torch.long)
    for epsilon, is_last, is_warned in (
        (1.0, False, False),
        (0.01, False, True),
        (1.0, True, True),
    ):
        health.note(health.sum(made_up_loss(zeros, leaf)), leaf)
        line = health.summary(epsilon, is_last)
        assert line["leaf_usage"] == [1.0, 0.0]
        assert ("warnings" in line) == is_warned
        if is_warned:  # to one whose ε never fell, longer annealing is bad advice
            assert ("let it fall sooner" in line["warnings"][0]) == (epsilon == 1.0)
            assert ("anneal longer" in line["warnings"][0]) == (epsilon == 0.01)


@pytest.mark.parametrize("is_balanced", [False, True])
def test_nobody_is_told_to_switch_on_a_balancer_that_is_on(is_balanced):
    health = Health(2, torch.device("cpu"), is_balanced)
    leaf = torch.zeros(4, dtype=torch.long)
    health.note(health.sum(made_up_loss(torch.zeros(4), leaf)), leaf)
    (warning,) = health.summary(0.0)["warnings"]
    assert ("balancer" in warning) != is_balanced
    assert warning.endswith("or use a smaller tree")


def test_advice_is_given_once_and_each_its_own(capsys):
    numbers = dict.fromkeys(("root_mse", "nll", "entropy", "epsilon", "lr", "seconds"), 0.0)
    progress = Progress("training")
    for epoch in range(1, 5):
        warnings = [f"leaves [{epoch}] are dead: anneal"] + ["all are deaf: shout"] * (epoch > 2)
        progress.epoch({"epoch": epoch, **numbers, "warnings": warnings})
    said = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert said == ["warning: leaves [1] are dead: anneal", "warning: all are deaf: shout"]


@pytest.mark.parametrize(("every", "lines"), [(0.0, ["counting: 1 of 3", "counting: 2 of 3"]),
                                              (60.0, [])])  # fmt: skip
def test_without_a_terminal_a_long_loop_says_in_lines_how_far_it_is(
    every, lines, capsys, monkeypatch
):
    monkeypatch.setattr("posterior_trees.progress.LINE_EVERY", every)
    clock = SimpleNamespace(monotonic=iter((0.0, 0.0, 1.0, 2.0)).__next__)
    monkeypatch.setattr("posterior_trees.progress.time", clock)
    assert list(track("counting")("abc")) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == lines


def run_of(steps: int, seconds: float, monkeypatch, console: Console | None = None) -> Progress:
    """A run of epochs of four steps, each of so many seconds after a first that compiles."""
    now = itertools.chain([0.0, 50.0], itertools.count(50.0 + seconds, seconds))
    clock = SimpleNamespace(monotonic=now.__next__)
    monkeypatch.setattr("posterior_trees.progress.time", clock)
    with Progress("learning", per_epoch=4, can_stop=False) as progress:
        progress.console = console or progress.console
        for step in progress.steps(iter(range(steps)), 0, steps):
            if step % 4 == 3:
                numbers = dict.fromkeys(("root_mse", "nll", "entropy", "epsilon", "lr"), 0.0)
                scores = {"val_psnr": [20.0] * 4, "val_nll": [0.0] * 4, "seconds": 1.0}
                progress.epoch({"epoch": step // 4 + 1, "step": step + 1, **numbers, **scores})
    return progress


def test_a_long_run_says_how_long_it_takes_once_it_knows(capsys, monkeypatch):
    run_of(40, 3.0, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    first = next(line for line in said if line.startswith("learning: 3 s a step"))
    assert first == "learning: 3 s a step, 9 s left of epoch 2, 2 min left of the run"
    epochs = [line for line in said if line.startswith("epoch")]
    assert epochs[4].endswith("(1 s, 60 s left)")
    assert epochs[-1].endswith("(1 s)")
    run_of(40, 0.1, monkeypatch)  # of a short run nobody asks
    assert "learning: 0.1 s" not in capsys.readouterr().out


def test_lines_of_a_run_do_not_wrap_where_nobody_reads_them_in_a_terminal(capsys, monkeypatch):
    run_of(8, 0.1, monkeypatch)
    said = capsys.readouterr().out.splitlines()
    assert [line.startswith(("epoch", "learning")) for line in said] == [True] * len(said)
    assert max(map(len, said)) > 120


def test_in_a_terminal_the_bar_has_the_time_that_is_left(monkeypatch):
    drawn = io.StringIO()
    monkeypatch.setattr(
        "posterior_trees.progress.Console",
        lambda quiet: Console(file=drawn, force_terminal=True, width=160),
    )
    progress = run_of(40, 3.0, monkeypatch)
    assert re.search(r"40/40\S* 3 s a step, 0 s left of the run", drawn.getvalue())
    assert progress.left(37) == "3 s a step, 9 s left of epoch 10, 9 s left of the run"


@pytest.mark.parametrize(("seconds", "words"), [(3, "3 s"), (99, "99 s"), (240, "4 min"),
                         (6_000, "1.7 h"), (200_000, "2.3 days")])  # fmt: skip
def test_times_are_told_as_people_tell_them(seconds, words):
    assert in_words(seconds) == words


@pytest.mark.parametrize("is_quiet", [False, True])
def test_without_a_terminal_a_training_is_heard_of_before_its_first_epoch(
    capsys, monkeypatch, is_quiet
):
    clock = SimpleNamespace(monotonic=iter((100.0, 104.0, 111.0, 119.0, 130.0, 200.0)).__next__)
    monkeypatch.setattr("posterior_trees.progress.time", clock)
    with Progress("learning", can_stop=False, is_quiet=is_quiet) as progress:
        assert list(progress.steps(iter(range(7, 12)), 7, 12)) == [7, 8, 9, 10, 11]
    expected = [
        "continuing at step 7 of 12",
        "learning: step 9 of 12  (11 s, 7 s a step, 21 s left of the run)",
        "learning: step 11 of 12  (30 s, 8.7 s a step, 9 s left of the run)",
        "learning: step 12 of 12  (100 s, 24 s a step, 0 s left of the run)",
    ]
    assert capsys.readouterr().out.splitlines() == ([] if is_quiet else expected)


def test_health_is_the_mean_over_the_epoch_and_then_starts_again():
    health = Health(3, torch.device("cpu"))
    for start in (0.0, 4.0):
        loss = made_up_loss(torch.arange(4.0) + start, torch.tensor([0, 1, 1, 2]))
        health.note(health.sum(loss), loss.leaf)
    again = Health(3, torch.device("cpu"))
    again.load_state_dict(health.state_dict())
    line = again.summary(1.0)
    parts = [line[k] for k in ("squared", "nll", "entropy", "root_mse")]
    assert parts == [3.5, 7.0, 10.5, 14.0]
    assert line["leaf_usage"] == [0.25, 0.5, 0.25]
    assert again.summary(1.0)["squared"] == 0
    assert perplexity([0.25] * 4) == pytest.approx(4)


# ---- stopping and going on ------------------------------------------------------------------


class Poison(Inpaint):
    """Measures as `Inpaint` does, but gives NaN at one call."""

    def __init__(self, hole: Tensor, bad_call: int) -> None:
        super().__init__(hole)
        self.calls, self.bad_call = 0, bad_call

    def forward(self, x, generator=None):
        self.calls += 1
        return super().forward(x) * (math.nan if self.calls == self.bad_call else 1)


def test_a_nan_loss_stops_the_run_and_keeps_the_last_good_state(tmp_path, recipe, images):
    """And after the cause is gone, the run goes on as if nothing had happened."""
    chosen = recipe("training.save_seconds=0", "training.epochs=2")
    torch.manual_seed(chosen.seed)
    poisoned = build_predictor(chosen)
    poisoned.measurement = Poison(poisoned.measurement.hole, bad_call=3)
    with pytest.raises(RunError, match=r"NaN or infinite near step 3.*last good state") as error:
        train(chosen, tmp_path / "a", images, predictor=poisoned)
    assert "optimizer.lr (now 0.001)" in str(error.value)
    assert store.read_facts(tmp_path / "a" / "state.safetensors")["state"]["step"] == 2
    assert all(v.isfinite().all() for v in state_of(tmp_path / "a").values())
    train(chosen, tmp_path / "a", images)
    train(chosen, tmp_path / "b", images)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_a_step_that_breaks_the_weights_is_not_saved(tmp_path, recipe, images):
    """Its own loss was still finite: only the gradient was not."""
    chosen = recipe("training.save_seconds=0", "training.epochs=2")
    torch.manual_seed(chosen.seed)
    predictor, calls = build_predictor(chosen), iter(range(1, 100))
    predictor.network.to_image.bias.register_hook(
        lambda gradient: gradient * (math.nan if next(calls) == 3 else 1)
    )
    with pytest.raises(RunError, match="a weight became NaN or infinite near step 3"):
        train(chosen, tmp_path / "a", images, predictor=predictor)
    assert store.read_facts(tmp_path / "a" / "state.safetensors")["state"]["step"] == 2
    train(chosen, tmp_path / "a", images)
    train(chosen, tmp_path / "b", images)
    assert_same_run(tmp_path / "a", tmp_path / "b")


def test_broken_weights_are_never_written(tmp_path, recipe, blobs):
    chosen = recipe()
    fabric = Fabric(accelerator="cpu", devices=1)
    predictor, run = build_predictor(chosen), Run(tmp_path, chosen)
    trainer = Trainer(chosen, predictor, blobs(8), None, fabric, run)
    trainer.save()
    (tmp_path / "state.safetensors").unlink()
    with torch.no_grad():
        predictor.network.to_image.weight[0] = math.inf
    with pytest.raises(RunError, match="NaN or infinite"):
        trainer.save()
    assert not (tmp_path / "state.safetensors").exists()


@pytest.mark.parametrize("clip", [0, 1e30])
def test_a_learning_rate_that_explodes_ends_in_advice(tmp_path, recipe, blobs, clip):
    changes = ("optimizer.name=sgd", "optimizer.lr=1e38", "optimizer.head_lr=1e38",
               f"optimizer.clip={clip}")  # fmt: skip
    with pytest.raises(
        RunError, match=r"Lower optimizer\.lr \(now 1e\+38\), set optimizer\.clip=1\.0"
    ):
        train(recipe(*changes, "training.save_seconds=0"), tmp_path, (blobs(24), None))


def test_a_run_of_another_recipe_is_refused(tmp_path, recipe, images):
    train(recipe("training.epochs=1"), tmp_path, images)
    with pytest.raises(RunError, match=r"another recipe \(tree.branching: 2 → 3\)"):
        train(recipe("training.epochs=1", "tree.branching=3"), tmp_path, images)
    assert "branching = 2" in (tmp_path / "recipe.toml").read_text()
    train(
        recipe("training.epochs=1", "training.save_seconds=5"), tmp_path, images
    )  # does not matter


def test_a_state_that_is_none_is_named(tmp_path, recipe, images):
    train(recipe("training.epochs=1"), tmp_path, images)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(store.StoreError, match=r"state\.safetensors is damaged"):
        train(recipe("training.epochs=1"), tmp_path, images)
    store.write(state, {}, {"model": 1})
    with pytest.raises(RunError, match="is not the state of a run"):
        train(recipe("training.epochs=1"), tmp_path, images)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path, recipe):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(store.StoreError, match=r"cannot make the folder .*file"):
        Run(tmp_path / "file", recipe())


def test_the_log_is_cut_back_to_the_state(tmp_path, recipe):
    run = Run(tmp_path, recipe())
    for step in (3, 6, 9):
        run.log({"step": step, "value": 0.5})
    with run.log_file.open("a") as stream:
        stream.write('{"step": 12, "val')  # killed while writing
    assert [line["step"] for line in read_log(run.log_file)] == [3, 6, 9]
    run.rewind(6)
    assert run.log_file.read_text() == '{"step": 3, "value": 0.5}\n{"step": 6, "value": 0.5}\n'
    Run(tmp_path, recipe(), is_writer=False).rewind(0)  # other processes leave the files alone
    assert len(read_log(run.log_file)) == 2


def test_a_run_killed_before_its_first_save_starts_its_log_again(tmp_path, recipe, images):
    Run(tmp_path, recipe("tree.branching=3")).log({"step": 3, "epoch": 1})  # nothing to lose yet
    (tmp_path / "state.safetensors.abc.part").write_bytes(b"half")
    train(recipe(), tmp_path, images)
    assert [line["epoch"] for line in log_of(tmp_path)] == [1, 2, 3]
    assert not list(tmp_path.glob("*.part"))


class StoppedError(Exception):
    pass


def stop_at(last: int):
    """A `watch` that ends the run after step `last`."""

    def watch(steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        for step in steps:
            yield step
            if step == last:
                raise StoppedError

    return watch


@pytest.mark.parametrize(
    ("save_seconds", "more"),
    [((0, 0, 0, 0, 0), ()), ((0, 1e9, 0, 1e9, 0), ()), ((1e9,) * 5, ()),
     ((0, 1e9, 0, 1e9, 0), (*GROWING, "balancer.is_on=false"))],
    ids=str,
)  # fmt: skip
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, recipe, images, save_seconds, more):
    """With everything on: noise, augmentation, dropout, batch norm, balancer, average; and of a
    network that grows, whose levels and regions are drawn.

    What a run did after its last save is done again, and its log lines are written again.
    """
    changes = (*EVERYTHING, *FAST, "training.epochs=4", *more)
    train(recipe(*changes), tmp_path / "whole", images)
    for last, seconds in zip((0, 3, 4, 8, 10), save_seconds, strict=True):
        chosen = recipe(*changes, f"training.save_seconds={seconds}")
        with pytest.raises(StoppedError):
            train(chosen, tmp_path / "parts", images, watch=stop_at(last))
    assert (tmp_path / "parts" / "state.safetensors").is_file() == (0 in save_seconds)
    for _ in range(2):  # the second time finds a finished run, and leaves it as it is
        train(recipe(*changes), tmp_path / "parts", images)
        assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_a_plateau_and_the_best_model_are_remembered(tmp_path, recipe, images, monkeypatch):
    """The validation loss never falls: the rate does, and the first model stays the best."""
    import posterior_trees.training.trainer as module

    real = module.validate
    monkeypatch.setattr(module, "validate", lambda *a: {**real(*a), "val_loss": 1.0})
    chosen = recipe("optimizer.patience=1", "training.save_seconds=0", "training.epochs=5")
    assert_stops_change_nothing(chosen, tmp_path, images, stops=(6, 10))
    assert [line["lr"] for line in log_of(tmp_path / "whole")] == pytest.approx(
        [1e-3, 1e-3, 1e-3, 1e-4, 1e-4]
    )
    assert store.read_facts(tmp_path / "parts" / "best.safetensors")["about"]["epochs"] == 1


BALANCED = ("balancer.is_on=true", "balancer.start=0")
MEMORIES = {
    "sgd": ("optimizer.name=sgd",),
    "drawn": (*BALANCED, "balancer.is_greedy=false"),
    "exact": (*BALANCED, "balancer.is_exact=true"),
    "cosine": ("optimizer.schedule=cosine", "tree.depth=0", "network.width=2"),
    "conscience": ("tree.depth=2", "loss.conscience=1.0", "loss.epsilon_start=0", "data.repeat=2"),
    "seeds": (
        "tree.depth=2",
        "loss.guided_epochs=1.5",
        "loss.epsilon_start=0",
        "data.augment=['flip']",
    ),
}


@pytest.mark.parametrize("changes", MEMORIES.values(), ids=MEMORIES)
def test_other_memories_are_saved_too(tmp_path, recipe, images, changes):
    chosen = recipe(*changes, "training.save_seconds=0", "training.epochs=2")
    assert_stops_change_nothing(chosen, tmp_path, images, stops=(1, 3))


@pytest.mark.parametrize(
    ("precision", "accelerator", "has_bfloat16", "expected"),
    [
        ("auto", "auto", True, "bf16-mixed"),
        ("auto", "auto", False, "32-true"),
        ("auto", "cpu", True, "32-true"),
        ("16-mixed", "auto", True, "16-mixed"),
    ],
)
def test_precision_follows_the_device_unless_the_recipe_says_it(
    recipe, monkeypatch, precision, accelerator, has_bfloat16, expected
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: has_bfloat16)
    made = Mock(return_value=Mock(Fabric))
    monkeypatch.setattr("posterior_trees.training.devices.Fabric", made)
    make_fabric(recipe(f"training.precision={precision}"), accelerator)
    assert made.call_args.kwargs["precision"] == expected


def fabric_with_scaler(**options: Any) -> Fabric:
    """With the gradient scaler of 16-mixed, growing every second step. The plugin computes in
    bfloat16: on the CPU Fabric turns 16-mixed into bf16-mixed, which has no scaler."""
    plugin = MixedPrecision("bf16-mixed", "cpu")
    plugin.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    return Fabric(accelerator=options["accelerator"], devices=1, plugins=plugin)


def test_the_gradient_scaler_goes_on_where_it_was(tmp_path, recipe, images, monkeypatch):
    """Nine steps double the scale four times, also of a run that is stopped between two growths."""
    monkeypatch.setattr("posterior_trees.training.devices.Fabric", fabric_with_scaler)
    chosen = recipe("training.save_seconds=0", "optimizer.clip=1.0")
    assert_stops_change_nothing(chosen, tmp_path, images, stops=(0, 4))
    for name in ("whole", "parts"):
        scaler = store.read_facts(tmp_path / name / "state.safetensors")["state"]["precision"]
        assert (scaler["scale"], scaler["_growth_tracker"]) == (4.0 * 2**4, 1)


def test_a_state_without_a_gradient_scaler_starts_a_fresh_one(
    tmp_path, recipe, images, monkeypatch
):
    """Such as one saved before scalers were, or in another precision."""
    chosen = recipe("training.save_seconds=0")
    with pytest.raises(StoppedError):
        train(chosen, tmp_path, images, watch=stop_at(4))
    state = tmp_path / "state.safetensors"
    tensors, facts = store.read(state)
    assert facts["state"].pop("precision") == {}
    store.write(state, tensors, facts)
    monkeypatch.setattr("posterior_trees.training.devices.Fabric", fabric_with_scaler)
    train(chosen, tmp_path, images)
    assert store.read_facts(state)["state"]["precision"]["scale"] == 4.0 * 2**2


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_full_disk_at_any_save_loses_nothing(tmp_path, recipe, images, monkeypatch, moment):
    """The n-th write of the run fails, and the same command goes on, seven times over."""
    chosen = recipe("training.save_seconds=0", "training.epochs=2")
    train(chosen, tmp_path / "whole", images)
    real, writes = getattr(os, moment), 0

    def fail_at(last: int):
        def write(*arguments: object) -> None:
            nonlocal writes
            writes += 1
            if writes == last:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(*arguments)

        return write

    for last in (1, 3, 3, 4, 2, 3, 5):  # recipe, state, best model, log: each fails at least once
        writes = 0
        monkeypatch.setattr(store.os, moment, fail_at(last))
        with pytest.raises(store.StoreError, match="No space left"):
            train(chosen, tmp_path / "parts", images)
        assert not list((tmp_path / "parts").glob("*.part"))
    monkeypatch.undo()
    train(chosen, tmp_path / "parts", images)
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def start(recipe_file: Path, data: Path, run: Path, changes: list[str]) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "posterior_trees",
        "train",
        str(recipe_file),
        "--data",
        str(data),
    ]
    command += ["--out", str(run), "--device", "cpu"]
    command += [part for change in changes for part in ("--set", change)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_step(run: Path, step: int, process: subprocess.Popen) -> None:
    """Until the run's saved state has come this far, or the process has ended."""
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(store.StoreError):  # not there yet, or just being replaced
            if store.read_facts(run / "state.safetensors")["state"]["step"] >= step:
                return
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_asked_to_stop_saves_and_goes_on(
    tmp_path, recipe, blob_folder, monkeypatch, capsys, number
):
    """In the middle of its work, long before a save is due; nothing is done twice."""
    changes = [*EVERYTHING, "training.save_seconds=1e9", "training.epochs=4"]
    fit(recipe(*changes), tmp_path / "whole", data=blob_folder, accelerator="cpu")
    command = ["train", str(blob_folder / "blobs.toml"), "--data", str(blob_folder), "--out",
               str(tmp_path / "parts"), "--device", "cpu"]  # fmt: skip
    command += [word for change in changes for word in ("--set", change)]
    handler = signal.getsignal(number)
    with monkeypatch.context() as patch:
        asks = lambda self, line: line["epoch"] == 2 and signal.raise_signal(number)  # noqa: E731
        patch.setattr(Progress, "epoch", asks)
        with pytest.raises(SystemExit) as stop:
            cli.main(command)
    assert stop.value.code == 130
    assert "stopped and saved" in capsys.readouterr().err
    assert signal.getsignal(number) is handler
    assert len(log_of(tmp_path / "parts")) == 2
    cli.main(command)
    assert "continuing at step" in capsys.readouterr().out
    assert_same_run(tmp_path / "parts", tmp_path / "whole")


def test_asked_twice_a_run_ends_at_once():
    steps = Progress("training").steps(iter(range(9)), 0, 9)
    next(steps)
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    steps.close()


def test_a_run_that_begins_anew_says_so(tmp_path, blob_folder, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text("")
    cli.main(["train", str(blob_folder / "blobs.toml"), "--data", str(blob_folder), "--out",
              str(tmp_path / "run"), "--device", "cpu"])  # fmt: skip
    said = capsys.readouterr().err
    assert "has a log and no saved state: the run begins anew" in said
    assert re.search(r"^\d+ images to train on", said, re.MULTILINE)


def test_a_run_killed_with_sigkill_ends_in_the_same_weights(tmp_path, recipe, blob_folder):
    """The command is killed at random moments of its work and given again, until it is done."""
    changes = [*EVERYTHING, "training.save_seconds=0", "training.epochs=10"]
    fit(recipe(*changes), tmp_path / "whole", data=blob_folder, accelerator="cpu")
    arguments = blob_folder / "blobs.toml", blob_folder
    chance, kills = random.Random(0), 0
    for step in (1, 14):
        process = start(*arguments, tmp_path / "parts", changes)
        wait_for_step(tmp_path / "parts", step, process)
        time.sleep(0.03 * chance.random())
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    process = start(*arguments, tmp_path / "parts", changes)
    printed, problems = process.communicate(timeout=120)
    assert process.returncode == 0, problems
    assert "done:" in printed
    assert kills == 2
    assert "continuing at step" in printed
    assert_same_run(tmp_path / "parts", tmp_path / "whole")
    assert len(log_of(tmp_path / "parts")) == 10
    assert {p.name for p in (tmp_path / "parts").iterdir()} == {
        ".lock", "recipe.toml", "state.safetensors", "best.safetensors", "log.jsonl", "trees"
    }  # fmt: skip


@pytest.mark.parametrize("few", ["training.batch_size=1", "one image"])
def test_a_head_that_needs_two_images_says_so(tmp_path, recipe, blobs, few):
    """… before torch does, in words about channels."""
    changes = [few] if "=" in few else []
    images = blobs(8 if changes else 1), None
    with pytest.raises(RunError, match="head_norm='batch' needs at least 2: give it more"):
        fit(recipe("network.head_norm=batch", *changes), tmp_path, images=images, accelerator="cpu")
    fit(recipe("training.epochs=1", *changes), tmp_path, images=images, accelerator="cpu")


def test_every_epoch_takes_each_image_in_an_order_of_its_own():
    """`repeat` times each, wherever a run that was stopped begins again."""

    def make() -> Order:
        generator = lambda epoch: torch.Generator().manual_seed(epoch)  # noqa: E731
        return Order(12, 4, repeat=2, generator=generator, device=torch.device("cpu"))

    order = make()
    assert order.steps_per_epoch == 6
    epochs = [torch.cat([order.batch(6 * epoch + i) for i in range(6)]) for epoch in range(3)]
    for epoch in epochs:
        assert epoch.bincount().tolist() == [2] * 12
    for one, other in itertools.combinations(epochs, 2):
        assert not torch.equal(one, other)
    for step in (17, 3, 8):
        assert torch.equal(make().batch(step), epochs[step // 6].split(4)[step % 6])


def test_a_run_shuffles_its_images_anew_in_each_epoch(tmp_path, recipe, images, monkeypatch):
    drawn, draw = [], Feed.draw

    def spy(self, step):
        drawn.append(draw(self, step))
        return drawn[-1]

    monkeypatch.setattr(Feed, "draw", spy)
    train(recipe("training.epochs=3"), tmp_path, images)
    epochs = torch.cat(drawn).split(24)
    assert all(epoch.sort().values.tolist() == list(range(24)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_each_step_drops_other_features(tmp_path, recipe, images, monkeypatch):
    """The same ones in the same step of another run, which need not have begun at the same one."""
    import posterior_trees.training.trainer as module

    seeds, seed = [], seed_device
    monkeypatch.setattr(module, "seed_device", lambda d, s: (seeds.append(s), seed(d, s)))
    chosen = recipe("network.dropout=0.1", "training.epochs=2")
    train(chosen, tmp_path / "one", images)
    assert len(set(seeds)) == len(seeds) == 6
    train(chosen, tmp_path / "two", images)
    assert seeds[6:] == seeds[:6]
