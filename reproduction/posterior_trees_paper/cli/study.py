"""The command `ptrees study`: several recipes trained, judged, drawn and exported; heavy imports
inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_changes, add_data, add_device
from posterior_trees.errors import RunError


def add(commands: Any) -> None:
    study = commands.add_parser("study", help="train, judge, draw and export several recipes")
    study.add_argument("recipes", nargs="+", type=Path, metavar="RECIPE",
                       help="TOML files, see recipes/")  # fmt: skip
    study.add_argument("--out", type=Path, required=True, help="folder for what comes out")
    study.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the runs [runs]")
    add_data(study)
    add_changes(study, "change a key of all recipes")
    study.add_argument("--minutes", type=float, help="stop training then; run again to continue")
    study.add_argument("--plain", action="store_true", help="also train plain MSE counterparts")
    add_device(study)
    study.set_defaults(run=run_study)


def run_study(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.tasks import run_study as run

    rows = run(
        arguments.recipes,
        arguments.out,
        data=arguments.data,
        runs=arguments.runs,
        minutes=arguments.minutes,
        changes=arguments.changes,
        with_plain=arguments.plain,
        accelerator=arguments.device or "auto",
        say=lambda text: print(text, flush=True),
    )
    failed = [row["name"] for row in rows if row["state"] == "failed"]
    if failed:
        raise RunError(f"{', '.join(failed)} failed; {arguments.out}/study.json says why")
