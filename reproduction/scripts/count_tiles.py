"""Do the tiles of a field err together? `count_tiles.py DATA`: the 22 test fields in tiles of
128 pixels; the variance of a field's error beside the sum of its tiles' variances."""

import dataclasses
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from posterior_trees import load
from posterior_trees.data import load_split
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.pictures.nuclei.blocks import Regions, owners_of
from posterior_trees.pictures.nuclei.count import Count, count_nuclei
from posterior_trees.pictures.tiles import Part, predict_tiled


def per_tile(image: Tensor, count: Count, parts: Sequence[Part]) -> Tensor:
    centres = Regions.of(image.double() > count.threshold).centres
    return owners_of(centres, parts).bincount(minlength=len(parts)).double()


predictor = load("cells", "cpu")
spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
fields = load_split(spec, sys.argv[1], "test")
errors, spreads = [], []
for index in range(len(fields)):
    x, y = fields.batch(torch.tensor([index]))
    assert y is not None  # pairs have one
    tree, parts = predict_tiled(predictor, y, 128, 32)
    count = count_nuclei(tree, parts=parts)
    probs = torch.stack([part.probs for part in parts]).double()
    leaves = torch.stack([per_tile(leaf[0], count, parts) for leaf in tree.leaves[0]], dim=1)
    errors.append((probs * leaves).sum(dim=1) - per_tile(x[0, 0], count, parts))
    spreads.append((count.spread, count.spread_together))
error = torch.stack(errors)
field, rest = error.sum(dim=1), error - error.mean()
spread = torch.tensor(spreads)
within = (field.abs()[:, None] <= spread).sum(dim=0).tolist()
ratio = rest.sum(1).square().mean() / rest.square().sum(1).mean()
print(f"error {field.mean():.2f} on average, {field.std(correction=0):.2f} without its mean")
print(f"variance over the sum of the tiles': {ratio:.2f}")
print("spread on their own, together:", [round(s, 2) for s in spread.mean(dim=0).tolist()])
print(f"fields whose error they cover: {within} of {len(field)}")
