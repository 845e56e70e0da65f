r"""The toy example as pictures, after the paper's Fig. 3 and "Additional test points".

The posterior of one measurement $y_t$ is a red heat map. Over it lie the cells into which a tree
divides the plane (the $x$ that descend to a node; dashed lines are their borders), the nodes, and
two stars that should coincide: the root of the tree and the analytic posterior mean. A small tree
below gives the probabilities of the cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patheffects import withStroke
from torch import Tensor

from posterior_trees.baselines.cluster import hierarchical_kmeans
from posterior_trees.networks.mlp import TreeMLP
from posterior_trees.toys import GaussianMixture
from posterior_trees.tree import Tree, grow

POINT = (-2.0, 4.5)
MORE_POINTS = ((-4.5, 1.0), (0.0, 3.0), (3.5, 3.0))
SAMPLES, PAIRS, SEED = 10_000, 70, 7
WINDOW = (-9.5, 4.5), (-4.9, 9.1)
SIDE = 281
INK, FAINT, RED = "#22262e", "#9aa0a8", "#c1272d"
NODES = "#0072b2", "#b35900"
LEAVES = "#004a7c", "#56b4e9", "#7a3d00", "#e69f00"
PRIOR = LinearSegmentedColormap.from_list("prior", ["#ffffff", "#c6dbef", "#6baed6", "#2171b5"])
POSTERIOR = LinearSegmentedColormap.from_list(
    "posterior", ["#ffffff", "#fde3de", "#f7aca1", "#e0605a", "#b5242a"]
)
HALO = [withStroke(linewidth=2.2, foreground="white")]


@dataclass(frozen=True)
class Scene:
    """One measurement, its posterior, and three trees of it."""

    mixture: GaussianMixture
    sigma: float
    y: Float[Tensor, "1 d"]
    samples: Float[Tensor, "1 s d"]
    flat: Tree
    clustered: Tree
    predicted: Tree

    @classmethod
    @torch.no_grad()
    def at(cls, y: Sequence[float], mixture: GaussianMixture, sigma: float, network: TreeMLP):
        generator = torch.Generator().manual_seed(SEED)
        point = torch.tensor([y])
        samples = mixture.sample_posterior(point, sigma, SAMPLES, generator)
        leaves = network(point)
        clustered = _in_order(hierarchical_kmeans(samples, 2, 2, generator=generator))
        flat = hierarchical_kmeans(samples, 4, 1, generator=generator)
        predicted = grow(leaves.images, leaves.log_probs, 2)
        flat, predicted = _like(flat, clustered), _like(predicted, clustered)
        return cls(mixture, sigma, point, samples, flat, clustered, predicted)


def save(out: Path, mixture: GaussianMixture, sigma: float, network: TreeMLP) -> None:
    """Write `toy.png`, the paper's figure, and `toy_more.png`, further measurements."""
    draw(Scene.at(POINT, mixture, sigma, network)).savefig(out / "toy.png", dpi=220)
    scenes = [Scene.at(point, mixture, sigma, network) for point in MORE_POINTS]
    draw_more(scenes).savefig(out / "toy_more.png", dpi=200)


def draw(scene: Scene) -> Figure:
    """Task, flat K-means, hierarchical K-means and the predicted tree, side by side."""
    figure = Figure(figsize=(12.6, 4.55))
    grid = GridSpec(
        2, 4, figure, 0.012, 0.015, 0.988, 0.925, wspace=0.05, hspace=0.04, height_ratios=(3.05, 1.0)
    )
    task = figure.add_subplot(grid[0, 0])
    _draw_task(task, scene)
    _caption(task, "a", "Denoising task")
    _draw_legend(figure.add_subplot(grid[1, 0]))
    panels = {
        "Flat K-means, K = 4": scene.flat,
        "Hierarchical K-means": scene.clustered,
        "Posterior tree (ours)": scene.predicted,
    }
    for column, (title, tree) in enumerate(panels.items(), start=1):
        plane = figure.add_subplot(grid[0, column])
        _draw_posterior(plane, scene, tree)
        _caption(plane, "abcd"[column], title)
        _draw_tree(figure.add_subplot(grid[1, column]), tree)
    return figure


