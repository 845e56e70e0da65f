"""A tree in OME-Zarr (`tree_zarr.py`), read in parts: `open_tree`."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.ome_zarr import attributes_of, is_zarr, missing_chunks
from posterior_trees.imaging.stack import check_chunk, damage_named, need
from posterior_trees.schema import Maybe, check
from posterior_trees.tree import Tree, layout, level_sizes

SCHEMA = 2
"""Of a tree in OME-Zarr; that in safetensors is 1."""
VOLATILE = ("date", "command", "version", "commit")
"""What of the provenance may be another when the same is made again."""
FORM = {
    "tree": int, "branching": list[int], "value_of_one": float, "clipped": bool, "provenance": dict,
    "nodes": list[dict],
    "tiles": {"size": int, "overlap": int, "padded": (int, int), "offset": (int, int),
              "rows": list[int], "columns": list[int]},
}  # fmt: skip
"""Of its metadata."""


@dataclass(frozen=True)
class Tiles:
    """How the field was cut: `rows` and `columns` are the edges of what each tile tells most of,
    in pixels of the picture; `padded` and `offset` say what tiles were cut from."""

    size: int
    overlap: int
    padded: tuple[int, int]
    offset: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @classmethod
    def whole(cls, size: Sequence[int]) -> "Tiles":
        """One tile."""
        h, w = size
        return cls(max(h, w), 0, (h, w), (0, 0), (0, h), (0, w))

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.rows) - 1, len(self.columns) - 1


class StoredNode:
    """One node of a stored tree; a part of it is read when asked for: `node[y0:y1, x0:x1]`."""

    def __init__(self, tree: "StoredTree", channel: int, path: tuple[int, ...]) -> None:
        self.tree, self.channel, self.path = tree, channel, path
        self.log_prob = tree.log_probs_flat[channel]
        self.prob = math.exp(self.log_prob)
        self.shape = tree.shape[1:]

    def __getitem__(self, place: tuple[slice, slice]) -> Float32[Tensor, "h w"]:
        return self.tree.read((self.channel, *place))


class StoredTree:
    """A tree on disk: its layout and probabilities are here, its images are read where asked."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self.provenance = path, facts["provenance"]
        self.branching = tuple(facts["branching"])
        self.value_of_one, self.is_clipped = facts["value_of_one"], facts["clipped"]
        self.array = need("zarr").open_array(path / "0", mode="r")
        self.shape = (1, *self.array.shape[1:])
        self.log_probs_flat = [_log_of(node) for node in facts["nodes"]]
        self.tiles = msgspec.convert(facts["tiles"], Tiles)
        check_chunk(str(path), self.array)
        count = len(facts["nodes"])
        levels = layout(self.branching if len(self.branching) < count.bit_length() else ())
        if (self.array.ndim, sum(level_sizes(levels)), self.array.shape[0]) != (3, count, count):
            raise ValueError(f"{count} nodes, an array {self.array.shape}, branching "
                             f"{self.branching[:9]}")  # fmt: skip
        if not self.value_of_one > 0:
            raise ValueError(f"its value_of_one is {self.value_of_one}")

    def __repr__(self) -> str:
        layout = "×".join(map(str, self.branching)) or "root only"
        return f"StoredTree({self.path}, {self.shape}, {layout})"

    @property
    def log_probs(self) -> tuple[Float32[Tensor, "1 _"], ...]:
        return torch.tensor([self.log_probs_flat]).split(level_sizes(self.branching), dim=1)

    @property
    def probs(self) -> tuple[Float32[Tensor, "1 _"], ...]:
        return tuple(level.exp() for level in self.log_probs)

    @property
    def parts(self) -> list[tuple[slice, slice, Float[Tensor, "n"]]]:
        """The rows and columns that each tile tells most of, and its leaves' probabilities."""
        with damage_named(str(self.path)):
            array = need("zarr").open_array(self.path / "probabilities" / "0", mode="r")
            if array.shape != (len(self.log_probs_flat), *self.tiles.grid):
                raise ValueError(f"probabilities {array.shape} of {self.tiles.grid} tiles")
            local = torch.from_numpy(np.asarray(array[...]))[-level_sizes(self.branching)[-1] :]
        edges = self.tiles.rows, self.tiles.columns
        rows, columns = ([slice(*pair) for pair in pairwise(e)] for e in edges)
        places = itertools.product(rows, columns)
        return [(*place, probs) for place, probs in zip(places, local.flatten(1).T, strict=True)]

    def node(self, path: Sequence[int] = ()) -> StoredNode:
        paths = paths_of(self.branching)
        if tuple(path) not in paths:
            raise IndexError(f"{tuple(path)} is no path of a tree with branching {self.branching}")
        return StoredNode(self, paths.index(tuple(path)), tuple(path))

    def read(self, index: tuple[int | slice, ...]) -> Float32[Tensor, "*shape"]:
        """Values of [0, 1] in a part of the array `(nodes, h, w)`."""
        with damage_named(str(self.path)):
            for key in missing_chunks(self.path / "0", self.array, index):
                raise DataError(f"{self.path} lacks the chunk 0/{key}. Predict it again")
            values = np.asarray(self.array[index], dtype=np.float32)
            if not np.isfinite(values).all():
                raise ValueError("values that are not finite")
        return torch.from_numpy(values) / self.value_of_one

    def load(self, limit: int) -> Tree:
        """All of it, if that is no more than `limit` bytes."""
        size = 4 * math.prod(self.array.shape)
        if size > limit:
            raise InputError(
                f"{self.path} has {size / 1e9:.1f} GB of nodes, the limit is {limit / 1e9:.1f}: "
                "read parts of it with open_tree, or give a larger limit"
            )
        images = self.read((slice(None),) * 3)[None, :, None]
        sizes = level_sizes(self.branching)
        return Tree(images.split(sizes, dim=1), self.log_probs, self.branching)


def open_tree(path: str | PathLike[str]) -> StoredTree:
    """A tree in OME-Zarr; nothing but its metadata is read."""
    folder = Path(path)
    if not is_zarr(folder):
        raise DataError(f"{folder} is no OME-Zarr folder: `Tree.load` reads trees in safetensors")
    facts = attributes_of(folder).get("posterior_trees")
    if not facts:
        raise DataError(f"{folder} is OME-Zarr, but not a tree: open_source reads pictures")
    with damage_named(str(folder)):
        check(facts, {"tree": int}, "its facts", ("tree",))
        if facts["tree"] > SCHEMA:
            raise DataError(f"{folder} has tree schema {facts['tree']}, this version reads up to "
                            f"{SCHEMA}: upgrade posterior-trees")  # fmt: skip
        check(facts, FORM, "its facts", tuple(FORM))
        return StoredTree(folder, facts)


def _log_of(node: dict[str, Any]) -> float:
    """The log-probability of a node, of which JSON has no infinity."""
    log = check(node, {"log_probability": Maybe(float)}, "a node", ("log_probability",))
    value = log["log_probability"]
    if value is not None and value > 1e-3:
        raise ValueError(f"a log-probability of {value}")
    return -math.inf if value is None else value


def paths_of(branching: Sequence[int]) -> list[tuple[int, ...]]:
    """The paths of all nodes, level after level."""
    levels = (branching[:depth] for depth in range(len(branching) + 1))
    return [path for level in levels for path in itertools.product(*map(range, level))]


def name_of(path: Sequence[int]) -> str:
    return ".".join(map(str, path)) or "root"
