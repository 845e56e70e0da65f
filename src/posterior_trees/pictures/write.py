"""Trees of a user's own picture files, as files: `ptrees predict`.

out/index.html               the explorer of all pictures; it grows as they come
out/<stem>/picture.png       your picture as the model took it, where it shows what the model hid of
                             it (a hole, a lost colour); it may be the truth
out/<stem>/tree.png          the tree in the style of the paper, with the measurement
out/<stem>/node_<path>.png   every node: `root`, `0`, `0.1`, … by child numbers from 0
out/<stem>/tree.safetensors  the tree itself, unclipped (`Tree.load`)
out/<stem>/tree.json         `{"schema": 1, "picture", "model", "branching", "size", "nodes":
                             [{"path": [0, 1], "probability", "image": "node_0.1.png"}…]}`, and
                             `"shows_hidden": "picture.png"` where that is there, a `"note"` of what
                             may be wrong with the picture, how it was `"resized"`, if it was, and
                             to which `"scale"`, if that was asked for; of a model with a guarantee
                             the `"promise"`: `"cut"` (paths), `"intervals"` by measure, `"radius"`,
                             `"level"`, the p-value `"p"`, or why it is `"withdrawn"`
out/<stem>/count*            with `--count`: the nuclei in the leaves, see `pictures/count.py`
"""

import html
import json
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.errors import InputError, plural, words_for
from posterior_trees.explore.content import SIDE
from posterior_trees.explore.export import frame_content, inline_page
from posterior_trees.figure import save_figure
from posterior_trees.imaging.fields import Field, stem_of
from posterior_trees.imaging.ome_zarr import is_zarr
from posterior_trees.imaging.ome_zarr import stamp_of as stamp_of_zarr
from posterior_trees.imaging.size import shrink
from posterior_trees.models.card import describe_model
from posterior_trees.pictures.answer import Answer, Tiling, answer, warn_of
from posterior_trees.pictures.place import put, put_file, stage
from posterior_trees.pictures.reading import Reading, read, stamp_of
from posterior_trees.pictures.results import MANY, Results
from posterior_trees.pictures.tiles import Map
from posterior_trees.predictor import Predictor
from posterior_trees.store import write_bytes, write_json
from posterior_trees.tree import Tree

SCHEMA = 1
PAGE_EVERY = 5
"""The page grows with each picture, unless that would be more than a sixth of the work."""

LeafNumbers = Mapping[str, Sequence[float | int | None]]
"""Numbers of a tree's leaves by their names; None for an absent leaf."""
Also = Callable[[Answer, Path, dict], LeafNumbers | None]


class PictureError(InputError):
    """Pictures that could not be predicted, each with its reason; `written` are the others'."""

    def __init__(self, problems: Sequence[str], of: int, written: Sequence[Path]) -> None:
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(
            f"{len(problems)} of {plural(of, 'picture')} could not be predicted:{listed}"
        )
        self.written = list(written)


def predict_files(
    predictor: Predictor,
    files: Sequence[str | PathLike[str] | Field],
    out: str | PathLike[str],
    reading: Reading | None = None,
    tiling: Tiling | None = None,
    *,
    also: Also | None = None,
    remark: str = "",
    results: Results | None = None,
    warn: Callable[[str], object] = warnings.warn,
    watch: Callable = iter,
) -> list[Path]:
    """Write the tree of each picture into a folder `out/<stem>` of its own, and the explorer of all
    of them; returns `out/index.html` and the folders.

    A folder holds the files above and appears whole or not at all. Pictures that fail do not stop
    the others: the `PictureError` at the end names them all. `also(answer, folder, facts)` may
    write more files into a folder and return numbers of the leaves, whose distributions the page
    then shows; `facts` are those of `tree.json`. `results` adds other files and tables, and knows
    which fields are done already. `remark` is what to beware of in all pictures.
    `watch` wraps the loop over files, or over the tiles of a single file.
    """
    reading = reading or Reading()
    reading.check(predictor)
    if reading.resize and not predictor.measurement.size:
        warn(
            "--resize does nothing here: it is for models of one size, and this one takes any. "
            "--scale FACTOR makes a picture larger or smaller"
        )
    fields = [f if isinstance(f, Field) else Field(Path(f), stem_of(Path(f))) for f in files]
    watch, watch_tiles = (iter, watch) if len(files) == 1 else (watch, iter)

    def watched(predict: Callable, tiles: Iterable) -> Iterable:
        return map(predict, watch_tiles(tiles))

    with stage(out) as place:
        run = _Run(predictor, place, Path(out), reading, results)
        run.tiling, run.map, run.also, run.remark, run.warn = tiling, watched, also, remark, warn
        for field, folder in watch(run.begin(fields)):
            run.take(field, folder)
        return run.finish(fields)