def draw_more(scenes: Sequence[Scene]) -> Figure:
    """One row per measurement: the three trees, and the samples coloured by the cells of each."""
    figure = Figure(figsize=(11.4, 3.35 * len(scenes) + 0.3))
    top = 1 - 0.32 / figure.get_figheight()
    grid = GridSpec(
        len(scenes), 4, figure, 0.01, 0.01, 0.99, top, 0.04, 0.04, width_ratios=(3, 3, 3, 1)
    )
    titles = "Flat K-means, K = 4", "Hierarchical K-means", "Posterior tree (ours)"
    for row, scene in enumerate(scenes):
        clusters = grid[row, 3].subgridspec(3, 1, hspace=0.06)
        trees = scene.flat, scene.clustered, scene.predicted
        for column, (tree, title) in enumerate(zip(trees, titles, strict=True)):
            plane = figure.add_subplot(grid[row, column])
            _draw_posterior(plane, scene, tree, with_probabilities=True)
            small = figure.add_subplot(clusters[column])
            _draw_clusters(small, scene, tree)
            if row == 0:
                _caption(plane, "abc"[column], title)
            if row == column == 0:
                _caption(small, "d", "Clusters")
    return figure


def _in_order(tree: Tree) -> Tree:
    """The same tree with siblings from left to right, so that pictures do not depend on seeds."""
    return min(_reorderings(tree), key=lambda t: (t.images[1][0, 0, 0].item(), t.leaves[0, ::2, 0].sum().item()))


def _like(tree: Tree, other: Tree) -> Tree:
    """The same tree with siblings in the order that puts its leaves nearest to those of another."""
    return min(
        _reorderings(tree), key=lambda t: (t.leaves - other.leaves).square().sum().item()
    )


def _reorderings(tree: Tree) -> list[Tree]:
    """All trees that differ from this one by the order of siblings only (two levels at most)."""
    first, *rest = [list(permutations(range(k))) for k in tree.branching]
    orders = []
    for outer in first:
        for inner in product(*(rest[0] for _ in outer)) if rest else [[(0,)] * len(outer)]:
            orders.append([n * len(inner[n]) + m for n in outer for m in inner[n]])
    return [grow(tree.leaves[:, o], tree.log_probs[-1][:, o], tree.branching) for o in orders]


def _caption(axes: Axes, letter: str, title: str) -> None:
    axes.set_title(f"({letter}) {title}", fontsize=10.5, color=INK, pad=6)


def _plane(axes: Axes) -> Float[Tensor, "v u d"]:
    """Prepare axes for the plane and return its pixels."""
    axes.set(xlim=WINDOW[0], ylim=WINDOW[1], xticks=[], yticks=[], aspect="equal")
    for spine in axes.spines.values():
        spine.set(color=FAINT, linewidth=0.7)
    u, v = (torch.linspace(low, high, SIDE) for low, high in WINDOW)
    return torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=2)


def _heat(axes: Axes, density: Tensor, colors: LinearSegmentedColormap) -> None:
    # The square root lets weak modes show.
    extent = (*WINDOW[0], *WINDOW[1])
    axes.imshow(
        density.sqrt().numpy(), cmap=colors, origin="lower", extent=extent, interpolation="bilinear"
    )


def _draw_task(axes: Axes, scene: Scene) -> None:
    pixels = _plane(axes)
    _heat(axes, scene.mixture.log_prob(pixels).exp(), PRIOR)
    generator = torch.Generator().manual_seed(SEED)
    x = scene.mixture.sample(PAIRS, generator)
    y = x + scene.sigma * torch.randn(x.shape, generator=generator)
    axes.plot(*torch.stack([x, y]).permute(2, 0, 1).numpy(), color=FAINT, linewidth=0.5, zorder=2)
    axes.scatter(*y.T.numpy(), 13, "white", edgecolors=INK, linewidths=0.7, zorder=3)
    axes.scatter(*x.T.numpy(), 13, "#08306b", linewidths=0, zorder=4)


def _draw_posterior(axes: Axes, scene: Scene, tree: Tree, with_probabilities: bool = False) -> None:
    pixels = _plane(axes)
    density = scene.mixture.posterior_log_prob(pixels.reshape(1, -1, 2), scene.y, scene.sigma).exp()
    _heat(axes, density.reshape(SIDE, SIDE), POSTERIOR)
    _draw_borders(axes, tree, pixels)
    if tree.depth > 1:
        for node, color in zip(tree.images[1][0], NODES, strict=True):
            axes.scatter(*node, 62, color, "^", edgecolors="white", linewidths=0.9, zorder=4)
    for leaf, color in zip(tree.leaves[0], LEAVES, strict=True):
        axes.scatter(*leaf, 46, color, "o", edgecolors="white", linewidths=0.9, zorder=5)
    mean = scene.mixture.posterior_mean(scene.y, scene.sigma)[0]
    axes.scatter(*tree.root[0], 150, INK, "*", edgecolors="white", linewidths=0.9, zorder=6)
    axes.scatter(*mean, 42, RED, "*", edgecolors="white", linewidths=0.5, zorder=7)
    axes.scatter(*scene.y[0], 46, "none", "o", edgecolors=RED, linewidths=1.6, zorder=6)
    if with_probabilities:
        for leaf, p in zip(tree.leaves[0], tree.probs[-1][0], strict=True):
            axes.annotate(
                f"{p:.2f}", leaf.tolist(), (0, 7), textcoords="offset points", ha="center",
                fontsize=8, color=INK, path_effects=HALO, zorder=8,
            )  # fmt: skip


