r"""Flat against hierarchical K-means, on posteriors that are known (the paper's appendix,
"Stability of flat vs. hierarchical K-means").

10,000 exact posterior samples of a measurement of the 2-D mixture are cut into four clusters twice:
at once ($K = 4$) and in two steps ($K = 2$, $d = 2$), from 20 seeds of greedy k-means++, one start
each. Over the seeds:

* **objective** $J = \mathbb E \lVert x - c(x) \rVert^2$, mean over coordinates; for the tree $c(x)$
  is the leaf that $x$ descends to. Its spread is the standard deviation over the seeds, in percent;
* **good starts**: the share of seeds whose $J$ is within 1 % of the best of them;
* **spread of the centres**: root mean square distance of the leaves from those of the best seed, in
  the order of leaves that brings them nearest, in units of a mode's standard deviation;
* **the rarest mode** (the least probable component of the posterior that has at least 2 % of it):
  the distance from its mean to the nearest leaf, in the same unit, and its **share** of that leaf,
  the mean responsibility $p(\ell \mid x)$ over the samples in the leaf's cell.

The measurement of the paper-style figure comes first; then the means over random measurements,
apart for posteriors of one, two, three and four modes that are not negligible: whether two cuts in
two find a rare mode depends on how many there are.
"""

from dataclasses import dataclass
from itertools import permutations
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from posterior_trees import store
from posterior_trees.clustering import hierarchical_kmeans
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
from posterior_trees_paper.toy.network import MIXTURE, SIGMA

COLUMNS = 4
TITLES = {"flat": "Flat K-means, K = 4", "hierarchical": "Hierarchical K-means, K = 2, d = 2"}
LAYOUTS = {"flat": (4,), "hierarchical": (2, 2)}
SAMPLES, SEEDS, POINTS = 10_000, 20, 200
NEGLIGIBLE, GOOD = 0.02, 0.01
FILES = "numbers.json", "table.md", "figure.png"
NAMES = {
    "objective": ("objective J, mean of the seeds", "{:.4f}"),
    "objective_spread_percent": ("… its spread over the seeds, %", "{:.2f}"),
    "good_starts": ("seeds within 1 % of the best", "{:.0%}"),
    "centre_spread": ("spread of the centres, sd of a mode", "{:.2f}"),
    "rarest_distance": ("rarest mode to its nearest leaf, sd of a mode", "{:.2f}"),
    "rarest_distance_worst": ("… from the worst seed", "{:.2f}"),
    "rarest_share": ("its share of that leaf", "{:.0%}"),
}


@dataclass(frozen=True)
class Posterior:
    """The posterior of one measurement: its modes, and samples that know their modes."""

    weights: Float[Tensor, "l"]
    centers: Float[Tensor, "l d"]
    deviation: float
    samples: Float[Tensor, "s d"]

    @classmethod
    def at(cls, y: Float[Tensor, "d"], sigma: float, samples: Float[Tensor, "s d"]) -> "Posterior":
        total = MIXTURE.variance + sigma**2
        means = MIXTURE.means.to(y)
        log_weights = MIXTURE.weights.to(y).log() - (y - means).square().sum(dim=1) / (2 * total)
        centers = means + MIXTURE.variance / total * (y - means)
        deviation = (MIXTURE.variance * sigma**2 / total) ** 0.5
        return cls(log_weights.softmax(dim=0), centers, deviation, samples)

    @property
    def modes(self) -> int:
        """How many modes are not negligible."""
        return int((self.weights >= NEGLIGIBLE).sum())

    @property
    def rarest(self) -> int:
        """The least probable mode that is not negligible."""
        return int(self.weights.masked_fill(self.weights < NEGLIGIBLE, 1.0).argmin())

    def responsibilities(self) -> Float[Tensor, "s l"]:
        """Probability of every mode, given a sample."""
        squares = torch.cdist(self.samples, self.centers).square()
        return (self.weights.log() - squares / (2 * self.deviation**2)).softmax(dim=1)


def cluster(
    samples: Float[Tensor, "s d"], layout: tuple[int, ...], seeds: int, seed: int = 0
) -> Tree:
    """Trees of the same samples from `seeds` independent starts, as a batch."""
    generator = torch.Generator().manual_seed(seed)
    many = samples.expand(seeds, -1, -1)
    return hierarchical_kmeans(many, layout, restarts=1, generator=generator)


