"""Images that are decoded when they are asked for, by threads (Pillow lets go of the GIL).

`StreamedImageSet` answers `batch` with exactly the numbers of an `ImageSet` in memory; `load` makes
it one. Its images may be windows of files that are larger than what a network sees at once.
Training takes random windows (`augment` with `patch` > 0); evaluation needs the same ones every
time, so `grid_patches` cuts a fixed grid.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from itertools import groupby
from os import cpu_count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from posterior_trees.data.augment import check_patch
from posterior_trees.data.imageset import Batch, ImageSet, Indices, Stored, as_index, to_float
from posterior_trees.errors import DataError, plural
from posterior_trees.imaging.decode import Pixels
from posterior_trees.imaging.decode import Stored as Raw
from posterior_trees.progress import track

Pair = tuple[Pixels, Pixels | None]
RawPair = tuple[Raw, Raw | None]
"""As a file has it, perhaps in numbers that are not of 8 or 16 bits."""


class Window(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def cut(self, images):
        """Those pixels of `(..., h, w)`."""
        rows = slice(self.top, self.top + self.height)
        return images[..., rows, self.left : self.left + self.width]


class Item(NamedTuple):
    """One image of a set: a file, or a window of it."""

    name: str
    file: str
    window: Window


class StreamedImageSet(ImageSet):
    """A set that holds only the names of its images; `x` and `y` decode all of them.

    `read(file)` gives the pixels of x and of y (or None) of one file, `shape` is `(c, h, w)` of x
    in every window, `nbytes` what `load` would take.
    """

    def __init__(
        self,
        read: Callable[[str], Pair],
        items: Sequence[Item],
        shape: tuple[int, ...],
        nbytes: int,
        device: str | torch.device = "cpu",
    ) -> None:
        self.read, self.items = read, list(items)
        self.names = [item.name for item in self.items]
        self.shape, self.nbytes, self.device = shape, nbytes, torch.device(device)

    @property
    def x(self) -> Stored:
        return self.load().x

    @property
    def y(self) -> Stored | None:
        return self.load().y

    def __repr__(self) -> str:
        return f"StreamedImageSet({plural(len(self), 'image')} of {self.shape}, {self.device})"

    def to(self, device: str | torch.device) -> "StreamedImageSet":
        moved = copy(self)
        moved.device = torch.device(device)
        return moved

    def subset(self, indices: Indices) -> "StreamedImageSet":
        """A set of only these images, in this order."""
        part = copy(self)
        part.items = [self.items[i] for i in as_index(indices).tolist()]
        part.names = [item.name for item in part.items]
        part.nbytes = self.nbytes * len(part) // max(len(self), 1)
        return part

    def batch(self, indices: Indices) -> Batch:
        part = self.subset(indices)
        x, y = _stack(part._decode(), len(part))
        return to_float(x.to(self.device)), None if y is None else to_float(y.to(self.device))

    def load(self, title: str = "images") -> ImageSet:
        """Decode everything once and keep it."""
        watched = zip(track(f"reading {title}")(range(len(self))), self._decode(), strict=False)
        pairs = (pair for _, pair in watched)
        images = ImageSet(*_stack(pairs, len(self)), self.names)
        images.pixel_size = self.pixel_size
        return images.to(self.device)

    def _decode(self) -> Iterator[Pair]:
        """Pixels of every item in order; neighbours in the list from one file decode it once."""
        groups = [(file, list(items)) for file, items in groupby(self.items, lambda i: i.file)]
        pixels = in_threads(self.read, [file for file, _ in groups])
        for (_, items), (x, y) in zip(groups, pixels, strict=True):
            for item in items:
                cut = item.window.cut
                yield cut(x), None if y is None else cut(y)


def in_threads(function: Callable, things: Iterable) -> Iterator:
    """`function` of each thing, in order."""
    with ThreadPoolExecutor(min(cpu_count() or 1, 32)) as pool:
        yield from pool.map(function, things)


def _stack(pairs: Iterable[Pair], n: int) -> tuple[Tensor, Tensor | None]:
    xs, ys = None, None
    for i, (x, y) in enumerate(pairs):
        xs = _put(xs, i, n, x)
        ys = None if y is None else _put(ys, i, n, y)
    if xs is None:
        raise DataError("a batch needs at least one image; indices are empty")
    return torch.from_numpy(xs), None if ys is None else torch.from_numpy(ys)


def _put(stack: np.ndarray | None, i: int, n: int, image: np.ndarray) -> np.ndarray:
    """Write image `i` of `n` into the stack, which becomes 16-bit with the first such image."""
    if stack is None:
        stack = np.empty((n, *image.shape), image.dtype)
    if stack.dtype != image.dtype:
        # 257 = 65535 / 255: the same value between 0 and 1.
        if image.dtype == np.uint8:
            image = image * np.uint16(257)
        else:
            stack = stack * np.uint16(257)
    stack[i] = image
    return stack


def grid_patches(image_set: ImageSet | StreamedImageSet, patch: int) -> ImageSet | StreamedImageSet:
    """The images cut into a centred grid of `patch` × `patch` windows that do not overlap.

    Up to `patch` − 1 rows and columns at the edges are left out. The names tell the place,
    `name@top,left`. A patch of 0 leaves the images whole.
    """
    if patch == 0:
        return image_set
    c, h, w = image_set.shape
    check_patch(patch, h, w)
    grid = [
        Window(top, left, patch, patch)
        for top in range(h % patch // 2, h - patch + 1, patch)
        for left in range(w % patch // 2, w - patch + 1, patch)
    ]
    names = [f"{name}@{at.top},{at.left}" for name in image_set.names for at in grid]
    if isinstance(image_set, StreamedImageSet):
        places = [
            (item.file, at._replace(top=item.window.top + at.top, left=item.window.left + at.left))
            for item in image_set.items
            for at in grid
        ]
        items = [Item(name, *place) for name, place in zip(names, places, strict=True)]
        nbytes = image_set.nbytes * len(grid) * patch**2 // (h * w)
        return StreamedImageSet(image_set.read, items, (c, patch, patch), nbytes, image_set.device)

    def cut(images: Tensor) -> Tensor:
        return torch.stack([window.cut(images) for window in grid], dim=1).flatten(0, 1)

    return ImageSet(cut(image_set.x), None if image_set.y is None else cut(image_set.y), names)


def cover(name: str, size: tuple[int, int], tile: tuple[int, int]) -> list[Item]:
    """As few evenly spaced windows of one size as reach every pixel of an image.

    Choice: sets whose images differ in size become sets of such windows, of the smallest height
    and width in the set, because a batch is one tensor. Windows overlap where they must.
    """
    (h, w), (tile_h, tile_w) = size, tile
    if size == tile:
        return [Item(name, name, Window(0, 0, h, w))]
    return [
        Item(f"{name}@{top},{left}", name, Window(top, left, tile_h, tile_w))
        for top in _starts(h, tile_h)
        for left in _starts(w, tile_w)
    ]


def _starts(length: int, tile: int) -> list[int]:
    count = math.ceil(length / tile)
    return [round(i * (length - tile) / max(count - 1, 1)) for i in range(count)]
