"""Rows of runs → the Markdown table of a study: a line per variant, means over its seeds.

Where a variant has several seeds a number is followed by ± half the range over them. The name of a
variant says so if runs of it diverged; their numbers are shown all the same.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from posterior_trees_paper.studies.rows import has_diverged, over_seeds

Row = dict[str, Any]


class Column(NamedTuple):
    """A heading, the number of a row, and how it is written."""

    heading: str
    value: Callable[[Row], float | None]
    form: str = "{:.2f}"


def _at(key: str, place: int) -> Callable[[Row], float | None]:
    return lambda row: row[key][place] if len(row[key]) > abs(place) else None


def _of(key: str) -> Callable[[Row], float | None]:
    return lambda row: row.get(key)


ROOT = Column("PSNR of the root", _at("psnr", 0))
FIRST = Column("… at depth 1", _at("psnr", 1))
LAST = Column("… of the leaf", lambda row: row["psnr"][-1])
NLL = Column("NLL of the leaf", lambda row: row["nll"][-1], "{:.3f}")
GAP = Column("NLL − entropy", _of("calibration"), "{:+.3f}")
GOOD = Column("good leaves", _of("good"), "{:.3g}")
DEAD = Column("dead", _of("dead"), "{:.3g}")
WEAK = Column("weak", _of("weak"), "{:.3g}")
RAREST = Column("rarest leaf", _of("rarest"), "{:.1%}")
SPREAD = Column("distance between leaves", _of("diversity"), "{:.3f}")
EXPLAINED = Column("variance explained", _of("explained"), "{:.1%}")
BEST = Column("PSNR of the best leaf", _of("best_psnr"))
TIME = Column("training, s (runs side by side)", _of("training_seconds"), "{:.0f}")

COLUMNS: dict[str, tuple[Column, ...]] = {
    "epsilon": (ROOT, LAST, NLL, DEAD, RAREST, SPREAD),
    "balancer": (
        ROOT, FIRST, LAST, NLL, RAREST,
        Column("leaves in use, last epoch", _of("leaves_in_use"), "{:.1f}"),
    ),
    "layouts": (
        LAST, NLL,
        Column("runner-up: probability", _of("runner_up_mass"), "{:.1%}"),
        Column("… its leaves", _of("runner_up_leaves"), "{:.2f}"),
        Column("… of all leaves", _of("runner_up_leaf_share"), "{:.1%}"),
    ),
    "decoders": (ROOT, FIRST, LAST, NLL, SPREAD, EXPLAINED),
    "tree_or_flat": (
        LAST, BEST, NLL,
        Column("looks, walking", _of("walk")), Column("… scanning", _of("scan")),
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
    if any(column.value(row) is None for row in rows):
        return "–"
    mean, half_range = over_seeds(rows, column.value)
    text = column.form.format(mean)
    if len(rows) > 1:
        text += f"±{column.form.replace('+', '').format(half_range)}"
    return text
