"""Does counting in blocks find other nuclei? `count_blocks.py DATA`: the 22 test fields joined to
one, predicted in tiles, and counted as a whole and in blocks of several sizes."""

import dataclasses
import sys

import torch

from posterior_trees import load
from posterior_trees.data import load_split
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.pictures.nuclei.count import Nucleus, count_nuclei
from posterior_trees.pictures.tiles import predict_tiled

COLUMNS = 4


def rounded(nucleus: Nucleus) -> tuple:
    """But for the last bits of its centre, which depend on where one counts from."""
    return tuple(round(v, 6) if isinstance(v, float) else v for v in nucleus)


predictor = load("cells", "cpu")
spec = dataclasses.replace(load_recipe("cells").data, patch=0, augment=())
fields = load_split(spec, sys.argv[1], "test")
ys = []
for index in range(len(fields)):
    _, y = fields.batch(torch.tensor([index]))
    assert y is not None  # pairs have one
    ys.append(y)
ys += [y.flip(-1) for y in ys[: -len(ys) % COLUMNS]]
rows = [torch.cat(ys[i : i + COLUMNS], dim=-1) for i in range(0, len(ys), COLUMNS)]
tree, parts = predict_tiled(predictor, torch.cat(rows, dim=-2))
once = count_nuclei(tree, parts=parts, block=10**6)
places = torch.tensor([nucleus[:2] for nucleus in once.nuclei])
print(f"{tuple(tree.shape)}: {len(once.nuclei)} nuclei, {once.mean:.1f} ± {once.spread:.1f}")
for block in (1024, 512, 256):
    count = count_nuclei(tree, parts=parts, block=block)
    same = len(set(map(rounded, count.nuclei)) & set(map(rounded, once.nuclei)))
    new = torch.tensor([nucleus[:2] for nucleus in count.nuclei])
    near = (torch.cdist(new, places).min(dim=1).values < 3).sum()
    print(
        f"blocks of {block}: {len(count.nuclei)} nuclei, {same} the same in all, {near} at a same "
        f"place; {count.mean:.1f} ± {count.spread:.1f}; leaves "
        f"{[a.nuclei - b.nuclei for a, b in zip(count.leaves, once.leaves, strict=True)]}"
    )
