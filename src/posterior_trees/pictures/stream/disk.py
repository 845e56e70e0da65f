"""What the steps of a picture leave on disk: marks of what is done, and of each tile what a network
gave, until nobody needs it any more."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from posterior_trees.errors import StoreError
from posterior_trees.pictures.tiles import Tile
from posterior_trees.schema import parse_json
from posterior_trees.store import make_folder_of, write_bytes, write_json
from posterior_trees.tree import Tree, grow, level_sizes

Item = tuple[int, ...]


class Marks:
    """Which items of which steps are done: a file for each, written after what it vouches for, with
    the files that were written and their sizes: it is not believed without them."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def file(self, step: str, item: Item) -> Path:
        return self.work / "done" / "_".join(map(str, (step, *item)))

    def set(self, step: str, item: Item, files: Sequence[Path] = ()) -> None:
        sizes = {str(file.relative_to(self.work)): file.stat().st_size for file in files}
        write_json(self.file(step, item), sizes)

    def has(self, step: str, item: Item) -> bool:
        try:
            sizes = parse_json(self.file(step, item).read_text("utf-8"), dict[str, int], "a mark")
            return all((self.work / n).stat().st_size == size for n, size in sizes.items())
        except (OSError, ValueError):
            return False


class RawTiles:
    """Leaves and log-probabilities, float32. Parents are not kept: `grow` makes the same of the
    same leaves, of a part of a tile too."""

    def __init__(self, folder: Path, tiles: Sequence[Tile], branching: Sequence[int]) -> None:
        self.folder, self.tiles, self.branching = folder, tiles, branching
        self.leaves = level_sizes(branching)[-1]

    def files(self, index: int) -> list[Path]:
        return [self.folder / f"{index}.leaves", self.folder / f"{index}.json"]

    def write(self, index: int, tree: Tree) -> list[Path]:
        leaves, logs = self.files(index)
        write_bytes(
            make_folder_of(leaves), tree.leaves[0, :, 0].numpy().astype(np.float32).tobytes()
        )
        write_json(logs, tree.log_probs[-1][0].tolist())
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

    def drop(self, index: int) -> None:
        for file in self.files(index):
            file.unlink(missing_ok=True)


def from_json(logs: Sequence[float | None]) -> list[float]:
    """Log-probabilities, of which JSON has no infinity (`write_json`)."""
    return [-np.inf if value is None else value for value in logs]
