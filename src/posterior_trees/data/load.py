"""A recipe's data section + the user's data folder → the images of one split.

`folder/<name>/` or `folder/<name>.tar` holds the set. There are four kinds: `idx` (MNIST's files),
`images` (files of x; the measurement y is made from x), `edges` (files of x; y is its edge map) and
`pairs` (two channel folders in which files of one name belong together: y in `inputs`, x in
`targets`). More sets may be added for training alone (`pictures.py`).
"""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from posterior_trees.data.archive import open_archive
from posterior_trees.data.augment import check_augmentations
from posterior_trees.data.edges import with_edges
from posterior_trees.data.idx import read_idx_images
from posterior_trees.data.imageset import ImageSet, evenly_spaced
from posterior_trees.data.memory import free_bytes
from posterior_trees.data.pictures import (
    Extended,
    Fields,
    Files,
    check_channels,
    check_extra,
    check_extra_images,
    folders_of,
    open_fields,
    pixel_size_of,
    prefix_of,
)
from posterior_trees.data.registry import what_to_put
from posterior_trees.data.splits import check_split, empty, fingerprint, split_groups, split_names
from posterior_trees.data.stream import StreamedImageSet, cover, grid_patches
from posterior_trees.data.values import block_side, check_values, is_adjusted, with_values
from posterior_trees.errors import DataError, plural
from posterior_trees.imaging.decode import fit
from posterior_trees.recipe.sections import DataSpec

Folder = str | os.PathLike[str] | None
ASKED = 20
"""Files of a set that are asked for the size of their pixels."""


def load_split(
    spec: DataSpec, folder: Folder, split: str, resident_limit_bytes: int | None = None
) -> ImageSet:
    """The images of a split, "train", "validation" or "test", of a set in the data folder.

    They are kept in memory if they take at most `resident_limit_bytes` (half of the free memory if
    not given), and decoded batch by batch otherwise.
    """
    check_spec(spec)
    check_split(split, spec.validation, spec.test)
    folder = find_folder(folder)
    if spec.kind == "idx":
        return _load_idx(spec, folder, split)
    found, names = _list(spec, folder, split)
    if split == "train" and isinstance(found, Files):
        found.check_are_images()
    streamed = _stream(spec, found, names)
    streamed.read = with_values(streamed.read, spec)
    if split == "train" and spec.kind == "pairs" and not spec.size:
        some = [found.path(names[i]) for i in evenly_spaced(len(names), ASKED)]
        if side := pixel_size_of(some):
            streamed.pixel_size = side * block_side(spec)
    if spec.kind == "edges":
        sets = {"": spec.name} | {prefix_of(name): name for name in spec.extra}
        streamed.read = with_edges(streamed.read, folder, sets)
    limit = free_bytes() // 2 if resident_limit_bytes is None else resident_limit_bytes
    if streamed.nbytes > limit:
        return streamed
    return streamed.load(f"{plural(len(names), f'{split} image')} of {spec.name}")


def _list(spec: DataSpec, folder: Path, split: str) -> tuple[Files | Fields, list[str]]:
    """The pictures of a set, and the names of those of a split, extras last."""
    if spec.kind == "pairs" and not folders_of(spec):
        found = open_fields(folder, spec)
    else:
        archive = open_archive(folder, spec.name)
        found = None if archive is None else Files(archive, spec)
    if found is None:
        raise DataError(what_to_put(spec.name, folder, spec.kind, folders_of(spec)))
    shares = {"validation": spec.validation, "test": spec.test}
    names = split_names(found.names, split, by=spec.split, order=spec.split_order, **shares)
    if spec.extra and split == "train" and isinstance(found, Files):
        extended = Extended(found.archive, spec, folder)
        return Files(extended, spec), names + extended.added
    return found, names


def list_names(spec: DataSpec, folder: Folder, split: str) -> list[str]:
    """The names of the images of a split; of files without reading them."""
    if spec.kind == "idx":
        return load_split(spec, folder, split).names
    return _list(spec, find_folder(folder), split)[1]


def describe_other_images(spec: DataSpec, folder: Folder, trained: str | None) -> str:
    """What to beware of where the folder's training images are not those whose `fingerprint` a
    model keeps: in sorted names others may have changed sides, drawn by hash only renamed ones.
    Empty if they are, or nobody knows."""
    if trained is None or spec.kind == "idx":
        return ""
    if fingerprint(list_names(replace(spec, extra=()), folder, "train")) == trained:
        return ""
    moves = ", which moves others between the splits" if spec.split_order == "sorted" else ""
    return (
        f"the images of {spec.name!r} are not those of the training: files were added, removed or "
        f"renamed since{moves}. Some of these may have been trained on, and look better than they "
        "should"
    )


