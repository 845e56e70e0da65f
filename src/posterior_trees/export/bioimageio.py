"""A predictor as a bioimage.io package: for ilastik, deepImageJ, napari and other programs.

The package takes one picture in a camera's values and gives all nodes of its tree as channels, root
first, and their probabilities. Its weights are ONNX and TorchScript, so that no program needs ours.
The levels are part of its preprocessing, the gamma of its graph, because the format has no power.

Two outputs of which one has no place in the picture cannot be put together from blocks whose
branches match; so the description has no halo, and says that a picture is predicted in one piece.
"""

import tempfile
import warnings
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from posterior_trees.assets import PAPER
from posterior_trees.errors import InputError, MissingError, need
from posterior_trees.export.onnx import OPSET, Graph, check, trace
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.stored import paths_of
from posterior_trees.predictor import TreePredictor, evaluating
from posterior_trees.store import write_bytes

LEAST = 64
"""The smallest side that the package takes."""
LICENCES = {"CC0": "CC0-1.0", "CC BY-SA 3.0": "CC-BY-SA-3.0", "CC BY-NC 4.0": "CC-BY-NC-4.0"}
"""SPDX names of terms that a model may state."""


class Nodes(Graph):
    """The predictor as the format wants it: nodes as channels, and their probabilities."""

    def __init__(self, predictor: TreePredictor, gamma: float) -> None:
        super().__init__(predictor)
        self.gamma = gamma

    def forward(self, y: Float[Tensor, "b 1 h w"]) -> tuple[Tensor, Tensor]:
        tree = self.predictor(y.pow(self.gamma) if self.gamma != 1 else y)
        probs = torch.cat([level.exp() for level in tree.log_probs], dim=1)
        return torch.cat([level.flatten(1, 2) for level in tree.images], dim=1), probs


def save_bioimageio(
    predictor: TreePredictor, file: str | PathLike[str], adjustment: Adjustment
) -> None:
    """Write the package, after the format's own test has passed on both kinds of weights."""
    if adjustment.levels is None:
        raise InputError("give --levels LO HI: which camera values are black and white")
    if adjustment.is_inverted:
        raise InputError("--invert has no place in the format: exchange the levels' meaning first")
    _check(predictor)
    spec = _import()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        made = _package(predictor, adjustment, Path(folder), spec)
        write_bytes(Path(file), made.read_bytes())


def names_of(predictor: TreePredictor) -> list[str]:
    """Of the nodes: `root`, then `n_` and the path, as `n_0_1`."""
    return ["_".join(map(str, ("n", *path))) if path else "root"
            for path in paths_of(predictor.branching)]  # fmt: skip


def _package(predictor: TreePredictor, adjustment: Adjustment, folder: Path, spec: Any) -> Path:
    low, high = adjustment.levels or (0.0, 1.0)
    graph = Nodes(predictor, float(adjustment.gamma))
    raw = _sample(predictor, low, high)
    with torch.no_grad(), evaluating(predictor):
        y = torch.from_numpy(raw).sub(low).div(high - low).clamp(0, 1)
        nodes, probs = graph(y)
        traced = torch.jit.trace(graph.eval(), y, check_trace=False)
        _check_sizes(graph, traced, predictor.multiple)
    torch.jit.save(traced, folder / "weights.pt")
    onnx = trace(predictor, graph, ["nodes", "probabilities"]).model_proto
    (folder / "weights.onnx").write_bytes(onnx.SerializeToString())
    arrays = {"input": raw, "nodes": nodes.numpy(), "probabilities": probs.numpy()}
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    cover = torch.cat([y[0, 0], nodes[0, 0]], dim=1).clamp(0, 1)  # the sample and its root
    Image.fromarray((cover * 255).round().byte().numpy()).save(folder / "cover.png")
    (folder / "README.md").write_text(_readme(predictor, adjustment), encoding="utf-8")
    model = _describe(predictor, adjustment, folder, spec)
    out = folder / "package.zip"
    spec["save"](model, output_path=out)
    for form in ("onnx", "torchscript"):
        summary = spec["test"](out, weight_format=form)
        if summary.status != "passed":
            why = summary.format()
            raise InputError(f"the package fails the format's own test of {form}: {why}")
    return out


