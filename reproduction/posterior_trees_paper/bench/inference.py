"""`ptrees bench inference`: one tree from one measurement, in several ways of running it.

The reference is plain float32; every other way says how much faster it is and how far its leaves
and probabilities are from the reference's. The same U-Net with one output (depth 0, equal width)
shows what a tree costs over a point estimate.
"""

import copy
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees.fast.compiling import SAFE
from posterior_trees.predictor import TreePredictor
from posterior_trees.tree import Tree
from posterior_trees_paper.bench.clock import peak_bytes, time_together
from posterior_trees_paper.bench.report import Report, conditions, megabytes
from posterior_trees_paper.bench.rivals import find_rivals
from posterior_trees_paper.bench.subject import random_measurement
from posterior_trees_paper.bench.work import count_work

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
REFERENCE = "eager float32"
Run = Callable[[], Tree]


@dataclass(frozen=True)
class Ways:
    """Which ways of running a network are measured, and how long."""

    precisions: Sequence[str] = ("float32", "bfloat16")
    is_compiled: bool = False
    is_torch_compiled: bool = False
    has_onnx: bool = False
    repeat: int = 20
    seconds: float = 15.0


def bench_inference(
    tree: TreePredictor,
    point: TreePredictor | None,
    size: tuple[int, int],
    batches: Sequence[int],
    ways: Ways,
    watch: Callable = iter,
) -> Report:
    """Measure `tree`, and `point` to compare it with, on images of `size` (h, w)."""
    seen = tree.view(random_measurement(tree, 1, size))
    work = count_work(tree.network, tuple(seen.shape[1:]))
    settings = {
        "branching": list(tree.branching), "size": list(size), "channels": tree.channels,
        "parameters": work.parameters, "gflop_per_image": round(work.flops / 1e9, 3),
        "mb_moved_per_image": round(work.bytes_moved / 1e6, 1),
    }  # fmt: skip
    report = Report("inference", conditions(tree.device), settings)
    for batch in watch(list(batches)):
        torch.compiler.reset()  # or the limit on recompilations is reached, silently
        y = random_measurement(tree, batch, size)
        with torch.inference_mode():
            _measure(report, make_runs(tree, point, y, ways, report.notes), batch, ways)
    return report


def _measure(report: Report, runs: dict[str, Run], batch: int, ways: Ways) -> None:
    """Memory and error of every way, then the times of all in turn."""
    want = runs[REFERENCE]()
    facts: dict[str, dict[str, Any]] = {}
    for name, run in runs.items():
        facts[name] = {} if name.startswith("one output") else difference(run(), want)
        facts[name]["peak_mb"] = megabytes(peak_bytes(run, want.device))
    times = time_together(runs, want.device, repeat=ways.repeat, seconds=ways.seconds)
    base = times[REFERENCE].median_ms
    for name, timing in times.items():
        row = report.add(timing, way=name, batch=batch)
        row["images_per_s"] = 1000 * batch / timing.median_ms
        row["speedup"] = base / timing.median_ms
        row |= facts[name]


def difference(got: Tree, want: Tree) -> dict[str, Any]:
    r"""$\lVert \text{leaves} - \text{ref} \rVert / \lVert \text{ref} \rVert$ and the largest error
    of a probability."""
    error = (got.leaves - want.leaves).norm() / want.leaves.norm()
    wrong = (got.probs[-1] - want.probs[-1]).abs().max()
    return {"leaf_error": error.item(), "prob_error": wrong.item()}


def make_runs(
    tree: TreePredictor, point: TreePredictor | None, y: Tensor, ways: Ways, notes: list[str]
) -> dict[str, Run]:
    """Every way by its name, as a call without arguments; the reference first."""
    runs: dict[str, Run] = {REFERENCE: _run(tree, y, "float32")}
    last = copy.deepcopy(tree)
    last.network.to(memory_format=torch.channels_last)  # ty: ignore[no-matching-overload]
    for precision in ways.precisions:
        runs[f"eager {precision}"] = _run(tree, y, precision)
        runs[f"channels-last {precision}"] = _run(last, y, precision)
        if ways.is_torch_compiled:
            plain = copy.deepcopy(tree)
            plain.network.compile(dynamic=False, options=SAFE)
            runs[f"torch.compile {precision}"] = _run(plain, y, precision)
        if ways.is_compiled:
            runs[f"predictor.compile() {precision}"] = _fast(tree, y, precision)
    if ways.has_onnx:
        runs["ONNX Runtime float32"] = _onnx(tree, y)
    if point is not None:
        runs["one output, eager float32"] = _run(point, y, "float32")
        if ways.is_compiled:
            name = ways.precisions[-1]
            runs[f"one output, predictor.compile() {name}"] = _fast(point, y, name)
    return {name: run for name, run in runs.items() if _works(name, run, notes)}


def _onnx(predictor: TreePredictor, y: Tensor) -> Run:
    """The predictor's ONNX graph, run by ONNX Runtime with as many threads as torch has."""
    from posterior_trees.export.onnx import save_onnx

    (runtime,) = find_rivals(("onnxruntime",), extra="onnx")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        save_onnx(copy.deepcopy(predictor).to("cpu", torch.float32), file)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = runtime.InferenceSession(file.read_bytes(), options)
    levels = range(len(predictor.branching) + 1)
    names = [f"level_{i}" for i in levels] + [f"probs_{i}" for i in levels[1:]]

    def run() -> Tree:
        got = [torch.from_numpy(a) for a in session.run(names, {"y": y.cpu().numpy()})]
        images, probs = got[: len(levels)], got[len(levels) :]
        root = images[0].new_ones(len(y), 1)
        return Tree(images, [p.log() for p in (root, *probs)], predictor.branching).to(y.device)

    return run


def _run(predictor: TreePredictor, y: Tensor, precision: str) -> Run:
    dtype = PRECISIONS[precision]

    def run() -> Tree:
        if dtype == torch.float32:
            return predictor(y)
        with torch.autocast(y.device.type, dtype):
            return predictor(y)

    return run


def _fast(predictor: TreePredictor, y: Tensor, precision: str) -> Run:
    fast = predictor.compile(PRECISIONS[precision])
    return lambda: fast(y)


def _works(name: str, run: Run, notes: list[str]) -> bool:
    """Whether this machine can run it at all; else a note says why not."""
    try:
        run()
    except Exception as error:  # a compiler raises whatever it likes
        if name == REFERENCE:
            raise
        reason = str(error).strip().splitlines() or [type(error).__name__]
        notes.append(f"{name} does not run here: {reason[0]}")
        return False
    return True
