"""The command `ptrees export`: a model as one file for others, or for use without torch."""

import argparse
import json
from pathlib import Path
from typing import Any

from posterior_trees.cli.model import add_model, load_model
from posterior_trees.cli.options import level
from posterior_trees.cli.picture import refuse_auto
from posterior_trees.errors import InputError


def add(commands: Any) -> None:
    export = commands.add_parser("export", help="a model as one small file for others to use")
    add_model(export)
    kind = export.add_mutually_exclusive_group(required=True)
    kind.add_argument("--out", type=Path, help="safetensors file to write")
    kind.add_argument("--onnx", type=Path, help="ONNX file to write, for use without torch")
    kind.add_argument("--bioimageio", type=Path, metavar="ZIP", help="bioimage.io package to "
                      "write, for other programs of microscopists")  # fmt: skip
    export.add_argument("--levels", type=level, nargs="+", metavar="LO HI",
                        help="of a package: camera values that become black and white")  # fmt: skip
    export.add_argument("--gamma", type=float, default=1.0, help="of a package: then raise to "
                        "this power [1]")  # fmt: skip
    export.add_argument("--dtype", choices=("bfloat16", "float32"),
                        help="of the safetensors file's weights [bfloat16]")  # fmt: skip
    export.add_argument("--scores", type=Path, help="JSON of `ptrees evaluate` to put in its card")
    export.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> None:
    scores = read_scores(arguments.scores) if arguments.scores else None
    if arguments.onnx:
        export_onnx(arguments, scores)
        return
    if arguments.bioimageio:
        export_bioimageio(arguments)
        return
    import torch

    from posterior_trees.models.checkpoint import export_model, load_recipe

    dtype = getattr(torch, arguments.dtype or "bfloat16")
    predictor, recipe = load_model(arguments, "cpu"), load_recipe(arguments.model)
    export_model(arguments.out, predictor, recipe, dtype=dtype, scores=scores)
    print(describe(arguments.out))


def describe(file: Path) -> str:
    return f"{file} ({file.stat().st_size / 1e6:.1f} MB)"


def read_scores(file: Path) -> dict[str, Any]:
    """What `ptrees evaluate --json` wrote."""
    try:
        scores = json.loads(file.read_text("utf-8"))
        if isinstance(scores["model"], str) and isinstance(scores["psnr"], list):
            return scores
    except (ValueError, LookupError, TypeError):
        pass
    raise InputError(
        f"{file} holds no scores of a model: give the JSON of `ptrees evaluate --json`"
    )


def export_onnx(arguments: argparse.Namespace, scores: dict | None) -> None:
    from posterior_trees.export.onnx import describe_graph, save_onnx

    if arguments.dtype == "bfloat16":
        raise InputError("--dtype is bfloat16; an ONNX file has float32: leave --dtype out")
    if scores:
        raise InputError("--scores go into the card of a safetensors file: use --out")
    predictor = load_model(arguments, "cpu")
    save_onnx(predictor, arguments.onnx)
    print(describe(arguments.onnx), describe_graph(predictor), sep="\n")


def export_bioimageio(arguments: argparse.Namespace) -> None:
    from posterior_trees.export.bioimageio import save_bioimageio
    from posterior_trees.imaging.adjust import Adjustment

    refuse_auto(arguments)
    adjustment = Adjustment.of(arguments.levels, arguments.gamma, False)
    save_bioimageio(load_model(arguments, "cpu"), arguments.bioimageio, adjustment)
    print(f"{describe(arguments.bioimageio)}, tested as ONNX and as TorchScript")
