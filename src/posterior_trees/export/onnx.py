"""A predictor as one ONNX file: trees without torch, in any language that runs ONNX.

The file holds the whole way from the measurement to the tree: what the network sees of it, the
network, the projection on what the measurement leaves open, and the growth of all nodes. Its
outputs, for `n` leaves and depth `d`:

| name | shape | what |
|---|---|---|
| `leaves` | (batch, n, c, h, w) | the leaves' images, unclipped; the same as `level_d` |
| `probabilities` | (batch, n) | of the leaves; the same as `probs_d` |
| `level_0` … `level_d` | (batch, nodes, c, h, w) | the nodes of each level, the root first |
| `probs_1` … `probs_d` | (batch, nodes) | absolute probabilities of the nodes, sum 1 |

Only the outputs that are asked for are computed. The input `y` is the measurement as
`predictor(y)` takes it, float32 in [0, 1]; a hole may hold anything, the graph fills it. The batch
is free. Height and width are free in multiples of the network's grid (16 for the paper's), except
that a model that fills a hole has the size of its mask.
"""

import io
import logging
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from posterior_trees.errors import InputError, need
from posterior_trees.predictor import TreePredictor, evaluating
from posterior_trees.store import write_bytes

OPSET = 18
MOST = 4096
"""Largest batch, and largest side, that the graph promises to take."""


class Graph(nn.Module):
    """The predictor as ONNX wants it: tensors in, a flat tuple of tensors out."""

    def __init__(self, predictor: TreePredictor) -> None:
        super().__init__()
        self.predictor = copy(predictor)
        self.predictor.guarantee = None  # promises are about what runs here

    def forward(self, y: Float[Tensor, "b c h w"]) -> tuple[Tensor, ...]:
        tree = self.predictor(y)
        probs = [level.exp() for level in tree.log_probs]
        return tree.leaves, probs[-1], *tree.images, *probs[1:]


def save_onnx(predictor: TreePredictor, file: str | PathLike[str]) -> None:
    """Write the predictor, whole or not at all; it must be on the CPU and in float32."""
    check(predictor)
    model = trace(predictor, Graph(predictor), output_names(predictor)).model_proto
    for key, value in properties(predictor).items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    model.producer_name = "posterior-trees"
    write_bytes(Path(file), model.SerializeToString())


def trace(predictor: TreePredictor, graph: nn.Module, names: list[str]) -> Any:
    """The ONNX program of a graph around the predictor, with sizes free where its are."""
    # Sides and batch must differ from each other and from 1, or the exporter takes them for fixed.
    size = predictor.measurement.size or (2 * predictor.multiple, 3 * predictor.multiple)
    y = torch.rand(2, predictor.measurement.channels(predictor.channels), *size)
    with quiet(), torch.no_grad(), evaluating(predictor):
        return torch.onnx.export(
            graph.eval(), (y,), dynamo=True, opset_version=OPSET,
            input_names=["y"], output_names=names, dynamic_shapes=(_free_axes(predictor),),
        )  # fmt: skip


def output_names(predictor: TreePredictor) -> list[str]:
    """In the order of the graph's outputs."""
    levels = [f"level_{level}" for level in range(predictor.depth + 1)]
    return ["leaves", "probabilities", *levels, *[f"probs_{i + 1}" for i in range(predictor.depth)]]


def properties(predictor: TreePredictor) -> dict[str, str]:
    """What the file says about itself: its tree, its origin, its terms and how to use it."""
    from posterior_trees import __version__

    task = f"the task {predictor.name!r}" if predictor.name else "this model"
    origin = {k: str(predictor.about[k]) for k in ("commit", "date") if k in predictor.about}
    return {
        "task": predictor.name or "own",
        "branching": ",".join(map(str, predictor.branching)),
        "depth": str(predictor.depth),
        "version": f"posterior-trees {__version__}",
        **origin,
        "licence": "code: MIT; weights: the terms of the data they were trained on",
        "data_terms": predictor.about.get("terms") or "those of your own data",
        "input": predictor.measurement.describe() or f"the measurement of {task}, in [0, 1]",
        "usage": usage(predictor),
    }


def usage(predictor: TreePredictor) -> str:
    """How to use the file, in six lines."""
    sides = ", ".join(map(str, predictor.measurement.size))
    size = f"{sides})" if sides else f"h, w), h and w multiples of {predictor.multiple}"
    channels = predictor.measurement.channels(predictor.channels)
    return f"""import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
# y: float32 in [0, 1], (batch, {channels}, {size}
root, leaves, p = session.run(["level_0", "leaves", "probabilities"], {{"y": y}})
# children of node i of a level: nodes K*i … K*i+K-1 of the next, K the branching
# images are not clipped: leaves[b, n] is plausible with probability p[b, n]"""


def describe_graph(predictor: TreePredictor) -> str:
    """One line for people: what goes in and comes out."""
    size = predictor.measurement.size
    sides = f"{size[0]}×{size[1]}" if size else f"h×w in multiples of {predictor.multiple}"
    return f"y (any batch, {sides}) → {', '.join(output_names(predictor))}"


def _free_axes(predictor: TreePredictor) -> dict[int, Any]:
    axes: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=MOST)}
    if not predictor.measurement.size:
        step = predictor.multiple
        for axis, name in ((2, "height"), (3, "width")):
            unit = torch.export.Dim(f"{name}_{step}ths", min=1, max=MOST // step)
            axes[axis] = step * unit if step > 1 else unit
    return axes


def check(predictor: TreePredictor) -> None:
    for name in ("onnx", "onnxscript"):
        need(name, "writing ONNX files", "onnx")
    if predictor.device.type != "cpu" or predictor.dtype != torch.float32:
        raise InputError(
            f"the predictor is {predictor.dtype} on {predictor.device}; export it from the CPU in "
            'float32: load(model, device="cpu")'
        )
    if not predictor.measurement.channels(predictor.channels):
        raise InputError(
            "the predictor was made without a measurement, and a graph must know how many channels "
            f"y has: wrap(…, measurement=Paired({predictor.channels}, N, is_residual=False)), N of "
            "them, is the same"
        )


@contextmanager
def quiet():
    """The exporter tells its whole life; only errors matter here."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    said = io.StringIO()
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stdout(said), redirect_stderr(said):
            yield
    finally:
        log.setLevel(level)
