"""The command `ptrees baseline`: posterior samplers to compare with; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import (
    add_changes,
    add_data,
    add_device,
    add_limit,
    command_line,
    count,
)
from posterior_trees.errors import InputError
from posterior_trees_paper.cli.baseline_checks import add_checks, shorten


def add(commands: Any) -> None:
    """`ptrees baseline train|sample|bias|mixture|digits`."""
    parser = commands.add_parser("baseline", help="posterior samplers to compare with")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    train = actions.add_parser("train", help="train a baseline, or continue its run")
    train.add_argument("recipe", type=Path, help="a TOML file, see recipes/baselines/")
    train.add_argument("--out", type=Path, required=True, help="run folder")
    add_data(train)
    add_changes(train, "change a recipe key, e.g. training.epochs=10")
    add_device(train)
    train.add_argument("--minutes", type=float, default=float("inf"),
                       help="stop after so long; the same command continues")  # fmt: skip
    train.set_defaults(run=run_train, fills=("out",))

    sample = actions.add_parser("sample", help="write samples of test images, for any use")
    sample.add_argument("model", metavar="RUN", help="a baseline's run folder or file")
    add_data(sample)
    sample.add_argument("--sampler", help="ddnm, ddrm, repaint, … [the model's own]")
    sample.add_argument("--task", metavar="NAME", help="measure as in another task on the same "
                        "data, e.g. faces_mouth [the model's own]")  # fmt: skip
    _add_options(sample)
    add_limit(sample, "of the test split, those of `ptrees compare` [10]", 10)
    sample.add_argument("--samples", type=count, default=100, help="samples of each [100]")
    sample.add_argument("--seed", type=int, default=0, help="of images and samples [0]")
    add_device(sample)
    sample.add_argument("--out", type=Path, required=True, help="folder of .npy files")
    sample.set_defaults(run=run_sample, fills=("out",))
    add_checks(actions)


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import Progress
    from posterior_trees_paper.baselines.spec import read_baseline
    from posterior_trees_paper.baselines.train import fit_baseline

    recipe, spec = read_baseline(arguments.recipe, arguments.changes)
    with Progress(f"training {spec.kind} for {recipe.task}") as progress:

        def report(line: dict[str, Any]) -> None:
            text = "  ".join(f"{k} {shorten(v)}" for k, v in line.items())
            progress.say(text)

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
    words = ("ptrees", "baseline", "sample", arguments.out, "--out", "FOLDER")
    hint = command_line(*words, data=arguments.data)
    print(f"saved: {arguments.out} (the same command continues; sample with: {hint})")


def run_sample(arguments: argparse.Namespace) -> None:
    from posterior_trees.data import load_evaluation, measured_batch
    from posterior_trees.progress import track
    from posterior_trees.seeding import step_generator
    from posterior_trees_paper.baselines.folder import choose_images, write_samples
    from posterior_trees_paper.baselines.sampling import load_baseline
    from posterior_trees_paper.compare.methods import SAMPLING

    baseline = load_baseline(arguments.model, arguments.device)
    images = load_evaluation(baseline.recipe.data, arguments.data, "test")
    measurement = baseline.measurement_of(arguments.task)
    generator = step_generator(arguments.seed, 0, SAMPLING, baseline.device)
    options = parse_options(arguments.options)
    chosen = choose_images(len(images), arguments.limit, arguments.seed)
    for numbers in track("sampling")(chosen.split(1)):
        _, y = measured_batch(images, numbers, measurement, arguments.seed, baseline.device)
        samples, _ = baseline.sample(
            measurement, y, arguments.samples,
            method=arguments.sampler, generator=generator, **options,
        )  # fmt: skip
        write_samples(arguments.out, numbers, samples)
    print(arguments.out)


def parse_options(texts: list[str]) -> dict[str, Any]:
    """`steps=100` and the like as keyword arguments of a sampler."""
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise InputError(f"option {text!r}: write it as key=value, e.g. steps=100")
        try:
            options[key] = int(value) if value.lstrip("-").isdigit() else float(value)
        except ValueError as error:
            raise InputError(f"option {text!r}: {value!r} is not a number") from error
    return options


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                        dest="options", help="of the sampler, e.g. steps=100")  # fmt: skip
