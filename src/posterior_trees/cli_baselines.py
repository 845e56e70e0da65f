"""The commands `ptrees baseline` and `ptrees compare`; heavy imports inside."""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

from posterior_trees.cli_checks import add_checks, shorten


def add_baseline(commands: Any) -> None:
    """`ptrees baseline train|sample|bias|mixture|digits`."""
    parser = commands.add_parser("baseline", help="posterior samplers to compare with")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    train = actions.add_parser("train", help="train a baseline, or continue its run")
    train.add_argument("recipe", type=Path, help="a TOML file, see recipes/baselines/")
    train.add_argument("--out", type=Path, required=True, help="run folder")
    _add_data(train)
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                       help="change a recipe key, e.g. training.epochs=10")  # fmt: skip
    train.add_argument("--device", help="cuda, mps or cpu [the best there is]")
    train.add_argument("--minutes", type=float, default=float("inf"),
                       help="stop after so long; the same command continues")  # fmt: skip
    train.set_defaults(run=run_train)

    sample = actions.add_parser("sample", help="write samples of test images, for any use")
    sample.add_argument("model", metavar="RUN", help="a baseline's run folder or file")
    _add_data(sample)
    sample.add_argument("--method", help="ddnm, ddrm, repaint, … [the model's own]")
    _add_options(sample)
    sample.add_argument("--images", type=int, default=10, help="test images, evenly chosen [10]")
    sample.add_argument("--samples", type=int, default=100, help="samples of each [100]")
    sample.add_argument("--seed", type=int, default=0)
    sample.add_argument("--device", help="cuda, mps or cpu [the best there is]")
    sample.add_argument("--out", type=Path, required=True, help="folder of .npy files")
    sample.set_defaults(run=run_sample)
    add_checks(actions)


def add_compare(commands: Any) -> None:
    """`ptrees compare`."""
    parser = commands.add_parser(
        "compare",
        help="trees of a model and of samplers, on the same images",
        epilog="METHOD is NAME=RUN (a baseline's own method), NAME=RUN:ddnm, "
        "NAME=RUN:repaint:steps=100,resamplings=3, or NAME=FOLDER with anybody's samples.",
    )
    parser.add_argument("model", metavar="MODEL", help="ours: a name, a run folder or a file")
    parser.add_argument("--method", action="append", default=[], metavar="METHOD", dest="methods",
                        help="what to compare with; repeat it")  # fmt: skip
    _add_data(parser)
    parser.add_argument("--mse", metavar="MODEL", help="a network trained for the mean alone (a "
                        "tree of depth 0), to hold roots against [our root]")  # fmt: skip
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    parser.add_argument("--images", type=int, default=100, help="test images [100]")
    parser.add_argument("--samples", type=int, default=100, help="samples per image [100]")
    parser.add_argument("--group", type=int, default=10, help="images sampled together [10]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"),
                        help="stop after so long; the same command continues")  # fmt: skip
    parser.add_argument("--device", help="cuda, mps or cpu [the best there is]")
    parser.add_argument("--compile", action="store_true",
                        help="fuse the samplers' networks: a minute each, then faster")  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="folder for tables and figures")
    parser.set_defaults(run=run_compare)


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.baselines.spec import read_baseline
    from posterior_trees.progress import Progress
    from posterior_trees.train_baseline import fit_baseline

    recipe, spec = read_baseline(arguments.recipe, arguments.changes)
    with Progress(f"training {spec.kind} for {recipe.task}") as progress:

        def report(line: dict[str, Any]) -> None:
            text = "  ".join(f"{k} {shorten(v)}" for k, v in line.items())
            progress.console.print(text, highlight=False)

        fit_baseline(
            recipe,
            spec,
            arguments.out,
            data=arguments.data,
            device=arguments.device,
            minutes=arguments.minutes,
            report=report,
            watch=progress.steps,
        )
    print(f"saved: {arguments.out} (the same command continues; sample with: "
          f"ptrees baseline sample {arguments.out} --data DIR --out FOLDER)")  # fmt: skip


def run_sample(arguments: argparse.Namespace) -> None:
    import torch

    from posterior_trees.baselines.folder import write_samples
    from posterior_trees.data import load_evaluation
    from posterior_trees.examples import evenly_spaced
    from posterior_trees.measure import measure_each
    from posterior_trees.progress import track
    from posterior_trees.sampling import load_baseline

    baseline = load_baseline(arguments.model, arguments.device)
    images = load_evaluation(baseline.recipe.data, arguments.data, "test")
    measurement = baseline.measurements[0]
    generator = torch.Generator(baseline.device).manual_seed(arguments.seed)
    options = parse_options(arguments.options)
    for index in track("sampling")(evenly_spaced(len(images), arguments.images)):
        numbers = torch.tensor([index])
        x, y = images.batch(numbers)
        x = x.to(baseline.device)
        y = measure_each(measurement, x, numbers, arguments.seed) if y is None else y
        samples, _ = baseline.sample(
            measurement, y, arguments.samples,
            method=arguments.method, generator=generator, **options,
        )  # fmt: skip
        write_samples(arguments.out, numbers, samples)
    print(arguments.out)


