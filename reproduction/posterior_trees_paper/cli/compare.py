"""The command `ptrees compare`: trees of a model and of samplers on the same images.

What is compared, and how the tables come about, is in `compare/`; heavy imports inside.
"""

import argparse
import functools
import inspect
import sys
import time
from pathlib import Path
from typing import Any

from posterior_trees.cli.evaluate import load_judged
from posterior_trees.cli.model import add_model, find_function
from posterior_trees.cli.options import (
    add_data,
    add_device,
    add_limit,
    add_split,
    count,
    print_paths,
)
from posterior_trees.errors import InputError
from posterior_trees_paper.cli.baseline import parse_options


def add(commands: Any) -> None:
    """`ptrees compare`."""
    parser = commands.add_parser(
        "compare",
        help="trees of a model and of samplers, on the same images",
        epilog="METHOD is NAME=RUN (a baseline's own method), NAME=RUN:ddnm, "
        "NAME=RUN:repaint:steps=100,resamplings=3, or NAME=FOLDER with anybody's samples of what "
        "--inputs writes (docs/compare.md).",
    )
    add_model(parser)
    parser.add_argument("--method", action="append", default=[], metavar="METHOD", dest="methods",
                        help="what to compare with; repeat it")  # fmt: skip
    add_data(parser)
    parser.add_argument("--mse", metavar="MODEL", help="a network trained for the mean alone (a "
                        "tree of depth 0), to hold roots against [our root]")  # fmt: skip
    add_split(parser, ("validation", "test"))
    add_limit(parser, "chosen by the seed [100, or all there are]")
    parser.add_argument("--samples", type=count, default=100, help="samples per image [100]")
    parser.add_argument("--group", type=count, default=10, help="images sampled together [10]")
    parser.add_argument("--seed", type=int, default=0, help="of images and samples [0]")
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="stop after so long; the same command continues")  # fmt: skip
    add_device(parser)
    parser.add_argument("--compile", action="store_true",
                        help="compiled networks: minutes once, then faster")  # fmt: skip
    goal = parser.add_mutually_exclusive_group(required=True)
    goal.add_argument("--out", type=Path, help="folder for tables and figures")
    goal.add_argument("--inputs", type=Path, metavar="DIR",
                      help="compare nothing: write images and measurements here, for a sampler of "
                      "your own")  # fmt: skip
    parser.set_defaults(run=run_compare, fills=("out", "inputs"))


def run_compare(arguments: argparse.Namespace) -> None:
    from posterior_trees.fast.predictor import tuned_convolutions
    from posterior_trees.progress import track
    from posterior_trees_paper.compare.comparison import write_report
    from posterior_trees_paper.compare.inputs import save_inputs
    from posterior_trees_paper.compare.methods import choose_inputs
    from posterior_trees_paper.compare.table import accepted, doubts

    if arguments.inputs and arguments.methods:
        raise InputError("--inputs compares nothing: leave --method out, or give --out instead")
    deadline = time.monotonic() + 60 * arguments.minutes
    recipe, predictor, images = load_judged(arguments)
    chosen = arguments.limit, arguments.seed, recipe.data.split
    inputs = choose_inputs(predictor, images, *chosen)
    if arguments.inputs:  # what a sampler of somebody's own starts from
        facts = {"task": recipe.task, "split": arguments.split, "seed": arguments.seed}
        print_paths(save_inputs(arguments.inputs, inputs, facts))
        return
    comparison, methods, title, reference = set_up(arguments, recipe, predictor, inputs)
    jobs = [(method, part) for method in methods for part in comparison.parts]
    if kept := sum(comparison.has(*job) for job in jobs):
        print(
            f"{kept} of {len(jobs)} groups of images are there already, of the same weights, "
            f"samples and images: {arguments.out / 'parts'}",
            file=sys.stderr,
        )
    with tuned_convolutions():
        for method, part in track("comparing")(jobs):
            if time.monotonic() < deadline:
                comparison.run(method, part)
    table, files = write_report(comparison, methods, title, reference)
    head, cells = accepted(table)
    for line in [head, *cells] if cells else []:
        print("  ".join(line))
    for doubt in doubts(table):
        print(f"ptrees compare: {doubt}", file=sys.stderr)
    print_paths(files)


