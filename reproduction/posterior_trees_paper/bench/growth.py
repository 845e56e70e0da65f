r"""`ptrees bench growth`: how cost grows with the number of leaves, the image and the batch.

Three sweeps from one centre. The width of the network is $c_{init} K^d$, so that dense
convolutions (the encoder, a shared decoder) grow with the *square* of the number of leaves and
disjoint decoders in proportion to it: each leaf keeps a decoder of $c_{init} \cdot (1, 2, 4, 8)$
channels. A sweep stops where a point is out of memory or over its time, and says so.
"""

import dataclasses
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from posterior_trees.data.memory import free_bytes
from posterior_trees.loss import tree_loss
from posterior_trees.predictor import TreePredictor
from posterior_trees_paper.bench.clock import Timing, peak_bytes, time_once, time_together
from posterior_trees_paper.bench.report import Report, conditions, megabytes
from posterior_trees_paper.bench.subject import fresh, random_measurement, square_recipe
from posterior_trees_paper.bench.work import Work, count_work

TREES = ((2, 1), (3, 1), (2, 2), (2, 3), (3, 2), (2, 4), (3, 3), (2, 5), (2, 6), (3, 4))
"""Branching and depth, 2 to 81 leaves."""
SIZES = (64, 128, 256, 512, 1024)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Point:
    """One network on one batch."""

    branching: int = 3
    depth: int = 2
    size: int = 256
    batch: int = 1
    decoder: str = "disjoint"
    c_init: int = 4
    channels: int = 3

    @property
    def leaves(self) -> int:
        return self.branching**self.depth

    def build(self, device: torch.device) -> TreePredictor:
        options = {name: value for name, value in vars(self).items() if name != "batch"}
        return fresh(square_recipe(**options), device)


def sweeps(center: Point) -> Iterator[tuple[str, list[Point]]]:
    """The points of every sweep, cheapest first."""
    at = partial(dataclasses.replace, center)
    for decoder in ("disjoint", "shared"):
        trees = [at(branching=k, depth=d, decoder=decoder) for k, d in TREES]
        yield f"leaves, {decoder}", trees
    yield "size", [at(size=size) for size in SIZES]
    yield "batch", [at(batch=batch) for batch in BATCHES]


def bench_growth(
    center: Point,
    device: torch.device,
    *,
    is_training: bool = False,
    repeat: int = 5,
    seconds: float = 3.0,
    watch: Callable = iter,
) -> Report:
    """Measure all sweeps; `seconds` is the most that one point may take."""
    settings = {**vars(center), "pass": "forward and backward" if is_training else "forward"}
    report = Report("growth", conditions(device), settings)
    for name, points in watch(list(sweeps(center))):
        for point in points:
            try:
                reason = _measure(report, name, point, device, is_training, repeat, seconds)
            except torch.OutOfMemoryError as error:
                reason = f"out of memory ({str(error).splitlines()[0]})"
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
            if reason:
                place = f"{point.leaves} leaves, {point.size}×{point.size}, batch {point.batch}"
                report.notes.append(f"{name} stops at {place}: {reason}")
                break
    return report


def _measure(
    report: Report,
    sweep: str,
    point: Point,
    device: torch.device,
    is_training: bool,
    repeat: int,
    seconds: float,
) -> str:
    """Add a row; returns why the sweep must stop here, or nothing."""
    predictor = point.build(device)
    work = count_work(predictor.network, (point.channels, point.size, point.size))
    need = memory_need(work, point.batch, is_training)
    if device.type == "cpu" and need > free_bytes():
        return f"it may need {need / 1e9:.1f} GB, {free_bytes() / 1e9:.1f} GB are free"
    call = _call(predictor, point, is_training)
    call()
    once: list[float] = []
    peak = peak_bytes(lambda: once.append(time_once(call, device)), device)
    is_slow, timing = once[0] > 1000 * seconds, Timing.of(once)
    if not is_slow:
        left = seconds - 2 * once[0] / 1000
        timing = time_together({"": call}, device, repeat=repeat, seconds=left)[""]
    facts = {name: getattr(point, name) for name in ("leaves", "size", "batch", "decoder")}
    row = report.add(timing, sweep=sweep, **facts)
    row["ms_per_image"] = timing.median_ms / point.batch
    row["peak_mb"] = megabytes(peak)
    row["parameters_m"] = round(work.parameters / 1e6, 2)
    row["gflop_per_image"] = round(work.flops / 1e9, 2)
    return f"{once[0] / 1000:.1f} s a call, the limit is {seconds:g} s" if is_slow else ""


def memory_need(work: Work, batch: int, is_training: bool) -> int:
    """A generous guess in bytes: intermediate results, kept twice over for a backward pass, and
    weights."""
    return 4 * work.parameters + work.bytes_written * batch * (3 if is_training else 1)


def _call(predictor: TreePredictor, point: Point, is_training: bool) -> Callable[[], Any]:
    y = random_measurement(predictor, point.batch, (point.size, point.size))
    if not is_training:
        return torch.inference_mode()(lambda: predictor(y))
    predictor.train().requires_grad_(True)

    def call() -> None:
        tree_loss(predictor(y), y, 0.1).mean().backward()
        predictor.zero_grad(set_to_none=True)

    return call


def draw_growth(rows: Sequence[dict[str, Any]], file: str | PathLike[str], title: str = "") -> None:
    """Time (above) and peak memory (below) over leaves, size and batch, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 3, sharex="col")
    for column, what in enumerate(("leaves", "size", "batch")):
        mine = [row for row in rows if row["sweep"].partition(",")[0] == what]
        for axis, value in ((axes[0][column], "ms"), (axes[1][column], "peak_mb")):
            for name in dict.fromkeys(row["sweep"] for row in mine):
                line = [r for r in mine if r["sweep"] == name and r[value] is not None]
                axis.loglog([r[what] for r in line], [r[value] for r in line], "o-", label=name)
            ticks = [n for n in (2**i for i in range(11)) if any(row[what] == n for row in mine)]
            axis.set_xticks(ticks, list(map(str, ticks)))
            axis.set_xticks([], minor=True)
            axis.grid(alpha=0.3)
        axes[1][column].set_xlabel({"size": "image side, pixels"}.get(what, what))
    axes[0][0].legend(frameon=False)
    axes[0][0].set_ylabel("ms of a batch")
    axes[1][0].set_ylabel("peak memory, MB")
    figure.suptitle(title)
    figure.savefig(Path(file), dpi=120)
