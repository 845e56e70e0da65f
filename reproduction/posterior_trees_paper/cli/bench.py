"""The command `ptrees bench`: how fast, against what, on this machine; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_changes, add_device, add_limit, count
from posterior_trees.errors import InputError

PRECISIONS = ("float32", "bfloat16", "float16")


def add(commands: Any) -> None:
    """`ptrees bench inference|expand|train|balancer|kmeans|growth`."""
    parser = commands.add_parser("bench", help="how fast, against what, on this machine")
    actions = parser.add_subparsers(dest="action", required=True, metavar="WHAT")
    _add_networks(actions)
    _add_solvers(actions)


def _add_networks(actions: Any) -> None:
    """What runs a network: `inference`, `expand`, `train` and `growth`."""
    inference = _action(actions, "inference", run_inference, "a tree from a measurement", 20)
    inference.add_argument("--model", help="a trained model [random weights]")
    inference.add_argument("--recipe", help="a TOML file, one of recipes/, or a task "
                           "[the paper's network]")  # fmt: skip
    _add_network(inference)
    _add_size(inference, "64, or the recipe's")
    inference.set_defaults(branching=None, depth=None, c_init=None, channels=None)
    _add_batch(inference, "1 8", [1, 8])
    inference.add_argument("--precision", choices=PRECISIONS, nargs="+",
                           default=["float32", "bfloat16"],
                           help="number formats to try [float32 bfloat16]")  # fmt: skip
    inference.add_argument("--compile", action="store_true", help="compiled networks too")
    inference.add_argument("--torch-compile", action="store_true",
                           help="torch.compile alone too: minutes")  # fmt: skip
    inference.add_argument("--onnx-runtime", action="store_true",
                           help="ONNX Runtime too (on the CPU)")  # fmt: skip

    expand = _action(actions, "expand", run_expand, "one node more of a tree that grows", 50)
    expand.add_argument("--model", help="a trained model [random weights]")
    expand.add_argument("--recipe", help="a TOML file, one of recipes/ [growing/digits]")
    _add_size(expand, "the recipe's, or 64")
    expand.add_argument("--threads", type=count, metavar="T",
                        help="threads of the CPU [as many as torch takes]")  # fmt: skip
    expand.add_argument("--within", type=float, metavar="MS", help="limit of one expansion [30, "
                        "on CUDA 5]")  # fmt: skip

    train = _action(actions, "train", run_train, "a training step, and its balancer", 8)
    train.add_argument("--recipe", default="digits_inpaint",
                       help="a TOML file, one of recipes/, or a task [digits_inpaint]")  # fmt: skip
    _add_batch(train, "the recipe's; on the CPU 16")
    add_limit(train, "of noise, to train on [60000, or what 256 MB hold]")
    train.add_argument("--together", type=count, help="steps timed at once [10; on the CPU 1]")
    add_changes(train, "change a recipe key, e.g. training.compile=false")

    text = "cost over leaves, size and batch"
    growth = _action(actions, "growth", run_growth, text, 5, seconds=1.0)
    _add_network(growth)
    _add_size(growth, "one side, 64", [64])
    _add_batch(growth, "one number, 1", [1])
    growth.add_argument("--training", action="store_true", help="forward and backward")
    growth.add_argument("--plot", type=Path, metavar="FILE", help=".png, .svg or .pdf")


def _add_solvers(actions: Any) -> None:
    """What solves a problem that other packages solve too: `balancer` and `kmeans`."""
    balancer = _action(actions, "balancer", run_balancer, "the next batch, against cvxpy", 10)
    balancer.add_argument("--set-sizes", type=count, nargs="+", default=[2000, 20_000],
                          metavar="N", help="images to draw from [2000 20000]")  # fmt: skip
    balancer.add_argument("--leaves", type=count, default=9, help="leaves of the tree [9]")
    _add_skip(balancer)

    kmeans = _action(actions, "kmeans", run_kmeans, "samples to trees, against scikit-learn", 5)
    _add_tree(kmeans)
    _add_batch(kmeans, "4 32", [4, 32])
    kmeans.add_argument("--samples", type=count, default=100, help="samples of each image [100]")
    _add_size(kmeans, "32", [32])
    kmeans.add_argument("--channels", type=count, default=1, help="channels of an image [1]")
    _add_skip(kmeans)


def run_inference(arguments: argparse.Namespace) -> None:
    from posterior_trees.models.checkpoint import load
    from posterior_trees.progress import track
    from posterior_trees_paper.bench.inference import Ways, bench_inference
    from posterior_trees_paper.bench.subject import fresh, size_of
    from posterior_trees_paper.tasks import plain_of

    device, recipe = _device(arguments), _recipe(arguments)
    tree = load(arguments.model, device) if arguments.model else fresh(recipe, device)
    ways = Ways(arguments.precision, arguments.compile, arguments.torch_compile,
                arguments.onnx_runtime, **_given(arguments))  # fmt: skip
    point, watch = fresh(plain_of(recipe), device), track("measuring")
    size = size_of(recipe, _size(arguments) if arguments.size else (64, 64))
    _show(bench_inference(tree, point, size, arguments.batch, ways, watch), arguments)


def run_expand(arguments: argparse.Namespace) -> None:
    import torch

    from posterior_trees.models.checkpoint import load, load_recipe
    from posterior_trees_paper.bench.expansion import bench_expansion
    from posterior_trees_paper.bench.subject import find_recipe, fresh, size_of

    device = _device(arguments)
    if arguments.model and arguments.recipe:
        raise InputError("--model has its recipe: leave --recipe out")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.model:
        recipe, predictor = load_recipe(arguments.model), load(arguments.model, device)
    else:
        recipe = find_recipe(arguments.recipe or "growing/digits")
        predictor = fresh(recipe, device)
    size = _size(arguments) if arguments.size else size_of(recipe)
    _show(bench_expansion(predictor, size, **_given(arguments, "within")), arguments)


def _recipe(arguments: argparse.Namespace) -> Any:
    """The model's recipe, or another one with the changes of the options."""
    from posterior_trees.models.checkpoint import load_recipe
    from posterior_trees.recipe import parse_recipe
    from posterior_trees_paper.bench.subject import KEYS, PAPER, find_recipe

    values = {name: value for name in KEYS if (value := getattr(arguments, name, None)) is not None}
    if arguments.model:
        fixed = [f"--{name.replace('_', '-')}" for name in values if name != "size"]
        if fixed:
            raise InputError(f"the model decides about {', '.join(fixed)}: leave it out")
        return load_recipe(arguments.model)
    if arguments.size or not arguments.recipe:
        values["size"] = list(_size(arguments)) if arguments.size else [64, 64]
    changes = [KEYS[name].format(value) for name, value in values.items()]
    if arguments.recipe:
        return find_recipe(arguments.recipe, changes)
    return parse_recipe(PAPER, changes)


