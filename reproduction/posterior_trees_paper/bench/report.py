"""What a benchmark says: rows, the conditions they hold under, and what was left out."""

import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from posterior_trees_paper.bench.clock import Timing

SCHEMA = 1
WIDTH = 120
"""Characters of a line that goes into a file."""
WORDS = {
    "c_init": "first channels of a leaf",
    "compile": "compiled",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "gflop_per_image": "GFLOP per image",
    "kernels": "our kernels",
    "mb_moved_per_image": "MB moved per image",
    "parameters_m": "million parameters",
    "peak_mb": "peak MB",
    "python": "Python",
    "steps_per_time": "steps timed together",
}
"""Names that are more than words with underscores between them."""


@dataclass
class Report:
    """`{"schema", "benchmark", "command", "conditions", "settings", "rows", "notes"}` as JSON.

    A row is a flat dictionary; a `Timing` in it becomes the keys `ms`, `ms_low`, `ms_high` (the
    quartiles) and `repeats`.
    """

    benchmark: str
    conditions: dict[str, Any]
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, timing: Timing, **facts: Any) -> dict[str, Any]:
        """Add a row; returns it."""
        times = {"ms": timing.median_ms, "ms_low": timing.low_ms, "ms_high": timing.high_ms}
        self.rows.append({**facts, **times, "repeats": timing.repeats})
        return self.rows[-1]

    def write(self, file: str | PathLike[str]) -> None:
        from posterior_trees.store import write_json

        table = {"schema": SCHEMA, "command": command()} | asdict(self)
        write_json(file, table)

    def print(self) -> None:
        """A table of the columns that any row has, then conditions and notes."""
        from rich.console import Console
        from rich.table import Table

        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
        hidden = {"ms_low", "ms_high", "repeats"}
        names = dict.fromkeys(name for row in self.rows for name in row if name not in hidden)
        grid = Table(title=f"ptrees bench {self.benchmark}")
        for name in names:
            is_text = any(isinstance(row.get(name), str) for row in self.rows)
            side = "left" if is_text else "right"
            grid.add_column(in_words(name), justify=side, no_wrap=is_text)
        for row in self.rows:
            grid.add_row(*[_cell(row, name) for name in names])
        console.print(grid)
        for facts in (self.settings, self.conditions):
            text = ", ".join(f"{in_words(key)} {_plain(value)}" for key, value in facts.items())
            console.print(text, highlight=False)
        for note in self.notes:
            console.print(f"note: {note}", style="yellow", highlight=False, markup=False)


def conditions(device: str | torch.device) -> dict[str, Any]:
    """Device, versions and commit: what a time means nothing without."""
    from posterior_trees.fast.accelerate import has_kernels
    from posterior_trees.models.checkpoint import provenance

    device = torch.device(device)
    facts: dict[str, Any] = provenance()
    facts["device"] = device_name(device)
    facts |= {"python": platform.python_version(), "system": platform.system()}
    if device.type == "cuda":
        facts |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
        facts["kernels"] = has_kernels()
    else:
        facts |= {"threads": torch.get_num_threads(), "cores": os.cpu_count()}
    return facts


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def command() -> str:
    """What was typed, as far as a program knows."""
    return " ".join(["ptrees", *sys.argv[1:]]) if "bench" in sys.argv else ""


def in_words(name: str) -> str:
    """The name of a column or a setting as people read it; files keep the name itself."""
    return WORDS.get(name) or name.replace("_", " ")


def megabytes(count: int | None) -> float | None:
    return None if count is None else round(count / 1e6, 1)


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return "–"
    if name == "ms":
        return f"{value:.4g} ± {(row['ms_high'] - row['ms_low']) / 2:.2g}"
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, list | tuple):
        return "×".join(map(_plain, value))
    return str(value)
