r"""The toy example as pictures, after the paper's Fig. 3 and "Additional test points".

The posterior of one measurement $y_t$ is a red heat map. Over it lie the cells into which a tree
divides the plane (the $x$ that descend to a node; dashed lines are their borders), the nodes, and
two stars that should coincide: the root of the tree and the analytic posterior mean. A small tree
below gives the probabilities of the cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from torch import Tensor

from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.tree import Tree, grow
from posterior_trees_paper.toy.network import MIXTURE, SIGMA, TreeMLP

POINT = (-3.5, 4.5)
MORE_POINTS = ((-1.0, 0.0), (0.0, 3.3), (2.0, 5.4))
SAMPLES, PAIRS, SEED = 10_000, 70, 7
WINDOW = (-9.5, 4.5), (-4.9, 9.1)
SIDE = 281
TITLES = "Flat K-means, K = 4", "Hierarchical K-means", "Posterior tree (ours)"
INK, FAINT, RED, DEEP = "#22262e", "#9aa0a8", "#c1272d", "#08306b"
NODES = "#0072b2", "#b35900"
LEAVES = "#004a7c", "#56b4e9", "#7a3d00", "#e69f00"
PRIOR = LinearSegmentedColormap.from_list("prior", ["#ffffff", "#c6dbef", "#6baed6", "#2171b5"])
POSTERIOR = LinearSegmentedColormap.from_list(
    "posterior", ["#ffffff", "#fde3de", "#f7aca1", "#e0605a", "#b5242a"]
)
PLACES: dict[str, Any] = {
    "below": {"xytext": (0, -6), "ha": "center", "va": "top"},
    "left": {"xytext": (-10, 2), "ha": "right", "va": "center"},
    "right": {"xytext": (10, 2), "ha": "left", "va": "center"},
}
HALO = [withStroke(linewidth=2.2, foreground="white")]


@dataclass(frozen=True)
class Scene:
    """One measurement, its posterior, and the trees of `TITLES`."""

    y: Float[Tensor, "1 d"]
    samples: Float[Tensor, "1 s d"]
    trees: tuple[Tree, ...] = ()

    @classmethod
    @torch.no_grad()
    def at(cls, y: Sequence[float], network: TreeMLP) -> "Scene":
        generator = torch.Generator().manual_seed(SEED)
        point = torch.tensor([y])
        samples = MIXTURE.sample_posterior(point, SIGMA, SAMPLES, generator)
        clustered = sort_siblings(hierarchical_kmeans(samples, 2, 2, generator=generator))
        flat = hierarchical_kmeans(samples, 4, 1, generator=generator)
        predicted = grow(*network(point), 2)
        flat, predicted = match_siblings(flat, clustered), match_siblings(predicted, clustered)
        return cls(point, samples, (flat, clustered, predicted))


def save(out: Path, network: TreeMLP) -> None:
    """Write `toy.png`, the paper's figure, and `toy_more.png`, further measurements."""
    draw(Scene.at(POINT, network)).savefig(out / "toy.png", dpi=220)
    scenes = [Scene.at(point, network) for point in MORE_POINTS]
    draw_more(scenes).savefig(out / "toy_more.png", dpi=200)


def draw(scene: Scene) -> Figure:
    """Task, flat K-means, hierarchical K-means and the predicted tree, side by side."""
    figure = Figure(figsize=(12.6, 4.55))
    frame = {"left": 0.012, "right": 0.988, "bottom": 0.015, "top": 0.925}
    grid = figure.add_gridspec(2, 4, height_ratios=(3, 1), wspace=0.05, hspace=0.04, **frame)
    task = figure.add_subplot(grid[0, 0])
    _draw_task(task, scene)
    _caption(task, "a", "Denoising task")
    _draw_legend(figure.add_subplot(grid[1, 0]))
    for column, (title, tree) in enumerate(zip(TITLES, scene.trees, strict=True), start=1):
        plane = figure.add_subplot(grid[0, column])
        draw_posterior(plane, scene, tree)
        _caption(plane, "abcd"[column], title)
        _draw_tree(figure.add_subplot(grid[1, column]), tree)
    return figure


