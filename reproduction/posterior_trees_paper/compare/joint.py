"""The comparisons of several tasks as one table, below the paper's own row of each (its Table 1).

    python -m posterior_trees_paper.compare.joint OUT/faces64_eyes OUT/faces64_mouth … --out OUT

writes OUT/table1.md and OUT/table1.json from what `ptrees compare` left in each folder.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posterior_trees import store
from posterior_trees.errors import InputError
from posterior_trees_paper.compare.table import LEVEL, pipe, shown_coverage

PAPER = {
    "faces_colorize": {"psnr": (24.6, 25.7, 26.4), "nll": (0.9, 2.0)},
    "faces_mouth": {"psnr": (20.1, 20.5, 20.4), "nll": (0.9, 2.0)},
    "faces_eyes": {"psnr": (19.6, 19.9, 19.8), "nll": (1.3, 2.5)},
}
"""Table 1, the rows "Ours": 100 faces of FFHQ, trained on 24,183 of CelebA-HQ at 256×256."""
OTHER = "the paper's (other faces, does not compare)"


def read_tables(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """The tables of comparisons, each of another task."""
    tables = []
    for folder in folders:
        if not (folder / "table.json").is_file():
            raise InputError(
                f"{folder} holds no comparison (table.json): run `ptrees compare` first"
            )
        table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        tables.append({**table, "task": table["title"].split(": ")[1].split(" (")[0]})
    return tables


def to_markdown(tables: Sequence[dict[str, Any]]) -> str:
    head = ["task", "method", "trained on", "evaluations", "PSNR from the root on, dB",
            "NLL below it", f"held of {LEVEL:.0%}", "accepted?"]  # fmt: skip
    sizes = sorted({len(table["images"]) for table in tables})
    caption = (
        f"{' or '.join(map(str, sizes))} test images a task, means; PSNR of the hole where there "
        "is one. Deviations, paired differences and the limits of the tests are in each task's own "
        "table."
    )
    lines = []
    for table in tables:
        if known := PAPER.get(table["task"]):
            numbers = [" / ".join(map(str, known[key])) for key in ("psnr", "nll")]
            lines.append([table["task"], f"*{OTHER}*", "24,183", "1", *numbers, "–", ""])
        for row in table["methods"]:
            values = row["psnr_hole"] or row["psnr"], row["nll"][1:]
            numbers = [" / ".join(f"{value['mean']:.2f}" for value in found) for found in values]
            counts = map(row.get, ("trained_on", "evaluations"))
            seen, asked = (f"{n:,}" if n else "–" for n in counts)
            about = shown_coverage(row.get("coverage")), _accepted(row)
            lines.append([table["task"], row["name"], seen, asked, *numbers, *about])
    return "\n".join(["# All methods on all tasks", "", caption, "", *pipe(head, lines, 2)]) + "\n"


def _accepted(row: dict[str, Any]) -> str:
    """Yes, or the tests that a diffusion model does not pass."""
    if not (found := row["acceptance"]):
        return ""
    forms = {"v": "v {:.2f}", "chi2": "χ² {:.0f}", "root": "root {:+.2f} dB"}
    failed = [form.format(found[key]["value"]) for key, form in forms.items()
              if found[key]["passed"] is False]  # fmt: skip
    words = {True: "yes", False: f"no: {', '.join(failed)}", None: "undecided"}
    return words[found["passed"]]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args(words)
    tables = read_tables(arguments.folders)
    paper = {table["task"]: PAPER.get(table["task"]) for table in tables}
    store.write_json(arguments.out / "table1.json", {"schema": 1, "paper": paper, "tables": tables})
    store.write_bytes(arguments.out / "table1.md", to_markdown(tables).encode())


if __name__ == "__main__":
    main()
