"""The commands that use a trained model elsewhere: `ptrees predict` and `ptrees export`."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.picture import add_adjustment
from posterior_trees.cli.words import add_model, load_model

if TYPE_CHECKING:
    from posterior_trees.tree import Tree


def add_predict(commands: Any) -> None:
    predict = commands.add_parser("predict", help="trees of your own pictures")
    add_model(predict)
    predict.add_argument("images", nargs="+", type=Path, metavar="IMAGE")
    predict.add_argument("--out", type=Path, required=True, help="folder to write")
    predict.add_argument(
        "--resize", action="store_true", help="cut and resize to the size that the model takes"
    )
    add_adjustment(predict)
    predict.add_argument("--count", action="store_true", help="count the nuclei in every leaf")
    predict.add_argument("--threshold", type=float, help="nuclei are brighter, 0 to 1 [Otsu's]")
    predict.add_argument("--tile", type=int, metavar="PIXELS",
                         help="cut larger pictures into such tiles; 0: never [512, for more "
                         "than 1024×1024 pixels]")  # fmt: skip
    predict.add_argument("--overlap", type=int, default=64, metavar="PIXELS",
                         help="how far neighbouring tiles overlap [64]")  # fmt: skip
    predict.set_defaults(run=run_predict)


def add_export(commands: Any) -> None:
    export = commands.add_parser("export", help="a model as one small file for others to use")
    add_model(export)
    kind = export.add_mutually_exclusive_group(required=True)
    kind.add_argument("--out", type=Path, help="safetensors file to write")
    kind.add_argument("--onnx", type=Path, help="ONNX file to write, for use without torch")
    export.add_argument("--dtype", choices=("bfloat16", "float32"),
                        help="of the safetensors file's weights [bfloat16]")  # fmt: skip
    export.add_argument("--scores", type=Path, help="JSON of `ptrees evaluate` to put in its card")
    export.set_defaults(run=run_export)


def run_predict(arguments: argparse.Namespace) -> None:
    from posterior_trees.cli import print_paths
    from posterior_trees.pictures.count import describe_counting
    from posterior_trees.predict import PictureError, predict_files
    from posterior_trees.progress import track

    def warn(message: str) -> None:
        print(f"ptrees predict: {message}", file=sys.stderr)

    predictor = load_model(arguments)
    remark = describe_counting(predictor) if arguments.count else ""
    if remark:
        warn(remark)
    names = ("resize", "scale", "invert", "levels", "gamma", "digit", "tile", "overlap")
    try:
        written = predict_files(
            predictor,
            arguments.images,
            arguments.out,
            **{name: getattr(arguments, name) for name in names},
            also=nucleus_counter(arguments),
            remark=remark,
            warn=warn,
            watch=track("predicting"),
        )
    except PictureError as error:
        print_paths(error.written)
        raise
    print_paths(written)
    if arguments.count:
        print_counts(written)


def nucleus_counter(arguments: argparse.Namespace):
    """What `predict --count` writes beside each tree; None without it."""
    if not arguments.count:
        if arguments.threshold is not None:
            raise ValueError("--threshold is for counting: add --count")
        return None
    from posterior_trees.pictures.count import count_nuclei
    from posterior_trees.pictures.count_report import KEPT, per_leaf, write_count
    from posterior_trees.progress import track

    watch = track("counting nuclei") if len(arguments.images) == 1 else iter

    def count(tree: "Tree", folder: Path, facts: dict) -> dict[str, list[int | None]]:
        counted = count_nuclei(tree, arguments.threshold, watch=watch)
        write_count(counted, tree, folder, {key: facts[key] for key in KEPT if key in facts})
        return per_leaf(counted, tree)

    return count


def print_counts(written: list[Path]) -> None:
    from rich.console import Console

    from posterior_trees.pictures.count_report import count_table

    for folder in written:
        if (folder / "count.json").is_file():
            facts = json.loads((folder / "count.json").read_text(encoding="utf-8"))
            Console().print(count_table(facts, folder.name))


def run_export(arguments: argparse.Namespace) -> None:
    scores = read_scores(arguments.scores) if arguments.scores else None
    if arguments.onnx:
        export_onnx(arguments, scores)
        return
    import torch

    from posterior_trees.checkpoint import export_model

    dtype = getattr(torch, arguments.dtype or "bfloat16")
    export_model(arguments.model, arguments.out, dtype, scores, load_model(arguments, "cpu"))
    print(f"{arguments.out} ({arguments.out.stat().st_size / 1e6:.1f} MB)")


def read_scores(file: Path) -> dict[str, Any]:
    """What `ptrees evaluate --json` wrote."""
    try:
        scores = json.loads(file.read_text("utf-8"))
        if isinstance(scores["model"], str) and isinstance(scores["psnr"], list):
            return scores
    except (ValueError, LookupError, TypeError):
        pass
    raise ValueError(
        f"{file} holds no scores of a model: give the JSON of `ptrees evaluate --json`"
    )


def export_onnx(arguments: argparse.Namespace, scores: dict | None) -> None:
    from posterior_trees.onnx_export import describe_graph, save_onnx

    if arguments.dtype == "bfloat16":
        raise ValueError("--dtype is bfloat16; an ONNX file has float32: leave --dtype out")
    if scores:
        raise ValueError("--scores go into the card of a safetensors file: use --out")
    predictor = load_model(arguments, "cpu")
    save_onnx(predictor, arguments.onnx)
    print(f"{arguments.onnx} ({arguments.onnx.stat().st_size / 1e6:.1f} MB)")
    print(describe_graph(predictor))
