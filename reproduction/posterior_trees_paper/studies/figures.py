"""The figure of a study: panels with its numbers above, and below them rows of pictures, each the
truth, the measurement, the root and all leaves of one variant's tree of the same image."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from torch import Tensor

from posterior_trees.tree import Tree

INK, FAINT = "#333333", "#aaaaaa"
COLORS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#555555",
    "#a50f15", "#7a3d00", "#54278f", "#006d2c", "#f768a1", "#252525", "#9e9ac8", "#74c476",
)  # fmt: skip
PANEL, PICTURE, LABEL, ACROSS, DPI = 2.6, (0.6, 1.1), 2.0, 4, 110
"""Inches: height of a panel, least and largest width of a picture, space for a strip's name."""

Panel = Callable[[Axes], None]
Numbers = Sequence[float | int]


class Strip(NamedTuple):
    """The tree of one image, with its truth and its measurement."""

    label: str
    tree: Tree
    x: Float[Tensor, "1 c h w"]
    y: Float[Tensor, "1 c h w"]


def save_study(file: Path, panels: Sequence[Panel], strips: Sequence[Strip] = ()) -> None:
    """Draw panels, a few in a row, over strips of pictures."""
    rows = -(-len(panels) // ACROSS)
    columns = 3 + max((strip.tree.leaves.shape[1] for strip in strips), default=0)
    wide = max(PANEL * 1.25 * min(ACROSS, max(len(panels), 1)), PICTURE[0] * columns + LABEL)
    side = min((wide - LABEL) / columns, PICTURE[1])
    heights = [max(PANEL * rows, 0.01), max((side + 0.2) * len(strips), 0.01)]
    figure = Figure(figsize=(wide, sum(heights)), facecolor="white")
    parts: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = parts
    if panels:
        grid = above.subplots(rows, min(ACROSS, len(panels)), squeeze=False)
        above.subplots_adjust(0.07, 0.2 / rows, 0.98, 1 - 0.12 / rows, wspace=0.32, hspace=0.5)
        for axes, panel in zip(grid.flat, panels, strict=False):
            panel(axes)
            _finish(axes)
        for axes in grid.flat[len(panels) :]:
            axes.axis("off")
    draw_strips(below, strips, columns, LABEL / wide)
    _save(figure, file)


def draw_strips(
    figure: Figure | SubFigure, strips: Sequence[Strip], columns: int, left: float
) -> None:
    """Rows of pictures; the names of the strips take the share `left` of the width."""
    if not strips:
        return
    grid = figure.add_gridspec(
        len(strips), columns, left=left, right=0.99, bottom=0.01, top=0.97, wspace=0.06, hspace=0.2
    )
    for row, strip in enumerate(strips):
        probs = [f"{p:.2f}" for p in strip.tree.probs[-1][0].tolist()]
        pictures = [strip.x[0], strip.y[0], strip.tree.root[0], *strip.tree.leaves[0]]
        titles = ["Truth", "Input", "Mean", *probs]
        for column, (title, picture) in enumerate(zip(titles, pictures, strict=True)):
            axes = figure.add_subplot(grid[row, column], xticks=[], yticks=[])
            axes.imshow(_pixels(picture), cmap="gray", vmin=0, vmax=1)
            axes.spines[:].set(color=INK, linewidth=0.5)
            axes.set_title(title, fontsize=7, color=INK, pad=2)
            if column == 0:
                label = axes.set_ylabel(strip.label, fontsize=8, color=INK)
                label.set(rotation=0, ha="right", va="center")


def leaf_lines(
    title: str, lines: Sequence[dict[str, Any]], key: str, heading: str, limits: tuple[float, float]
) -> Panel:
    """A line per leaf over the epochs, of a list in every line of a log; leaves that end above the
    limits are counted in the corner."""

    def draw(axes: Axes) -> None:
        epochs = [line["epoch"] for line in lines]
        for leaf in range(len(lines[0][key])):
            values = [line[key][leaf] for line in lines]
            axes.plot(epochs, values, color=COLORS[leaf % len(COLORS)], linewidth=1)
        above = [value for value in lines[-1][key] if value > limits[1]]
        if above:
            count = f"{len(above)} of {len(lines[-1][key])} leaves end above:"
            place: Any = {"transform": axes.transAxes, "ha": "right", "va": "top"}
            text = f"{count}\n{min(above):.2f} to {max(above):.2f}"
            axes.text(0.98, 0.95, text, **place, fontsize=7, color=INK)
        axes.set(xlabel="epoch", ylabel=heading, ylim=limits)
        axes.set_title(title, fontsize=9, color=INK)

    return draw


def leaf_shares(title: str, log: Sequence[dict[str, Any]]) -> Panel:
    """How the images of each epoch were shared among the leaves, stacked to 1."""

    def draw(axes: Axes) -> None:
        epochs = [line["epoch"] for line in log]
        shares = torch.tensor([line["leaf_usage"] for line in log]).T.numpy()
        axes.stackplot(epochs, shares, colors=COLORS, linewidth=0)
        axes.set(xlabel="epoch", ylabel="share of the images")
        axes.set(xlim=(min(epochs), max(epochs)), ylim=(0, 1))
        axes.set_title(title, fontsize=9, color=INK)

    return draw


def curves(
    title: str,
    xlabel: str,
    ylabel: str,
    values: Mapping[str, tuple[Numbers, Numbers]],
    *,
    first: int = 0,
    has_names: bool = True,
) -> Panel:
    """A line for each pair of coordinates, in the colours from number `first` on."""

    def draw(axes: Axes) -> None:
        for number, (name, (across, up)) in enumerate(values.items(), first):
            color = COLORS[number % len(COLORS)]
            axes.plot(across, up, ".-", color=color, linewidth=1.2, label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.set_title(title, fontsize=9, color=INK)
        if has_names:
            axes.legend(frameon=False, fontsize=6.5)

    return draw


def bars(title: str, values: dict[str, float], reference: dict[str, float] | None = None) -> Panel:
    """A bar under each name; `reference` puts a mark on it."""

    def draw(axes: Axes) -> None:
        places = range(len(values))
        axes.barh(places, list(values.values()), color=COLORS[: len(values)], height=0.4)
        axes.locator_params(axis="x", nbins=5)  # more would run into each other
        if reference:
            axes.plot(list(reference.values()), places, "|", color=INK, markersize=12)
        for place, name in zip(places, values, strict=True):
            axes.text(0, place - 0.28, f" {name}", fontsize=7, color=INK)
        axes.set(yticks=[], ylim=(len(values) - 0.6, -0.75))
        axes.set_title(title, fontsize=9, color=INK)

    return draw


def points(title: str, one: str, other: str, a: Tensor, b: Tensor) -> Panel:
    """Two runs' values of the same images against each other."""

    def draw(axes: Axes) -> None:
        axes.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
        axes.scatter(a.numpy(), b.numpy(), 2, COLORS[0], alpha=0.25, linewidths=0, rasterized=True)
        axes.set(xlabel=one, ylabel=other, xlim=(0, 1), ylim=(0, 1))
        axes.set_title(title, fontsize=9, color=INK)

    return draw


def _save(figure: Figure, file: Path) -> None:
    """As a PNG of 256 colours: photos take a quarter of the space and look the same."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    Image.open(content).convert("RGB").quantize(256, kmeans=2).save(file, "PNG", optimize=True)


def _finish(axes: Axes) -> None:
    if axes.get_xlabel() in ("epoch", "depth", "looks"):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.tick_params(labelsize=7, colors=INK)
    axes.spines[["right", "top"]].set_visible(False)
    axes.xaxis.label.set(fontsize=8, color=INK)
    axes.yaxis.label.set(fontsize=8, color=INK)


def _pixels(image: Float[Tensor, "c h w"]):
    values = image.detach().cpu().float().clamp(0, 1).numpy()
    return values[0] if len(values) == 1 else values.transpose(1, 2, 0)