def set_up(
    arguments: argparse.Namespace, recipe: Any, predictor: Any, inputs: Any
) -> tuple[Any, list[Any], str, dict[str, Any]]:
    """A comparison, its methods, its title and the network that roots are held against."""
    from posterior_trees.models.checkpoint import find_model, load, load_recipe
    from posterior_trees_paper.compare.comparison import Comparison, root_psnr
    from posterior_trees_paper.compare.fingerprint import of_files
    from posterior_trees_paper.compare.methods import tree_method
    from posterior_trees_paper.compare.training import Trainings

    arguments.out.mkdir(parents=True, exist_ok=True)
    trainings = Trainings(arguments.data, predictor.device)
    files = [find_model(arguments.model)]
    if arguments.predictor:  # it is made in a file of the user's own
        source = inspect.getsourcefile(find_function("--predictor", arguments.predictor))
        files += [Path(source)] if source else []
    comparison = Comparison(
        arguments.out, inputs, predictor, group=arguments.group, seed=arguments.seed,
        training=trainings.load(recipe.data), identity={"ours": of_files(files)},
    )  # fmt: skip
    settings = {"model": str(arguments.model), "commit": predictor.about.get("commit", "unknown")}
    settings |= {"compiled": True} if arguments.compile else {}
    ours = predictor.compile() if arguments.compile else predictor
    seen = trainings.count(predictor.about, recipe.data)
    methods = [tree_method("ours", ours, settings, seen)]
    common = arguments, predictor, recipe.data, inputs, trainings
    methods += [make_method(text, *common) for text in arguments.methods]
    if len({method.name for method in methods}) < len(methods):
        raise InputError("two methods have the same name; 'ours' is the model's")
    mean = predictor
    if arguments.mse:
        mean = load(arguments.mse, arguments.device)
        trainings.find(arguments.mse, load_recipe(arguments.mse).data, recipe.data, inputs.names)
    if not mean.measurement.same_as(predictor.measurement):
        raise InputError(
            f"--mse {arguments.mse} was trained for another measurement than {arguments.model}: "
            "give a network of the same task and size"
        )
    psnr = root_psnr(mean, inputs).double().mean().item()
    reference = {"name": "the MSE network" if arguments.mse else "our root", "psnr": psnr}
    return comparison, methods, f"Trees compared: {recipe.task}", reference


def make_method(
    text: str,
    arguments: argparse.Namespace,
    predictor: Any,
    ours: Any,
    inputs: Any,
    trainings: Any,
) -> Any:
    """A method from `NAME=RUN[:SAMPLER[:OPTIONS]]` or `NAME=FOLDER`."""
    from posterior_trees.data import describe_other_images
    from posterior_trees.models.checkpoint import find_model
    from posterior_trees_paper.compare.fingerprint import of_files
    from posterior_trees_paper.compare.methods import folder_method, sampler_method

    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise InputError(f"--method {text!r}: write it as NAME=RUN:SAMPLER or NAME=FOLDER")
    common = {"branching": predictor.branching, "samples": arguments.samples,
              "seed": arguments.seed}  # fmt: skip
    path, _, more = rest.partition(":")
    holds_model = Path(path).is_file() or (Path(path) / "best.safetensors").is_file()
    if not holds_model and Path(path).is_dir():
        return folder_method(name, Path(path), inputs, **common)
    if not holds_model:
        raise InputError(
            f"--method {text!r}: {path} is neither a baseline (a run folder or file of `ptrees "
            "baseline train`) nor a folder of samples (FOLDER/<image>/0000.png, …)"
        )
    sampler, _, options = more.partition(":")
    baseline = _load(path, arguments.device, arguments.compile)
    theirs = baseline.recipe.data
    if theirs.channels != ours.channels:
        raise InputError(
            f"{path} was trained on {theirs.channels} channels, {arguments.model} on "
            f"{ours.channels}: compare models of the same data"
        )
    training = trainings.find(path, theirs, ours, inputs.names)
    known = baseline.about.get("train_names") if theirs.name == ours.name else None
    if doubt := describe_other_images(theirs, arguments.data, known):
        print(f"ptrees compare: {path}: {doubt}", file=sys.stderr)
    about = {"run": path, "trained": baseline.about, "weights": of_files([find_model(path)])}
    about |= {"compiled": True} if arguments.compile else {}
    return sampler_method(
        name, baseline, sampler or baseline.methods()[0], **common,
        options=parse_options(options.split(",") if options else []), settings=about,
        training=training, seen=trainings.count(baseline.about, theirs),
    )  # fmt: skip


@functools.cache
def _load(path: str, device: str | None, is_compiled: bool) -> Any:
    """A baseline, once for all methods that sample with it."""
    from posterior_trees.fast.compiling import SAFE
    from posterior_trees_paper.baselines.sampling import load_baseline

    baseline = load_baseline(path, device)
    if is_compiled:
        baseline.model.compile(options=SAFE)
    return baseline
