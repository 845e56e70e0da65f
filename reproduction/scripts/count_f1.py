"""Are the nuclei of a predicted field those of the true stain? `count_f1.py DATA FILE` writes it.

Whole fields of the test wells, which chose nothing; nor is anything chosen here. The true nuclei
are the bright regions of the DNA channel above its own threshold of Otsu's, the predicted ones
those of the root, of each leaf, and all of the tree's (what `--write labels` writes), above the
tree's. Two are the same if their intersection is at least half of their union; F1 is that of all
nuclei together, its 95 % interval over wells.

The shipped certificate was made of these very wells: the interval of a well's counts here comes
from the other ten. The validation wells, which chose the epoch, are in no certificate.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from posterior_trees import Tree, TreePredictor, load
from posterior_trees.data import ImageSet, find_groups, load_split
from posterior_trees.guarantee.answers import Scores
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.imaging.regions import FAINTEST, SMALLEST, find_regions, otsu
from posterior_trees.imaging.stored import name_of
from posterior_trees.models.checkpoint import load_recipe, provenance
from posterior_trees.pictures.nuclei.count import count_in, count_nuclei

IOU, LEVEL, DRAWS = 0.5, 0.9, 10_000
Labels = Int64[Tensor, "h w"]


def matched(one: Labels, other: Labels) -> int:
    """How many regions of two label images are the same, each with at most one partner."""
    shape = int(one.max()) + 1, int(other.max()) + 1
    both = (one * shape[1] + other).flatten().bincount(minlength=shape[0] * shape[1])
    table = both.reshape(shape).double()
    union = table.sum(dim=1, keepdim=True) + table.sum(dim=0, keepdim=True) - table
    iou = (table / union.clamp(min=1))[1:, 1:].numpy()
    rows, columns = linear_sum_assignment(-iou * (iou >= IOU))
    return int((iou[rows, columns] >= IOU).sum())


def judge(tree: Tree, x: Tensor) -> dict[str, list[int]]:
    """For each way of reading a tree: nuclei that are there, predicted, true."""
    count, stain = count_nuclei(tree), x[0, 0].double()
    truth = find_regions(stain > max(otsu(stain), FAINTEST), SMALLEST)
    found = {"tree": count.labels}
    for level in (0, tree.depth):
        for path, image in zip(tree.paths(level), tree.images[level][0, :, 0], strict=True):
            found[name_of(path)] = find_regions(image.double() > count.threshold, SMALLEST)
    found["likeliest"] = found[name_of(tree.paths(tree.depth)[int(tree.probs[-1].argmax())])]
    return {
        name: [matched(labels, truth), int(labels.unique().count_nonzero()), int(truth.max())]
        for name, labels in found.items()
    }


def without(guarantee: Guarantee, group: int) -> Guarantee:
    """The certificate that the other wells give."""
    values, groups = guarantee.scores["measure.nuclei"]
    assert groups is not None
    rest = groups != group
    facts = guarantee.facts | {"n": int(rest.sum()), "groups": len(groups[rest].unique())}
    assert (facts["n"], facts["groups"]) == (guarantee.n - 2, 10)
    scores = {"measure.nuclei": Scores(values[rest], groups[rest])}
    return dataclasses.replace(guarantee, scores=scores, facts=facts)


def f1(rows: np.ndarray) -> np.ndarray:
    """Of `(…, fields, 3)` counts, over fields."""
    there, predicted, true = np.moveaxis(rows.sum(axis=-2), -1, 0)
    return 2 * there / (predicted + true)


def summarize(rows: np.ndarray, wells: np.ndarray) -> dict[str, float]:
    """The scores of all nuclei; whole wells are drawn for the interval."""
    per_well = np.stack([rows[wells == well].sum(axis=0) for well in np.unique(wells)])
    drawn = np.random.default_rng(0).integers(len(per_well), size=(DRAWS, len(per_well)))
    low, high = np.quantile(f1(per_well[drawn]), [0.025, 0.975])
    there, predicted, true = rows.sum(axis=0)
    score = {"f1": f1(rows), "low": low, "high": high}
    score |= {"precision": there / predicted, "recall": there / true}
    return {name: float(value) for name, value in score.items()}


def judge_split(
    predictor: TreePredictor, guarantee: Guarantee, images: ImageSet, split: str
) -> dict:
    """All fields of a split: scores of their nuclei, and the intervals of their counts."""
    wells = find_groups(images.names, "well")
    assert wells is not None
    rows, intervals = [], []
    for index, well in enumerate(wells.tolist()):
        x, y = images.batch([index])
        with torch.inference_mode():
            tree = predictor(y)
        rows.append(judge(tree, x))
        made = without(guarantee, well) if split == "test" else guarantee
        found = made.interval(tree, "nuclei", LEVEL)
        ends = found.low.item(), found.high.item()
        intervals.append([images.names[index], count_in(x[0]), *ends])
    ways = {way: np.array([row[way] for row in rows]) for way in rows[0]}
    return {
        "fields": len(rows),
        "wells": len(wells.unique()),
        "covered": sum(low <= truth <= high for _, truth, low, high in intervals),
        "width": float(np.mean([high - low for *_, low, high in intervals])),
        "nuclei": {way: summarize(counts, wells.numpy()) for way, counts in ways.items()},
        "intervals": intervals,
    }


def main(folder: str, file: str) -> None:
    predictor = load("cells", "cpu")
    guarantee, predictor.guarantee = predictor.guarantee, None
    assert isinstance(guarantee, Guarantee)
    spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
    facts: dict = {**provenance(), "iou": IOU, "level": LEVEL}
    for split in ("validation", "test"):
        images = load_split(spec, folder, split)
        found = facts[split] = judge_split(predictor, guarantee, images, split)
        print(f"{split}: {found['covered']} of {found['fields']} counts in their interval")
        for way, score in found["nuclei"].items():
            print(f"  {way:10}", " ".join(f"{k} {v:.4f}" for k, v in score.items()))
    Path(file).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
