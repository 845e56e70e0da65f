"""Nuclei of the 22 test fields, counted in the tree of the shipped model and in the true stain:
`python reproduction/scripts/count_cells.py DATA FILE` writes them.

Whole fields, one pass each; the truth is counted with the threshold of its tree. A predicted
nucleus is *there* if the true stain is bright at its centre.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch

from posterior_trees import load
from posterior_trees.data import load_split
from posterior_trees.imaging.regions import find_regions
from posterior_trees.models.checkpoint import load_recipe, provenance
from posterior_trees.pictures.nuclei.count import Count, Nucleus, count_nuclei


def are_there(nuclei: list[Nucleus], is_bright: torch.Tensor) -> int:
    return sum(bool(is_bright[round(n.row), round(n.column)]) for n in nuclei)


def judge(count: Count, stain: torch.Tensor) -> dict[str, float | int]:
    """A row of the table: one field."""
    is_bright = stain > count.threshold
    doubtful = count.uncertain
    sure = [n for n in count.nuclei if n not in doubtful]
    return {
        "truth": int(find_regions(is_bright, count.smallest).max()),
        "mean": count.mean,
        "spread": count.spread,
        "sure": len(sure),
        "sure_there": are_there(sure, is_bright),
        "doubtful": len(doubtful),
        "doubtful_there": are_there(doubtful, is_bright),
    }


def main(folder: str, file: str) -> None:
    predictor = load("cells", "cpu")
    spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
    fields = load_split(spec, folder, "test")
    rows = []
    for index in range(len(fields)):
        x, y = fields.batch(torch.tensor([index]))
        with torch.inference_mode():
            rows.append(judge(count_nuclei(predictor(y)), x[0, 0]))
    total = {name: sum(row[name] for row in rows) for name in rows[0]}
    errors = torch.tensor([row["mean"] - row["truth"] for row in rows])
    summary = {
        "fields": len(rows),
        "mean_error": errors.mean().item(),
        "mean_absolute_error": errors.abs().mean().item(),
        "mean_spread": total["spread"] / len(rows),
        "within_spread": sum(abs(row["mean"] - row["truth"]) <= row["spread"] for row in rows),
        **{name: total[name] for name in total if name not in ("mean", "spread")},
    }
    facts = {**provenance(), "summary": summary, "fields": rows}
    Path(file).write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:3])
