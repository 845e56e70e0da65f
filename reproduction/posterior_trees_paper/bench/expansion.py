r"""`ptrees bench expand`: what a reader waits for when a tree grows where one looks.

An expansion asks the network once, for the children of one node; the ratio, the median over rounds,
says what it costs beside that one pass. Nodes are split that nobody has split before: nothing is
remembered. The explorer's answer has the pictures of all nodes in it, as its page gets them. The
least time of a row is what a machine could do that has nothing else to do.
"""

import json
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.pictures.answer import Answer
from posterior_trees.predictor import GrowingPredictor, Predictor
from posterior_trees.predictor.region import open_part
from posterior_trees.serve.growths import Growths
from posterior_trees_paper.bench.clock import WARM_UP, Timing, time_once
from posterior_trees_paper.bench.report import Report, conditions
from posterior_trees_paper.bench.subject import random_measurement

PASS, FIRST, DEEPER = "one pass of the network", "expand the root", "expand a node below"
TOGETHER, PAGE = "expand it and its siblings", "the explorer's answer"
LIMITS = {"cpu": 30.0, "cuda": 5.0}
"""Milliseconds of one expansion: digits on two threads, 256×256 on a GPU."""


def bench_expansion(
    predictor: Predictor,
    size: tuple[int, int],
    *,
    within: float | None = None,
    repeat: int = 50,
    seconds: float = 8.0,
) -> Report:
    """Times on noise of this size (h, w), and whether one expansion is `within` so many ms."""
    if not isinstance(predictor, GrowingPredictor):
        raise InputError(
            "this model does not grow: all its nodes come at once. Give one whose recipe says "
            'network.kind = "growing"'
        )
    device = predictor.device
    within = LIMITS.get(device.type, LIMITS["cpu"]) if within is None else within
    weights = sum(weight.numel() for weight in predictor.parameters())
    settings = {"branching": predictor.branching[0], "size": list(size), "parameters": weights,
                "limit_ms": within}  # fmt: skip
    report = Report("expand", conditions(device), settings)
    timed = time_in_turn(ways(predictor, size), device, repeat, seconds)
    for name, times in timed.items():
        row = report.add(Timing.of(times), what=name)
        row["least_ms"] = min(times)
        row["per_pass"] = median(a / b for a, b in zip(times, timed[PASS], strict=True))
    found, least = (max(of(timed[name]) for name in (FIRST, DEEPER)) for of in (median, min))
    word = "within" if found <= within else "not within"
    report.notes.append(
        f"one expansion takes {found:.3g} ms ({least:.3g} at best), {word} the limit of "
        f"{within:g} ms"
    )
    return report


Prepare = Callable[[], Callable[[], object]]
"""Makes, outside of the time that is taken, a call that does something for the first time."""


def time_in_turn(
    ways: Mapping[str, Prepare], device: torch.device, repeat: int, seconds: float
) -> dict[str, list[float]]:
    """Milliseconds of every round, as by `time_together`, of calls that must be prepared."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    start = time.monotonic()
    for number in range(WARM_UP + repeat):
        if number >= WARM_UP + 3 and time.monotonic() - start > seconds:
            break
        for name, prepare in ways.items():
            found = time_once(prepare(), device)
            if number >= WARM_UP:
                times[name].append(found)
    return times


def ways(predictor: GrowingPredictor, size: tuple[int, int]) -> dict[str, Prepare]:
    """What is timed."""
    y = random_measurement(predictor, 1, size)
    naive = predictor.measurement.naive(y)
    level = torch.ones(1, dtype=torch.long, device=y.device)
    question = predictor.question(y, naive, naive, open_part(predictor.measurement, naive), level)
    made = Answer(predictor(y).to("cpu"), y.cpu())

    @torch.no_grad()
    def ask() -> Tensor:
        return predictor.network(*question).images

    def split(*paths: tuple[int, ...]) -> Prepare:
        def prepare() -> Callable[[], object]:
            growth = predictor.begin(y)
            for length in range(len(paths[0])):  # what is above them is shown
                growth.expand((0,) * length)
            return lambda: growth.expand(*paths)

        return prepare

    def prepare_page() -> Callable[[], object]:
        growths = Growths(predictor)
        token = growths.keep(made)["token"]
        above = {"token": token, "split": [[], [0]]}
        growths.grow(json.dumps(above))
        request = json.dumps(above | {"split": [[], [0], [0, 0]]})
        return lambda: growths.grow(request)

    siblings = [(0, child) for child in range(predictor.branching[0])]
    return {PASS: lambda: ask, FIRST: split(()), DEEPER: split((0, 0)),
            TOGETHER: split(*siblings), PAGE: prepare_page}  # fmt: skip
