r"""A tree as an OME-Zarr image, which napari, Fiji and others open: a channel for every node.

    A1.tree.ome.zarr/
      0, 1, 2 …          (c, y, x): all nodes, root first, level after level; each array half the
                         height and width of the one before
      probabilities/0    (c, rows, columns) float32: a pixel for each tile, its own probabilities
      labels/nuclei/0 …  uint32 (y, x), each nucleus with its number
      tables/nuclei.csv  the nuclei, a row each

Numbers of 8 or 16 bits hold values of [0, 1] in steps of $1/255$ or $1/65535$, so that a node is
within half a step of what was predicted and clipped, and float32 is exact. `posterior_trees` in the
attributes has paths and probabilities of the channels. All is written under another name first, and
the metadata last. Choice: chunks of zeros are written too, so that a missing one is an error.
"""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.imaging.ngff import (
    FORMATS,
    Frame,
    image_label,
    omero,
    write_group,
    write_image,
)
from posterior_trees.imaging.ome_zarr import is_zarr
from posterior_trees.imaging.stack import need
from posterior_trees.imaging.stored import SCHEMA, Tiles, name_of, paths_of
from posterior_trees.tree import Tree, level_sizes

CHUNK = 512
LABELS = "labels/nuclei"
LEAST_SIDE, MOST_LEVELS = 1024, 6
"""A pyramid ends where no side is longer, and has no more levels."""
ONE = {"uint8": 255, "uint16": 65535, "float32": 1.0}
"""The stored value of 1."""
PLAIN = Frame()