def run_train(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.bench.report import Report
    from posterior_trees_paper.bench.subject import find_recipe
    from posterior_trees_paper.bench.training import bench_training

    device = _device(arguments)
    is_slow = device.type == "cpu"
    start = ["training.compile=false"] if is_slow else []
    reports: list[Report] = []
    for batch in arguments.batch or ([16] if is_slow else [0]):
        size = [f"training.batch_size={batch}"] if batch else []
        recipe = find_recipe(arguments.recipe, [*start, *size, *arguments.changes])
        steps = arguments.together or (1 if is_slow else 10)
        times = _given(arguments)
        reports.append(bench_training(recipe, device, images=arguments.limit, group=steps, **times))
    for other in reports[1:]:
        reports[0].rows += other.rows
    if is_slow and not any(change.startswith("training.compile") for change in arguments.changes):
        reports[0].notes.append("on the CPU steps are not compiled: --set training.compile=true")
    _show(reports[0], arguments)


def run_balancer(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.bench.rivals import bench_balancing

    what = arguments.set_sizes, arguments.leaves, _device(arguments)
    _show(bench_balancing(*what, **_given(arguments, "skip_missing")), arguments)


def run_kmeans(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.bench.rivals import bench_clustering

    how = _given(arguments, "samples", "channels", "branching", "depth", "skip_missing")
    device, size = _device(arguments), _size(arguments)
    _show(bench_clustering(arguments.batch, device, size=size, **how), arguments)


def run_growth(arguments: argparse.Namespace) -> None:
    from posterior_trees.progress import track
    from posterior_trees_paper.bench.growth import Point, bench_growth, draw_growth

    (height, width), batches = _size(arguments), arguments.batch
    if height != width or len(batches) > 1:
        raise InputError("growth starts at one point: give one --size and one --batch")
    shape = {
        name: getattr(arguments, name) for name in ("branching", "depth", "c_init", "channels")
    }
    report = bench_growth(
        Point(size=height, batch=batches[0], **shape), _device(arguments),
        is_training=arguments.training, **_given(arguments), watch=track("measuring"),
    )  # fmt: skip
    _show(report, arguments)
    if arguments.plot:
        draw_growth(report.rows, arguments.plot, report.conditions["device"])
        print(arguments.plot)


def _action(
    actions: Any, name: str, run: Any, text: str, repeat: int, seconds: float | int = 8
) -> Any:
    parser = actions.add_parser(name, help=text)
    add_device(parser)
    parser.add_argument("--repeat", type=int, default=repeat, help=f"measurements [{repeat}]")
    parser.add_argument("--seconds", type=float, default=float(seconds),
                        help=f"stop measuring a row after so long [{seconds:g}]")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="file for the numbers")
    parser.set_defaults(run=run)
    return parser


def _add_tree(parser: Any) -> None:
    parser.add_argument("--branching", type=count, default=3, help="children of a node [3]")
    parser.add_argument("--depth", type=int, default=2, help="levels below the root [2]")


def _add_network(parser: Any) -> None:
    _add_tree(parser)
    parser.add_argument("--c-init", type=count, default=4, help="first channels of a leaf [4]")
    parser.add_argument("--channels", type=count, choices=(1, 3), default=3,
                        help="channels of an image [3]")  # fmt: skip


def _add_batch(parser: Any, usual: str, default: list[int] | None = None) -> None:
    parser.add_argument("--batch", type=count, nargs="+", metavar="B", default=default,
                        help=f"images at once [{usual}]")  # fmt: skip


def _add_size(parser: Any, usual: str, default: list[int] | None = None) -> None:
    parser.add_argument("--size", type=count, nargs="+", metavar="SIDE", default=default,
                        help=f"image side, or height and width [{usual}]")  # fmt: skip


def _size(arguments: argparse.Namespace) -> tuple[int, int]:
    if len(arguments.size) > 2:
        raise InputError(f"--size has {len(arguments.size)} numbers; give a side, or height, width")
    return arguments.size[0], arguments.size[-1]


def _add_skip(parser: Any) -> None:
    parser.add_argument("--skip-missing", action="store_true",
                        help="leave out what is not installed")  # fmt: skip


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Options that a benchmark knows by the same names, and how long it may measure."""
    return {name: getattr(arguments, name) for name in ("repeat", "seconds", *names)}


def _device(arguments: argparse.Namespace) -> Any:
    import torch

    from posterior_trees.models.checkpoint import best_device

    if arguments.repeat < 1:
        raise InputError(f"--repeat is {arguments.repeat}; a time needs at least 1 measurement")
    return torch.device(arguments.device) if arguments.device else best_device()


def _show(report: Any, arguments: argparse.Namespace) -> None:
    report.print()
    if arguments.json:
        report.write(arguments.json)
        print(arguments.json)
