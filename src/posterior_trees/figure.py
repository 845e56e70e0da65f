r"""A tree as a picture, in the style of the paper's figures.

The root (the posterior mean; "MMSE" in the paper) is on top, every node sits over the middle of its
children, and edges fork at right angles. The number above a node is the absolute probability
$\alpha$ of its cluster: each level sums to 1, and a branch is drawn

$$ \text{width} = 0.6 + 4.4\,\alpha \quad \text{points} $$

wide. The truth and the measurement are at the left of the root. An absent node is a dashed frame.
Values are clipped to $[0, 1]$ only here, for display; the tree itself is never changed.

What was not split is drawn once, where it ends, and its neighbours use the room below it. Where
branches end on several levels these are numbered, and the ends, which sum to 1, are in bold.

Lengths are in inches, from the upper left corner down. Figures are made without pyplot, so that a
library call never opens a window, changes the backend or leaves a figure in its registry.
"""

from collections.abc import Sequence
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
from posterior_trees.explore.content import check_images, visible
from posterior_trees.store import whole
from posterior_trees.tree import Tree

FORMATS = (".png", ".jpg", ".svg", ".pdf")
MARGIN, LABEL, FORK, HEADING, NUMBER = 0.12, 0.19, 0.26, 0.3, 0.25
INK, FAINT, HIGHLIGHT, ASKED = "#333333", "#aaaaaa", "#d55e00", "#cc007a"
DASHED = (0, (3, 3))
SMALL_IMAGE = 64  # pixels; below this they are shown as squares, not smoothed

Columns = dict[tuple[int, int], float]
"""Of the nodes that are drawn, by level and number: the column of the middle, from any origin."""


def draw(tree: Tree, **options: Any) -> Figure:
    """Draw the tree of one image; the options are those of `draw_grid`."""
    if len(tree) != 1:
        raise InputError(
            f"draw shows one image's tree, got a batch of {len(tree)}: "
            "choose one with tree[i], or use draw_grid"
        )
    return draw_grid(tree, **options)


def draw_grid(
    trees: Tree, *, y: Float[Tensor, "_ _ _ _"] | None = None,
    x: Float[Tensor, "_ _ _ _"] | None = None, path: Int[Tensor, "_ _"] | None = None,
    box: Sequence[int] | None = None, names: Sequence[str] | None = None, title: str | None = None,
) -> Figure:  # fmt: skip
    """Draw the trees of several images, one under the other, with their measurements `y` and
    truths `x` if they are given. `path` holds node indices as `tree.descend(x)` returns them; that
    path is highlighted. A `box` (top, left, height, width) that the trees were asked about is
    outlined."""
    _check(trees, y=y, x=x, path=path, names=names)
    columns = [arrange(tree) for tree in trees]
    sides = (x is not None) + (y is not None)
    plan = _Plan(trees, columns, sides, names is not None)
    top = MARGIN + (HEADING if title else 0.0)
    figure = Figure(figsize=(plan.width, top + len(trees) * plan.height), facecolor="white")
    canvas = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    canvas.set(xlim=(0.0, plan.width), ylim=(figure.get_figheight(), 0.0))
    canvas.axis("off")
    if title:
        _write(canvas, plan.width / 2, MARGIN + 0.2, title, size=11.0)
    for row, tree in enumerate(trees):
        way = None if path is None else path[row].tolist()
        offset = top + row * plan.height
        if names is not None:
            _write(canvas, MARGIN, offset + 0.2, names[row], size=9.0, ha="left")
        sheet = _Sheet(figure, canvas, plan, tree, columns[row], offset, row, box, way)
        sheet.number_levels()
        known = [("Truth", x), ("Input", y)]
        sheet.draw_sides([(label, b[row]) for label, b in known if b is not None])
        sheet.draw_edges()
        sheet.draw_nodes()
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


def arrange(tree: Tree) -> Columns:
    """The columns of one tree's nodes: as close as no two nodes of a level overlap, every node over
    the middle of its first and last child. What is not split ends there; only of a tree that is not
    split at all the whole layout is drawn, to show what is absent."""
    is_split = [tree.is_split(level)[0].tolist() for level in range(tree.depth)]
    is_one = tree.depth > 0 and not is_split[0][0]

    def below(level: int, node: int) -> Columns:
        here = {(level, node): 0.0}
        if level == tree.depth or not (is_one or is_split[level][node]):
            return here
        k = tree.branching[level]
        parts = [below(level + 1, k * node + child) for child in range(k)]
        offsets = _pack(parts)
        middle = (offsets[0] + offsets[-1]) / 2
        for part, offset in zip(parts, offsets, strict=True):
            here |= {place: column + offset - middle for place, column in part.items()}
        return here

    return below(0, 0)


