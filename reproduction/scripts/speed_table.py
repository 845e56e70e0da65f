"""Markdown of measurements of `ptrees bench … --json`: `speed_table.py [FILE]`, what `collect.py`
made of them [results/speed/numbers.json]."""

import json
import sys
from pathlib import Path
from typing import Any

HIDDEN = {"ms_low", "ms_high", "repeats"}


def cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return "–"
    if name == "ms":
        return f"{value:.4g} ({row['ms_low']:.4g}–{row['ms_high']:.4g})"
    if isinstance(value, float):
        return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
    return str(value)


file = sys.argv[1] if len(sys.argv) > 1 else "results/speed/numbers.json"
for name, table in json.loads(Path(file).read_text(encoding="utf-8")).items():
    names = dict.fromkeys(name for row in table["rows"] for name in row if name not in HIDDEN)
    facts = table["conditions"]
    place = f"{facts['device']}, torch {facts['torch']}, commit {facts['commit']}"
    print(f"{name}: `{table['command']}` on {place}\n")
    print("| " + " | ".join(n.replace("_", " ") for n in names) + " |")
    print("|" + "---|" * len(names))
    for row in table["rows"]:
        print("| " + " | ".join(cell(row, name) for name in names) + " |")
    print("".join(f"\nNote: {note}." for note in table["notes"]))
