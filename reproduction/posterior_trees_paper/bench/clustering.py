"""`ptrees bench kmeans`: samples of many images into trees, against a loop over scikit-learn.

The rival clusters each image by itself, and each node of it: `KMeans` with as many restarts. Both
start from k-means++ and stop when nothing moves; `scatter` is the mean squared distance of samples
to their leaf, relative to ours: below 1 the rival's clusters are the tighter ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees_paper.bench.clock import time_together
from posterior_trees_paper.bench.report import Report, conditions
from posterior_trees_paper.bench.rivals import find_rivals_or_note

RESTARTS = 5
OURS, THEIRS = "hierarchical_kmeans", "scikit-learn, in a loop"


def bench_clustering(
    images: Sequence[int],
    device: torch.device,
    *,
    samples: int = 100,
    size: tuple[int, int] = (32, 32),
    channels: int = 1,
    branching: int = 3,
    depth: int = 2,
    repeat: int = 5,
    seconds: float = 12.0,
    skip_missing: bool = False,
) -> Report:
    """Times of trees of `samples` samples for each of `images` images."""
    settings = {"samples": samples, "size": list(size), "channels": channels,
                "branching": branching, "depth": depth, "restarts": RESTARTS}  # fmt: skip
    report = Report("kmeans", conditions(device), settings)
    found = find_rivals_or_note(("sklearn.cluster",), skip_missing, report.notes)
    for count in images:
        x = make_samples(count, samples, (channels, *size)).to(device)
        host = x.cpu().flatten(2).numpy()
        calls: dict[str, Callable[[], Any]] = {
            OURS: lambda x=x: (
                hierarchical_kmeans(
                    x, branching, depth, RESTARTS, torch.Generator().manual_seed(0)
                ).leaves
            )
        }
        if found:
            calls[THEIRS] = lambda host=host: [
                _split(found[0].KMeans, points, branching, depth) for points in host
            ]
        scatter = {name: _scatter(host, call()) for name, call in calls.items()}
        timed = time_together(calls, device, repeat=repeat, warm_up=1, seconds=seconds)
        for name, timing in timed.items():
            row = report.add(timing, what=name, images=count)
            row["ms_per_image"] = timing.median_ms / count
            row["speedup"] = timed[THEIRS].median_ms / timing.median_ms if found else None
            row["scatter"] = scatter[name] / scatter[OURS]
    return report


def make_samples(images: int, samples: int, shape: tuple[int, ...]) -> Tensor:
    """Samples with something to find: a dozen random prototypes and noise around them."""
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.rand(images, 12, *shape, generator=generator)
    chosen = torch.randint(12, (images, samples), generator=generator)
    near = prototypes[torch.arange(images)[:, None], chosen]
    return near + 0.2 * torch.randn(near.shape, generator=generator)


def _split(kmeans: Any, points: np.ndarray, k: int, depth: int) -> list[np.ndarray]:
    """Means of the leaves below a node; a node too small to split repeats its mean."""
    if depth == 0:
        return [points.mean(axis=0)]
    if len(points) < k:
        return [points.mean(axis=0)] * k**depth
    labels = kmeans(k, n_init=RESTARTS, random_state=0).fit(points).labels_
    return [leaf for i in range(k) for leaf in _split(kmeans, points[labels == i], k, depth - 1)]


def _scatter(samples: np.ndarray, leaves: Tensor | list) -> float:
    """Mean over samples of the squared distance to the nearest leaf."""
    means = leaves.cpu().flatten(2).numpy() if isinstance(leaves, Tensor) else np.array(leaves)
    nearest = [
        ((points[:, None] - centers[None]) ** 2).mean(axis=2).min(axis=1).mean()
        for points, centers in zip(samples, means, strict=True)
    ]
    return float(np.mean(nearest))