class _Run:
    """The fields of one call, as they end."""

    tiling: Tiling | None
    map: Map
    also: Also | None
    remark: str
    warn: Callable[[str], object]

    def __init__(
        self, predictor: Predictor, place: Path, out: Path, reading: Reading,
        results: Results | None,
    ) -> None:  # fmt: skip
        self.predictor, self.place, self.out = predictor, place, out
        self.reading, self.results = reading, results
        self.page_at = self.page_seconds = 0.0
        self.has_page = results is None or "page" in results.outputs.words
        self.examples: dict[str, dict] = {}
        self.folders: list[Path] = []
        self.problems: list[str] = []
        self.total = self.lines = 0

    def begin(self, fields: Sequence[Field]) -> list[tuple[Field, Path]]:
        """The fields that are to be done; those that are done already count as written."""
        named = list(zip(fields, _choose_folders(fields, self.out), strict=True))
        self.total, todo, records = len(named), [], []
        if self.results is None:
            return list(named)
        self.results.begin()
        for field, folder in named:
            record = self.results.find(field, folder.name, self._stamp(field))
            if record is None or (self.has_page and not folder.is_dir()):
                todo.append((field, folder))
                continue
            records.append(record)
            if self.has_page:
                self.folders.append(folder)
                self.examples[folder.name] = record["example"] or {}
        self.results.known = records
        if records:
            self.warn(f"{len(records)} of {self.total} fields were done before (--overwrite makes "
                      "them anew)")  # fmt: skip
        return todo

    def take(self, field: Field, folder: Path) -> None:
        """One field; what goes wrong with it is kept for the end."""
        start, name = time.monotonic(), folder.name
        try:
            picture = read(field.path, self.predictor, self.reading)
            made = answer(self.predictor, picture, self.tiling, map=self.map)
            warn_of(picture, made, self.warn)
            facts: dict = {"picture": str(field.path), "model": self.predictor.name}
            scale = picture.reading.scale
            facts |= {"scale": scale} if scale != 1 else {}
            made, example = made.noted(self.remark), None
            if self.has_page:
                example = _write(self.place, folder, made, facts, self.also)
                self.examples[name] = example
                self.folders.append(folder)
            if self.results is not None:
                seconds = time.monotonic() - start
                facts |= {"path": str(field.path), "stamp": dict(picture.origin.stamp)
                          if picture.origin else {}, **self.results.settings}  # fmt: skip
                kept = example if self.total <= MANY else None
                record = self.results.write(field, name, picture, made, seconds, kept, facts)
                self.results.add(record)
            if self.has_page:
                self._show(folder)
        except Exception as error:
            if not (text := words_for(error)):
                raise
            text = text if text.startswith(str(field.path)) else f"{field.path}: {text}"
            self.problems.append(text)
            if self.results is not None:
                seconds = time.monotonic() - start
                self.results.add(self.results.fail(field, name, text, seconds))

    def finish(self, fields: Sequence[Field]) -> list[Path]:
        """What was written; raises what went wrong."""
        self._show()
        if self.results is not None:
            self.results.finish(fields)
        written = [self.out / "index.html", *self.folders] if self.examples else []
        if self.results is not None:
            tables = {"nuclei.csv", "fields.csv"} if self.results.is_tabled else set()
            written += [self.out / name for name in sorted(tables)]
        if self.problems:
            raise PictureError(self.problems, self.total, written)
        return written

    def _show(self, folder: Path | None = None) -> None:
        """The page of all fields so far; of many, one for each, and a table of links."""
        if not self.examples:
            return
        if self.total <= MANY:
            if folder is None or time.monotonic() - self.page_at >= PAGE_EVERY * self.page_seconds:
                shown = list(self.examples.values())
                self.page_seconds = _write_page(self.place, self.out, self.predictor, shown)
                self.page_at = time.monotonic()
            return
        if folder is not None:
            _write_page(self.place, folder, self.predictor, [self.examples[folder.name]])
            self.examples[folder.name] = {}
        names = [html.escape(name) for name in self.examples]
        links = "".join(f'<li><a href="{n}/index.html">{n}</a></li>' for n in names)
        head = '<!doctype html><meta charset="utf-8"><title>Posterior trees</title>'
        write_bytes(self.place / "index.html", f"{head}<ol>{links}</ol>".encode())
        put_file(self.place / "index.html", self.out)

    def _stamp(self, field: Field) -> dict:
        try:
            stamp = stamp_of_zarr(field.path) if is_zarr(field.path) else stamp_of(field.path)
            return json.loads(json.dumps(stamp))
        except OSError:
            return {}


