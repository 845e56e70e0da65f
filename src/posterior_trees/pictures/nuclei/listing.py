"""The inventory: every nucleus that some leaf shows, once (`count.py` says which is which)."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from posterior_trees.pictures.nuclei.regions import Regions


class Listing:
    """The inventory as it grows: whose each pixel is, and of each nucleus the leaf and region it
    came from, how many pixels it owns, and which leaves show it."""

    def __init__(self, size: Sequence[int]) -> None:
        self.owner = torch.zeros(*size, dtype=torch.long)
        self.regions: list[tuple[int, int]] = []
        self.owned: list[int] = []
        self.shown: list[Bool[Tensor, "n"]] = []

    @classmethod
    def of(cls, found: Sequence[Regions], order: Sequence[int]) -> "Listing":
        """Of what the leaves show, taken in this order."""
        is_bright = torch.stack([regions.numbers > 0 for regions in found])
        listing = cls(is_bright.shape[1:])
        for leaf in order:
            for number, box in enumerate(found[leaf].boxes):
                pixels = found[leaf].numbers[box] == number + 1
                if same := listing.find(box, pixels):
                    listing.shown[same - 1][leaf] = True
                    continue
                size = int(found[leaf].pixels[number])
                shown = 2 * is_bright[:, *box][:, pixels].sum(dim=1) >= size
                listing.add(box, pixels, (leaf, number), shown)
        return listing

    def find(self, box: tuple[slice, slice], pixels: Bool[Tensor, "h w"]) -> int:
        """The number, from 1, of the nucleus that a region of these pixels is; 0 if it is new."""
        numbers, shares = self.owner[box][pixels].unique(return_counts=True)
        overlaps = {n: s for n, s in zip(numbers.tolist(), shares.tolist(), strict=True) if n}
        is_inside = 2 * sum(overlaps.values()) >= int(pixels.sum())
        is_over = any(2 * share >= self.owned[n - 1] for n, share in overlaps.items())
        return max(overlaps, key=overlaps.__getitem__) if is_inside or is_over else 0

    def add(
        self,
        box: tuple[slice, slice],
        pixels: Bool[Tensor, "h w"],
        region: tuple[int, int],
        shown: Bool[Tensor, "n"],
    ) -> None:
        """List a region as a nucleus, with the leaves that show it."""
        is_own = pixels & (self.owner[box] == 0)
        self.regions.append(region)
        self.owned.append(int(is_own.sum()))
        self.shown.append(shown)
        self.owner[box][is_own] = len(self.regions)