def measure(tree: Tree, posterior: Posterior) -> dict[str, float]:
    """All numbers of the trees of one posterior, a tree per seed."""
    objectives, distances, shares = [], [], []
    rare = posterior.centers[posterior.rarest]
    belongs = posterior.responsibilities()[:, posterior.rarest]
    for one in tree:
        objective, leaf = assign(one, posterior.samples)
        gap = (one.leaves[0] - rare).square().sum(dim=1).sqrt()
        nearest = int(gap.argmin())
        objectives.append(objective)
        distances.append(gap[nearest].item() / posterior.deviation)
        shares.append(belongs[leaf == nearest].mean().item())
    values = torch.tensor(objectives, dtype=torch.float64)
    moved = align(tree.leaves, tree.leaves[int(values.argmin())])
    return {
        "objective": values.mean().item(),
        "objective_spread_percent": 100 * (values.std(correction=0) / values.mean()).item(),
        "good_starts": (values <= (1 + GOOD) * values.min()).double().mean().item(),
        "centre_spread": moved.square().mean().sqrt().item() / posterior.deviation,
        "rarest_distance": sum(distances) / len(distances),
        "rarest_distance_worst": max(distances),
        "rarest_share": sum(shares) / len(shares),
    }


def align(leaves: Float[Tensor, "b n d"], target: Float[Tensor, "n d"]) -> Float[Tensor, "b n"]:
    """Distance of every leaf from its partner in `target`, in the best order of each set."""
    distances = torch.cdist(leaves, target.expand_as(leaves))
    orders = torch.tensor(list(permutations(range(len(target)))), device=leaves.device)
    rows = torch.arange(len(target), device=leaves.device)
    pairs = distances[:, rows, orders]  # (b, orders, n)
    best = pairs.square().sum(dim=2).argmin(dim=1)
    return pairs[torch.arange(len(leaves), device=leaves.device), best]


def run(
    out: str | PathLike[str], *, samples: int = SAMPLES, seeds: int = SEEDS, points: int = POINTS
) -> dict:
    """Write `numbers.json`, `table.md` and `figure.png` to `out`; returns the numbers."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    x = MIXTURE.sample(points, generator)
    y = torch.cat([torch.tensor([POINT]), x + SIGMA * torch.randn(x.shape, generator=generator)])
    found: list[dict[str, Any]] = []
    for number, point in enumerate(y):
        drawn = MIXTURE.sample_posterior(point[None], SIGMA, samples, generator)[0]
        posterior = Posterior.at(point, SIGMA, drawn)
        trees = {name: cluster(drawn, k, seeds, seed=number) for name, k in LAYOUTS.items()}
        row = {name: measure(tree, posterior) for name, tree in trees.items()}
        rarest = posterior.weights[posterior.rarest].item()
        found.append({"modes": posterior.modes, "rarest": rarest, **row})
        if number == 0:
            save(out / FILES[2], drawn, trees)
    facts = {"samples": samples, "seeds": seeds, "sigma": SIGMA, "random_points": points}
    numbers = {"schema": 1, **facts, "figure": {"y": list(POINT), **found[0]}}
    modes = sorted({row["modes"] for row in found[1:]})
    numbers["by_modes"] = {str(m): _mean(found[1:], m) for m in modes}
    store.write_json(out / FILES[0], numbers)
    store.write_bytes(out / FILES[1], table(numbers).encode())
    return numbers


def table(numbers: dict) -> str:
    """The numbers as Markdown, flat and hierarchical in each cell: the measurement of the figure,
    and means over random ones by their number of modes."""
    groups = {f"y of the figure ({numbers['figure']['modes']} modes)": numbers["figure"]}
    for modes, group in reversed(numbers["by_modes"].items()):
        groups[f"{modes} mode{'s' if modes != '1' else ''} ({group['points']} random y)"] = group
    lines = [f"| flat → hierarchical | {' | '.join(groups)} |", "|---" * (len(groups) + 1) + "|"]
    rarest = " | ".join(f"{group['rarest']:.1%}" for group in groups.values())
    lines.append(f"| probability of the rarest mode | {rarest} |")
    for key, (label, form) in NAMES.items():
        cells = [
            " → ".join(form.format(group[name][key]) for name in LAYOUTS)
            for group in groups.values()
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(rows: list[dict[str, Any]], modes: int) -> dict[str, Any]:
    """Means over the measurements with so many modes."""
    chosen = [row for row in rows if row["modes"] == modes]
    means: dict[str, Any] = {"points": len(chosen)}
    means["rarest"] = fmean(row["rarest"] for row in chosen)
    for name in LAYOUTS:
        means[name] = {key: fmean(row[name][key] for row in chosen) for key in NAMES}
    return means


def save(file: Path, samples: Float[Tensor, "s d"], trees: dict[str, Tree]) -> None:
    """Draw the first seeds of both methods, after the paper's "Resilience to initialization": the
    posterior as a red heat map, cells, leaves and root as in `figure.py`, and at the right the
    objective of every seed."""
    figure = Figure(figsize=(12.6, 5.6))
    frame = {"left": 0.035, "right": 0.955, "bottom": 0.08, "top": 0.93}
    widths = (1,) * COLUMNS + (1.05,)
    grid = figure.add_gridspec(
        2, COLUMNS + 1, width_ratios=widths, wspace=0.06, hspace=0.05, **frame
    )
    y, order = torch.tensor([POINT]), sort_siblings(trees["hierarchical"][0])
    for row, (name, tree) in enumerate(trees.items()):
        scene = Scene(y, samples[None])
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
