"""The command `ptrees reproduce`: one of the paper's studies; heavy imports inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_changes, add_data, add_device, count
from posterior_trees.errors import RunError
from posterior_trees_paper.cli.baseline import add_reader

CLUSTERING = "flat_vs_hierarchical"


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "reproduce", help="one of the paper's studies: train, table, figure"
    )
    parser.add_argument("study", metavar="STUDY",
                        help=f"a file of recipes/studies/, or {CLUSTERING}")  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for table and figure [RUNS/report/STUDY]")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs [runs]")
    add_data(parser)
    add_reader(parser)
    parser.add_argument("--minutes", type=float, help="stop training then; run again to continue")
    parser.add_argument("--jobs", type=count, default=3, help="runs side by side [3]")
    parser.add_argument("--only", metavar="RUN", help="train this run in this process; no report")
    add_changes(parser, "change a key of all runs")
    add_device(parser)
    parser.set_defaults(run=run_reproduce, fills=("out",))


def run_reproduce(arguments: argparse.Namespace) -> None:
    name = Path(arguments.study).stem
    out = arguments.out or arguments.runs / "report" / name
    if arguments.study == CLUSTERING:
        from posterior_trees_paper.toy.clustering import run, table

        print(table(run(out)), end="")
        return
    from posterior_trees.data import find_folder
    from posterior_trees_paper.studies.plan import read_plan

    plan = read_plan(arguments.study, arguments.changes)
    data = find_folder(arguments.data)
    if arguments.only:
        from posterior_trees_paper.studies.execute import run_job

        limits = {"minutes": arguments.minutes, "accelerator": arguments.device or "auto"}
        row = run_job(plan, plan.job(arguments.only), arguments.runs, data, say=_say, **limits)
        _say(f"{arguments.only}: {row['state']}")
        return
    _run_all(arguments, plan, data, out)


def _run_all(arguments: argparse.Namespace, plan: Any, data: Path, out: Path) -> None:
    from posterior_trees.lock import hold
    from posterior_trees_paper.studies.classifier import load_reader
    from posterior_trees_paper.studies.execute import run_all
    from posterior_trees_paper.studies.report import check_reader, write_report

    reader = load_reader(arguments.classifier) if arguments.classifier.is_file() else None
    check_reader(plan, reader)
    options = ["--data", str(data), *(["--device", arguments.device] if arguments.device else [])]
    options += [word for change in arguments.changes for word in ("--set", change)]
    with hold(arguments.runs / plan.name):
        how = {"side_by_side": arguments.jobs, "minutes": arguments.minutes, "say": _say}
        left = run_all(arguments.study, plan, arguments.runs, options, **how)
    if len(left) < len(plan.jobs):
        write_report(plan, arguments.runs, out, data, reader=reader, say=_say)
        print((out / "table.md").read_text(encoding="utf-8"), end="")
    if left:
        names = ", ".join(job.name for job in left)
        raise RunError(
            f"{len(left)} of {len(plan.jobs)} runs are not finished ({names}): the same command "
            f"continues them; {arguments.runs / plan.name}/<run>.txt tells what happened"
        )


def _say(text: str) -> None:
    print(text, flush=True)