def _pack(parts: Sequence[Columns]) -> list[float]:
    """Where subtrees go side by side; those with room to spare stand in the middle of it."""
    count = len(parts)
    gap = {(i, j): _gap(parts[i], parts[j]) for j in range(count) for i in range(j)}
    first = [0.0] * count
    for j in range(1, count):
        first[j] = max(first[i] + gap[i, j] for i in range(j))
    last = [first[-1]] * count
    for i in reversed(range(count - 1)):
        last[i] = min(last[j] - gap[i, j] for j in range(i + 1, count))
    return [(a + b) / 2 for a, b in zip(first, last, strict=True)]


def _gap(one: Columns, other: Columns) -> float:
    """How far to the right of a subtree another one must begin, to overlap it on no level."""
    places = [[(level, column) for (level, _), column in part.items()] for part in (one, other)]
    right, left = dict(sorted(places[0])), dict(sorted(places[1], reverse=True))  # the last counts
    return 1 + max(right[level] - left[level] for level in right.keys() & left.keys())


def _ends(columns: Columns, branching: Sequence[int]) -> set[tuple[int, int]]:
    """The nodes below which nothing is drawn."""
    parents = {(level - 1, node // branching[level - 1]) for level, node in columns if level}
    return columns.keys() - parents


class _Plan:
    """Where things go inside one row of the figure."""

    def __init__(
        self, trees: Tree, columns: Sequence[Columns], sides: int, has_names: bool
    ) -> None:
        self.branching = trees.branching
        levels = [{level for level, _ in _ends(c, trees.branching)} for c in columns]
        self.depth = max(map(max, levels))  # of what is drawn
        self.is_numbered = any(len(ends) > 1 for ends in levels)
        slots = max(1 + max(c.values()) - min(c.values()) for c in columns)  # of the widest tree
        self.gap = 0.14 if slots <= 27 else 0.08  # between neighbours
        width = min(max(16 / slots - self.gap, 0.38), 0.85)
        step = width + self.gap
        aspect = min(max(trees.shape[1] / trees.shape[2], 0.25), 4.0)
        self.image = width, width * aspect
        self.margin = MARGIN + (NUMBER if self.is_numbered else 0.0)  # right of the levels' numbers
        free = min(c[0, 0] - min(c.values()) for c in columns) * step + self.gap / 2
        shift = max(0.0, sides * step + 0.3 - free) if sides else 0.0  # the truth and the input
        self.left = self.margin + shift
        self.heading = HEADING if has_names else 0.0
        self.pitch = self.image[1] + LABEL + FORK  # between levels
        self.width = self.left + slots * step - self.gap + MARGIN
        self.height = self.top(self.depth) + self.image[1] + 2 * MARGIN

    def top(self, level: int) -> float:
        """Upper edge of the images of a level, below their probabilities."""
        return self.heading + LABEL + level * self.pitch


class _Sheet:
    """One row of the figure: draws one tree according to the plan."""

    def __init__(
        self, figure: Figure, canvas: Axes, plan: _Plan, tree: Tree, columns: Columns,
        offset: float, row: int, box: Sequence[int] | None, path: list[int] | None,
    ) -> None:  # fmt: skip
        self.figure, self.canvas, self.plan, self.tree = figure, canvas, plan, tree
        self.offset, self.row, self.box, self.path = offset, row, box, path
        step, start = plan.image[0] + plan.gap, min(columns.values())
        first = plan.left + plan.image[0] / 2
        self.middles = {p: first + step * (column - start) for p, column in columns.items()}
        self.ends = _ends(columns, plan.branching)

    def number_levels(self) -> None:
        """At the left, where branches end on several levels."""
        for level in range(1, 1 + max(self.middles)[0]) if self.plan.is_numbered else ():
            middle = self.offset + self.plan.top(level) + self.plan.image[1] / 2
            look: dict[str, Any] = {"ha": "left", "color": FAINT, "rotation": 90, "va": "center"}
            _write(self.canvas, MARGIN, middle, f"level {level}", **look)

    def draw_sides(self, known: Sequence[tuple[str, Tensor]]) -> None:
        """The truth and the measurement, at the left of the root."""
        width = self.plan.image[0]
        for number, (label, image) in enumerate(known):
            left = self.plan.margin + number * (width + self.plan.gap)
            top = self.offset + self.plan.top(0)
            _write(self.canvas, left + width / 2, top - 0.05, label)
            pixels = visible(image, f"{label} of image {self.row}", "a figure")
            self._place(left, top, pixels, INK, 0.5)

    def draw_nodes(self) -> None:
        tree, (width, height) = self.tree, self.plan.image
        paths = [tree.paths(level) for level in range(self.plan.depth + 1)]
        for level, node in sorted(self.middles):
            log_prob = tree.log_probs[level][0, node].item()
            middle, top = self.middles[level, node], self.offset + self.plan.top(level)
            left = middle - width / 2
            if log_prob == -np.inf:
                _frame(self.canvas, left, top, width, height, color=FAINT, ls=DASHED)
                continue
            what = f"node {paths[level][node]} of image {self.row}"
            if np.isnan(log_prob):
                raise InputError(f"{what} has probability NaN; probabilities must be numbers")
            is_end = self.plan.is_numbered and (level, node) in self.ends
            text = f"{np.exp(log_prob):.2f}" if level else "Mean"
            _write(self.canvas, middle, top - 0.05, text, weight="bold" if is_end else "normal")
            color, line = (HIGHLIGHT, 1.8) if self._is_on_path(level, node) else (INK, 0.5)
            image = visible(tree.images[level][0, node], what, "a figure")
            self._place(left, top, image, color, line)

    def draw_edges(self) -> None:
        """Forked edges: one stem down from each parent, then a branch to each child."""
        for level, node in sorted(self.middles)[1:]:
            k = self.plan.branching[level - 1]
            below = self.offset + self.plan.top(level - 1) + self.plan.image[1]
            fork, above = below + 0.45 * FORK, below + FORK - 0.02
            parent = level - 1, node // k
            start, end = self.middles[parent], self.middles[level, node]
            if node % k == 0:
                self.canvas.plot([start, start], [below, fork], **self._line(*parent))
            self.canvas.plot([start, end, end], [fork, fork, above], **self._line(level, node))

    def _is_on_path(self, level: int, node: int) -> bool:
        return self.path is not None and self.path[level] == node

    def _line(self, level: int, node: int) -> dict[str, Any]:
        """How the edge of a node is drawn; the highlighted one on top."""
        prob = self.tree.log_probs[level][0, node].exp().item()
        line: dict[str, Any] = {"color": INK, "linewidth": 0.6 + 4.4 * prob, "zorder": 2}
        if self._is_on_path(level, node):
            line |= {"color": HIGHLIGHT, "zorder": 3}
        if prob == 0 and bool(self.tree.is_absent(level)[0, node]):
            line |= {"color": FAINT, "linestyle": DASHED, "zorder": 1}
        return line | {"solid_joinstyle": "miter", "solid_capstyle": "butt"}

    def _place(self, left: float, top: float, image: np.ndarray, color: str, line: float) -> None:
        """An image in axes of its own: vector formats then keep its full resolution."""
        total_width, total_height = self.figure.get_size_inches()
        width, height = self.plan.image
        bottom = 1 - (top + height) / total_height
        place = (left / total_width, bottom, width / total_width, height / total_height)
        axes = self.figure.add_axes(place, xticks=[], yticks=[])
        interpolation = "antialiased" if max(image.shape[:2]) > SMALL_IMAGE else "nearest"
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation=interpolation, aspect="auto")
        axes.spines[:].set(color=color, linewidth=line)
        if self.box is not None:
            up, across, tall, wide = self.box
            _frame(axes, across - 0.5, up - 0.5, wide, tall, color=ASKED)


def _frame(axes: Axes, left: float, top: float, *size: float | int, color: str, **how: Any) -> None:
    axes.add_patch(Rectangle((left, top), *size, fill=False, edgecolor=color, linewidth=0.8, **how))


def _write(
    canvas: Axes, across: float, down: float, text: str, size: float = 8.0, **how: Any
) -> None:
    look: dict[str, Any] = {"ha": "center", "va": "bottom", "color": INK, "parse_math": False}
    canvas.text(across, down, text, fontsize=size, **(look | how))


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
