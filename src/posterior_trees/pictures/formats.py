"""A field's tree and nuclei as files that other programs open.

STEM.tree.ome.zarr            zarr: the tree, see `imaging/tree_zarr.py`; fields of a plate lie
                              in PLATE.tree.ome.zarr/ROW/COLUMN/FIELD
STEM.tree.ome.tif             tiff: a channel for each node, 65535 = 1 or float32
STEM.nuclei.tif               labels: the number of each pixel's nucleus, 0 outside
STEM.nuclei_probability.tif   … and the probability of that nucleus
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterior_trees.errors import InputError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.stored import Tiles
from posterior_trees.imaging.tree_tiff import write_labels_tiff, write_tree_tiff, write_values_tiff
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.pictures.answer import Answer
from posterior_trees.pictures.nuclei.count import Count
from posterior_trees.pictures.nuclei.table import describe_nuclei


def zarr_name(field: Field, name: str) -> str:
    """Where the tree of a field lies: in a plate, or by itself."""
    if not field.plate:
        return f"{name}.tree.ome.zarr"
    return "/".join((f"{field.plate}.tree.ome.zarr", *field.path.parts[-3:]))


def write_zarr(
    folder: Path, made: Answer, tiles: Tiles, field: Field, frame: Frame, count: Count | None,
    provenance: Mapping[str, Any], *, dtype: str, ngff: str, is_pyramid: bool,
) -> None:  # fmt: skip
    nuclei = None
    if count is not None:
        nuclei = describe_nuclei(field, count, frame, count.labels.numpy().astype(np.uint32))
    write_tree(
        folder, made.tree, dtype=dtype, ngff=ngff, frame=frame, is_pyramid=is_pyramid, tiles=tiles,
        local=[part.probs for part in made.parts], provenance=provenance, nuclei=nuclei,
    )  # fmt: skip


def write_tiff(
    file: Path, made: Answer, frame: Frame, provenance: Mapping[str, Any], dtype: str
) -> None:
    tree = made.tree
    if tree.shape[0] != 1:
        raise InputError("--write tiff is for models of one channel")
    nodes = np.concatenate([level[0, :, 0].numpy() for level in tree.images])
    write_tree_tiff(file, nodes, tree.branching, frame, provenance, is_float=dtype == "float32")


def write_labels(folder: Path, name: str, count: Count) -> list[str]:
    """Returns the names of the files."""
    names = [f"{name}.nuclei.tif", f"{name}.nuclei_probability.tif"]
    write_labels_tiff(folder / names[0], count.labels, len(count.nuclei))
    probs = [nucleus.probability for nucleus in count.nuclei]
    write_values_tiff(folder / names[1], count.labels, probs)
    return names