def _draw_borders(axes: Axes, tree: Tree, pixels: Tensor) -> None:
    """Dashed lines where the plane falls apart into the cells of each level."""
    points = pixels.reshape(-1, 2)
    path = tree[torch.zeros(len(points), dtype=torch.long)].descend(points)
    u, v = pixels[0, :, 0].numpy(), pixels[:, 0, 1].numpy()
    for level in range(tree.depth, 0, -1):
        parent, cell = path[:, level - 1], path[:, level]
        for number in parent.unique():
            inside = (parent == number).reshape(SIDE, SIDE)
            for child in cell[parent == number].unique()[:-1]:
                is_child = (cell == child).float().reshape(SIDE, SIDE)
                is_child[~inside] = torch.nan
                color = INK if level == 1 else NODES[int(number)]
                axes.contour(
                    u, v, is_child.numpy(), levels=[0.5], colors=[color],
                    linestyles=[(0, (4, 2.5))], linewidths=1.5 if level == 1 else 1.2, zorder=3,
                )  # fmt: skip


def _draw_clusters(axes: Axes, scene: Scene, tree: Tree) -> None:
    _plane(axes)
    points = scene.samples[0]
    leaf = tree[torch.zeros(len(points), dtype=torch.long)].descend(points)[:, -1]
    for number, color in enumerate(LEAVES):
        axes.scatter(*points[leaf == number].T, 1.2, color, linewidths=0, rasterized=True)


def _draw_tree(axes: Axes, tree: Tree) -> None:
    """The layout with its probabilities; an edge is as wide as its node is likely."""
    axes.set(xlim=(-0.62, 3.62), ylim=(-0.42, 2.25))
    axes.axis("off")
    centers = [torch.tensor([1.5]), torch.arange(4.0)]
    heights = [1.85, 0.25]
    colors: list[Sequence[str]] = [(INK,), LEAVES]
    if tree.depth == 2:
        centers.insert(1, torch.tensor([0.5, 2.5]))
        heights.insert(1, 1.1)
        colors.insert(1, NODES)
    for level in range(tree.depth, -1, -1):
        marker, size = {0: ("*", 150), tree.depth: ("o", 46)}.get(level, ("^", 62))
        for number, p in enumerate(tree.probs[level][0].tolist()):
            u, v, color = centers[level][number].item(), heights[level], colors[level][number]
            if level:
                above = centers[level - 1][number // tree.branching[level - 1]].item()
                axes.plot(
                    [above, u], [heights[level - 1], v], color=color, zorder=1,
                    linewidth=0.7 + 5 * p, solid_capstyle="round", alpha=0.55,
                )  # fmt: skip
            axes.scatter(u, v, size, color, marker, edgecolors="white", linewidths=0.9, zorder=3)
            side = 0 if level == tree.depth else (-1 if u < 1.5 else 1)
            axes.annotate(
                f"{p:.2f}", (u, v), (10 * side, -6 if side == 0 else 2), textcoords="offset points",
                ha={-1: "right", 0: "center", 1: "left"}[side], va="top" if side == 0 else "center",
                fontsize=9, color=INK, path_effects=HALO, zorder=4,
            )  # fmt: skip


def _draw_legend(axes: Axes) -> None:
    """What the marks of all panels mean."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    marks = [
        ("clean points x", {"color": "#08306b", "marker": "o", "s": 18}),
        ("their measurements y", {"color": "white", "marker": "o", "s": 18, "edgecolors": INK}),
        ("measurement $y_t$ of (b–d)", {"color": "none", "marker": "o", "s": 46, "edgecolors": RED}),
        ("root, predicted mean", {"color": INK, "marker": "*", "s": 120}),
        ("analytic posterior mean", {"color": RED, "marker": "*", "s": 60}),
        ("nodes of level 1", {"color": NODES[0], "marker": "^", "s": 50}),
        ("leaves", {"color": LEAVES[1], "marker": "o", "s": 40}),
    ]
    for row, (label, mark) in enumerate(marks):
        height = 0.93 - row * 0.143
        axes.scatter(0.14, height, **mark)
        axes.annotate(label, (0.21, height), va="center", fontsize=9, color=INK)
