"""The command `ptrees predict`: trees of the user's own pictures; heavy imports inside."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.model import add_model, load_model
from posterior_trees.cli.options import add_device, print_paths
from posterior_trees.cli.picture import add_adjustment, add_plane, make_reading
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.pictures.answer import Answer


def add(commands: Any) -> None:
    predict = commands.add_parser("predict", help="trees of your own pictures")
    add_model(predict)
    predict.add_argument("images", nargs="+", type=Path, metavar="INPUT",
                         help="pictures, stacks, OME-Zarr images or plates, folders")  # fmt: skip
    add_plane(predict)
    predict.add_argument("--out", type=Path, required=True, help="folder to write")
    add_adjustment(predict)
    add_device(predict)
    predict.add_argument("--count", action="store_true", help="count the nuclei in every leaf")
    predict.add_argument("--threshold", type=float, help="nuclei are brighter, 0 to 1 [Otsu's]")
    predict.add_argument("--tile", type=int, metavar="PIXELS",
                         help="cut larger pictures into such tiles; 0: never [512, for more "
                         "than 1024×1024 pixels]")  # fmt: skip
    predict.add_argument("--overlap", type=int, metavar="PIXELS",
                         help="how far neighbouring tiles overlap [64]")  # fmt: skip
    predict.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace) -> None:
    from posterior_trees.imaging.fields import WELL_PATTERN, list_fields
    from posterior_trees.pictures.answer import Tiling
    from posterior_trees.pictures.nuclei.count import describe_counting
    from posterior_trees.pictures.write import PictureError, predict_files
    from posterior_trees.progress import track

    def warn(message: str) -> None:
        print(f"ptrees predict: {message}", file=sys.stderr)

    pattern = arguments.well_pattern or WELL_PATTERN
    fields = list_fields(arguments.images, arguments.filter, pattern)
    predictor = load_model(arguments, arguments.device)
    predictor.about["called"] = arguments.model  # what messages call it
    remark = describe_counting(predictor) if arguments.count else ""
    if remark:
        warn(remark)
    try:
        written = predict_files(
            predictor,
            fields,
            arguments.out,
            make_reading(arguments),
            Tiling(arguments.tile, arguments.overlap),
            also=nucleus_counter(arguments, len(fields) == 1),
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


def nucleus_counter(arguments: argparse.Namespace, is_one: bool):
    """What `predict --count` writes beside each tree; None without it."""
    if not arguments.count:
        if arguments.threshold is not None:
            raise InputError("--threshold is for counting: add --count")
        return None
    from posterior_trees.pictures.nuclei.count import count_nuclei
    from posterior_trees.pictures.nuclei.report import KEPT, per_leaf, write_count
    from posterior_trees.progress import track

    watch = track("counting nuclei") if is_one else iter

    def count(made: "Answer", folder: Path, facts: dict) -> dict[str, list[int | None]]:
        tree = made.tree
        counted = count_nuclei(tree, arguments.threshold, parts=made.parts, watch=watch)
        write_count(counted, tree, folder, {key: facts[key] for key in KEPT if key in facts})
        return per_leaf(counted, tree)

    return count


def print_counts(written: list[Path]) -> None:
    from rich.console import Console

    from posterior_trees.pictures.nuclei.report import count_table

    for folder in written:
        if (folder / "count.json").is_file():
            facts = json.loads((folder / "count.json").read_text(encoding="utf-8"))
            Console().print(count_table(facts, folder.name))
