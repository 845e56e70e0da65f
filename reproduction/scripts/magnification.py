"""Is another magnification noticed? `magnification.py DATA`: fields of cells, shrunk and enlarged;
how many nuclei the tree of each counts, the size of bright regions, how many are doubted, and how
many nuclei are counted once nothing is doubted any more, by resizing as advised."""

import dataclasses
import re
import sys

import torch
from torch import Tensor
from torch.nn import functional as F

from posterior_trees import Tree, load
from posterior_trees.data import load_split
from posterior_trees.imaging.regions import median_region
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.pictures.nuclei.count import count_nuclei
from posterior_trees.pictures.nuclei.magnification import describe_magnification

ROUNDS = 4


def resize(y: Tensor, scale: float) -> Tensor:
    size = [round(side * scale) for side in y.shape[-2:]]
    return F.interpolate(y, size=size, mode="bicubic", antialias=True).clamp(0, 1)


def follow(y: Tensor) -> tuple[Tree, float]:
    """Resize a picture as advised until nothing is advised; the tree, and its scale."""
    scale = 1.0
    for _ in range(ROUNDS):
        tree = predictor.predict(resize(y, scale), tile=0)
        advised = re.search(r"--scale ([\d.]+)", describe_magnification(tree, predictor, scale))
        if not advised:
            return tree, scale
        scale = float(advised[1])
    raise SystemExit(f"still doubted after {ROUNDS} rounds")


predictor = load("cells", "cpu")
spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
print("quantiles in training:", [round(q) for q in predictor.about["region_pixels"]])
cases = [("test", 1, zoom) for zoom in (0.5, 0.7, 0.8, 1.0, 1.25, 1.4, 2.0)]
for split, step, zoom in [*cases, ("train", 4, 1.0)]:
    fields = load_split(spec, sys.argv[1], split)
    counts, medians, doubted, then, zooms = [], [], 0, [], []
    for index in range(0, len(fields), step):
        _, y = fields.batch(torch.tensor([index]))
        assert y is not None  # pairs have one
        y = resize(y, zoom)
        tree = predictor.predict(y, tile=0)
        counts.append(count_nuclei(tree).mean)
        if (median := median_region(tree.root[0, 0])) is not None:
            medians.append(median)
            doubted += bool(describe_magnification(tree, predictor))
        tree, scale = follow(y)
        then.append(count_nuclei(tree).mean)
        zooms.append(zoom * scale)
    print(
        f"{split} × {zoom:<4}: {sum(counts) / len(counts):5.1f} nuclei, regions of "
        f"{torch.tensor(medians).median():.0f} pixels, doubted {doubted} of {len(medians)} fields; "
        f"as advised {sum(then) / len(then):5.1f} nuclei at {min(zooms):.2f} to {max(zooms):.2f}",
        flush=True,
    )
