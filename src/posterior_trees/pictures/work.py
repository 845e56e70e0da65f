"""One field from its file to its results, by whichever process: `Work`.

What it makes lies first in a folder of its own on the stage (`place.py`), and is then renamed, so
that nothing is there in part whatever ends the process, and it can be done again.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from posterior_trees.pictures.answer import Answer, Tiling, answer, warn_of
from posterior_trees.pictures.folder import Also, write_folder, write_page
from posterior_trees.pictures.place import put
from posterior_trees.pictures.reading import Picture, Reading, read
from posterior_trees.pictures.results import Results, Task
from posterior_trees.pictures.tiles import Map
from posterior_trees.predictor import Predictor


class Made(NamedTuple):
    """What is known of a field that is done: its record, the page's example, and what to say."""

    record: dict[str, Any] | None
    example: dict[str, Any] | None
    said: list[str]


@dataclass
class Work:
    """The settings of all fields; a copy that another process gets makes a predictor of its own."""

    make_predictor: Callable[[], Predictor]
    place: Path
    out: Path
    reading: Reading
    tiling: Tiling
    results: Results | None
    also: Also | None
    remark: str
    is_many: bool
    map: Map = map
    scratch: Path | None = None
    keeps_tiles: bool = False

    @cached_property
    def predictor(self) -> Predictor:
        return self.make_predictor()

    @property
    def has_page(self) -> bool:
        return self.results is None or "page" in self.results.outputs.words

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"map": map}

    def __call__(self, task: Task) -> Made:
        start = time.monotonic()
        said: list[str] = []
        picture = read(task.field.path, self.predictor, self.reading)
        made = answer(self.predictor, picture, self.tiling, map=self.map)
        warn_of(picture, made, said.append)
        made = made.noted(self.remark)
        part = self.place / task.name
        shutil.rmtree(part, ignore_errors=True)  # of a process that died
        part.mkdir()
        try:
            example, record = self._write_folder(task, part, picture, made), None
            if self.results is not None:
                assert picture.origin is not None
                tiles = made.tiles(self.predictor, self.tiling)
                record = self.results.write(
                    task, part, picture.origin, made, tiles, time.monotonic() - start,
                    None if self.is_many else example,
                )  # fmt: skip
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return Made(record, {} if self.is_many and self.has_page else example, said)

    def _write_folder(
        self, task: Task, part: Path, picture: Picture, made: Answer
    ) -> dict[str, Any] | None:
        """The folder, and of many fields a page in each; returns the page's example."""
        if not self.has_page:
            return None
        folder, scale = part / task.name, picture.reading.scale
        facts: dict[str, Any] = {"picture": str(task.field.path), "model": self.predictor.name}
        facts |= {"scale": scale} if scale != 1 else {}
        example = write_folder(folder, made, facts, self.also)
        if self.is_many:
            write_page(folder / "index.html", self.predictor, [example])
        put(folder, self.out / task.name)
        return example