def run_compare(arguments: argparse.Namespace) -> None:
    from posterior_trees.compare_report import write_report
    from posterior_trees.compare_table import accepted
    from posterior_trees.progress import track

    deadline = time.monotonic() + 60 * arguments.minutes
    comparison, methods, title, reference = set_up(arguments)
    jobs = [(method, part) for method in methods for part in comparison.parts]
    for method, part in track("comparing")(jobs):
        if time.monotonic() < deadline:
            comparison.run(method, part)
    table, files = write_report(comparison, methods, title, reference)
    head, cells = accepted(table)
    for line in [head, *cells] if cells else []:
        print("  ".join(line))
    for path in files:
        print(path)


def set_up(arguments: argparse.Namespace) -> tuple[Any, list[Any], str, dict[str, Any]]:
    """A comparison, its methods, its title and the network that roots are held against."""
    from posterior_trees.checkpoint import load, load_recipe
    from posterior_trees.compare import Comparison, choose_inputs, root_psnr, tree_method
    from posterior_trees.data import load_evaluation, load_split

    recipe = load_recipe(arguments.model)
    predictor = load(arguments.model, arguments.device)
    images = load_evaluation(recipe.data, arguments.data, arguments.split)
    inputs = choose_inputs(predictor, images, arguments.images, arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    training = None  # windows of training images have no nearest one
    if not recipe.data.patch:
        training = load_split(recipe.data, arguments.data, "train").to(predictor.device)
    comparison = Comparison(
        arguments.out, inputs, predictor, group=arguments.group, seed=arguments.seed,
        training=training, is_mirrored="flip" in recipe.data.augment,
    )  # fmt: skip
    settings = {"model": str(arguments.model), "commit": predictor.about.get("commit", "unknown")}
    methods = [tree_method("ours", predictor, settings)]
    methods += [make_method(text, arguments, predictor, recipe) for text in arguments.methods]
    if len({method.name for method in methods}) < len(methods):
        raise ValueError("two methods have the same name; 'ours' is the model's")
    mean = load(arguments.mse, arguments.device) if arguments.mse else predictor
    psnr = root_psnr(mean, inputs).double().mean().item()
    reference = {"name": "the MSE network" if arguments.mse else "our root", "psnr": psnr}
    return comparison, methods, f"Trees compared: {recipe.task}", reference


def make_method(text: str, arguments: argparse.Namespace, predictor: Any, recipe: Any) -> Any:
    """A method from `NAME=RUN[:SAMPLER[:OPTIONS]]` or `NAME=FOLDER`."""
    from posterior_trees.compare import folder_method, sampler_method

    name, equals, rest = text.partition("=")
    if not (name and equals and rest):
        raise ValueError(f"--method {text!r}: write it as NAME=RUN:SAMPLER or NAME=FOLDER")
    common = {"branching": predictor.branching, "samples": arguments.samples,
              "seed": arguments.seed}  # fmt: skip
    path, _, more = rest.partition(":")
    holds_model = Path(path).is_file() or (Path(path) / "best.safetensors").is_file()
    if not holds_model and Path(path).is_dir():
        return folder_method(name, Path(path), **common)
    sampler, _, options = more.partition(":")
    baseline = _load(path, arguments.device, arguments.compile)
    if baseline.recipe.data.channels != recipe.data.channels:
        raise ValueError(
            f"{path} was trained on {baseline.recipe.data.channels} channels, "
            f"{arguments.model} on {recipe.data.channels}: compare models of the same data"
        )
    about = {"run": path, "trained": baseline.about}
    return sampler_method(
        name, baseline, sampler or baseline.methods()[0], **common,
        options=parse_options(options.split(",") if options else []), settings=about,
    )  # fmt: skip


@functools.cache
def _load(path: str, device: str | None, is_compiled: bool) -> Any:
    """A baseline, once for all methods that sample with it."""
    from posterior_trees.sampling import load_baseline

    baseline = load_baseline(path, device)
    if is_compiled:
        baseline.model.compile()
    return baseline


def parse_options(texts: list[str]) -> dict[str, Any]:
    """`steps=100` and the like as keyword arguments of a sampler."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"option {text!r}: write it as key=value, e.g. steps=100")
        try:
            options[key] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError as error:
            raise ValueError(f"option {text!r}: {value!r} is not a number") from error
    return options


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder [$PTREES_DATA]")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                        dest="options", help="of the sampler, e.g. steps=100")  # fmt: skip
