"""Flat and hierarchical clusters from several seeds, after the paper's "Resilience to
initialization": the posterior as a red heat map, cells, leaves and root as in `toy_figure.py`, and
at the right the objective of every seed."""

from pathlib import Path

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from posterior_trees.tree import Tree
from posterior_trees_paper.toy.figure import (
    INK,
    NODES,
    POINT,
    Scene,
    draw_posterior,
    match_siblings,
    sort_siblings,
)

COLUMNS = 4
TITLES = {"flat": "Flat K-means, K = 4", "hierarchical": "Hierarchical K-means, K = 2, d = 2"}


def save(file: Path, samples: Float[Tensor, "s d"], trees: dict[str, Tree]) -> None:
    """Draw the first seeds of both methods."""
    figure = Figure(figsize=(12.6, 5.6))
    frame = {"left": 0.035, "right": 0.955, "bottom": 0.08, "top": 0.93}
    widths = (1,) * COLUMNS + (1.05,)
    grid = figure.add_gridspec(
        2, COLUMNS + 1, width_ratios=widths, wspace=0.06, hspace=0.05, **frame
    )
    y, order = torch.tensor([POINT]), sort_siblings(trees["hierarchical"][0])
    for row, (name, tree) in enumerate(trees.items()):
        scene = Scene(y, samples[None], tree, tree, tree)
        for column in range(min(COLUMNS, len(tree))):
            axes = figure.add_subplot(grid[row, column])
            one = match_siblings(tree[column], order)
            draw_posterior(axes, scene, one, with_probabilities=True)
            if row == 0:
                axes.set_title(f"seed {column}", fontsize=10, color=INK)
            if column == 0:
                axes.set_ylabel(TITLES[name], fontsize=10, color=INK)
    _draw_objectives(figure.add_subplot(grid[:, COLUMNS]), samples, trees)
    figure.savefig(file, dpi=150)


def _draw_objectives(axes: Axes, samples: Tensor, trees: dict[str, Tree]) -> None:
    """The objective of every seed, sorted: where the line is flat the seed does not matter."""
    for (name, tree), color in zip(trees.items(), reversed(NODES), strict=True):
        values = sorted(assign(one, samples)[0] for one in tree)
        seeds = range(1, len(values) + 1)
        axes.plot(seeds, values, "o-", color=color, markersize=4, linewidth=1, label=name)
    axes.set_title("objective J of every seed, sorted", fontsize=10, color=INK)
    axes.set_xlabel("seeds", fontsize=9, color=INK)
    axes.yaxis.tick_right()
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["left", "top"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="center left")


def assign(tree: Tree, samples: Float[Tensor, "s d"]) -> tuple[float, Int[Tensor, "s"]]:
    """Mean squared error of the leaves that samples descend to, and the number of each's leaf."""
    many = tree[torch.zeros(len(samples), dtype=torch.long)]
    errors = many.errors(samples)
    leaf = many.follow(many.winners(errors))[:, -1:]
    return errors[-1].gather(1, leaf).mean().item(), leaf[:, 0]
