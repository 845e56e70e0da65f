"""The command `ptrees study`: several recipes trained, judged, drawn and exported; heavy imports
inside."""

import argparse
from pathlib import Path
from typing import Any

from posterior_trees.cli.options import add_changes, add_data, add_device, count
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
    study.add_argument("--against", type=Path, metavar="DIR", help="also train the recipes of the "
                       "same names in DIR (recipes/paper), and write a table of both")  # fmt: skip
    study.add_argument("--seeds", type=count, default=1, help="train each so often [1]")
    study.add_argument("--table", action="store_true", help="train nothing: write the table of "
                       "--against from what is in --out and its folders")  # fmt: skip
    add_device(study)
    study.set_defaults(run=run_study, fills=("out",))


def run_study(arguments: argparse.Namespace) -> None:
    from posterior_trees_paper.against import to_markdown, write_ways
    from posterior_trees_paper.tasks import run_study as run

    if arguments.table:  # of studies that ran side by side
        table = write_ways(arguments.out, [file.stem for file in arguments.recipes])
        print(to_markdown(table), end="")
        return
    same = ("data", "runs", "minutes", "changes", "against", "seeds")
    rows = run(
        arguments.recipes, arguments.out, **{name: getattr(arguments, name) for name in same},
        with_plain=arguments.plain, accelerator=arguments.device or "auto",
        say=lambda text: print(text, flush=True),
    )  # fmt: skip
    failed = [row["name"] for row in rows if row["state"] == "failed"]
    if failed:
        raise RunError(f"{', '.join(failed)} failed; {arguments.out}/study.json says why")
