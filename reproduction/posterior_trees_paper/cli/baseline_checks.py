"""What `ptrees baseline` measures where the truth is known, or where a classifier knows it: `bias`,
`mixture` and `digits`; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_data, add_device, count
from posterior_trees.errors import InputError

READER = Path(__file__).parents[1] / "studies" / "classifier.safetensors"
"""A network that reads digits, trained by `bash reproduction/scripts/studies.sh classifier`."""


def add_checks(actions: Any) -> None:
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


def run_bias(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import track
    from posterior_trees_paper.baselines.bias import bias_table

    _write(arguments.out, bias_table(arguments.samples, watch=track("measuring bias")))


def run_mixture(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import track
    from posterior_trees_paper.baselines.learned import Plan, run_checks

    plan = Plan(steps=arguments.steps) if arguments.steps else Plan()
    result = run_checks(plan, watch=track("training"))
    for check in result["checks"]:
        print(
            "pass" if check["passed"] else "FAIL", *(f"{k} {shorten(v)}" for k, v in check.items())
        )
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
    samples = draw_digits(model, images.shape, arguments.samples, steps=arguments.chain,
                          generator=generator)  # fmt: skip
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