def draw_more(scenes: Sequence[Scene]) -> Figure:
    """One row per measurement: the three trees, and the samples coloured by the cells of each."""
    figure = Figure(figsize=(11.4, 3.35 * len(scenes) + 0.3))
    top = 1 - 0.32 / figure.get_figheight()
    frame = {"left": 0.01, "right": 0.99, "bottom": 0.01, "top": top}
    columns = {"width_ratios": (3, 3, 3, 1), "wspace": 0.04, "hspace": 0.04}
    grid = figure.add_gridspec(len(scenes), 4, **columns, **frame)
    for row, scene in enumerate(scenes):
        clusters = grid[row, 3].subgridspec(3, 1, hspace=0.06)
        for column, (tree, title) in enumerate(zip(scene.trees, TITLES, strict=True)):
            plane = figure.add_subplot(grid[row, column])
            draw_posterior(plane, scene, tree, with_probabilities=True)
            small = figure.add_subplot(clusters[column])
            _draw_clusters(small, scene, tree, ("flat", "hier.", "ours")[column])
            if row == 0:
                _caption(plane, "abc"[column], title)
            if row == column == 0:
                _caption(small, "d", "Clusters")
    return figure


def sort_siblings(tree: Tree) -> Tree:
    """The same tree with siblings from left to right, so that pictures do not depend on seeds."""

    def first_siblings(t: Tree) -> list[float]:
        return [round(level[0, ::2, 0].sum().item(), 3) for level in t.images[1:]]

    return min(_reorderings(tree), key=first_siblings)


def match_siblings(tree: Tree, other: Tree) -> Tree:
    """The same tree with siblings in the order that brings its leaves nearest to another's."""
    return min(_reorderings(tree), key=lambda t: (t.leaves - other.leaves).square().sum().item())


def _reorderings(tree: Tree) -> list[Tree]:
    """All trees that differ from this one, of one or two levels, by the order of siblings only."""
    index = {path: number for number, path in enumerate(tree.paths(tree.depth))}
    first, *second = tree.branching
    orders = []
    for outer in permutations(range(first)):
        for inner in product(*[permutations(range(k)) for k in second for _ in outer]):
            paths = [(i, j) for i, js in zip(outer, inner, strict=False) for j in js]
            orders.append([index[path] for path in paths or [(i,) for i in outer]])
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
    _heat(axes, MIXTURE.log_prob(pixels).exp(), PRIOR)
    generator = torch.Generator().manual_seed(SEED)
    x = MIXTURE.sample(PAIRS, generator)
    y = x + SIGMA * torch.randn(x.shape, generator=generator)
    axes.plot(*torch.stack([x, y]).permute(2, 0, 1).numpy(), color=FAINT, linewidth=0.5, zorder=2)
    axes.scatter(*y.T.numpy(), 13, "white", edgecolors=INK, linewidths=0.7, zorder=3)
    axes.scatter(*x.T.numpy(), 13, DEEP, linewidths=0, zorder=4)


def draw_posterior(axes: Axes, scene: Scene, tree: Tree, with_probabilities: bool = False) -> None:
    """The posterior, and over it the cells, nodes and leaves of a tree, its root, the analytic mean
    and the measurement."""
    pixels = _plane(axes)
    density = MIXTURE.posterior_log_prob(pixels.reshape(1, -1, 2), scene.y, SIGMA).exp()
    _heat(axes, density.reshape(SIDE, SIDE), POSTERIOR)
    _draw_borders(axes, tree, pixels)
    if tree.depth > 1:
        for node, color in zip(tree.images[1][0], NODES, strict=True):
            axes.scatter(*node, 62, color, marker="^", edgecolors="white", linewidths=0.9, zorder=4)
    for leaf, color in zip(tree.leaves[0], LEAVES, strict=True):
        axes.scatter(*leaf, 46, color, edgecolors="white", linewidths=0.9, zorder=5)
    mean = MIXTURE.posterior_mean(scene.y, SIGMA)[0]
    axes.scatter(*tree.root[0], 150, INK, marker="*", edgecolors="white", linewidths=0.9, zorder=6)
    axes.scatter(*mean, 42, RED, marker="*", edgecolors="white", linewidths=0.5, zorder=7)
    axes.scatter(*scene.y[0], 110, "none", edgecolors=RED, linewidths=1.5, zorder=8)
    if with_probabilities:
        _label_leaves(axes, tree)


