"""Trees and labels as TIFF, which Fiji, QuPath and CellProfiler open: of arrays in memory or on
disk, tile by tile."""

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import VOLATILE, name_of, paths_of

SIDE = 512
HUGE = 2**31
"""Bytes above which a TIFF has to be a BigTIFF."""


def write_tree_tiff(
    file: Path, nodes: Any, branching: Sequence[int], frame: Frame,
    provenance: Mapping[str, Any], is_float: bool,
) -> None:  # fmt: skip
    """A channel for each of the nodes `(c, h, w)`: float32, or 16 bits with 65535 for 1. What is
    made of the same has the same identity, whenever that is."""
    lasting = {k: v for k, v in provenance.items() if k not in VOLATILE}
    same = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(lasting, sort_keys=True))
    names = [name_of(path) for path in paths_of(branching)]
    facts: dict[str, Any] = {"axes": "CYX", "UUID": f"urn:uuid:{same}", "Channel": {"Name": names}}
    if frame.pixel:
        for side in "XY":
            facts |= {f"PhysicalSize{side}": frame.pixel * frame.shrink,
                      f"PhysicalSize{side}Unit": "µm"}  # fmt: skip

    def deepen(values: np.ndarray) -> np.ndarray:
        return np.rint(values.clip(0, 1) * 65535) if values.dtype.kind == "f" else values

    kind = np.float32 if is_float else np.uint16
    _write(file, nodes, kind, np.asarray if is_float else deepen, metadata=facts, ome=True)


def write_labels_tiff(file: Path, labels: Any, count: int) -> None:
    """The number of each pixel's nucleus."""
    _write(file, labels, np.uint16 if count < 2**16 else np.uint32, np.asarray)


def write_values_tiff(file: Path, labels: Any, values: Sequence[float]) -> None:
    """A number of each nucleus, painted in its pixels; 0 elsewhere."""
    table = np.array([0.0, *values], dtype=np.float32)
    _write(file, labels, np.float32, table.__getitem__)


def _write(
    file: Path, array: Any, dtype: Any, convert: Callable[[np.ndarray], np.ndarray], **options: Any
) -> None:
    *first, h, w = array.shape

    def tiles() -> Iterator[np.ndarray]:
        corners = itertools.product(*map(range, first), range(0, h, SIDE), range(0, w, SIDE))
        for *index, top, left in corners:
            part = np.asarray(array[(*index, slice(top, top + SIDE), slice(left, left + SIDE))])
            tile = np.zeros((SIDE, SIDE), dtype=dtype)
            tile[: part.shape[0], : part.shape[1]] = convert(part)
            yield tile

    size = np.dtype(dtype).itemsize * h * w * int(np.prod(first))
    need("tifffile").imwrite(
        file, tiles(), shape=tuple(array.shape), dtype=dtype, tile=(SIDE, SIDE),
        compression="zlib", photometric="minisblack", bigtiff=size > HUGE, **options,
    )  # fmt: skip
