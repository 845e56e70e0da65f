"""`ptrees bench kernels`: what each bundle of our Triton kernels wins, in the rows of recipes.

Of every recipe a training step and predictions are timed in turn with all kernels, without one
bundle, and without any. A bundle that wins less than `ENOUGH` in every row does not earn its lines.
"""

import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from posterior_trees.fast.accelerate import KERNELS
from posterior_trees.recipe import Recipe
from posterior_trees_paper.bench.clock import time_together
from posterior_trees_paper.bench.report import Report, conditions
from posterior_trees_paper.bench.subject import fresh, random_measurement, size_of
from posterior_trees_paper.bench.training import WARM_UP, make_noise, repeated, stepper

ENOUGH = 1.25
IN_TRAINING, IN_PREDICTION = ("norm", "leaf"), ("fused", "leaf")
Call = Callable[[], object]


def bench_kernels(
    recipes: Mapping[str, Recipe],
    device: torch.device,
    *,
    batches: Sequence[int] = (1, 32),
    group: int = 10,
    repeat: int = 20,
    seconds: float = 30.0,
    watch: Callable = iter,
) -> Report:
    """A row for each bundle, recipe and use: milliseconds with and without it, and their ratio."""
    report = Report("kernels", conditions(device), {"recipes": list(recipes), "enough": ENOUGH})
    for name, recipe in watch(list(recipes.items())):
        for use, bundles, calls in _uses(recipe, device, batches, group):
            many = WARM_UP.get(device.type, 1)
            times = time_together(calls, device, repeat=repeat, warm_up=many, seconds=seconds)
            calls_each = group if bundles is IN_TRAINING else 1
            on = times["1"].median_ms / calls_each
            for bundle in (*bundles, "all"):
                off = times[_without(bundle)].median_ms / calls_each
                row = {"bundle": bundle, "recipe": name, "use": use, "on_ms": on, "off_ms": off}
                report.rows.append(row | {"ratio": off / on})
    if device.type != "cuda":
        report.notes.append("without CUDA there are no kernels: all ratios are those of noise")
    report.notes += verdicts(report.rows)
    return report


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of every bundle, by its best row, whether it stays."""
    bundles = dict.fromkeys(row["bundle"] for row in rows if row["bundle"] != "all")
    best = [
        max((row for row in rows if row["bundle"] == bundle), key=lambda row: row["ratio"])
        for bundle in bundles
    ]
    return [
        f"{row['bundle']} wins {row['ratio']:.2f}× at best ({row['recipe']}, {row['use']}): "
        + ("it stays" if row["ratio"] >= ENOUGH else f"less than {ENOUGH:g}×, delete it")
        for row in best
    ]


def _uses(
    recipe: Recipe, device: torch.device, batches: Sequence[int], group: int
) -> Iterator[tuple[str, tuple[str, ...], dict[str, Call]]]:
    """What is timed: its name, the bundles it knows, and a call for every choice of kernels."""
    noise = make_noise(recipe)
    torch.compiler.reset()  # or the limit on recompilations is reached, silently
    with tempfile.TemporaryDirectory() as folder:
        calls: dict[str, Call] = {}
        for wish in _wishes(IN_TRAINING):
            with asking_for(wish):
                step, _ = stepper(recipe, noise, device, f"{folder}/{wish}", is_balanced=False)
            calls[wish] = repeated(step, group)
        yield f"a step, batch {recipe.training.batch_size}", IN_TRAINING, calls
    for batch in batches:
        torch.compiler.reset()
        yield f"trees, batch {batch}", IN_PREDICTION, _predictions(recipe, device, batch)


def _predictions(recipe: Recipe, device: torch.device, batch: int) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for wish in _wishes(IN_PREDICTION):
        with asking_for(wish):
            fast: Any = fresh(recipe, device).compile()
        y = random_measurement(fast, batch, size_of(recipe))
        calls[wish] = lambda fast=fast, y=y: fast(y)
    return calls


def _wishes(bundles: Sequence[str]) -> list[str]:
    return ["1", *map(_without, bundles), "0"]


def _without(bundle: str) -> str:
    """The wish for all kernels but those of a bundle."""
    return "0" if bundle == "all" else ",".join(sorted(KERNELS - {bundle}))


@contextmanager
def asking_for(wish: str) -> Generator[None, None, None]:
    """`PTREES_KERNELS` as it is asked when a network is accelerated."""
    before = os.environ.get("PTREES_KERNELS")
    os.environ["PTREES_KERNELS"] = wish
    try:
        yield
    finally:
        os.environ.pop("PTREES_KERNELS")
        if before is not None:
            os.environ["PTREES_KERNELS"] = before