def _label_leaves(axes: Axes, tree: Tree) -> None:
    """Probabilities next to the leaves, on the side away from the parent."""
    level, k = tree.depth, tree.branching[-1]
    parents = tree.images[level - 1][0].repeat_interleave(k, dim=0)
    for leaf, parent, p in zip(tree.leaves[0], parents, tree.probs[level][0], strict=True):
        away = 13 * torch.nn.functional.normalize(leaf - parent, dim=0)
        axes.annotate(
            f"{p:.2f}", (leaf[0], leaf[1]), (away[0], away[1]), textcoords="offset points",
            ha="center", va="center", fontsize=8.5, color=INK, path_effects=HALO, zorder=9,
        )  # fmt: skip


def _draw_borders(axes: Axes, tree: Tree, pixels: Tensor) -> None:
    """Dashed lines between the cells of siblings: equally far from both, inside their parent."""
    points = pixels.reshape(-1, 2)
    many = tree[torch.zeros(len(points), dtype=torch.long)]
    errors, path = many.errors(points), many.descend(points)
    u, v = pixels[0, :, 0].numpy(), pixels[:, 0, 1].numpy()
    for level in range(1, tree.depth + 1):
        for (one, left), (other, right) in combinations(enumerate(tree.paths(level)), 2):
            if left[:-1] != right[:-1]:
                continue
            gap = errors[level][:, one] - errors[level][:, other]
            is_far = (path[:, level] != one) & (path[:, level] != other)
            gap = gap.masked_fill(is_far, torch.nan)
            axes.contour(
                u, v, gap.reshape(SIDE, SIDE).numpy(), levels=[0.0],
                colors=[INK if level == 1 else NODES[left[0]]],
                linestyles=[(0, (4, 2.5))], linewidths=1.4 if level == 1 else 1.2, zorder=3,
            )  # fmt: skip


def _draw_clusters(axes: Axes, scene: Scene, tree: Tree, name: str) -> None:
    _plane(axes)
    points = scene.samples[0]
    leaf = tree[torch.zeros(len(points), dtype=torch.long)].descend(points)[:, -1]
    axes.annotate(
        name, (0.05, 0.94), xycoords="axes fraction", va="top", fontsize=7.5, color=INK,
        path_effects=HALO, zorder=4,
    )  # fmt: skip
    for number, color in enumerate(LEAVES):
        axes.scatter(*points[leaf == number].T, 1.2, color, linewidths=0, rasterized=True)


def _draw_tree(axes: Axes, tree: Tree) -> None:
    """The layout with its probabilities; an edge is as wide as its node is likely."""
    axes.set(xlim=(-0.62, 3.62), ylim=(-0.42, 2.25))
    axes.axis("off")
    marks = [("*", 150, (INK,)), ("^", 62, NODES), ("o", 46, LEAVES)]
    if tree.depth == 1:
        del marks[1]
    place: dict[tuple[int, ...], tuple[float, float]] = {}
    for level, (marker, size, colors) in enumerate(marks):
        height, paths = 1.85 - 1.6 * level / tree.depth, tree.paths(level)
        for number, (path, color) in enumerate(zip(paths, colors, strict=True)):
            u, v = place[path] = (number + 0.5) * 4 / len(paths) - 0.5, height
            p = tree.probs[level][0, number].item()
            if level:
                ends = zip(place[path[:-1]], (u, v), strict=True)
                axes.plot(*ends, color=color, linewidth=0.7 + 5 * p, alpha=0.55, zorder=1)
            axes.scatter(u, v, size, color, marker=marker, edgecolors="white", zorder=3)
            at = "below" if level == tree.depth else "left" if u < 1.5 else "right"
            axes.annotate(f"{p:.2f}", (u, v), **PLACES[at], textcoords="offset points",
                          fontsize=9, color=INK, path_effects=HALO, zorder=4)  # fmt: skip


def _draw_legend(axes: Axes) -> None:
    """What the marks of all panels mean."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")
    marks = [
        ("clean points x", "o", 16, DEEP, "none"),
        ("their measurements y", "o", 16, "white", INK),
        ("the measurement $y_t$ of (b–d)", "o", 70, "none", RED),
        ("root: predicted posterior mean", "*", 110, INK, "none"),
        ("analytic posterior mean", "*", 60, RED, "none"),
        ("nodes of level 1", "^", 46, NODES[0], "none"),
        ("leaves", "o", 40, LEAVES[1], "none"),
    ]
    for row, (label, marker, size, color, edge) in enumerate(marks):
        height = 0.94 - row * 0.145
        axes.scatter(0.12, height, size, color, marker=marker, edgecolors=edge)
        axes.annotate(label, (0.19, height), va="center", fontsize=9, color=INK)