class TreeWriter:
    """Writes one tree part by part; every part of `0` is written once, in chunks of `CHUNK`."""

    def __init__(
        self, folder: Path, branching: Sequence[int], size: Sequence[int], *, dtype: str = "uint8",
        ngff: str = "0.5", frame: Frame = PLAIN, is_pyramid: bool = True, is_labelled: bool = False,
    ) -> None:  # fmt: skip
        if dtype not in ONE:
            raise InputError(f"--dtype is {dtype}; it is {', '.join(ONE)}")
        if ngff not in FORMATS:
            raise InputError(f"--ngff is {ngff}; it is {' or '.join(FORMATS)}")
        self.folder, self.branching, self.dtype, self.ngff = folder, tuple(branching), dtype, ngff
        self.frame, self.is_labelled = frame, is_labelled
        self.nodes = sum(level_sizes(self.branching))
        self.sizes = pyramid_of(size) if is_pyramid else [(size[0], size[1])]
        self.steps = [frame.steps(2**level) for level in range(len(self.sizes))]

    def begin(self) -> None:
        """Empty arrays; those that are there stay as they are."""
        for level, size in enumerate(self.sizes):
            self._create(self.folder / str(level), (self.nodes, *size), self.dtype)
            if self.is_labelled:
                self._create(self.folder / LABELS / str(level), size, "uint32")

    def chunks(self, level: int = 0) -> Iterator[tuple[slice, slice]]:
        """The parts in which an array is written."""
        h, w = self.sizes[level]
        for top in range(0, h, CHUNK):
            for left in range(0, w, CHUNK):
                yield slice(top, min(top + CHUNK, h)), slice(left, min(left + CHUNK, w))

    def write(self, rows: slice, columns: slice, nodes: Float[Tensor, "n h w"]) -> None:
        """One chunk of full resolution."""
        values = nodes.float()
        if self.dtype != "float32":
            values = values.clamp(0, 1).mul(ONE[self.dtype]).round()
        self._array(0)[:, rows, columns] = values.cpu().numpy().astype(self.dtype)

    def write_labels(self, rows: slice, columns: slice, labels: Shaped[np.ndarray, "h w"]) -> None:
        """One chunk, or several, of the labels of full resolution."""
        self._array(0, LABELS)[rows, columns] = labels.astype(np.uint32)

    def shrink(self, level: int, rows: slice, columns: slice) -> None:
        """One chunk of a coarser array: means of 2×2 pixels, fewer at an odd edge; of labels the
        last of them, because NGFF wants as many arrays of these."""
        places = tuple(slice(2 * part.start, 2 * part.stop) for part in (rows, columns))
        above, below = self._array(level - 1), self._array(level)
        for node in range(self.nodes):
            below[node, rows, columns] = halve(np.asarray(above[(node, *places)]))
        if self.is_labelled:
            above, below = self._array(level - 1, LABELS), self._array(level, LABELS)
            below[rows, columns] = quarters(np.asarray(above[places])).max(axis=0)

    def finish(
        self, log_probs: Sequence[float], tiles: Tiles, local: Float[np.ndarray, "n tiles"],
        provenance: Mapping[str, Any], nuclei: "Nuclei | None" = None,
    ) -> None:  # fmt: skip
        """Probabilities, labels, tables and, last, the metadata; `log_probs` are those of all nodes
        over the field, `local` the probabilities of all nodes in each tile."""
        self._write_local(local, tiles)
        if nuclei is not None:
            self._write_nuclei(nuclei)
        name = self.folder.name.removeprefix(".").removesuffix(".part")  # it is renamed when whole
        told = list(zip(paths_of(self.branching), log_probs, strict=True))
        nodes = [{"path": list(path), "channel": channel, "probability": math.exp(log),
                  "log_probability": log if math.isfinite(log) else None}
                 for channel, (path, log) in enumerate(told)]  # fmt: skip
        names = [f"{name_of(path)} p={math.exp(log):.3f}" for path, log in told]
        facts = {
            "tree": SCHEMA, "branching": list(self.branching), "nodes": nodes,
            "value_of_one": ONE[self.dtype], "clipped": self.dtype != "float32",
            "probabilities": "probabilities",
            "tiles": {**vars(tiles), "grid": tiles.grid},
            "provenance": dict(provenance),
        }  # fmt: skip
        shown = omero(names, ONE[self.dtype])
        write_image(self.folder, name, self.frame.axes(), self.steps, shown, self.ngff,
                    posterior_trees=facts)  # fmt: skip

    def _write_local(self, local: np.ndarray, tiles: Tiles) -> None:
        rows, columns = tiles.grid
        folder = self.folder / "probabilities"
        array = self._create(folder / "0", (self.nodes, rows, columns), "float32")
        array[...] = local.reshape(self.nodes, rows, columns).astype(np.float32)
        edges = (tiles.rows, tiles.columns)
        steps = self.frame.steps(*[(e[-1] - e[0]) / (len(e) - 1) for e in edges])
        shown = omero(list(map(name_of, paths_of(self.branching))), 1.0)
        write_image(folder, "probabilities", self.frame.axes(), [steps], shown, self.ngff)

    def _write_nuclei(self, nuclei: "Nuclei") -> None:
        folder = self.folder / LABELS
        known = image_label(nuclei.properties, self.ngff)
        write_image(folder, "nuclei", self.frame.axes("yx"), self.steps, known, self.ngff)
        write_group(folder.parent, {"labels": ["nuclei"]}, self.ngff)
        (self.folder / "tables").mkdir(exist_ok=True)
        (self.folder / "tables" / "nuclei.csv").write_text(nuclei.table, "utf-8", newline="\n")

    def _array(self, level: int, inside: str = "") -> Any:
        return _open(self.folder / inside / str(level))

    def _create(self, path: Path, shape: Sequence[int], dtype: str) -> Any:
        zarr, numcodecs = need("zarr"), need("numcodecs")
        if is_zarr(path):
            return _open(path)
        is_old = FORMATS[self.ngff] == 2
        codec: Any = {"cname": "zstd", "clevel": 5, "shuffle": 1}
        codec = numcodecs.Blosc(**codec) if is_old else zarr.codecs.BloscCodec(
            **{**codec, "shuffle": "shuffle"}, typesize=np.dtype(dtype).itemsize)  # fmt: skip
        sides = (1,) * (len(shape) - 2) + (CHUNK, CHUNK)
        more = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if is_old else {
            "dimension_names": "cyx"[-len(shape) :]}  # fmt: skip
        return zarr.create_array(
            path, shape=tuple(shape), dtype=dtype, compressors=codec, fill_value=0,
            chunks=tuple(min(a, b) for a, b in zip(sides, shape, strict=True)),
            zarr_format=FORMATS[self.ngff], config={"write_empty_chunks": True}, **more,
        )  # fmt: skip