def _describe(predictor: TreePredictor, adjustment: Adjustment, folder: Path, spec: Any) -> Any:
    v = spec["v0_5"]
    low, high = adjustment.levels or (0.0, 1.0)
    step = predictor.multiple
    size = v.ParameterizedSize(min=-(-LEAST // step) * step, step=step)
    names = names_of(predictor)

    def space(name: str) -> Any:
        place = v.SizeReference(tensor_id="input", axis_id=name)
        return v.SpaceOutputAxis(id=name, size=place)

    gain, offset = 1 / (high - low), -low / (high - low)
    steps = [
        v.EnsureDtypeDescr(kwargs=v.EnsureDtypeKwargs(dtype="float32")),
        v.ScaleLinearDescr(kwargs=v.ScaleLinearKwargs(gain=gain, offset=offset)),
        v.ClipDescr(kwargs=v.ClipKwargs(min=0.0, max=1.0)),
    ]
    inputs = v.InputTensorDescr(
        id="input",
        axes=[v.BatchAxis(), v.ChannelAxis(channel_names=["input"]),
              v.SpaceInputAxis(id="y", size=size), v.SpaceInputAxis(id="x", size=size)],
        test_tensor=v.FileDescr(source=folder / "input.npy"),
        preprocessing=steps,
    )  # fmt: skip
    channels = [v.BatchAxis(), v.ChannelAxis(channel_names=names)]
    outputs = [
        v.OutputTensorDescr(id=name, axes=[*channels, *sides],
                            test_tensor=v.FileDescr(source=folder / f"{name}.npy"))
        for name, sides in (("nodes", (space("y"), space("x"))), ("probabilities", ()))
    ]  # fmt: skip
    terms = predictor.about.get("terms") or ""
    licence = next((spdx for words, spdx in LICENCES.items() if words in terms), None)
    facts = {"branching": list(predictor.branching), "nodes": names, "terms": terms}
    onnx = v.OnnxWeightsDescr(source=folder / "weights.onnx", opset_version=OPSET,
                              parent="torchscript")  # fmt: skip
    version = torch.__version__.partition("+")[0]
    script = v.TorchscriptWeightsDescr(source=folder / "weights.pt", pytorch_version=version)
    return v.ModelDescr(
        name=f"Posterior tree {predictor.name or 'of my own'}".replace("_", " "),
        description="A tree of answers: the mean, its branches, and their probabilities",
        authors=[v.Author(name="The Posterior Trees developers")], license=licence,
        cite=[v.CiteEntry(text=PAPER, doi="10.48550/arXiv.2405.15719")],
        documentation=v.FileDescr(source=folder / "README.md"),
        covers=[v.FileDescr(source=folder / "cover.png")],
        tags=["posterior-trees", "uncertainty", "image-restoration"], inputs=[inputs],
        outputs=outputs, config=v.Config(posterior_trees=facts),
        weights=v.WeightsDescr(onnx=onnx, torchscript=script),
    )  # fmt: skip


def _readme(predictor: TreePredictor, adjustment: Adjustment) -> str:
    low, high = adjustment.levels or (0.0, 1.0)
    test = predictor.about.get("test") or {}
    rows = [f"depth {r['depth']}: PSNR {r['mean']:.2f} dB" for r in test.get("psnr") or ()]
    measured = f"On {test.get('n')} test images: {'; '.join(rows)}." if rows else "Not measured."
    return f"""# {predictor.name or "A posterior tree"}

`nodes` has every node of a tree of answers as a channel: `root` is the mean, `n_0` its first child,
`n_0_1` that one's second. `probabilities` has the probability of each for the whole picture.
A node is an average of answers, not a sample.

Input: one picture; values of {low:g} and {high:g} become 0 and 1, then the power
{adjustment.gamma:g} is taken.
Predict a picture in one piece: in blocks, branches of neighbours would not match.

Trained on {predictor.about.get("terms") or "data of its owner"}; the weights have
the terms of their data.

# Validation

{measured} Other microscopes and stains are not validated. Compare the root with a stain of your own
before you trust a count.
"""


def _check(predictor: TreePredictor) -> None:
    check(predictor)
    if predictor.measurement.size or predictor.measurement.is_computable:
        raise InputError(
            "a bioimage.io package takes pictures as they are, and this model hides or degrades "
            "part of its picture first: export it with --onnx"
        )
    channels = predictor.measurement.channels(predictor.channels), predictor.channels
    if channels != (1, 1):
        raise InputError(
            f"the model has {channels[0]} channels in and {channels[1]} out; a package of nodes as "
            "channels takes models of one and one"
        )


def _check_sizes(graph: nn.Module, traced: Any, step: int) -> None:
    """What was traced at one size says the same at another one."""
    y = torch.rand(1, 1, *(-(-side // step) * step for side in (LEAST, 3 * LEAST // 2)))
    for ours, theirs in zip(graph(y), traced(y), strict=True):
        if not torch.equal(ours, theirs):
            raise InputError("TorchScript gives other trees at another size: export it with --onnx")


def _sample(predictor: TreePredictor, low: float, high: float) -> Float[np.ndarray, "1 1 h w"]:
    """Soft blobs in camera values, a little beyond the levels at both ends."""
    step, draw = predictor.multiple, np.random.default_rng(0)
    height, width = (-(-side // step) * step for side in (2 * LEAST, 5 * LEAST // 2))
    rows, columns = np.mgrid[:height, :width]
    field = np.zeros((height, width))
    for _ in range(24):
        row, column, radius = draw.uniform(0, height), draw.uniform(0, width), draw.uniform(4, 12)
        field += np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * radius**2))
    field = 1.1 * field / field.max() - 0.05
    return (low + field * (high - low)).astype(np.float32)[None, None]


def _import() -> dict[str, Any]:
    find = partial(need, purpose="writing bioimage.io packages", extra="bioimageio")
    version = find("pydantic").VERSION
    if tuple(map(int, version.split(".")[:2])) >= (2, 14):
        raise MissingError(
            f"bioimageio.spec 0.5.12 cannot write packages with pydantic {version}: "
            'pip install "pydantic<2.14", in an environment of its own'
        )
    core, spec = find("bioimageio.core"), find("bioimageio.spec")
    v0_5 = find("bioimageio.spec.model.v0_5")
    return {"v0_5": v0_5, "save": spec.save_bioimageio_package, "test": core.test_model}