def load_images(spec: DataSpec, folder: Folder) -> tuple[ImageSet, ImageSet | None]:
    """The training set and, unless everything trains, the validation set."""
    train = load_split(spec, folder, "train")
    return train, load_split(spec, folder, "validation") if spec.validation > 0 else None


def load_evaluation(spec: DataSpec, folder: Folder, split: str) -> ImageSet:
    """The images of a split as a model is judged on them: whole, or where training takes random
    windows (`data.patch`) the windows of a fixed grid."""
    return grid_patches(load_split(spec, folder, split), spec.patch)


def find_folder(folder: Folder, default: Folder = None) -> Path:
    """The data folder: as given, else what the variable PTREES_DATA says, else the default."""
    named = folder if folder is not None else os.environ.get("PTREES_DATA") or default
    if not named:
        raise DataError(
            "no data folder is given: use --data DIR or set the variable PTREES_DATA; "
            "`ptrees data --data DIR` lists what is in one"
        )
    return Path(named).expanduser()


def check_spec(spec: DataSpec) -> None:
    """Errors that can be seen without looking at any image, beyond what a recipe limits."""
    if spec.kind == "edges" and spec.input_channels != 1:
        raise DataError(f"data.input_channels is {spec.input_channels}; edge maps have 1 channel")
    if len(spec.size) not in (0, 2) or any(length < 1 for length in spec.size):
        raise DataError(f"data.size is {spec.size}; it is (height, width), or () for as stored")
    if spec.kind == "pairs" and not (spec.inputs and spec.targets):
        raise DataError(
            "pairs need data.inputs and data.targets: the names of the two folders inside "
            f"{spec.name!r} that hold y and x"
        )
    check_channels(spec)
    check_values(spec)
    if len(spec.shift) not in (0, 2):
        raise DataError(f"data.shift is {spec.shift}; it is (rows, columns), or () for none")
    if any(spec.shift) and spec.kind != "pairs":
        raise DataError(f"data.shift is {spec.shift}, but only pairs can lie apart: remove it")
    check_augmentations(spec.augment, spec.patch)
    check_extra(spec)


def _load_idx(spec: DataSpec, folder: Path, split: str) -> ImageSet:
    if spec.split != "files":
        raise DataError(f"data.split is {spec.split!r}; IDX sets are split by 'files'")
    if not (folder / spec.name).is_dir():
        raise DataError(what_to_put(spec.name, folder, "idx"))
    part = "t10k" if split == "test" else "train"
    images = read_idx_images(folder / spec.name, part)
    names = [f"{part}/{i:05d}" for i in range(len(images))]
    if split != "test":
        shares = {"validation": spec.validation, "test": 0.0}
        names = split_groups(names, split, order=spec.split_order, **shares)
    if not names:
        raise DataError(empty(split, len(images), f"images in the {part} file"))
    images = images[[int(name.removeprefix(f"{part}/")) for name in names]]
    if spec.size and images.shape[2:] != tuple(spec.size):
        fitted = [np.asarray(fit(Image.fromarray(image[0]), spec.size)) for image in images]
        images = np.stack(fitted)[:, None]
    return ImageSet(torch.from_numpy(images.repeat(spec.channels, axis=1)), None, names)


def _stream(spec: DataSpec, found: Files | Fields, names: list[str]) -> StreamedImageSet:
    """The named pictures, each whole if all are of one size, else in windows of one size."""
    headers = found.headers(names)
    check_extra_images(spec, names, headers)
    side = block_side(spec)
    sizes = [(h.height // side, h.width // side) for h in headers]
    if spec.size:
        sizes = [(spec.size[0], spec.size[1])] * len(headers)
    if len(set(sizes)) > 1 and not spec.patch:
        other = next(i for i, size in enumerate(sizes) if size != sizes[0])
        (h, w), (other_h, other_w) = sizes[0], sizes[other]
        raise DataError(
            f"{found.where}: images differ in size ({names[0]} is {h}×{w}, {names[other]} is "
            f"{other_h}×{other_w}). Set data.size = [{h}, {w}] to bring them to one size, "
            "or data.patch to train on windows of them"
        )
    for name, (h, w) in zip(names, sizes, strict=True):
        if min(h, w) < spec.patch:
            raise DataError(
                f"{found.where}: {name} is {h}×{w}, smaller than data.patch = "
                f"{spec.patch}. Remove it, or use a smaller patch"
            )
    tile = min(h for h, _ in sizes), min(w for _, w in sizes)
    items = [item for name, size in zip(names, sizes, strict=True)
             for item in cover(name, size, tile)]  # fmt: skip
    values = (spec.channels + (0 if spec.kind == "images" else spec.input_channels)) * tile[0]
    is_deep = is_adjusted(spec) or any(header.is_deep for header in headers)
    nbytes = len(items) * values * tile[1] * (2 if is_deep else 1)
    return StreamedImageSet(found.read, items, (spec.channels, *tile), nbytes)
