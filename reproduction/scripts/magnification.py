"""Is another magnification noticed? `magnification.py DATA`: fields of cells, shrunk and enlarged;
how many nuclei the tree of each counts, the size of bright regions, how many are doubted, and how
many nuclei are counted once nothing is doubted any more, by resizing as advised.

`magnification.py DATA growth`: how regions of a tree grow with the scale s of its picture: the
median, least and greatest exponent g of m ∝ s^g in fields of training wells, m being the median
region of the root (`pictures/nuclei/magnification.py`).
"""

import dataclasses
import math
import re
import sys
from collections.abc import Iterator

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
predictor = load("cells", "cpu")


def fields(split: str, step: int) -> Iterator[Tensor]:
    """Every so many of the whole fields of a split."""
    spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
    images = load_split(spec, sys.argv[1], split)
    for index in range(0, len(images), step):
        _, y = images.batch([index])
        assert y is not None  # pairs have one
        yield y


def resize(y: Tensor, scale: float) -> Tensor:
    size = [round(side * scale) for side in y.shape[-2:]]
    return F.interpolate(y, size=size, mode="bicubic", antialias=True).clamp(0, 1)


def median_of(y: Tensor) -> float | None:
    return median_region(predictor.predict(y, tile=0).root[0, 0])


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


def growth() -> None:
    found: dict[float, list[float]] = {s: [] for s in (0.5, 0.6, 0.7, 0.8, 1.25, 1.4, 1.7, 2.0)}
    for y in fields("train", 12):
        plain = median_of(y)
        for scale, exponents in found.items():
            if (median := median_of(resize(y, scale))) and plain:
                exponents.append(math.log(median / plain) / math.log(scale))
    for scale, exponents in found.items():
        g = torch.tensor(exponents)
        print(f"× {scale:<4}: {len(g)} fields, g {g.median():.2f} ({g.min():.2f} to {g.max():.2f})")


def noticed(split: str, step: int, zoom: float) -> None:
    counts, medians, doubted, then, zooms = [], [], 0, [], []
    for y in fields(split, step):
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


if sys.argv[2:] == ["growth"]:
    growth()
else:
    print("quantiles in training:", [round(q) for q in predictor.about["region_pixels"]])
    for zoom in (0.5, 0.7, 0.8, 1.0, 1.25, 1.4, 2.0):
        noticed("test", 1, zoom)
    noticed("train", 4, 1.0)
