"""What a network gave for each tile, on disk until nobody needs it any more."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import StoreError
from posterior_trees.pictures.tiles import Tile
from posterior_trees.store import write_bytes
from posterior_trees.tree import Tree, grow, level_sizes


class RawTiles:
    """Leaves and log-probabilities, float32. Parents are not kept: `grow` makes the same of the
    same leaves, of a part of a tile too."""

    def __init__(self, folder: Path, tiles: Sequence[Tile], branching: Sequence[int]) -> None:
        self.folder, self.tiles, self.branching = folder, tiles, branching
        self.leaves = level_sizes(branching)[-1]

    def files(self, index: int) -> list[Path]:
        return [self.folder / f"{index}.leaves", self.folder / f"{index}.json"]

    def size(self, index: int) -> int:
        """Bytes of a tile's leaves."""
        return 4 * self.leaves * self.tiles[index].down.numel() * self.tiles[index].across.numel()

    def write(self, index: int, tree: Tree) -> list[Path]:
        leaves, logs = self.files(index)
        write_bytes(leaves, tree.leaves[0, :, 0].numpy().astype(np.float32).tobytes())
        write_bytes(logs, json.dumps(to_json(tree.log_probs[-1][0])).encode())
        return [leaves, logs]

    def tree(self, index: int, parts: Sequence[slice]) -> Tree:
        """The tree of a part of a tile."""
        leaves, logs = self.files(index)
        tile = self.tiles[index]
        shape = (self.leaves, tile.down.numel(), tile.across.numel())
        try:
            stored = np.memmap(leaves, np.float32, "r", shape=shape)
            log_probs = torch.tensor([from_json(json.loads(logs.read_text()))])
        except (OSError, ValueError) as error:
            raise StoreError(f"{leaves} is missing or damaged ({error}): --overwrite") from error
        images = torch.from_numpy(np.array(stored[:, parts[0], parts[1]]))[None, :, None]
        return grow(images, log_probs, self.branching)

    def nodes(self, index: int, parts: Sequence[slice]) -> Float[Tensor, "nodes h w"]:
        """All nodes of a part of a tile, root first."""
        return torch.cat(self.tree(index, parts).images, dim=1)[0, :, 0]

    def drop(self, index: int) -> None:
        for file in self.files(index):
            file.unlink(missing_ok=True)


def to_json(logs: Float[Tensor, "n"]) -> list[float | None]:
    """Log-probabilities, of which JSON has no infinity."""
    return [None if np.isneginf(value) else value for value in logs.tolist()]


def from_json(logs: Sequence[float | None]) -> list[float]:
    return [-np.inf if value is None else value for value in logs]
