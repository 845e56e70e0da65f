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

from posterior_trees.imaging.regions import find_regions
from posterior_trees.imaging.stored import paths_of
from posterior_trees.pictures.nuclei.listing import Listing
from posterior_trees.pictures.nuclei.regions import Regions, lies_in, owners_of
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


def count_block(
    images: Float[Tensor, "n h w"], block: Block, odds: Odds, threshold: float | int, smallest: int
) -> Found:
    """The nuclei of a block; `images` are what the leaves show of it and of what is around it."""
    corner = torch.tensor([block.tall.start, block.wide.start])
    core = [Part(block.rows, block.columns, odds.probs)]
    found = [Regions.of(find_regions(image.double() > threshold, smallest)) for image in images]
    listing = Listing.of(found, odds.probs.argsort(descending=True, stable=True).tolist())
    chosen = [found[leaf].centres[number] for leaf, number in listing.regions]
    centres = torch.stack(chosen) + corner if chosen else torch.zeros(0, 2).double()
    is_mine = lies_in(centres, core)[:, 0]
    number = torch.cat([torch.zeros(1).long(), is_mine.cumsum(0) * is_mine])
    owner = number[listing.owner]
    places = owner.nonzero()
    shown = torch.stack(listing.shown)[is_mine] if chosen else torch.zeros(0, len(found)).bool()
    tiles = owners_of(centres[is_mine], odds.parts)
    probs = [odds.local[tile, leaves].sum() for tile, leaves in zip(tiles, shown, strict=True)]
    pixels = [int(found[leaf].pixels[region]) for leaf, region in listing.regions]
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
