r"""Intervals for the mean of any box, for all boxes at once: also for one chosen after looking.

For boxes $B$ of one size on a grid, with leaf means of mean $m_B$ and standard deviation
$\mathrm{sd}_B$,

$$ S = \max_B |\bar x_B - m_B| / \sigma_B, \qquad
   \sigma_B^2 = \mathrm{sd}_B^2 + w_B^2 + \bar w^2, $$

$w_B$ being the root mean square of $\bar x_B - m_B$ on the images that fit the scales, $\bar w$
that over all boxes. Then all $\bar x_B$ lie within $m_B \pm q\,\sigma_B$ together with the level's
probability; a box that is drawn where the tree is least sure is one of them. (An interval for a
box fixed beforehand covers 80 % of the digits then, where it promises 90.)

A larger box that whole boxes of the grid fill, side by side, is their mean, and so are the ends of
its interval.

Choice: $\bar w$ keeps boxes which are nearly always empty from being the ones that decide: the box
of largest spread gets 0.81 on digits instead of 0.92. Images count as a page shows them, clipped to
[0, 1] in 8 bits, so that Python and the page say the same.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import MeasureError
from posterior_trees.tree import Tree


class Box(NamedTuple):
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int


class Grid(NamedTuple):
    """Boxes of one size, a third of it apart, inside a rectangle of the picture."""

    inside: Box
    size: tuple[int, int]
    step: tuple[int, int]

    @classmethod
    def of(cls, inside: Box, size: tuple[int, int]) -> "Grid":
        if not all(1 <= side <= whole for side, whole in zip(size, inside[2:], strict=True)):
            raise MeasureError(
                f"boxes of {size[0]}×{size[1]} do not fit what is open, {inside.height}×"
                f"{inside.width} pixels; give a smaller box"
            )
        return cls(inside, size, (max(size[0] // 3, 1), max(size[1] // 3, 1)))

    @property
    def counts(self) -> tuple[int, int]:
        """Rows and columns of boxes."""
        rows, columns = (
            (whole - side) // step + 1
            for whole, side, step in zip(self.inside[2:], self.size, self.step, strict=True)
        )
        return rows, columns

    def check(self, shape: Sequence[int]) -> None:
        """Refuse what no calibration on images of this shape has made."""
        ends = [start + side for start, side in zip(self.inside[:2], self.inside[2:], strict=True)]
        fits = all(end <= whole for end, whole in zip(ends, shape[-2:], strict=False))
        if min(*self.size, *self.step) < 1 or min(*self.inside, *self.counts) < 0 or not fits:
            raise MeasureError(f"the guarantee is damaged: no image of {tuple(shape)} has {self}")

    def means(self, images: Float[Tensor, "n c h w"]) -> Float[Tensor, "n boxes"]:
        """The mean of every box, row by row, as a page shows the images."""
        top, left, height, width = self.inside
        part = images[..., top : top + height, left : left + width].double()
        shown = (part.clamp(0, 1) * 255).round() / 255
        return F.avg_pool2d(shown.mean(dim=1, keepdim=True), self.size, self.step).flatten(1)

    def fill(self, box: Box) -> tuple[list[int], Box]:
        """The boxes of the grid, side by side, that lie nearest to a box, and what they fill."""
        places, ends = [], []
        for axis in (0, 1):
            size, step, count = self.size[axis], self.step[axis], self.counts[axis]
            start, whole = self.inside[axis], self.inside[axis + 2]
            low = min(max(box[axis] - start, 0), whole - 1)
            high = min(max(box[axis] + box[axis + 2] - start, low + 1), whole)
            many = min(max(math.floor((high - low) / size + 0.5), 1), whole // size)
            stride = -(-size // step)  # side by side only where steps divide the size
            many = many if size % step == 0 else 1
            offset = (low + high - many * size) / 2
            first = min(max(math.ceil(offset / step - 0.5), 0), count - 1 - (many - 1) * stride)
            places.append([first + i * stride for i in range(many)])
            ends.append((start + first * step, many * size))
        numbers = [row * self.counts[1] + column for row in places[0] for column in places[1]]
        return numbers, Box(ends[0][0], ends[1][0], ends[0][1], ends[1][1])


def moments(tree: Tree, grid: Grid) -> tuple[Float[Tensor, "b boxes"], Float[Tensor, "b boxes"]]:
    """Mean and variance of every box over the leaves."""
    leaves = grid.means(tree.leaves.flatten(0, 1).cpu()).unflatten(0, tree.leaves.shape[:2])
    probs = tree.probs[-1].double().cpu()[..., None]
    mean = (probs * leaves).sum(dim=1)
    return mean, (probs * (leaves - mean[:, None]).square()).sum(dim=1)


def fit_widths(off: Float[Tensor, "n boxes"]) -> Float[Tensor, "boxes"]:
    r"""The $w_B^2 + \bar w^2$ of every box, from what the means were off by."""
    squares = off.square().mean(dim=0)
    return (squares + squares.mean()).clamp_min(1e-8)


def score(
    off: Float[Tensor, "n boxes"],
    variance: Float[Tensor, "n boxes"],
    widths: Float[Tensor, "boxes"],
) -> Float[Tensor, "n"]:
    return (off.abs() / (variance + widths).sqrt()).amax(dim=1)