class Nuclei(NamedTuple):
    """What was counted: the number of each pixel's nucleus (None if they are written already), the
    properties of each, and the table."""

    labels: Shaped[np.ndarray, "h w"] | None
    properties: Sequence[Mapping[str, Any]]
    table: str


def write_tree(
    folder: str | PathLike[str], tree: Tree, *, dtype: str = "uint8", ngff: str = "0.5",
    frame: Frame = PLAIN, is_pyramid: bool = True, tiles: Tiles | None = None,
    local: Sequence[Float[Tensor, "n"]] = (), provenance: Mapping[str, Any] | None = None,
    nuclei: Nuclei | None = None,
) -> Path:  # fmt: skip
    """The tree of one grey picture as a new OME-Zarr folder, whole or not at all; `local` are the
    leaves' probabilities in each of the `tiles`."""
    if len(tree) != 1 or len(tree.shape) != 3 or tree.shape[0] != 1:
        raise InputError(f"OME-Zarr holds the tree of one grey picture; this is {tree}")
    path = Path(folder)
    part = path.with_name(f".{path.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        writer = TreeWriter(part, tree.branching, tree.shape[1:], dtype=dtype, ngff=ngff,
                            frame=frame, is_pyramid=is_pyramid,
                            is_labelled=nuclei is not None)  # fmt: skip
        writer.begin()
        images = torch.cat([level[0, :, 0] for level in tree.images]).detach()
        for rows, columns in writer.chunks():
            writer.write(rows, columns, images[:, rows, columns])
            if nuclei is not None and nuclei.labels is not None:
                writer.write_labels(rows, columns, nuclei.labels[rows, columns])
        for level in range(1, len(writer.sizes)):
            for chunk in writer.chunks(level):
                writer.shrink(level, *chunk)
        logs = torch.cat([level[0] for level in tree.log_probs]).tolist()
        leaves = torch.stack(list(local) or [tree.probs[-1][0]], dim=1).double().cpu().numpy()
        writer.finish(logs, tiles or Tiles.whole(tree.shape[1:]),
                      all_nodes(leaves, tree.branching), provenance or {}, nuclei)  # fmt: skip
        put_in_place(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return path


def _open(path: Path) -> Any:
    """An array to write to; zarr forgets of an array on disk that its chunks of zeros count too."""
    zarr = need("zarr")
    with zarr.config.set({"array.write_empty_chunks": True}):
        return zarr.open_array(path, mode="r+")


def pyramid_of(size: Sequence[int]) -> list[tuple[int, int]]:
    """Sizes of the levels, the full one first."""
    sizes = [(size[0], size[1])]
    while max(sizes[-1]) > LEAST_SIDE and len(sizes) < MOST_LEVELS:
        h, w = sizes[-1]
        sizes.append((-(-h // 2), -(-w // 2)))
    return sizes


def halve(values: Shaped[np.ndarray, "h w"]) -> Shaped[np.ndarray, "_ _"]:
    """Means of 2×2 pixels, whole numbers rounded."""
    is_float = values.dtype.kind == "f"
    total = quarters(values).sum(axis=0, dtype=np.float32 if is_float else int)
    return (total / 4 if is_float else (total + 2) // 4).astype(values.dtype)


def quarters(values: Shaped[np.ndarray, "h w"]) -> Shaped[np.ndarray, "4 _ _"]:
    """The four pixels of every 2×2; at an odd edge those that are there, twice."""
    wide = np.pad(values, [(0, side % 2) for side in values.shape], mode="edge")
    return np.stack([wide[i::2, j::2] for j in (0, 1) for i in (0, 1)])


def all_nodes(leaves: Float[np.ndarray, "n t"], branching: Sequence[int]) -> np.ndarray:
    """Probabilities of all nodes from those of the leaves, level after level."""
    levels = [leaves]
    for k in reversed(branching):
        levels.insert(0, levels[0].reshape(-1, k, leaves.shape[1]).sum(axis=1))
    return np.concatenate(levels)


def put_in_place(part: Path, folder: Path) -> None:
    """Give a finished folder, or a file, its name; what had it goes."""
    if part.is_file():
        part.replace(folder)
        return
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rename(old)
    part.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
