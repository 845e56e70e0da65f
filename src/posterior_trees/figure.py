r"""A tree as a picture, in the style of the paper's figures.

The root (the posterior mean; "MMSE" in the paper) is on top, every node sits over the middle of its
children, and edges fork at right angles. The number above a node is the absolute probability
$\alpha$ of its cluster: each level sums to 1, and a branch is drawn

$$ \text{width} = 0.6 + 4.4\,\alpha \quad \text{points} $$

wide. The truth and the measurement are at the left of the root. An absent node is a dashed frame.
Values are clipped to $[0, 1]$ only here, for display; the tree itself is never changed.

Lengths are in inches, from the upper left corner down. Figures are made without pyplot, so that a
library call never opens a window, changes the backend or leaves a figure in its registry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from posterior_trees.errors import InputError, plural
from posterior_trees.explore.content import check_images
from posterior_trees.imaging.pixels import visible
from posterior_trees.store import whole
from posterior_trees.tree import Tree, level_sizes

FORMATS = (".png", ".jpg", ".svg", ".pdf")
MARGIN, LABEL, FORK, HEADING = 0.12, 0.19, 0.26, 0.3
INK, FAINT, HIGHLIGHT = "#333333", "#aaaaaa", "#d55e00"
SMALL_IMAGE = 64  # pixels; below this they are shown as squares, not smoothed


def draw(tree: Tree, **options: Any) -> Figure:
    """Draw the tree of one image; the options are those of `draw_grid`."""
    if len(tree) != 1:
        raise InputError(
            f"draw shows one image's tree, got a batch of {len(tree)}: "
            "choose one with tree[i], or use draw_grid"
        )
    return draw_grid(tree, **options)


def draw_grid(
    trees: Tree,
    *,
    y: Float[Tensor, "_ _ _ _"] | None = None,
    x: Float[Tensor, "_ _ _ _"] | None = None,
    path: Int[Tensor, "_ _"] | None = None,
    names: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Draw the trees of several images, one under the other, with their measurements `y` and
    truths `x` if they are given. `path` holds node indices as `tree.descend(x)` returns them; that
    path is highlighted."""
    _check(trees, y=y, x=x, path=path, names=names)
    plan = _Plan.of(trees, sides=(x is not None) + (y is not None), has_names=names is not None)
    top = MARGIN + (HEADING if title else 0.0)
    figure = Figure(figsize=(plan.width, top + len(trees) * plan.height), facecolor="white")
    canvas = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    canvas.set(xlim=(0.0, plan.width), ylim=(figure.get_figheight(), 0.0))
    canvas.axis("off")
    if title:
        _write(canvas, plan.width / 2, MARGIN + 0.2, title, size=11.0)
    for row, tree in enumerate(trees):
        sheet = _Sheet(figure, canvas, plan, top + row * plan.height, row)
        if names is not None:
            sheet.name(names[row])
        known = [("Truth", x), ("Input", y)]
        sheet.draw_sides([(label, b[row]) for label, b in known if b is not None])
        way = None if path is None else path[row].tolist()
        sheet.draw_edges(tree, way)
        sheet.draw_nodes(tree, way)
    return figure


def save_figure(trees: Tree, file: str | PathLike[str], *, dpi: int = 200, **options: Any) -> None:
    """Write the figure of one or several trees; the extension chooses PNG, JPEG, SVG or PDF, the
    other options are those of `draw_grid`."""
    file = Path(file)
    if file.suffix.lower() not in FORMATS:
        raise InputError(f"cannot write {file}: a figure's name ends in {', '.join(FORMATS)}")
    figure = draw_grid(trees, **options)
    with whole(file) as part:
        figure.savefig(part, dpi=dpi)


@dataclass(frozen=True)
class _Plan:
    """Where things go inside one row of the figure."""

    branching: tuple[int, ...]
    image: tuple[float, float]  # width and height of a node
    gap: float  # between neighbouring leaves
    left: float  # left end of the tree; the truth and the input may need room there
    heading: float  # height of the row's name

    @classmethod
    def of(cls, trees: Tree, sides: int, has_names: bool) -> "_Plan":
        leaves = level_sizes(trees.branching)[-1]
        gap = 0.14 if leaves <= 27 else 0.08
        width = min(max(16 / leaves - gap, 0.38), 0.85)
        aspect = min(max(trees.shape[1] / trees.shape[2], 0.25), 4.0)
        free = (leaves * (width + gap) - width) / 2
        shift = max(0.0, sides * (width + gap) + 0.3 - free) if sides else 0.0
        heading = HEADING if has_names else 0.0
        return cls(trees.branching, (width, width * aspect), gap, MARGIN + shift, heading)

    @property
    def pitch(self) -> float:
        """Distance between levels."""
        return self.image[1] + LABEL + FORK

    @property
    def width(self) -> float:
        leaves = level_sizes(self.branching)[-1]
        return self.left + leaves * (self.image[0] + self.gap) - self.gap + MARGIN

    @property
    def height(self) -> float:
        return self.heading + LABEL + self.image[1] + len(self.branching) * self.pitch + 2 * MARGIN

    def middle(self, level: int, node: int) -> float:
        """Horizontal middle of a node: the middle of the leaves under it."""
        sizes = level_sizes(self.branching)
        slots = sizes[-1] / sizes[level]
        return self.left + (node + 0.5) * slots * (self.image[0] + self.gap) - self.gap / 2

    def top(self, level: int) -> float:
        """Upper edge of the images of a level, below their probabilities."""
        return self.heading + LABEL + level * self.pitch


