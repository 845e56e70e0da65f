"""What a comparison leaves behind: tables, per-image values, and the trees side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posterior_trees.errors import RunError
from posterior_trees.figure import save_figure
from posterior_trees.store import to_json, write_bytes
from posterior_trees.tree import Tree
from posterior_trees_paper.compare.comparison import Comparison
from posterior_trees_paper.compare.methods import Method
from posterior_trees_paper.compare.table import SCHEMA, make_row, to_latex, to_markdown


def write_report(
    comparison: Comparison, methods: Sequence[Method], title: str, reference: dict[str, Any]
) -> tuple[dict[str, Any], list[Path]]:
    """Write `table.json`, `.md` and `.tex`, `per_image.json` and one figure per kept image; returns
    the table and the files.

    Methods that are not finished are left out and named in the title; the first one is ours.
    `reference` has the name and the mean root PSNR of the network that roots are held against.
    """
    finished = [method for method in methods if comparison.is_done(method)]
    missing = [method.name for method in methods if method not in finished]
    if not finished or finished[0] is not methods[0]:
        raise RunError("nothing is finished yet; run the same command again to continue")
    title += f" (unfinished: {', '.join(missing)})" if missing else ""
    rows, per_image, ours = [], {}, None
    for method in finished:
        values, facts = comparison.collect(method)
        about = {"groups": comparison.inputs.groups, "seen": method.seen}
        rows.append(make_row(method.name, values, facts, ours, root=reference["psnr"], **about))
        ours = values if ours is None else ours
        per_image[method.name] = {name: tensor.tolist() for name, tensor in values.items()}
    table = {"schema": SCHEMA, "title": title, "clip": False, **comparison.settings,
             "reference": reference, "methods": rows}  # fmt: skip
    texts = {
        "table.json": to_json(table),
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "per_image.json": to_json(per_image, indent=None),
    }
    for name, text in texts.items():
        write_bytes(comparison.folder / name, text.encode())
    files = [comparison.folder / name for name in texts]
    return table, files + _figures(comparison, finished)


def _figures(comparison: Comparison, methods: Sequence[Method]) -> list[Path]:
    """For every kept image, the trees of all methods under each other."""
    kept = [comparison.shown_trees(method) for method in methods]
    files = []
    inputs = comparison.inputs
    for place in comparison.shown:
        trees = join([trees[place] for trees in kept])
        x, y = (v[place : place + 1].cpu().expand(len(trees), -1, -1, -1)
                for v in (inputs.x, inputs.y))  # fmt: skip
        file = comparison.folder / f"trees_{int(inputs.indices[place]):05d}.png"
        options: dict[str, Any] = {"x": x, "y": y, "path": trees.descend(x)}
        save_figure(trees, file, names=[method.name for method in methods], **options, dpi=130)
        files.append(file)
    for stale in set(comparison.folder.glob("trees_*.png")) - set(files):  # of other images
        stale.unlink()
    return files


def join(trees: Sequence[Tree]) -> Tree:
    """Trees of one layout as one batch."""
    levels = range(trees[0].depth + 1)
    return Tree(
        [torch.cat([tree.images[level] for tree in trees]) for level in levels],
        [torch.cat([tree.log_probs[level] for tree in trees]) for level in levels],
        trees[0].branching,
    )
