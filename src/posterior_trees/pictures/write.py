"""Trees of a user's own picture files, as files: `ptrees predict`.

out/index.html               the explorer of all pictures
out/<stem>/picture.png       your picture as the model took it, where it shows what the model hid of
                             it (a hole, a lost colour); it may be the truth
out/<stem>/tree.png          the tree in the style of the paper, with the measurement
out/<stem>/node_<path>.png   every node: `root`, `0`, `0.1`, … by child numbers from 0
out/<stem>/tree.safetensors  the tree itself, unclipped (`Tree.load`)
out/<stem>/tree.json         `{"schema": 1, "picture", "model", "branching", "size", "nodes":
                             [{"path": [0, 1], "probability", "image": "node_0.1.png"}…]}`, and
                             `"shows_hidden": "picture.png"` where that is there, a `"note"` of what
                             may be wrong with the picture, how it was `"resized"`, if it was, and
                             to which `"scale"`, if that was asked for
out/<stem>/count*            with `--count`: the nuclei in the leaves, see `pictures/count.py`
"""

import os
import shutil
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.errors import InputError, words_for
from posterior_trees.figure import save_figure
from posterior_trees.imaging.adjust import Adjustment, describe_misfit, refuse_with_digit
from posterior_trees.imaging.decode import read_header
from posterior_trees.imaging.size import (
    caption_digit,
    caption_resize,
    check_scale,
    describe_resize,
    times,
)
from posterior_trees.pictures.album import LeafNumbers, Shown, make_album
from posterior_trees.pictures.digits.doubt import describe_doubt
from posterior_trees.pictures.digits.find import check_takes_digits
from posterior_trees.pictures.nuclei.magnification import describe_magnification
from posterior_trees.pictures.picture import read_stored
from posterior_trees.pictures.tiles import OVERLAP, TILE, needs_tiles, predict_tiled
from posterior_trees.predictor import TreePredictor
from posterior_trees.store import write_bytes, write_json
from posterior_trees.tree import Tree

SCHEMA = 1


class PictureError(InputError):
    """Pictures that could not be predicted, each with its reason; `written` are the others'."""

    def __init__(self, problems: Sequence[str], of: int, written: Sequence[Path]) -> None:
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{len(problems)} of {of} pictures could not be predicted:{listed}")
        self.written = list(written)


@torch.inference_mode()
def predict_files(
    predictor: TreePredictor,
    files: Sequence[str | PathLike[str]],
    out: str | PathLike[str],
    *,
    resize: bool = False,
    invert: bool = False,
    levels: Sequence[float | int] | None = None,
    gamma: float | int = 1.0,
    digit: bool = False,
    scale: float | int = 1.0,
    tile: int | None = None,
    overlap: int = OVERLAP,
    also: Callable[[Tree, Path, dict], LeafNumbers | None] | None = None,
    remark: str = "",
    warn: Callable[[str], object] = warnings.warn,
    watch: Callable = iter,
) -> list[Path]:
    """Write the tree of each picture into a folder `out/<stem>` of its own, and the explorer of all
    of them; returns `out/index.html` and the folders.

    A folder holds the files above and appears whole or not at all. Pictures that fail do not stop
    the others: the `PictureError` at the end names them all. `levels`, `gamma`, `digit` and `scale`
    are those of `read_picture`, and `also(tree, folder, facts)` may write more files into a folder
    and return numbers of the leaves, whose distributions the page then shows; `facts` are those of
    `tree.json`. `remark` is what to beware of in all pictures. A picture larger than `tile` pixels
    along a side, or than `tiles.WHOLE` pixels if none is given, is predicted in overlapping tiles
    (`pictures/tiles.py`); `tile=0` never does that. `watch` wraps the loop over files, or over the
    tiles of a single file.
    """
    reading = Reading(resize, digit, scale, Adjustment.of(levels, gamma, invert))
    reading.check(predictor, warn)
    shown, folders, problems = [], [], []
    watch, watch_tiles = (iter, watch) if len(files) == 1 else (watch, iter)
    tiling = Tiling(tile, overlap, watch_tiles)
    with _kept_if_used(out) as out:
        for file, folder in watch(list(zip(files, _choose_folders(files, out), strict=True))):
            try:
                pixels, remarks = _read(predictor, file, reading, warn)
                tree, y = _predict(predictor, pixels, tiling)
                if doubt := describe_magnification(tree, predictor, scale):
                    warn(f"{file}: {doubt}")
                remarks = _add_notes(remarks, doubt, remark)
                measurement = predictor.measurement
                is_truth = measurement.is_picture_clean and measurement.shows_hidden(pixels)
                x = pixels.cpu() if is_truth else None
                small = Shown.of(folder.name, tree, y, x, remarks)
                facts: dict = {"picture": str(file), "model": predictor.name}
                facts |= {"scale": scale} if scale != 1 else {}
                measures = _write(folder, tree, x, small, facts, also)
                shown.append(small._replace(measures=measures))
                folders.append(folder)
            except Exception as error:
                if not (text := words_for(error)):
                    raise
                problems.append(text if text.startswith(str(file)) else f"{file}: {text}")
        if shown:
            write_bytes(out / "index.html", make_album(shown, predictor).encode())
            folders.insert(0, out / "index.html")
    if problems:
        raise PictureError(problems, len(files), folders)
    return folders


@contextmanager
def _kept_if_used(out: str | PathLike[str]) -> Generator[Path, None, None]:
    """The folder `out`; if it and its parents were made here and stay empty, they go again, however
    the work ends."""
    new = [folder for folder in (Path(out), *Path(out).parents) if not folder.exists()]
    try:
        yield make_folder(out)
    finally:
        with suppress(OSError):  # the first that is not empty
            for folder in new:
                folder.rmdir()


