"""The command `ptrees predict`: trees of the user's own pictures; heavy imports inside."""

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.model import add_model, find_measures, load_model
from posterior_trees.cli.options import add_device, add_measure, print_paths
from posterior_trees.cli.picture import add_adjustment, add_plane, make_reading
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.pictures.answer import Answer
    from posterior_trees.pictures.results import Results


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
    add_measure(predict, "of a model with a guarantee, what is promised of")
    predict.add_argument("--tile", type=int, metavar="PIXELS",
                         help="cut larger pictures into such tiles; 0: never [512, for more "
                         "than 1024×1024 pixels]")  # fmt: skip
    predict.add_argument("--overlap", type=int, metavar="PIXELS",
                         help="how far neighbouring tiles overlap [64]")  # fmt: skip
    predict.add_argument("--write", metavar="WORDS", help="page,zarr,tiff,labels,table: what to "
                         "write [page; of over 20 fields of a stain table,labels]")  # fmt: skip
    predict.add_argument(
        "--dtype",
        choices=("uint8", "uint16", "float32"),
        default="uint8",
        help="numbers of zarr, and of tiff if not of 8 bits [uint8]",
    )
    predict.add_argument("--ngff", choices=("0.4", "0.5"), default="0.5",
                         help="version of OME-Zarr [0.5]")  # fmt: skip
    again = predict.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="do what is not done yet, and what "
                       "failed [what happens in a folder of results]")  # fmt: skip
    again.add_argument("--overwrite", action="store_true", help="do all fields anew")
    predict.add_argument("--work", type=Path, metavar="DIR", help="where tiles of huge "
                         "pictures lie meanwhile [OUT]")  # fmt: skip
    predict.add_argument("--keep-work", action="store_true", help="and stay")
    predict.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace) -> None:
    from posterior_trees.imaging.fields import WELL_PATTERN, list_fields
    from posterior_trees.pictures.answer import Tiling
    from posterior_trees.pictures.nuclei.count import describe_counting
    from posterior_trees.pictures.results import Outputs, Results
    from posterior_trees.pictures.write import PictureError, predict_files
    from posterior_trees.progress import track

    def warn(message: str) -> None:
        print(f"ptrees predict: {message}", file=sys.stderr)

    pattern = arguments.well_pattern or WELL_PATTERN
    fields = list_fields(arguments.images, arguments.filter, pattern)
    predictor = load_model(arguments, arguments.device)
    find_measures(predictor, arguments.measure)
    predictor.about["called"] = arguments.model  # what messages call it
    is_stain = not predictor.measurement.is_computable  # a model of pairs, as for nuclei
    outputs = Outputs.of(arguments.write, len(fields), arguments.dtype, arguments.ngff, is_stain)
    if arguments.resume and not (arguments.out / "job.json").is_file():
        raise InputError(f"{arguments.out} has no results to go on with: leave --resume out")
    results = Results(
        arguments.out, outputs, settings_of(arguments, predictor), threshold=arguments.threshold,
        is_counted=arguments.count, is_overwritten=arguments.overwrite,
        origin=origin_of(arguments),
    )  # fmt: skip
    remark = describe_counting(predictor) if results.is_counted else ""
    if remark:
        warn(remark)
    try:
        written = predict_files(
            predictor,
            fields,
            arguments.out,
            make_reading(arguments),
            Tiling(arguments.tile, arguments.overlap),
            also=nucleus_counter(arguments, results),
            results=results,
            remark=remark,
            scratch=arguments.work,
            keeps_tiles=arguments.keep_work,
            warn=warn,
            watch=iter if len(fields) == 1 else track("predicting"),
            watch_tiles=track("predicting") if len(fields) == 1 else iter,
        )
    except PictureError as error:
        print_paths(error.written)
        raise
    print_paths(written)
    if arguments.count:
        print_counts(written)


def settings_of(arguments: argparse.Namespace, predictor: Any) -> dict[str, Any]:
    """Everything that changes pixels: a folder of results is of one such set."""
    import hashlib

    import torch

    weights = hashlib.sha256()
    for name, tensor in sorted(predictor.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    names = [
        "axes", "channel", "at", "series", "pixel_size", "scale", "levels", "gamma", "invert",
        "digit", "align", "lines", "resize", "clean",
        "measured", "tile", "overlap", "count", "threshold",
    ]  # fmt: skip
    chosen = {name: getattr(arguments, name) for name in names}
    return chosen | {
        "weights": weights.hexdigest(), "device": predictor.device.type, "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def origin_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What else a result says of how it was made; nobody's name but what the command has."""
    import shlex

    from posterior_trees.models.checkpoint import provenance

    made = provenance()
    kept = {name: made[name] for name in ("version", "commit", "date")}
    return kept | {"model": arguments.model, "command": shlex.join(["ptrees", *sys.argv[1:]])}


def nucleus_counter(arguments: argparse.Namespace, results: "Results"):
    """What `predict --count` writes beside each tree; None without it."""
    if not arguments.count:
        if arguments.threshold is not None and not results.is_counted:
            raise InputError("--threshold is for counting: add --count")
        return None
    return partial(write_counted, results)


def write_counted(
    results: "Results", made: "Answer", folder: Path, facts: dict[str, Any]
) -> dict[str, list[int | None]]:
    """What was counted, as files; returns the nuclei of every leaf."""
    from posterior_trees.pictures.nuclei.report import KEPT, per_leaf, write_count

    counted = results.count(made)
    write_count(counted, made.tree, folder, {key: facts[key] for key in KEPT if key in facts})
    return per_leaf(counted, made.tree)


def print_counts(written: list[Path]) -> None:
    from rich.console import Console

    from posterior_trees.pictures.nuclei.report import count_table

    for folder in written:
        if (folder / "count.json").is_file():
            facts = json.loads((folder / "count.json").read_text(encoding="utf-8"))
            Console().print(count_table(facts, folder.name))
