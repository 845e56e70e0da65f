"""The command `ptrees train`: a recipe becomes a model; heavy imports inside."""

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.options import add_changes, add_data, add_device, command_line, count
from posterior_trees.errors import plural

if TYPE_CHECKING:
    from posterior_trees.progress import Progress
    from posterior_trees.recipe import Recipe


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
    train.add_argument("--dry-run", action="store_true", help="check it, print the resolved recipe "
                       "and what it would take, and stop")  # fmt: skip
    train.set_defaults(run=run_train, fills=("out",))


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.data import load_images
    from posterior_trees.data.facts import oddities
    from posterior_trees.lock import is_first_process
    from posterior_trees.training.prepare import prepare, read_for
    from posterior_trees.training.run import check_folder
    from posterior_trees.training.trainer import fit

    out, device = arguments.out, arguments.device
    recipe, is_open = read_for(arguments.recipe, arguments.changes, out, arguments.start)
    if arguments.dry_run:
        dry_run(recipe, is_open, arguments)
        return
    check_folder(out, recipe)  # before all that takes time
    if (out / "log.jsonl").is_file() and not (out / "state.safetensors").is_file():
        print(f"{out} has a log and no saved state: the run begins anew", file=sys.stderr)
    say = partial(print, file=sys.stderr) if (is_first := is_first_process()) else (lambda _: None)
    images = load_images(recipe.data, arguments.data)
    held_out = f", {len(images[1])} to validate" if images[1] is not None else ""
    say(f"{plural(len(images[0]), 'image')} to train on{held_out}")
    for warning in oddities(images[0]) if is_first else ():
        say(f"warning: {warning}")
    processes = int(os.environ.get("WORLD_SIZE", arguments.devices))
    counted = len(images[0]), images[0].shape
    recipe = prepare(recipe, *counted, device, processes=processes, is_open=is_open, say=say)
    with progress_of(recipe, counted[0], processes == 1, is_first, arguments) as progress:
        fit(
            recipe, out, images=images, start=arguments.start, accelerator=device or "auto",
            devices=arguments.devices, report=progress.epoch, watch=progress.steps,
        )  # fmt: skip
    if progress.is_stopped:
        say(f"stopped and saved: {out} (the same command continues)")
        raise SystemExit(130)
    if is_first:
        print_end(out, arguments.data)


def dry_run(recipe: "Recipe", is_open: bool, arguments: argparse.Namespace) -> None:
    """The resolved recipe, and as its comments what a run of it would take."""
    from posterior_trees.recipe import write_recipe
    from posterior_trees.training.prepare import estimate, look, prepare

    said: list[str] = []
    count, size = look(recipe, arguments.data)
    if size and (count or not is_open):
        where = arguments.device
        recipe = prepare(recipe, count, size, where, is_open=is_open, say=said.append)
        said.append(estimate(recipe, count, size, where))
    else:
        said.append("which network and what it takes depends on the pictures: give --data")
    print(write_recipe(recipe) + "".join(f"# {line}\n" for line in said), end="")


def progress_of(
    recipe: "Recipe", count: int, is_alone: bool, is_first: bool, arguments: argparse.Namespace
) -> "Progress":
    from posterior_trees.progress import Progress
    from posterior_trees.training.feed import steps_of

    title = f"training {recipe.task or arguments.recipe.stem}"
    steps = steps_of(count, recipe.training.batch_size, recipe.data.repeat)
    return Progress(title, per_epoch=steps, can_stop=is_alone, is_quiet=not is_first)


def print_end(run: Path, data: Path | None) -> None:
    """What a finished run has, whether its probabilities were changed, and what to do next."""
    from posterior_trees.store import read_facts

    if record := read_facts(run / "best.safetensors")["about"].get("calibration"):
        print(describe_calibration(record))
    hint = command_line("ptrees", "evaluate", run, data=data)
    print(f"done: {run}/best.safetensors (evaluate it with: {hint})")


def describe_calibration(record: dict[str, Any]) -> str:
    """One line about the record that `training/probabilities.py` keeps in a model."""
    images = f"{record['images']} validation images"
    if record["strength"] == 1 and not any(record["offsets"]):
        return f"calibration left the probabilities as trained: {images} ask for no change"
    before, after = (record[f"nll_{moment}"][-1] for moment in ("before", "after"))
    return f"calibration changed the probabilities: NLL of {images} {before:.3f} → {after:.3f}"
