"""How regions of a tree grow with the scale of its picture: `magnification_growth.py DATA` prints,
of fields of training wells at several scales s, the median, least and greatest exponent g of
m ∝ s^g, m being the median region of the root (`pictures/magnification.py`)."""

import dataclasses
import math
import sys

import torch
from torch.nn import functional as F

from posterior_trees import load
from posterior_trees.data import load_split
from posterior_trees.imaging.regions import median_region
from posterior_trees.models.checkpoint import load_recipe

STEP = 12  # every twelfth field
predictor = load("cells", "cpu")
spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
fields = load_split(spec, sys.argv[1], "train")
found: dict[float, list[float]] = {s: [] for s in (0.5, 0.6, 0.7, 0.8, 1.25, 1.4, 1.7, 2.0)}
for index in range(0, len(fields), STEP):
    _, y = fields.batch(torch.tensor([index]))
    assert y is not None  # pairs have one
    plain = median_region(predictor.predict(y, tile=0).root[0, 0])
    for scale, exponents in found.items():
        size = [round(side * scale) for side in y.shape[-2:]]
        other = F.interpolate(y, size=size, mode="bicubic", antialias=True).clamp(0, 1)
        median = median_region(predictor.predict(other, tile=0).root[0, 0])
        if plain and median:
            exponents.append(math.log(median / plain) / math.log(scale))
for scale, exponents in found.items():
    g = torch.tensor(exponents)
    print(f"× {scale:<4}: {len(g)} fields, g {g.median():.2f} ({g.min():.2f} to {g.max():.2f})")
