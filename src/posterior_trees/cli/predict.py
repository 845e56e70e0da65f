"""The command `ptrees predict`: trees of the user's own pictures; heavy imports inside."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.batch import add_batch, check_batch, open_engine, threads_of, watches
from posterior_trees.cli.model import add_model, find_measures, load_model
from posterior_trees.cli.options import AUTO, add_device, add_measure, print_paths
from posterior_trees.cli.picture import add_adjustment, add_plane, make_plane, make_reading
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.engine import Engine
    from posterior_trees.imaging.fields import Field
    from posterior_trees.pictures.answer import Answer
    from posterior_trees.pictures.estimate import Batch
    from posterior_trees.pictures.results import Results
    from posterior_trees.predictor import Predictor


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
    predict.add_argument("--dtype", choices=("uint8", "uint16", "float32"), default="uint8",
                         help="numbers of zarr, and of tiff if not of 8 bits [uint8]")  # fmt: skip
    predict.add_argument("--ngff", choices=("0.4", "0.5"), default="0.5",
                         help="version of OME-Zarr [0.5]")  # fmt: skip
    again = predict.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="do what is not done yet, and what "
                       "failed [what happens in a folder of results]")  # fmt: skip
    again.add_argument("--overwrite", action="store_true", help="do all fields anew")
    predict.add_argument("--work", type=Path, metavar="DIR", help="where tiles of huge "
                         "pictures lie meanwhile [OUT]")  # fmt: skip
    predict.add_argument("--keep-work", action="store_true", help="and stay")
    add_batch(predict)
    predict.set_defaults(run=run_predict)


def run_predict(arguments: argparse.Namespace) -> None:
    from posterior_trees.imaging.fields import WELL_PATTERN, list_fields
    from posterior_trees.pictures.answer import Tiling
    from posterior_trees.pictures.estimate import Batch
    from posterior_trees.pictures.levels import choose_levels
    from posterior_trees.pictures.results import Outputs

    pattern = arguments.well_pattern or WELL_PATTERN
    fields = list_fields(arguments.images, arguments.filter, pattern)
    predictor = load_for(arguments)
    check_batch(arguments, predictor.device.type)
    is_stain = not predictor.measurement.is_computable  # a model of pairs, as for nuclei
    outputs = Outputs.of(arguments.write, len(fields), arguments.dtype, arguments.ngff, is_stain)
    threads = threads_of(arguments, outputs.words)
    if arguments.resume and not (arguments.out / "job.json").is_file():
        raise InputError(f"{arguments.out} has no results to go on with: leave --resume out")
    with open_engine(arguments, threads) as engine:
        if arguments.levels == [AUTO]:
            arguments.levels = list(choose_levels(engine, fields, make_plane(arguments)))
            low, high = arguments.levels
            warn(f"--levels {low:g} {high:g}: 0.1 % of all pixels are darker, 0.1 % brighter")
        tiling = Tiling(arguments.tile, arguments.overlap)
        batch = Batch(predictor, make_reading(arguments), tiling, outputs)
        if arguments.dry_run:
            part, parts = arguments.array
            mine = fields[part % parts :: parts]
            print(batch.describe(mine, arguments.workers or 1))
            batch.refuse_full_disk(mine, arguments.out, arguments.workers or 1)
        else:
            predict_fields(arguments, batch, fields, engine, threads)


def predict_fields(
    arguments: argparse.Namespace, batch: "Batch", fields: "Sequence[Field]", engine: "Engine",
    threads: int,
) -> None:  # fmt: skip
    """All fields, by the engine; prints what was written, also where some failed."""
    from posterior_trees.pictures.nuclei.count import describe_counting
    from posterior_trees.pictures.results import Results
    from posterior_trees.pictures.write import PictureError, predict_files

    results = Results(
        arguments.out, batch.outputs, settings_of(arguments, batch.predictor, threads),
        threshold=arguments.threshold, is_counted=arguments.count, is_mixed=arguments.allow_mixed,
        is_overwritten=arguments.overwrite, is_shared=arguments.array[1] > 1,
        origin=origin_of(arguments),
    )  # fmt: skip
    if arguments.threshold is not None and not results.is_counted:
        raise InputError("--threshold is for counting: add --count")
    if remark := describe_counting(batch.predictor) if results.is_counted else "":
        warn(remark)
    try:
        written = predict_files(
            batch.predictor, fields, arguments.out, batch.reading, batch.tiling,
            also=partial(write_counted, results) if arguments.count else None, remark=remark,
            results=results, engine=engine, make_predictor=partial(load_for, arguments),
            share=arguments.array, warn=warn, scratch=arguments.work,
            check=partial(batch.refuse_full_disk, out=arguments.out,
                          workers=arguments.workers or 1),
            keeps_tiles=arguments.keep_work, **watches(arguments, fields),
        )  # fmt: skip
    except PictureError as error:
        print_paths(error.written)
        raise
    print_paths(written)
    if arguments.count:
        print_counts(written)


def warn(message: str) -> None:
    print(f"ptrees predict: {message}", file=sys.stderr)


def load_for(arguments: argparse.Namespace) -> "Predictor":
    """The model, on the device of this process."""
    from posterior_trees import engine

    first = (arguments.device or "").partition(",")[0]
    predictor = load_model(arguments, engine.device or first or None)
    known = predictor.guarantee.facts["measures"] if predictor.guarantee else ()
    for name in find_measures(predictor, arguments.measure):
        if name not in known:
            raise InputError(
                f"--measure {name}: nothing is promised of it, but of "
                f"{', '.join(known) or 'nothing'}. Name it in ptrees calibrate, or leave it out"
            )
    predictor.about["called"] = arguments.model  # what messages call it
    return predictor


def settings_of(arguments: argparse.Namespace, predictor: Any, threads: int) -> dict[str, Any]:
    """Everything that changes pixels: a folder of results is of one such set."""
    import hashlib

    import torch

    weights = hashlib.sha256()
    for name, tensor in sorted(predictor.state_dict().items()):
        weights.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    names = [
        "axes", "channel", "at", "series", "pixel_size", "scale", "levels", "gamma", "invert",
        "digit", "align", "lines", "resize", "clean", "measured", "tile", "overlap", "count",
        "threshold",
    ]  # fmt: skip
    return {name: getattr(arguments, name) for name in names} | {
        "weights": weights.hexdigest(), "device": predictor.device.type, "torch": torch.__version__,
        "threads": threads,
    }  # fmt: skip


def origin_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What else a result says of how it was made; nobody's name but what the command has."""
    import shlex

    from posterior_trees.models.checkpoint import provenance

    made = provenance()
    kept = {name: made[name] for name in ("version", "commit", "date")}
    return kept | {"model": arguments.model, "command": shlex.join(["ptrees", *sys.argv[1:]])}


def write_counted(
    results: "Results", made: "Answer", folder: Path, facts: dict[str, Any]
) -> dict[str, list[int | None]]:
    """What was counted, as files beside a tree; returns the nuclei of every leaf."""
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