def _choose_folders(fields: Sequence[Field], out: Path) -> list[Path]:
    """A folder for each field, named by it: new, or one that holds an earlier tree. On some
    systems `A` and `a` are one name, and dots at the ends of names mean something else."""
    folders: list[Path] = []
    taken = {"index.html"}
    for field in fields:
        stem = field.name.strip(". ") or "picture"
        name, number = stem, 1
        while name.lower() in taken or _is_foreign(out / name):
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        folders.append(out / name)
    return folders


def _is_foreign(folder: Path) -> bool:
    return folder.exists() and not (folder / "tree.json").is_file()


def _write(place: Path, folder: Path, made: Answer, facts: dict, also: Also | None) -> dict:
    """Fill a folder on the stage, then put it in its place; returns the page's example."""
    part, tree = place / folder.name, made.tree
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    small = tree.map_images(lambda images: shrink(images, SIDE))
    save_figure(small, part / "tree.png", y=shrink(made.y, SIDE))
    tree.save(part / "tree.safetensors")
    if made.x is not None:
        _save_png(made.x[0], part / "picture.png")
        facts = facts | {"shows_hidden": "picture.png"}
    layout = {"branching": list(tree.branching), "size": list(tree.shape[1:])}
    facts = facts | dict(made.remarks)
    if tree.guarantee is not None:
        said = tree.guarantee.for_page(tree)
        facts = facts | {"promise": {k: v for k, v in said.items() if k != "boxes"}}
    table = {"schema": SCHEMA, **facts, **layout, "nodes": _write_nodes(part, tree)}
    write_json(part / "tree.json", table)
    measures = (also(made, part, facts) if also else None) or {}
    example = made.describe(folder.name)
    put(part, folder)
    return example | {"measures": {title: list(v) for title, v in measures.items()}}


def _write_page(place: Path, out: Path, predictor: Predictor, examples: list[dict]) -> float:
    """The explorer of the pictures that are done; returns the seconds it took."""
    start = time.monotonic()
    size, card = examples[0]["size"], describe_model(predictor)
    frame = frame_content(predictor.branching, size, "Posterior trees", card)
    write_bytes(place / "index.html", inline_page(frame | {"examples": examples}).encode())
    put_file(place / "index.html", out)
    return time.monotonic() - start


def _write_nodes(folder: Path, tree: Tree) -> list[dict]:
    """Every node as a picture, clipped to [0, 1]; an absent one has none."""
    nodes = []
    for level, probs in enumerate(tree.probs):
        absent = tree.is_absent(level)[0].tolist()
        for node, path in enumerate(tree.paths(level)):
            name = ".".join(map(str, path)) or "root"
            image = None if absent[node] else f"node_{name}.png"
            if image:
                _save_png(tree.images[level][0, node], folder / image)
            probability = probs[0, node].item()
            nodes.append({"path": list(path), "probability": probability, "image": image})
    return nodes


def _save_png(image: Float[Tensor, "c h w"], file: Path) -> None:
    """Eight bits, clipped to [0, 1]."""
    pixels = image.clamp(0, 1).mul(255).round().byte().numpy()
    pixels = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(pixels)).save(file)
