"""Two processes train the model of one: the same weights to rounding, the same balancer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from posterior_trees import store
from posterior_trees.errors import RunError
from posterior_trees.models.build import build_predictor
from posterior_trees.training.devices import gather_leaves, make_fabric
from posterior_trees.training.feed import Feed
from posterior_trees.training.run import Run, read_log
from posterior_trees.training.trainer import Trainer, fit

needs_gloo = pytest.mark.skipif(
    not (torch.distributed.is_available() and torch.distributed.is_gloo_available()),
    reason="this torch was built without gloo",
)

CHANGES = (
    "tree.depth=2",
    "measurement.kind=denoise",
    "measurement.sigma=0.2",
    'data.augment=["flip", "affine"]',
    "optimizer.lr=0.01",
    "optimizer.head_lr=0.01",
    "optimizer.clip=0.5",
    "optimizer.patience=0",
    "balancer.is_on=true",
    "balancer.start=1",
    "training.average_half_life=0.5",
    "training.calibrate=true",
    "training.epochs=4",
)
"""Noise, augmentation, clipping, plateau, balancer, average, calibration: what processes share."""


def train_on_two(
    launcher: list[str],
    options: list[str],
    folder: Path,
    run: Path,
    changes: tuple[str, ...] = CHANGES,
) -> str:
    command = [sys.executable, *launcher, "-m", "posterior_trees", "train"]
    command += [str(folder / "blobs.toml"), "--data", str(folder), "--out", str(run)]
    command += ["--device", "cpu", *options]
    command += [part for change in changes for part in ("--set", change)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def assert_close_runs(found: Path, expected: Path, is_balanced: bool = True) -> None:
    (one, facts), (other, other_facts) = (
        store.read(run / "state.safetensors") for run in (found, expected)
    )
    assert one.keys() == other.keys()
    assert facts["state"]["step"] == other_facts["state"]["step"] == 12
    weights = [name for name in one if name.startswith(("network/", "average/"))]
    assert len(weights) > 80
    for name in weights:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5, msg=name)
    counts = [name for name in one if name.startswith("balancer/")]
    assert {"balancer/conditional", "balancer/totals"} <= set(counts)
    assert ("balancer/in_force" in counts) == is_balanced
    for name in counts:
        torch.testing.assert_close(one[name], other[name], rtol=1e-9, atol=1e-12, msg=name)
    assert facts["state"]["schedule"]["plateau"] == other_facts["state"]["schedule"]["plateau"]
    for run in (found, expected):
        assert "calibration" in store.read_facts(run / "best.safetensors")["about"]
    logs = [read_log(run / "log.jsonl") for run in (found, expected)]
    for line, other_line in zip(*logs, strict=True):
        for key in ("squared", "root_mse", "nll", "entropy", "val_loss", "lr"):
            assert line[key] == pytest.approx(other_line[key], rel=1e-4), key
        assert line["leaf_usage"] == other_line["leaf_usage"]


GROWING = (
    "network.kind=growing", "network.levels=3", "network.c_init=2", "balancer.is_on=false",
    "training.precision=64-true",
)  # fmt: skip
"""In float64: below a level that is new, siblings are so alike that rounding chooses among them."""


@needs_gloo
@pytest.mark.parametrize("more", [(), GROWING], ids=["one pass", "growing"])
def test_torchrun_with_two_processes_trains_the_model_of_one(tmp_path, recipe, blob_folder, more):
    changes = (*CHANGES, *more)
    fit(recipe(*changes), tmp_path / "one", data=blob_folder, accelerator="cpu")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train_on_two(launcher, [], blob_folder, tmp_path / "two", changes)
    assert_close_runs(tmp_path / "two", tmp_path / "one", is_balanced=not more)


def test_other_devices_than_torchrun_has_processes_are_refused(recipe, monkeypatch):
    """Else each of them would train alone, into one folder."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(ValueError, match=r"is 4, but torchrun started 2 .*nproc-per-node 4"):
        make_fabric(recipe(), "cpu", devices=4)


@needs_gloo
def test_a_run_of_one_process_goes_on_with_two(tmp_path, recipe, blob_folder):
    """Without torchrun: `--devices 2` starts the second process itself."""
    whole = recipe(*CHANGES)
    fit(whole, tmp_path / "one", data=blob_folder, accelerator="cpu")

    class StoppedError(Exception):
        pass

    def watch(steps: Iterator[int], first: int, total: int) -> Iterator[int]:
        for step in steps:
            yield step
            if step == 6:
                raise StoppedError

    part = recipe(*CHANGES, "training.save_seconds=0")
    with pytest.raises(StoppedError):
        fit(part, tmp_path / "two", data=blob_folder, accelerator="cpu", watch=watch)
    train_on_two([], ["--devices", "2"], blob_folder, tmp_path / "two")
    assert_close_runs(tmp_path / "two", tmp_path / "one")


def fabric_of(rank: int, processes: int) -> Any:
    """What a trainer asks of Fabric before it sets anything up."""
    return Mock(Fabric, device=torch.device("cpu"), global_rank=rank, world_size=processes)


def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, recipe, blobs):
    chosen = recipe("training.batch_size=7")
    with pytest.raises(RunError, match=r"batch of 7 cannot be shared equally by 2 processes"):
        Trainer(
            chosen, build_predictor(chosen), blobs(16), None, fabric_of(0, 2), Run(tmp_path, chosen)
        )


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_gathered_leaves_are_in_the_order_of_the_batch(recipe, blobs, monkeypatch, processes):
    """What processes contribute adds up to what was dealt out to them."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: None)
    chosen, leaves = recipe(), torch.tensor([3, 1, 4, 1, 5, 2, 6, 5])
    predictor, images = build_predictor(chosen), blobs(16)
    whole = torch.zeros_like(leaves)
    for rank in range(processes):
        feed = Feed(chosen, predictor, images, rank=rank, processes=processes)
        whole += gather_leaves(fabric_of(rank, processes), feed.share(leaves))
    assert torch.equal(whole, leaves)


@pytest.mark.parametrize("processes", [2, 4])
def test_randomness_does_not_depend_on_the_number_of_processes(recipe, blobs, processes):
    """Each image gets the window, flip and noise of its place in the whole batch."""
    chosen = recipe(*CHANGES[1:3], "data.patch=6", 'data.augment=["affine", "symmetries"]')
    predictor, images = build_predictor(chosen), blobs(16)
    indices = torch.tensor([3, 1, 4, 15, 9, 2, 6, 5])

    def measured(rank: int, of: int) -> tuple[Tensor, Tensor]:
        feed = Feed(chosen, predictor, images, rank=rank, processes=of)
        return feed.measured(feed.share(indices), step=11)

    whole = measured(0, 1)
    for rank in range(processes):
        for mine, everyone in zip(measured(rank, processes), whole, strict=True):
            assert torch.equal(mine, everyone[rank::processes])
    assert not torch.equal(whole[0][0], whole[0][1])
