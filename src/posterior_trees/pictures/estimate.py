"""What a batch takes, before it begins: tiles, bytes on the disk, memory.

Bytes are those before compression, and so an upper bound: PNG, zlib and Zarr take less.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from posterior_trees.errors import PosteriorTreesError, plural
from posterior_trees.imaging.fields import Field
from posterior_trees.imaging.source import open_source
from posterior_trees.pictures.answer import Tiling
from posterior_trees.pictures.huge import goes_to_disk
from posterior_trees.pictures.reading import Reading, scaled_size
from posterior_trees.pictures.results import Outputs
from posterior_trees.pictures.stream.run import ROOM, home_of, refuse_full_disk
from posterior_trees.pictures.tiles import cut, needs_tiles
from posterior_trees.predictor import Predictor
from posterior_trees.tree import level_sizes

PROCESS = 400_000_000
"""Bytes of a process that has torch and a small network."""
STREAMED = 800_000_000
"""The same where a huge tree is made on disk: 16,384² pixels of 13 nodes took 712 MB."""
PAGE = 700_000
"""Bytes of a field on a page."""
DEPTH = {"uint8": 1, "uint16": 2, "float32": 4}


class Estimate(NamedTuple):
    """Of one field, or of several: bytes but for the tiles."""

    tiles: int
    result: int
    scratch: int
    memory: int


class Batch(NamedTuple):
    """What all fields have in common."""

    predictor: Predictor
    reading: Reading
    tiling: Tiling
    outputs: Outputs

    def estimate(self, field: Field) -> Estimate:
        """By the size of the picture; its pixels are not read."""
        with open_source(field.path, **self.reading.plane._asdict()) as source:
            fixed, have = self.predictor.measurement.size or (), source.shape
            size = fixed if len(fixed) == 2 else scaled_size(source, self.reading, self.predictor)
        nodes = sum(level_sizes(self.predictor.branching)) * self.predictor.channels
        pixels, depth = size[0] * size[1], DEPTH[self.outputs.dtype]
        of_word = {
            "page": 5 * nodes * pixels + PAGE,
            "zarr": nodes * pixels * depth * (3 if field.plate else 4) // 3 + 4 * pixels,
            "tiff": nodes * pixels * (4 if depth == 4 else 2),
            "labels": 8 * pixels,
            "table": 0,
        }
        result = sum(of_word[word] for word in self.outputs.words)
        tiles = self._tiles(size)
        if "page" not in self.outputs.words and goes_to_disk(self.predictor, size, tiles > 1):
            leaves = math.prod(self.predictor.branching) * self.predictor.channels
            raw = tiles * 4 * leaves * self.tiling.sizes[0] ** 2
            return Estimate(tiles, result, result + raw, STREAMED)
        memory = PROCESS + 4 * (have[0] * have[1] + 2 * nodes * pixels)
        return Estimate(tiles, result, result, memory)

    def _tiles(self, size: Sequence[int]) -> int:
        if not needs_tiles(self.predictor, size, self.tiling.tile):
            return 1
        step = self.predictor.multiple
        sides = [-(-side // step) * step for side in (*size, *self.tiling.sizes)]
        return len(list(cut(sides[:2], *sides[2:], step)))

    def sum_up(self, fields: Sequence[Field], workers: int) -> tuple[Estimate, list[str]]:
        """All fields, of which as many as there are workers are on the stage at once; and what
        cannot be read."""
        found, problems = [], []
        for field in fields:
            try:
                found.append(self.estimate(field))
            except (PosteriorTreesError, OSError) as error:
                problems.append(str(error))
        if not found:
            return Estimate(0, 0, 0, PROCESS), problems
        tiles, results, stages, memory = zip(*found, strict=True)
        scratch = min(workers, len(found)) * max(stages)
        return Estimate(sum(tiles), sum(results), scratch, max(memory)), problems

    def refuse_full_disk(self, fields: Sequence[Field], out: Path, workers: int) -> None:
        """Before anything is begun."""
        total, _ = self.sum_up(fields, workers)
        refuse_full_disk(home_of(out), ROOM * (total.scratch + total.result))

    def describe(self, fields: Sequence[Field], workers: int) -> str:
        """What `--dry-run` prints."""
        total, problems = self.sum_up(fields, workers)
        done = plural(len(fields) - len(problems), "field")
        lines = [
            f"{done}, {plural(total.tiles, 'tile')}",
            f"scratch {total.scratch / 1e9:.2f} GB, result {total.result / 1e9:.2f} GB before "
            "compression",
            f"memory per worker {total.memory / 1e9:.2f} GB, beside what the network takes",
            *(f"cannot be read: {problem}" for problem in problems),
        ]
        return "\n".join(lines)
