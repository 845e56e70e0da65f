"""Rows of runs → the Markdown table of a study: a line per variant, means over its seeds.

Where a variant has several seeds a number is followed by ± half the range over them. The name of a
variant says so if runs of it diverged; their numbers are shown all the same.
"""

from statistics import fmean
from typing import Any, NamedTuple

from posterior_trees_paper.studies.rows import has_diverged

Row = dict[str, Any]


class Column(NamedTuple):
    """A heading, the key of a row's number, how it is written, and where it is in a list."""

    heading: str
    key: str
    form: str = "{:.2f}"
    place: int | None = None

    def value(self, row: Row) -> float | int | None:
        found = row.get(self.key)
        if self.place is None or found is None:
            return found
        return found[self.place] if self.place < len(found) else None


ROOT = Column("PSNR of the root", "psnr", place=0)
FIRST = Column("… at depth 1", "psnr", place=1)
LAST = Column("… of the leaf", "psnr", place=-1)
NLL = Column("NLL of the leaf", "nll", "{:.3f}", place=-1)
GAP = Column("NLL − entropy", "calibration", "{:+.3f}")
GOOD = Column("good leaves", "good", "{:.3g}")
DEAD = Column("dead", "dead", "{:.3g}")
WEAK = Column("weak", "weak", "{:.3g}")
RAREST = Column("rarest leaf", "rarest", "{:.1%}")
SPREAD = Column("distance between leaves", "diversity", "{:.3f}")
EXPLAINED = Column("variance explained", "explained", "{:.1%}")
BEST = Column("PSNR of the best leaf", "best_psnr")
TIME = Column("training, s (runs side by side)", "training_seconds", "{:.0f}")

COLUMNS: dict[str, tuple[Column, ...]] = {
    "epsilon": (ROOT, LAST, NLL, DEAD, RAREST, SPREAD),
    "balancer": (
        ROOT, FIRST, LAST, NLL, RAREST,
        Column("leaves in use, last epoch", "leaves_in_use", "{:.1f}"),
    ),
    "layouts": (
        LAST, NLL,
        Column("runner-up: probability", "runner_up_mass", "{:.1%}"),
        Column("… its leaves", "runner_up_leaves", "{:.2f}"),
        Column("… of all leaves", "runner_up_leaf_share", "{:.1%}"),
    ),
    "decoders": (ROOT, FIRST, LAST, NLL, SPREAD, EXPLAINED),
    "tree_or_flat": (
        LAST, BEST, NLL,
        Column("looks, walking", "walk"), Column("… scanning", "scan"),
    ),
}  # fmt: skip
"""The columns of each study's table, by its name."""
COMMON = (ROOT, LAST, NLL, GAP, GOOD, DEAD, WEAK, SPREAD, TIME)


def table(study: str, rows: list[Row]) -> str:
    """One line per variant, in the order of the rows."""
    columns = COLUMNS.get(study, COMMON)
    headings = ["variant", "seeds", *(column.heading for column in columns)]
    lines = [f"| {' | '.join(headings)} |", "|---" * len(headings) + "|"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        cells = [_name(mine), str(len(mine)), *(_cell(column, mine) for column in columns)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _name(rows: list[Row]) -> str:
    diverged = sum(has_diverged(row) for row in rows)
    return rows[0]["label"] + (f" (**{diverged} diverged**)" if diverged else "")


def _cell(column: Column, rows: list[Row]) -> str:
    found = [value for row in rows if (value := column.value(row)) is not None]
    if len(found) < len(rows):
        return "–"
    text, half_range = column.form.format(fmean(found)), (max(found) - min(found)) / 2
    return text + (f"±{column.form.replace('+', '').format(half_range)}" if len(rows) > 1 else "")
