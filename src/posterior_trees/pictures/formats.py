"""A field's tree and nuclei as files that other programs open.

STEM.tree.ome.zarr            zarr: the tree, see `imaging/tree_zarr.py`; fields of a plate lie
                              in PLATE.tree.ome.zarr/ROW/COLUMN/FIELD
STEM.tree.ome.tif             tiff: a channel for each node, 65535 = 1 or float32
STEM.nuclei.tif               labels: the number of each pixel's nucleus, 0 outside
STEM.nuclei_probability.tif   … and the probability of that nucleus
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posterior_trees.errors import InputError
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import Tiles, name_of, paths_of
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.pictures.answer import Answer
from posterior_trees.pictures.nuclei.count import Count
from posterior_trees.pictures.nuclei.table import describe_nuclei
from posterior_trees.store import write_bytes

HUGE = 2**31
"""Bytes above which a TIFF has to be a BigTIFF."""


def zarr_name(field: Field, name: str) -> str:
    """Where the tree of a field lies: in a plate, or by itself."""
    if not field.plate:
        return f"{name}.tree.ome.zarr"
    return "/".join((f"{field.plate}.tree.ome.zarr", *field.path.parts[-3:]))


def write_zarr(
    folder: Path, made: Answer, field: Field, frame: Frame, count: Count | None,
    provenance: Mapping[str, Any], *, dtype: str, ngff: str, is_pyramid: bool,
) -> None:  # fmt: skip
    nuclei = None
    if count is not None:
        nuclei = describe_nuclei(field, count, frame, count.labels.numpy().astype(np.uint32))
    h, w = made.tree.shape[1:]
    tiles = Tiles.whole((h, w))
    if made.parts:
        rows_at = sorted({part.rows.start for part in made.parts})
        columns_at = sorted({part.columns.start for part in made.parts})
        tiles = Tiles(provenance.get("tile") or 512, provenance.get("overlap") or 64,
                      (h, w), (0, 0), (*rows_at, h), (*columns_at, w))  # fmt: skip
    write_tree(
        folder, made.tree, dtype=dtype, ngff=ngff, frame=frame, is_pyramid=is_pyramid, tiles=tiles,
        local=[part.probs for part in made.parts], provenance=provenance, nuclei=nuclei,
    )  # fmt: skip


def write_tiff(file: Path, made: Answer, frame: Frame, dtype: str) -> None:
    tree = made.tree
    if tree.shape[0] != 1:
        raise InputError("--write tiff is for models of one channel")
    nodes = np.concatenate([level[0, :, 0].numpy() for level in tree.images])
    if dtype != "float32":
        nodes = np.rint(nodes.clip(0, 1) * 65535).astype(np.uint16)
    facts: dict[str, Any] = {"axes": "CYX"}
    facts["Channel"] = {"Name": [name_of(path) for path in paths_of(tree.branching)]}
    if frame.pixel:
        for side in "XY":
            facts |= {f"PhysicalSize{side}": frame.pixel * frame.shrink,
                      f"PhysicalSize{side}Unit": "µm"}  # fmt: skip
    _write_tiff(file, nodes, metadata=facts, tile=(512, 512), ome=True)


def write_labels(folder: Path, name: str, count: Count) -> None:
    labels = count.labels.numpy()
    small = np.uint16 if len(count.nuclei) < 2**16 else np.uint32
    probs = np.array([0.0, *(n.probability for n in count.nuclei)], dtype=np.float32)
    _write_tiff(folder / f"{name}.nuclei.tif", labels.astype(small))
    _write_tiff(folder / f"{name}.nuclei_probability.tif", probs[labels])


def _write_tiff(file: Path, values: np.ndarray, **options: Any) -> None:
    part = io.BytesIO()
    need("tifffile").imwrite(part, values, compression="zlib", photometric="minisblack",
                             bigtiff=values.nbytes > HUGE, **options)  # fmt: skip
    write_bytes(file, part.getvalue())
