"""The command `ptrees baseline`: posterior samplers to compare with, and what they do where the
truth is known (`bias`, `mixture`) or a classifier knows it (`digits`); heavy imports inside."""

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

READER = Path(__file__).parents[1] / "studies" / "classifier.safetensors"
"""A network that reads digits, trained by `bash reproduction/scripts/studies.sh classifier`."""


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
    sample.add_argument("--option", action="append", default=[], metavar="KEY=VALUE",
                        dest="options", help="of the sampler, e.g. steps=100")  # fmt: skip
    add_limit(sample, "of the test split, those of `ptrees compare` [10]", 10)
    sample.add_argument("--samples", type=count, default=100, help="samples of each [100]")
    sample.add_argument("--seed", type=int, default=0, help="of images and samples [0]")
    add_device(sample)
    sample.add_argument("--out", type=Path, required=True, help="folder of .npy files")
    sample.set_defaults(run=run_sample, fills=("out",))
    _add_checks(actions)


def _add_checks(actions: Any) -> None:
    """`ptrees baseline bias|mixture|digits`."""
    bias = actions.add_parser("bias", help="what samplers get wrong with a perfect denoiser")
    bias.add_argument("--samples", type=count, default=40_000, help="samples per point [40000]")
    bias.add_argument("--out", type=Path, required=True, help="JSON file to write")
    bias.set_defaults(run=run_bias)

    mixture = actions.add_parser("mixture", help="train on the 2-D mixture; hold against the truth")
    mixture.add_argument("--steps", type=count, default=None, help="training steps [12000]")
    mixture.add_argument("--out", type=Path, required=True, help="JSON file to write")
    mixture.set_defaults(run=run_mixture)

    digits = actions.add_parser("digits", help="are a prior's unconditional samples digits?")
    digits.add_argument("model", metavar="RUN", help="a run folder or file of a prior of digits")
    add_data(digits)
    add_reader(digits)
    digits.add_argument("--samples", type=count, default=4000, help="digits to draw [4000]")
    digits.add_argument("--chain", type=count, default=250, help="steps of the reverse chain [250]")
    digits.add_argument("--seed", type=int, default=0, help="of images and samples [0]")
    add_device(digits)
    digits.add_argument("--out", type=Path, required=True, help="JSON file to write")
    digits.set_defaults(run=run_digits)


def add_reader(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--classifier", type=Path, metavar="FILE", default=READER,
                        help="digit reader [the one of this checkout]")  # fmt: skip


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import Progress
    from posterior_trees_paper.baselines.spec import read_baseline
    from posterior_trees_paper.baselines.train import fit_baseline

    recipe, spec = read_baseline(arguments.recipe, arguments.changes)
    with Progress(f"training {spec.kind} for {recipe.task}") as progress:

        def report(line: dict[str, Any]) -> None:
            progress.say("  ".join(f"{k} {shorten(v)}" for k, v in line.items()))

        given = {name: getattr(arguments, name) for name in ("data", "device", "minutes")}
        fit_baseline(recipe, spec, arguments.out, **given, report=report, watch=progress.steps)
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


def run_bias(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import track
    from posterior_trees_paper.baselines.bias import SAMPLERS, measure_bias

    names = track("measuring bias")(list(SAMPLERS))
    _write(arguments.out, [measure_bias(name, arguments.samples) for name in names])


def run_mixture(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import track
    from posterior_trees_paper.baselines.learned import Plan, run_checks

    plan = Plan(steps=arguments.steps) if arguments.steps else Plan()
    result = run_checks(plan, watch=track("training"))
    for check in result["checks"]:
        print("pass" if check["passed"] else "FAIL", shorten(check))
    _write(arguments.out, result)


def run_digits(arguments: argparse.Namespace) -> None:
    import torch

    from posterior_trees import store
    from posterior_trees_paper.baselines.diffusion import DiffusionModel
    from posterior_trees_paper.baselines.digits import draw_digits, judge_digits
    from posterior_trees_paper.baselines.sampling import load_baseline
    from posterior_trees_paper.studies.classifier import load_labelled, load_reader

    baseline = load_baseline(arguments.model, arguments.device)
    model = baseline.model
    if not isinstance(model, DiffusionModel) or model.is_conditional:
        raise InputError(
            f"{arguments.model} is a {baseline.spec.kind} model; unconditional samples need one "
            "trained with baseline.kind='prior'"
        )
    if not arguments.classifier.is_file():
        raise InputError(
            f"there is no digit reader {arguments.classifier}: leave --classifier out, or make one "
            "with python -m posterior_trees_paper.studies.classifier --data DIR --out FILE"
        )
    reader = load_reader(arguments.classifier, baseline.device)
    _, labels = load_labelled(arguments.data, "train")
    images, _ = load_labelled(arguments.data, "t10k")
    real, _ = images.batch(range(len(images)))
    generator = torch.Generator(baseline.device).manual_seed(arguments.seed)
    samples = draw_digits(model, images.shape, arguments.samples, arguments.chain, generator)
    result = judge_digits(samples, real.to(baseline.device), labels, reader)
    result["reader_accuracy"] = store.read_facts(arguments.classifier).get("test_accuracy")
    for key in ("class_gap", "sure"):
        found = result[key]
        print(f"{'pass' if found['passed'] else 'FAIL'} {key} {shorten(found)}")
    _write(arguments.out, {"schema": 1, "trained": baseline.about, **result})


def _write(file: Path, content: Any) -> None:
    from posterior_trees.store import write_json

    write_json(file, content)
    print(file)


def shorten(value: Any) -> str:
    """Numbers with four digits, also inside lists and dictionaries, for a line of the terminal."""
    if isinstance(value, dict):
        return " ".join(f"{k} {shorten(v)}" for k, v in value.items())
    if isinstance(value, list):
        return " / ".join(map(shorten, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
