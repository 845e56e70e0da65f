"""Which items of which steps are done: a file for each, written after what it vouches for."""

import json
from collections.abc import Sequence
from pathlib import Path

from posterior_trees.schema import parse_json
from posterior_trees.store import write_bytes

Item = tuple[int, ...]


class Marks:
    """A mark has the files that were written, and their sizes: it is not believed without them."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def file(self, step: str, item: Item) -> Path:
        return self.work / "done" / "_".join(map(str, (step, *item)))

    def set(self, step: str, item: Item, files: Sequence[Path] = ()) -> None:
        sizes = {str(file.relative_to(self.work)): file.stat().st_size for file in files}
        write_bytes(self.file(step, item), json.dumps(sizes).encode())

    def has(self, step: str, item: Item) -> bool:
        try:
            sizes = parse_json(self.file(step, item).read_text("utf-8"), dict[str, int], "a mark")
            return all((self.work / n).stat().st_size == size for n, size in sizes.items())
        except (OSError, ValueError):
            return False
