"""The command `ptrees train`: a recipe becomes a model; heavy imports inside."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_changes, add_data, add_device, command_line, count


def add(commands: Any) -> None:
    train = commands.add_parser("train", help="train a recipe, or continue its run")
    train.add_argument("recipe", type=Path, help="a TOML file, see recipes/")
    train.add_argument("--out", type=Path, required=True, help="run folder")
    add_data(train)
    add_changes(train, "change a recipe key, e.g. training.epochs=10")
    train.add_argument("--from", metavar="MODEL", dest="start",
                       help="begin with the weights of a model of the same layout")  # fmt: skip
    add_device(train)
    train.add_argument("--devices", type=count, default=1, help="processes, one per device [1]")
    train.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    train.set_defaults(run=run_train, fills=("out",))


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.recipe import read_recipe, write_recipe

    recipe = read_recipe(arguments.recipe, arguments.changes)
    if arguments.dry_run:
        print(write_recipe(recipe), end="")
        return
    from posterior_trees.data import load_images
    from posterior_trees.data.facts import oddities
    from posterior_trees.lock import is_first_process
    from posterior_trees.progress import Progress
    from posterior_trees.training.order import steps_of
    from posterior_trees.training.run import check_folder
    from posterior_trees.training.trainer import fit

    out, title = arguments.out, f"training {recipe.task or arguments.recipe.stem}"
    check_folder(out, recipe)  # before all that takes time
    if (out / "log.jsonl").is_file() and not (out / "state.safetensors").is_file():
        print(f"{out} has a log and no saved state: the run begins anew", file=sys.stderr)
    is_first = is_first_process()
    images = load_images(recipe.data, arguments.data)
    if is_first:
        held_out = f", {len(images[1])} to validate" if images[1] is not None else ""
        print(f"{len(images[0])} images to train on{held_out}", file=sys.stderr)
        for warning in oddities(images[0]):
            print(f"warning: {warning}", file=sys.stderr)
    is_alone = arguments.devices == 1 and "WORLD_SIZE" not in os.environ
    steps = steps_of(len(images[0]), recipe.training.batch_size, recipe.data.repeat)
    options = {"per_epoch": steps, "can_stop": is_alone, "is_quiet": not is_first}
    with Progress(title, **options) as progress:
        fit(
            recipe,
            out,
            images=images,
            start=arguments.start,
            accelerator=arguments.device or "auto",
            devices=arguments.devices,
            report=progress.epoch,
            watch=progress.steps,
        )
    if progress.is_stopped:
        print(f"stopped and saved: {out} (the same command continues)", file=sys.stderr)
        raise SystemExit(130)
    if is_first:
        print_end(out, arguments.data)


def print_end(run: Path, data: Path | None) -> None:
    """What a finished run has, whether its probabilities were changed, and what to do next."""
    from posterior_trees.store import read_facts

    if record := read_facts(run / "best.safetensors")["about"].get("calibration"):
        print(describe_calibration(record))
    hint = command_line("ptrees", "evaluate", run, data=data)
    print(f"done: {run}/best.safetensors (evaluate it with: {hint})")


def describe_calibration(record: dict[str, Any]) -> str:
    """One line about the record that `training/calibrate.py` keeps in a model."""
    images = f"{record['images']} validation images"
    if record["strength"] == 1 and not any(record["offsets"]):
        return f"calibration left the probabilities as trained: {images} ask for no change"
    before, after = (record[f"nll_{moment}"][-1] for moment in ("before", "after"))
    return f"calibration changed the probabilities: NLL of {images} {before:.3f} → {after:.3f}"
