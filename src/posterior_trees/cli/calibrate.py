"""The command `ptrees calibrate`: promises for a model's trees; heavy imports inside."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.evaluate import add_judged, load_images, load_judged
from posterior_trees.cli.options import add_limit, add_measure, count
from posterior_trees.errors import InputError

if TYPE_CHECKING:
    from posterior_trees.guarantee.certificate import Guarantee

SPLITS = ("validation", "test")


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate", help="promises that hold: a certificate from images the model never saw"
    )
    add_judged(parser, SPLITS)
    parser.add_argument("--fit", choices=("train", *SPLITS), help="images that fit the scales [a "
                        "third of the same, which then give no scores]")  # fmt: skip
    parser.add_argument("--groups", choices=("well", "file", "image"), help="what is held out as a "
                        "whole [as the recipe splits]")  # fmt: skip
    parser.add_argument("--level", type=float, default=0.9, help="what is printed, and what "
                        "pages and tables promise [0.9]")  # fmt: skip
    add_measure(parser, "promise a range of")
    parser.add_argument("--box", type=count, nargs=2, metavar=("H", "W"), help="size of the boxes "
                        "that may be chosen after looking [a quarter of a side]")  # fmt: skip
    add_limit(parser, "evenly spaced ones [all]")
    parser.add_argument("--whole", action="store_true", help="whole images, where the recipe takes "
                        "windows of them")  # fmt: skip
    parser.add_argument("--note", help="what the certificate should say of these images")
    parser.add_argument("--seed", type=int, default=0, help="of folds and noise [0]")
    parser.add_argument("--bank", type=count, metavar="N", help="keep N images, for functions "
                        "nobody foresaw, in a file beside")  # fmt: skip
    parser.add_argument("--out", type=Path, help="write a copy of the model [into the model]")
    parser.add_argument("--report", type=Path, metavar="FILE", help="a figure of coverage and "
                        "honesty")  # fmt: skip
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    from posterior_trees.data import evenly_spaced
    from posterior_trees.guarantee.certify import calibrate
    from posterior_trees.guarantee.report import diagnose, draw_report
    from posterior_trees.models.checkpoint import find_model, keep_guarantee
    from posterior_trees.models.shelf import list_models
    from posterior_trees.progress import track
    from posterior_trees.store import make_folder_of

    if arguments.model in list_models() and not arguments.out:
        raise InputError(f"{arguments.model} is everybody's: give --out FILE for a copy")
    for file in (arguments.out, arguments.report):
        if file:
            make_folder_of(file)
    recipe, predictor, images = load_judged(arguments)
    predictor.guarantee = None
    if arguments.limit:
        images = images.subset(evenly_spaced(len(images), arguments.limit))
    box = arguments.box and tuple(arguments.box)
    fit = load_images(recipe, arguments, arguments.fit) if arguments.fit else None
    guarantee = calibrate(
        predictor, images, arguments.groups, arguments.measure, box, arguments.seed, fit=fit,
        level=arguments.level, batch_size=recipe.training.evaluation_batch,
        bank=arguments.bank or 0, watch=track("calibrating"),
    )  # fmt: skip
    guarantee.facts |= {"split": arguments.split, "note": arguments.note or ""}
    describe(arguments, guarantee)
    written = [keep_guarantee(arguments.model, guarantee, arguments.out)]
    if guarantee.bank:
        written.append((arguments.out or find_model(arguments.model)).with_suffix(".bank"))
        guarantee.bank.save(written[-1])
    if arguments.report:
        found = diagnose(guarantee, arguments.level)
        draw_report(arguments.report, found, f"{arguments.model}: {arguments.split} images")
        print(f"trees by themselves: {found.words}", file=sys.stderr)
        written.append(arguments.report)
    print(*written, sep="\n")


def describe(arguments: argparse.Namespace, guarantee: "Guarantee") -> None:
    """What is promised, on what it rests, and what is not promised."""
    from posterior_trees.guarantee.judging import take
    from posterior_trees.guarantee.report import sizes_of

    level, nodes, facts = arguments.level, guarantee.facts["nodes"], guarantee.facts
    rows, terms = take(guarantee.judged.rows, ~guarantee.judged.fits), guarantee.terms(level)
    found = sizes_of(rows, guarantee, level)
    units = f" in {terms.groups} {terms.units}" if terms.groups else ""
    print(f"{guarantee.n:,} {arguments.split} images{units} give scores, "
          f"{facts['fitted_on']:,} fit the scales")  # fmt: skip
    low, high = (100 * share for share in terms.range)
    print(f"finest level {100 * guarantee.finest_level:.4g} %; at {100 * level:g} % the coverage "
          f"of such a calibration lies in {low:.1f}–{high:.1f} %, 9 times of 10")  # fmt: skip
    of = rows["probs"].shape[1]
    for name, words in (
        (f"cut{nodes}", f"the truth's path is in at most {nodes} nodes"),
        ("leaves", "the truth's path is in as many nodes as it takes"),
    ):
        print(f"  {words}: {found[f'{name}.nodes']:.2f} nodes, "
              f"{found[f'{name}.leaves']:.2f} of {of} leaves")  # fmt: skip
    print(f"  the truth is within {found['ball.radius']:.4g} (RMSE) of some leaf")
    for name in facts["measures"]:
        print(f"  {name}: intervals {found[f'{name}.width']:.4g} wide")
    if "boxes.width" in found:
        print(f"  any box of {guarantee.grid.size[0]}×{guarantee.grid.size[1]}, chosen after "
              f"looking: {found['boxes.width']:.3g} wide")  # fmt: skip
    if "typical" in guarantee.scores:
        print(f"  inputs unlike these are told by a p-value of at most {guarantee.least_p:.2g}")
    if arguments.split == "validation":
        print("validation images chose the epoch wherever training looked at them: promises are "
              "then not quite true. Better: --split test --fit validation")  # fmt: skip
    if arguments.fit == "train":
        print("the scales were fitted on trained images: promises hold, and are wider for it")
    print("Not promised: anything about one image or class of images (it holds on average), about "
          "other devices or populations, or after images were selected.")  # fmt: skip
