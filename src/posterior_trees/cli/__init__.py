"""The `ptrees` command line: each command a few lines, heavy imports inside.

Exit codes: 0 done, 1 a problem that the message explains, 2 wrong usage.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

SPLITS = ("train", "validation", "test")
SEEN_APART = 0.25
"""Pixels between the truth and the root of pairs from which on `evaluate` speaks of it."""


def main(argv: list[str] | None = None) -> None:
    """Run one command; a user's mistake ends in a message, not in a traceback."""
    arguments = make_parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except (ValueError, RuntimeError, OSError) as error:
        if os.environ.get("PTREES_DEBUG"):
            raise
        print(f"ptrees {arguments.command}: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("\nptrees: stopped", file=sys.stderr)
        raise SystemExit(130) from None


class Parser(argparse.ArgumentParser):
    """Options are written out: a shortened one would mean another as soon as a new one comes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="ptrees", description="Trees of answers for image restoration, in one forward pass."
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="trees of sample digits with the shipped model")
    demo.add_argument("--out", type=Path, default=Path("demo"), help="folder to write [demo]")
    demo.set_defaults(run=run_demo)

    train = commands.add_parser("train", help="train a recipe, or continue its run")
    train.add_argument("recipe", type=Path, help="a TOML file, see recipes/")
    train.add_argument("--out", type=Path, required=True, help="run folder")
    _add_data(train)
    train.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                       help="change a recipe key, e.g. training.epochs=10")  # fmt: skip
    train.add_argument("--from", metavar="MODEL", dest="start",
                       help="begin with the weights of a model of the same layout")  # fmt: skip
    train.add_argument("--accelerator", default="auto", help="auto, cuda, mps or cpu [auto]")
    train.add_argument("--devices", type=int, default=1, help="processes, one per device [1]")
    train.add_argument("--dry-run", action="store_true", help="print the resolved recipe and stop")
    train.set_defaults(run=run_train)

    study = commands.add_parser("study", help="train, judge, draw and export several recipes")
    study.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE")
    study.add_argument("--out", type=Path, required=True, help="folder for what comes out")
    study.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs [runs]")
    _add_data(study)
    study.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes",
                       help="change a key of all recipes")  # fmt: skip
    study.add_argument("--minutes", type=float, help="stop training then; run again to continue")
    study.add_argument("--plain", action="store_true", help="also train plain MSE counterparts")
    study.add_argument("--accelerator", default="auto", help="auto, cuda, mps or cpu [auto]")
    study.set_defaults(run=run_study)

    evaluate = commands.add_parser("evaluate", help="PSNR, NLL and leaf use of a model on a split")
    _add_model(evaluate)
    _add_data(evaluate)
    evaluate.add_argument("--split", choices=SPLITS, default="test")
    evaluate.add_argument("--limit", type=int, help="only the first N images")
    evaluate.add_argument("--json", type=Path, help="file for the numbers")
    evaluate.set_defaults(run=run_evaluate)

    figure = commands.add_parser("figure", help="paper-style figure of trees of a split's images")
    _add_model(figure)
    _add_data(figure)
    figure.add_argument("--split", choices=SPLITS, default="test")
    figure.add_argument("--images", type=int, nargs="*", help="image numbers [evenly spaced]")
    figure.add_argument("--count", type=int, default=6, help="how many evenly spaced images [6]")
    figure.add_argument("--out", type=Path, required=True, help=".png, .jpg, .svg or .pdf file")
    figure.set_defaults(run=run_figure)

    toy = commands.add_parser("toy", help="train and judge a tree on the paper's 2-D mixture")
    toy.add_argument("--out", type=Path, required=True, help="folder for figures and numbers")
    toy.add_argument("--probability", choices=("cross_entropy", "paper"), default="cross_entropy")
    toy.add_argument("--seeds", type=int, default=3)
    toy.set_defaults(run=run_toy)

    data = commands.add_parser("data", help="which data sets are there, and how to get the others")
    _add_data(data)
    data.add_argument("--download", metavar="NAME", help="fetch a set that may be fetched: mnist")
    data.add_argument("--edges", metavar="NAME", help="keep edge maps beside a set: shoes128")
    data.set_defaults(run=run_data)

    from posterior_trees.cli.baselines import add_baseline
    from posterior_trees.cli.bench import add_bench
    from posterior_trees.cli.compare import add_compare
    from posterior_trees.cli.explore import add_explore
    from posterior_trees.cli.studies import add_reproduce
    from posterior_trees.cli.use import add_export, add_predict

    add_predict(commands)
    add_export(commands)
    add_explore(commands)
    add_baseline(commands)
    add_compare(commands)
    add_bench(commands)
    add_reproduce(commands)
    return parser


def run_demo(arguments: argparse.Namespace) -> None:
    from posterior_trees.demo import make_demo

    print(make_demo(arguments.out))


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees.recipe import read_recipe, write_recipe

    recipe = read_recipe(arguments.recipe, arguments.changes)
    if arguments.dry_run:
        print(write_recipe(recipe), end="")
        return
    from posterior_trees.progress import Progress
    from posterior_trees.train import fit

    out, title = arguments.out, f"training {recipe.task or arguments.recipe.stem}"
    if (out / "log.jsonl").is_file() and not (out / "state.safetensors").is_file():
        print(f"{out} has a log and no saved state: the run begins anew", file=sys.stderr)
    is_alone = arguments.devices == 1 and "WORLD_SIZE" not in os.environ
    with Progress(title, can_stop=is_alone) as progress:
        fit(
            recipe,
            arguments.out,
            data=data_folder(arguments),
            start=arguments.start,
            accelerator=arguments.accelerator,
            devices=arguments.devices,
            report=progress.epoch,
            watch=progress.steps,
        )
    if progress.is_stopped:
        print(f"stopped and saved: {out} (the same command continues)", file=sys.stderr)
        raise SystemExit(130)
    if os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0":
        print(f"done: {arguments.out}/best.safetensors (evaluate it with: "
              f"ptrees evaluate {arguments.out} --data DIR)")  # fmt: skip


def run_study(arguments: argparse.Namespace) -> None:
    from posterior_trees.study import run_study as run

    rows = run(
        arguments.recipes,
        arguments.out,
        data=data_folder(arguments),
        runs=arguments.runs,
        minutes=arguments.minutes,
        changes=arguments.changes,
        with_plain=arguments.plain,
        accelerator=arguments.accelerator,
        say=lambda text: print(text, flush=True),
    )
    failed = [row["name"] for row in rows if row["state"] == "failed"]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} failed; {arguments.out}/study.json says why")


def run_evaluate(arguments: argparse.Namespace) -> None:
    from posterior_trees.checkpoint import load, load_recipe
    from posterior_trees.data import load_evaluation
    from posterior_trees.evaluate import report, score, seconds_per_image
    from posterior_trees.metrics import information
    from posterior_trees.progress import track
    from posterior_trees.store import write_bytes

    recipe, predictor = load_recipe(arguments.model), load(arguments.model)
    images = load_evaluation(recipe.data, data_folder(arguments), arguments.split)
    if arguments.limit is not None:
        if arguments.limit < 1:
            raise ValueError(f"--limit is {arguments.limit}; it must be at least 1")
        images = images.subset(range(min(arguments.limit, len(images))))
    batch_size = recipe.training.evaluation_batch
    scores = score(
        predictor, images, batch_size=batch_size, seed=recipe.seed, watch=track("evaluating")
    )
    names = {"model": str(arguments.model), "task": recipe.task, "split": arguments.split}
    table: dict[str, Any] = report(predictor, scores, **names)
    table |= {"seconds_per_image": seconds_per_image(predictor, images), "nfe": 1}
    print_scores(table)
    if predictor.num_leaves > 1:
        told = information(scores["probs"])
        print(f"probabilities tell {told:.3f} nats about single images (0: all get the same ones)")
    if arguments.json:
        write_bytes(arguments.json, (json.dumps(table, indent=1) + "\n").encode())


def run_figure(arguments: argparse.Namespace) -> None:
    from posterior_trees.checkpoint import load, load_recipe
    from posterior_trees.data import load_evaluation
    from posterior_trees.examples import save_examples

    if arguments.count < 1:
        raise ValueError(f"--count is {arguments.count}; it must be at least 1")
    recipe, predictor = load_recipe(arguments.model), load(arguments.model)
    images = load_evaluation(recipe.data, data_folder(arguments), arguments.split)
    save_examples(
        arguments.out,
        predictor,
        images,
        indices=arguments.images or None,
        count=arguments.count,
        seed=recipe.seed,
    )
    print(arguments.out)


def run_toy(arguments: argparse.Namespace) -> None:
    from posterior_trees.studies.toy import run

    run(arguments.out, probability=arguments.probability, seeds=arguments.seeds)


def run_data(arguments: argparse.Namespace) -> None:
    from rich.console import Console

    from posterior_trees.data import download, report, store_edges
    from posterior_trees.progress import track

    folder = data_folder(arguments, Path("data"))
    if arguments.download:
        print_paths(download(arguments.download, folder))
    if arguments.edges:
        print_paths([store_edges(folder, arguments.edges, track("drawing edges"))])
    Console().print(report(folder))


def data_folder(arguments: argparse.Namespace, default: Path | None = None) -> Path:
    """The folder of `--data`, or of the variable PTREES_DATA."""
    folder = arguments.data or os.environ.get("PTREES_DATA") or default
    if folder is None:
        raise ValueError("which data? Give --data DIR or set PTREES_DATA; `ptrees data` helps")
    return Path(folder)


def print_paths(paths: list[Path]) -> None:
    for path in paths:
        print(path)


def print_scores(table: dict[str, Any]) -> None:
    """The numbers of an evaluation, a row per depth and a row per leaf."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    grid = Table(
        title=f"{table['model']} · {table['task']} · {table['split']} ({table['n']} images)"
    )
    grid.add_column("depth", justify="right")
    names = [k for k in ("psnr_hole", "psnr", "nll", "entropy") if table[k]]
    for name in names:
        grid.add_column(name, justify="right")
    for depth in range(len(table["branching"]) + 1):
        cells = [f"{table[n][depth]['mean']:.3f} ± {table[n][depth]['std']:.3f}" for n in names]
        grid.add_row(str(depth), *cells)
    console.print(grid)
    leaves = Table(title="leaves")
    for name in ("leaf", "frequency", "probability", "psnr", "root psnr"):
        leaves.add_column(name, justify="right")
    for number, leaf in enumerate(table["leaves"]):
        cells = ["–" if v is None else f"{v:.3f}" for v in leaf.values()]
        leaves.add_row(str(number), *cells)
    console.print(leaves)
    rows, columns = table.get("offset", (0.0, 0.0))
    if max(abs(rows), abs(columns)) >= SEEN_APART:
        console.print(
            f"x lies {rows:+.2f} rows and {columns:+.2f} columns from where the root expects it. "
            "If the images of a pair were recorded apart, add this to data.shift and train again"
        )
    console.print(f"{1000 * table['seconds_per_image']:.3f} ms per image, one network evaluation")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a name (digits, cells), a run folder or a file"
    )


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, metavar="DIR", help="data folder [$PTREES_DATA]")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return f"posterior-trees {version('posterior-trees')}"
    except PackageNotFoundError:
        return "posterior-trees (not installed)"


if __name__ == "__main__":
    main()