class _Sheet:
    """One row of the figure: draws one tree according to the plan."""

    def __init__(self, figure: Figure, canvas: Axes, plan: _Plan, offset: float, row: int) -> None:
        self.figure, self.canvas, self.plan = figure, canvas, plan
        self.offset, self.row = offset, row

    def name(self, name: str) -> None:
        _write(self.canvas, MARGIN, self.offset + 0.2, name, size=9.0, align="left")

    def draw_sides(self, known: Sequence[tuple[str, Tensor]]) -> None:
        """The truth and the measurement, at the left of the root."""
        width = self.plan.image[0]
        for number, (label, image) in enumerate(known):
            left = MARGIN + number * (width + self.plan.gap)
            top = self.offset + self.plan.top(0)
            _write(self.canvas, left + width / 2, top - 0.05, label)
            pixels = visible(image, f"{label} of image {self.row}", "a figure")
            self._place(left, top, pixels, INK, 0.5)

    def draw_nodes(self, tree: Tree, path: list[int] | None) -> None:
        width, height = self.plan.image
        for level, log_probs in enumerate(tree.log_probs):
            child_numbers = tree.paths(level)
            absent = tree.is_absent(level)[0].tolist()
            for node, prob in enumerate(log_probs[0].exp().tolist()):
                middle, top = self.plan.middle(level, node), self.offset + self.plan.top(level)
                left = middle - width / 2
                if absent[node]:
                    frame = Rectangle((left, top), width, height, fill=False, ls=(0, (3, 3)))
                    frame.set(edgecolor=FAINT, linewidth=0.8)
                    self.canvas.add_patch(frame)
                    continue
                what = f"node {child_numbers[node]} of image {self.row}"
                if np.isnan(prob):
                    raise InputError(f"{what} has probability NaN; probabilities must be numbers")
                _write(self.canvas, middle, top - 0.05, f"{prob:.2f}" if level else "Mean")
                on_path = path is not None and path[level] == node
                color, line = (HIGHLIGHT, 1.8) if on_path else (INK, 0.5)
                image = visible(tree.images[level][0, node], what, "a figure")
                self._place(left, top, image, color, line)

    def draw_edges(self, tree: Tree, path: list[int] | None) -> None:
        """Forked edges: one stem down from each parent, then a branch to each child."""
        for level, k in enumerate(tree.branching, start=1):
            below = self.offset + self.plan.top(level - 1) + self.plan.image[1]
            fork, above = below + 0.45 * FORK, below + FORK - 0.02
            stems = self._lines(tree, level - 1, path)
            for node, branch in enumerate(self._lines(tree, level, path)):
                start, end = self.plan.middle(level - 1, node // k), self.plan.middle(level, node)
                if node % k == 0:
                    self.canvas.plot([start, start], [below, fork], **stems[node // k])
                self.canvas.plot([start, end, end], [fork, fork, above], **branch)

    def _lines(self, tree: Tree, level: int, path: list[int] | None) -> list[dict]:
        """How the edge of each node of a level is drawn; the highlighted one on top."""
        probs, absent = tree.log_probs[level][0].exp().tolist(), tree.is_absent(level)[0].tolist()
        lines = []
        for node, prob in enumerate(probs):
            line = {"color": INK, "linewidth": 0.6 + 4.4 * prob, "zorder": 2}
            if path is not None and path[level] == node:
                line |= {"color": HIGHLIGHT, "zorder": 3}
            if absent[node]:
                line |= {"color": FAINT, "linestyle": (0, (3, 3)), "zorder": 1}
            lines.append(line | {"solid_joinstyle": "miter", "solid_capstyle": "butt"})
        return lines

    def _place(self, left: float, top: float, image: np.ndarray, color: str, line: float) -> None:
        """An image in axes of its own: vector formats then keep its full resolution."""
        total_width, total_height = self.figure.get_size_inches()
        width, height = self.plan.image
        bottom = 1 - (top + height) / total_height
        box = (left / total_width, bottom, width / total_width, height / total_height)
        axes = self.figure.add_axes(box, xticks=[], yticks=[])
        smooth = max(image.shape[:2]) > SMALL_IMAGE
        interpolation = "antialiased" if smooth else "nearest"
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation=interpolation, aspect="auto")
        axes.spines[:].set(color=color, linewidth=line)


def _write(
    canvas: Axes, across: float, down: float, text: str, size: float = 8.0, align: str = "center"
) -> None:
    canvas.text(
        across, down, text, ha=align, va="bottom", fontsize=size, color=INK, parse_math=False
    )


def _check(trees: Tree, *, y, x, path, names) -> None:
    check_images(trees, {"the tree": trees.root, "y": y, "x": x}, "a figure draws")
    for name, batch in {"y": y, "x": x, "path": path, "names": names}.items():
        if batch is not None and len(batch) != len(trees):
            raise InputError(
                f"{name} holds {plural(len(batch), 'image')}, the tree {len(trees)}: give one for "
                "each"
            )
    if path is not None and path.shape[1] != trees.depth + 1:
        raise InputError(
            f"path names {path.shape[1]} nodes; in a tree of depth {trees.depth} it goes through "
            f"{trees.depth + 1}, root first, as tree.descend(x) returns them"
        )
