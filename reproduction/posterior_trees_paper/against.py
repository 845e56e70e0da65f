"""The paper's way beside ours, on the same test images. `ptrees study --against recipes/paper`.

OUT/paper.json and paper.md: `paper | ours | difference` of every task of which both are judged. All
is read from what a study keeps (`tasks.py`), in OUT or folders in it, so that studies may run side
by side, each in a folder of its own, and be stopped; several seeds of a recipe become one column.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from posterior_trees import store
from posterior_trees.data import find_groups
from posterior_trees.errors import InputError
from posterior_trees.metrics import clamp_nll, summarize
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.training.run import read_log

PAPER, SEED = "_paper", "_seed"


class Judged(NamedTuple):
    """One trained recipe: values of every test image, and what else a table says of it."""

    names: list[str]
    groups: Tensor | None
    values: dict[str, Tensor]
    """PSNR (of the hole, where there is one), NLL and entropy: `(n, depth+1)`."""
    shares: Tensor
    """Of the images that reach each leaf."""
    minutes: float
    is_done: bool


def read_judged(folder: Path, name: str) -> Judged:
    """What a study kept of the run `name`."""
    scores, facts = store.read(folder / f"{name}_scores.safetensors")
    recipe = load_recipe(folder / f"{name}.safetensors")
    last = read_log(folder / f"{name}.jsonl")[-1]
    names = facts["names"]
    values = {
        "PSNR": scores.get("psnr_hole", scores["psnr"]).double(),
        "NLL": clamp_nll(scores["nll"].double())[0],
        "entropy": scores["entropy"].double(),
    }
    shares = scores["leaf"].bincount(minlength=scores["probs"].shape[1]) / len(scores["leaf"])
    groups, is_done = find_groups(names, recipe.data.split), last["epoch"] == recipe.training.epochs
    return Judged(names, groups, values, shares, last["seconds"] / 60, is_done)


def find_judged(out: Path, name: str) -> list[Judged]:
    """All seeds of a recipe that a study has judged, in `out` or a folder in it."""
    form = re.compile(rf"{re.escape(name)}({SEED}\d+)?_scores")
    files = sorted(f for f in out.rglob("*_scores.safetensors") if form.fullmatch(f.stem))
    return [read_judged(file.parent, file.stem.removesuffix("_scores")) for file in files]


def compare_ways(task: str, paper: Sequence[Judged], ours: Sequence[Judged]) -> dict[str, Any]:
    """One task: every quantity of both, averaged over seeds, and its paired difference."""
    first = paper[0]
    for run in (*paper, *ours):
        if run.names != first.names or run.values["NLL"].shape != first.values["NLL"].shape:
            raise InputError(
                f"{task}: the paper's way and ours were judged on other images or in other trees; "
                "give both recipes the same [data] and [tree], and the study one --data folder"
            )
    rows = []
    ways = {"paper": paper, "ours": ours}
    for name in first.values:
        both = {side: torch.stack([run.values[name] for run in way]) for side, way in ways.items()}
        change = both["ours"].mean(dim=0) - both["paper"].mean(dim=0)
        for depth in range(0 if name == "PSNR" else 1, first.values[name].shape[1]):
            sides = {side: _column(v[:, :, depth], first.groups) for side, v in both.items()}
            difference = summarize(change[:, depth], groups=first.groups)._asdict()
            rows.append({"quantity": name, "depth": depth, **sides, "difference": difference})
    about = {}
    for side, way in ways.items():
        shares = torch.stack([run.shares for run in way])
        about[side] = {
            "seeds": len(way),
            "rarest_leaf": shares.amin(dim=1).mean().item(),
            "dead_leaves": (shares == 0).sum(dim=1).double().mean().item(),
            "minutes": sum(run.minutes for run in way) / len(way),
            "is_done": all(run.is_done for run in way),
        }
    return {"task": task, "n": len(first.names), "rows": rows, **about}


def _column(values: Tensor, groups: Tensor | None) -> dict[str, Any]:
    """Values `(seeds, n)`: their mean, its interval over images, its spread over seeds."""
    means = values.mean(dim=1)
    spread = means.std().item() if len(means) > 1 else None
    return {**summarize(values.mean(dim=0), groups=groups)._asdict(), "std_of_seeds": spread}


def write_ways(out: Path, names: Sequence[str]) -> dict[str, Any]:
    """Write the table of all these recipes, as far as they are judged."""
    tasks, missing = [], []
    for name in names:
        paper, ours = find_judged(out, name + PAPER), find_judged(out, name)
        if paper and ours:
            tasks.append(compare_ways(name, paper, ours))
        else:
            missing.append(name)
    table = {"schema": 1, "tasks": tasks, "missing": missing}
    store.write_json(out / "paper.json", table)
    store.write_bytes(out / "paper.md", to_markdown(table).encode())
    return table


def to_markdown(table: dict[str, Any]) -> str:
    lines = [
        "# The paper to the letter, and ours",
        "",
        "Means over the test images and their 95 % intervals (± the standard deviation over seeds, "
        "where there are several); PSNR in dB, of the hole where there is one. The difference is "
        "ours minus the paper's, paired.",
        "",
        "| task | | paper | ours | difference |",
        "|---|---|--:|--:|--:|",
    ]
    for task in table["tasks"]:
        title = f"{task['task']} ({task['n']} images)"
        for row in task["rows"]:
            what = f"{row['quantity']} d={row['depth']}"
            cells = _cell(row["paper"]), _cell(row["ours"]), _interval(row["difference"], "+")
            lines.append(f"| {title} | {what} | {' | '.join(cells)} |")
            title = ""
        for what, cell in (("rarest leaf", _rarest), ("minutes", _minutes)):
            lines.append(f"|  | {what} | {cell(task['paper'])} | {cell(task['ours'])} |  |")
    if table["missing"]:
        lines += ["", f"Not judged yet, one way or both: {', '.join(table['missing'])}."]
    return "\n".join(lines) + "\n"


def _cell(value: dict[str, Any]) -> str:
    spread = value["std_of_seeds"]
    return _interval(value, "") if spread is None else f"{value['mean']:.3f} ± {spread:.3f}"


def _interval(value: dict[str, Any], sign: str) -> str:
    return f"{value['mean']:{sign}.3f} [{value['low']:{sign}.3f}, {value['high']:{sign}.3f}]"


def _rarest(side: dict[str, Any]) -> str:
    dead = f", {side['dead_leaves']:.3g} dead" if side["dead_leaves"] else ""
    return f"{side['rarest_leaf']:.1%}{dead}"


def _minutes(side: dict[str, Any]) -> str:
    return f"{side['minutes']:.1f}{'' if side['is_done'] else ' (stopped early)'}"