class Reading(NamedTuple):
    """What is done to a picture before it is predicted; see `predict_files`."""

    resize: bool
    digit: bool
    scale: float | int
    adjustment: Adjustment

    def check(self, predictor: TreePredictor, warn: Callable[[str], object]) -> None:
        """Refuse what contradicts itself or the model; `warn` hears of what does nothing."""
        if self.digit:
            refuse_with_digit(self.adjustment, self.resize, scale=self.scale)
            check_takes_digits(predictor.measurement, predictor.channels, predictor.name)
        check_scale(self.scale, predictor.measurement)
        if self.resize and not predictor.measurement.size:
            warn(
                "--resize does nothing here: it is for models of one size, and this one takes any. "
                "--scale FACTOR makes a picture larger or smaller"
            )


def _read(
    predictor: TreePredictor,
    file: str | PathLike[str],
    reading: Reading,
    warn: Callable[[str], object],
) -> tuple[Tensor, dict[str, str]]:
    """The picture in a file as the model takes it, and what is to be said of it; `warn` hears that
    too."""
    adjustment, digit = reading.adjustment, reading.digit
    stored = read_stored(file, predictor, reading.resize, digit, reading.scale)
    remarks = _resized(file, stored.shape[-2:], reading, warn)
    pixels = adjustment.apply(stored, str(file))

    def see(other: Tensor) -> Tensor:
        return predictor.measurement.observe(other.to(predictor.device))

    doubt = describe_doubt(stored, predictor.measurement) if digit else ""
    if doubt or (doubt := describe_misfit(stored, adjustment, predictor, see, digit)):
        warn(f"{file}: {doubt}")
        remarks["note"] = doubt
    return pixels, remarks


def _resized(
    file: str | PathLike[str], want: Sequence[int], reading: Reading, warn: Callable[[str], object]
) -> dict[str, str]:
    """What was done to a file of another size than the model's mask, or to one with a digit; `warn`
    hears of it unless it is what was asked for."""
    with Path(file).open("rb") as opened:
        have = read_header(opened, str(file))[:2]
    if reading.digit:
        return {"resized": caption_digit(have)}
    if not (caption := caption_resize(have, want)):
        return {}
    if reading.scale == 1:
        warn(describe_resize(str(file), have, want, f"the model takes {times(want)}"))
    return {"resized": caption}


def _add_notes(remarks: dict[str, str], *notes: str) -> dict[str, str]:
    """The remarks with more to beware of, if there is more."""
    note = ". ".join(filter(None, (remarks.get("note"), *notes)))
    return remarks | {"note": note} if note else remarks


class Tiling(NamedTuple):
    """How large pictures are cut; see `predict_files`."""

    tile: int | None
    overlap: int
    watch: Callable


def _predict(
    predictor: TreePredictor, pixels: Tensor, tiling: Tiling
) -> tuple[Tree, Float[Tensor, "1 _ h w"]]:
    """The tree of one picture, cut into tiles if it is large, and what was measured of it."""
    if not needs_tiles(predictor, pixels.shape[-2:], tiling.tile):
        y = predictor.measurement.observe(pixels.to(predictor.device)).cpu()
        return predictor.predict(pixels, tile=0).to("cpu"), y
    y = predictor.measurement.observe(pixels)
    size = TILE if tiling.tile is None else tiling.tile
    return predict_tiled(predictor, y, size, tiling.overlap, tiling.watch), y


def make_folder(out: str | PathLike[str]) -> Path:
    """The folder for a command's files, made if it is not there."""
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot make the folder {out} ({error.strerror or error}): choose another --out"
        ) from error
    return Path(out)


def _choose_folders(files: Sequence[str | PathLike[str]], out: Path) -> list[Path]:
    """A folder for each file, named by its stem: new, or one that holds an earlier tree. On some
    systems `A` and `a` are one name, and dots at the ends of names mean something else."""
    folders: list[Path] = []
    taken = {"index.html"}
    for file in files:
        stem = Path(file).stem.strip(". ") or "picture"
        name, number = stem, 1
        while name.lower() in taken or _is_foreign(out / name):
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.lower())
        folders.append(out / name)
    return folders


def _is_foreign(folder: Path) -> bool:
    return folder.exists() and not (folder / "tree.json").is_file()


def _write(
    folder: Path,
    tree: Tree,
    x: Tensor | None,
    small: Shown,
    facts: dict,
    also: Callable | None,
) -> LeafNumbers:
    """Fill a folder beside the final one, then put it in its place; returns what `also` found."""
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        save_figure(small.tree, part / "tree.png", y=small.y)
        tree.save(part / "tree.safetensors")
        if x is not None:
            _save_png(x[0], part / "picture.png")
            facts = facts | {"shows_hidden": "picture.png"}
        layout = {"branching": list(tree.branching), "size": list(tree.shape[1:])}
        facts = facts | dict(small.remarks)
        table = {"schema": SCHEMA, **facts, **layout, "nodes": _write_nodes(part, tree)}
        write_json(part / "tree.json", table)
        measures = (also(tree, part, facts) if also else None) or {}
        if not folder.exists():
            part.rename(folder)
            return measures
        for old in (
            *folder.glob("node_*.png"),
            *folder.glob("count*"),
            *folder.glob("picture.png"),
        ):
            old.unlink()
        for new in part.iterdir():
            os.replace(new, folder / new.name)
        return measures
    finally:
        shutil.rmtree(part, ignore_errors=True)


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
