r"""Nuclei of a picture of any size, in blocks.

A block is `BLOCK` × `BLOCK` pixels. It is looked at with `HALO` pixels around it, and has the
regions and nuclei whose centre lies in it: one at its edge is whole in both blocks that see it, and
belongs to one of them. A picture of one block is counted as a whole. Of others a nucleus that is
larger than the halo may be cut or come twice, and leaves that join regions far away may list them
in another order (`docs/cells.md` has the measured difference). Labels are numbered block by block,
in rows; a pixel that nuclei of two blocks claim belongs to the first.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from posterior_trees.imaging.regions import SMALLEST, find_regions, sizes
from posterior_trees.imaging.stored import paths_of
from posterior_trees.pictures.tiles import Part

BLOCK, HALO = 1024, 64


class Block(NamedTuple):
    """The rows and columns of a block, and of what is looked at around it."""

    rows: slice
    columns: slice
    tall: slice
    wide: slice


def blocks_of(size: Sequence[int], block: int | None = None) -> list[Block]:
    """In rows from the top left."""
    block = block or BLOCK
    down, across = (
        [(slice(a, min(a + block, side)), slice(max(a - HALO, 0), min(a + block + HALO, side)))
         for a in range(0, side, block)] for side in size
    )  # fmt: skip
    return [Block(rows, columns, tall, wide) for rows, tall in down for columns, wide in across]


class Odds(NamedTuple):
    """The leaves that are present: their numbers, paths and probabilities, over the field and in
    each of its parts."""

    present: list[int]
    paths: list[tuple[int, ...]]
    probs: Float[Tensor, "n"]
    parts: Sequence[Part]
    local: Float[Tensor, "t n"]

    @classmethod
    def of(
        cls,
        log_probs: Float[Tensor, "leaves"],
        branching: Sequence[int],
        size: Sequence[int],
        parts: Sequence[Part] = (),
    ) -> "Odds":
        """A field in one piece has no `parts`."""
        logs = log_probs.cpu()
        present = (~logs.isneginf()).nonzero()[:, 0].tolist()
        paths = paths_of(branching)[-len(logs) :]
        probs = logs.double().exp()
        parts = parts or [Part(slice(0, size[0]), slice(0, size[1]), probs)]
        local = torch.stack([part.probs[present].cpu().double() for part in parts])
        return cls(present, [paths[leaf] for leaf in present], probs[present], parts, local)


class Found(NamedTuple):
    """What is in one block: of each nucleus its centre, the pixels of its region, its probability
    and which leaves show it; `owners` are the numbers, from 1, of the nuclei that the pixels
    `places` belong to. Of each leaf the regions in every part, and their pixels."""

    centres: Float[Tensor, "n 2"]
    pixels: Int64[Tensor, "n"]
    probs: Float[Tensor, "n"]
    shown: Bool[Tensor, "n leaves"]
    places: Int64[Tensor, "m 2"]
    owners: Int64[Tensor, "m"]
    counts: Float[Tensor, "t leaves"]
    bright: Int64[Tensor, "leaves"]

    def to_bytes(self) -> bytes:
        """As a file."""
        file = io.BytesIO()
        np.savez_compressed(file, **{k: v.numpy() for k, v in self._asdict().items()})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Found":
        with np.load(io.BytesIO(content)) as file:
            return cls(**{name: torch.from_numpy(file[name]) for name in cls._fields})

    @staticmethod
    def count_in(file: Path) -> int:
        """How many nuclei such a file has."""
        with np.load(file) as content:
            return len(content["pixels"])


class Regions(NamedTuple):
    """The regions of one leaf: their numbers pixel by pixel, from 1, and for each its pixels, its
    centre, and the rows and columns that hold it."""

    numbers: Int64[Tensor, "h w"]
    pixels: Int64[Tensor, "n"]
    centres: Float[Tensor, "n 2"]
    boxes: list[tuple[slice, slice]]

    @classmethod
    def of(cls, bright: Bool[Tensor, "h w"]) -> "Regions":
        from scipy import ndimage

        numbers = find_regions(bright, SMALLEST)
        pixels = sizes(numbers)
        boxes = ndimage.find_objects(numbers.numpy())
        places = numbers.nonzero()
        region = (numbers[places[:, 0], places[:, 1]] - 1)[:, None].expand(-1, 2)
        sums = torch.zeros(len(pixels), 2).double().scatter_add(0, region, places.double())
        return cls(numbers, pixels, sums / pixels[:, None], boxes)


def owners_of(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Int64[Tensor, "n"]:
    """The part of the picture in which each place lies."""
    return lies_in(centres, parts).long().argmax(dim=1)


def lies_in(centres: Float[Tensor, "n 2"], parts: Sequence[Part]) -> Bool[Tensor, "n t"]:
    """Whether the pixel of each place is in each part."""
    edges = torch.tensor([[(p.rows.start, p.columns.start), (p.rows.stop, p.columns.stop)]
                          for p in parts])  # fmt: skip
    places = (centres + 0.5).floor()[:, None]
    return ((edges[:, 0] <= places) & (places < edges[:, 1])).all(dim=2)


def take_inventory(
    found: Sequence[Regions], order: Sequence[int]
) -> tuple[Int64[Tensor, "h w"], list[tuple[int, int]], list[Bool[Tensor, "n"]]]:
    """Every nucleus that some leaf shows, once (`count.py` says which is which), of leaves in this
    order: the nucleus, from 1, of each pixel; of each the leaf and region it came from, and which
    leaves show it."""
    is_bright = torch.stack([regions.numbers > 0 for regions in found])
    owner = torch.zeros(*is_bright.shape[1:], dtype=torch.long)
    listed: list[tuple[int, int]] = []
    owned: list[int] = []
    shown: list[Tensor] = []
    for leaf in order:
        for number, box in enumerate(found[leaf].boxes):
            pixels, size = found[leaf].numbers[box] == number + 1, int(found[leaf].pixels[number])
            numbers, shares = owner[box][pixels].unique(return_counts=True)
            overlaps = {n: s for n, s in zip(numbers.tolist(), shares.tolist(), strict=True) if n}
            is_over = any(2 * share >= owned[n - 1] for n, share in overlaps.items())
            if is_over or 2 * sum(overlaps.values()) >= size:
                shown[max(overlaps, key=overlaps.__getitem__) - 1][leaf] = True
                continue
            is_own = pixels & (owner[box] == 0)
            listed.append((leaf, number))
            owned.append(int(is_own.sum()))
            shown.append(2 * is_bright[:, *box][:, pixels].sum(dim=1) >= size)
            owner[box][is_own] = len(listed)
    return owner, listed, shown


def count_block(
    images: Float[Tensor, "n h w"], block: Block, odds: Odds, threshold: float | int
) -> Found:
    """The nuclei of a block; `images` are what the leaves show of it and of what is around it."""
    corner = torch.tensor([block.tall.start, block.wide.start])
    core = [Part(block.rows, block.columns, odds.probs)]
    found = [Regions.of(image.double() > threshold) for image in images]
    order = odds.probs.argsort(descending=True, stable=True).tolist()
    owner, listed, shown_in = take_inventory(found, order)
    chosen = [found[leaf].centres[number] for leaf, number in listed]
    centres = torch.stack(chosen) + corner if chosen else torch.zeros(0, 2).double()
    is_mine = lies_in(centres, core)[:, 0]
    number = torch.cat([torch.zeros(1).long(), is_mine.cumsum(0) * is_mine])
    owner = number[owner]
    places = owner.nonzero()
    shown = torch.stack(shown_in)[is_mine] if chosen else torch.zeros(0, len(found)).bool()
    tiles = owners_of(centres[is_mine], odds.parts)
    probs = [odds.local[tile, leaves].sum() for tile, leaves in zip(tiles, shown, strict=True)]
    pixels = [int(found[leaf].pixels[region]) for leaf, region in listed]
    mine = [lies_in(regions.centres + corner, core)[:, 0] for regions in found]
    counts = [
        owners_of((regions.centres + corner)[is_in], odds.parts).bincount(minlength=len(odds.parts))
        for regions, is_in in zip(found, mine, strict=True)
    ]
    bright = [regions.pixels[is_in].sum() for regions, is_in in zip(found, mine, strict=True)]
    return Found(
        centres[is_mine], torch.tensor(pixels).long()[is_mine],
        torch.tensor(probs).double().clamp(max=1), shown, places + corner, owner[owner > 0],
        torch.stack(counts, dim=1).double(), torch.stack(bright),
    )  # fmt: skip


def paint(found: Iterable[tuple[int, Found]], rows: slice, columns: slice) -> Int64[Tensor, "h w"]:
    """The labels of a part of the picture, by the blocks around it, each with how many nuclei come
    before its own."""
    labels = torch.zeros(rows.stop - rows.start, columns.stop - columns.start).long()
    corner = torch.tensor([rows.start, columns.start])
    for before, block in found:
        places = block.places - corner
        is_here = ((places >= 0) & (places < torch.tensor(labels.shape))).all(dim=1)
        down, across = places[is_here].unbind(1)
        is_free = labels[down, across] == 0
        labels[down[is_free], across[is_free]] = before + block.owners[is_here][is_free]
    return labels
