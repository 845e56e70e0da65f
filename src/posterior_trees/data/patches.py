"""Windows of images that are larger than what a network sees at once.

Training takes random windows (`augment` with `patch` > 0); evaluation needs the same ones every
time, so `grid_patches` cuts a fixed grid.
"""

import math

import torch
from torch import Tensor

from posterior_trees.data.augment import check_patch
from posterior_trees.data.imageset import ImageSet
from posterior_trees.data.stream import Item, StreamedImageSet, Window


def grid_patches(image_set: ImageSet | StreamedImageSet, patch: int) -> ImageSet | StreamedImageSet:
    """The images cut into a centred grid of `patch` × `patch` windows that do not overlap.

    Up to `patch` − 1 rows and columns at the edges are left out. The names tell the place,
    `name@top,left`. A patch of 0 leaves the images whole.
    """
    if patch == 0:
        return image_set
    _, h, w = image_set.shape
    check_patch(patch, h, w)
    grid = [
        Window(top, left, patch, patch)
        for top in range(h % patch // 2, h - patch + 1, patch)
        for left in range(w % patch // 2, w - patch + 1, patch)
    ]
    if isinstance(image_set, StreamedImageSet):
        return _grid_of_stream(image_set, grid)
    names = [f"{name}@{at.top},{at.left}" for name in image_set.names for at in grid]
    return ImageSet(
        _cut(image_set.x, grid), None if image_set.y is None else _cut(image_set.y, grid), names
    )


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


def _cut(images: Tensor, grid: list[Window]) -> Tensor:
    return torch.stack([window.cut(images) for window in grid], dim=1).flatten(0, 1)


def _grid_of_stream(images: StreamedImageSet, grid: list[Window]) -> StreamedImageSet:
    items = []
    for name, file, (top, left, _, _) in images.items:
        for at in grid:
            moved = at._replace(top=top + at.top, left=left + at.left)
            items.append(Item(f"{name}@{at.top},{at.left}", file, moved))
    c, h, w = images.shape
    nbytes = images.nbytes * len(grid) * grid[0].height * grid[0].width // (h * w)
    shape = (c, grid[0].height, grid[0].width)
    return StreamedImageSet(images.read, items, shape, nbytes, images.device)
