"""What other packages do too: `ptrees bench balancer` and `ptrees bench kmeans`.

**balancer**, what choosing the next batch costs. The drawing probabilities q are the solution of a
quadratic programme with one unknown per image (see `balance`). Ours are the closed form, the exact
form through its dual of one unknown per leaf, and a whole turn of the balancer: count a batch,
solve, choose the next one. The rival is the same programme given to cvxpy with the solver Clarabel
at its default tolerance.

**kmeans**, samples of many images into trees, against a loop over scikit-learn, which clusters each
image by itself, and each node of it: `KMeans` with as many restarts. Both start from k-means++ and
stop when nothing moves; `scatter` is the mean squared distance of samples to their leaf, relative
to ours: below 1 the rival's clusters are the tighter ones.
"""

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterior_trees.balance import LeafBalancer
from posterior_trees.balance.shares import closed_form, exact_form
from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.errors import MissingError
from posterior_trees_paper.bench.clock import time_together
from posterior_trees_paper.bench.report import Report, conditions

RIDGE, FLOOR, BATCH = 1e-3, 0.1, 32
RESTARTS = 5
OURS, THEIRS = "hierarchical_kmeans", "scikit-learn, in a loop"


def find_rivals(names: tuple[str, ...], extra: str = "bench") -> list[ModuleType]:
    """The packages, or an error that says which of our extras installs them."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        missing = (error.name or names[0]).partition(".")[0]
        raise MissingError(
            f"{missing} is not installed, so nothing can be compared with it: "
            f'pip install ".[{extra}]" in a checkout'
        ) from None


def find_rivals_or_note(names: tuple[str, ...], skip_missing: bool, notes: list[str]) -> list:
    """The packages; an empty list and a note if one is missing and we are to `skip_missing`."""
    try:
        return find_rivals(names)
    except RuntimeError as error:
        if not skip_missing:
            raise MissingError(f"{error}; or leave it out with --skip-missing") from None
        notes.append(str(error))
        return []


def bench_balancing(
    samples: Sequence[int],
    leaves: int,
    device: torch.device,
    *,
    repeat: int = 10,
    seconds: float = 10.0,
    skip_missing: bool = False,
) -> Report:
    """Times for each number of `samples`, and how far above the best objective each solution is."""
    settings = {"leaves": leaves, "batch": BATCH, "ridge": RIDGE, "floor": FLOOR}
    report = Report("balancer", conditions(device), settings)
    rivals = find_rivals_or_note(("cvxpy", "clarabel"), skip_missing, report.notes)
    for count in samples:
        table = make_conditional(count, leaves).to(device)
        answers: dict[str, Callable[[], Any]] = {
            "closed form": lambda table=table: closed_form(table, RIDGE, FLOOR),
            "exact form": lambda table=table: exact_form(table, RIDGE, FLOOR)[0],
        }
        if rivals:
            host = table.cpu()
            answers["cvxpy + Clarabel"] = lambda host=host: _solve(rivals[0], host)
        values = {name: objective(table, answer().to(device)) for name, answer in answers.items()}
        turns = {
            f"whole turn, {kind}": _turn(table, kind == "exact") for kind in ("closed", "exact")
        }
        timed = time_together(answers | turns, device, repeat=repeat, warm_up=1, seconds=seconds)
        base = timed["cvxpy + Clarabel"].median_ms if rivals else None
        for name, timing in timed.items():
            row = report.add(timing, what=name, samples=count)
            row["speedup"] = base / timing.median_ms if base and name in values else None
            row["gap"] = values[name] / min(values.values()) - 1 if name in values else None
    return report


def make_conditional(samples: int, leaves: int) -> Tensor:
    """p(leaf | sample) of an unbalanced world: the last leaf is 50 times as likely as the first."""
    generator = torch.Generator().manual_seed(0)
    prior = torch.linspace(0, 4, leaves, dtype=torch.float64).softmax(0)
    rows = torch.rand(samples, leaves, generator=generator, dtype=torch.float64) ** 8 * prior
    return rows / rows.sum(dim=1, keepdim=True)


def objective(conditional: Tensor, q: Tensor) -> float:
    """What q minimises; see `balance`."""
    samples, leaves = conditional.shape
    misfit = q @ conditional - 1 / leaves
    return ((misfit @ misfit + RIDGE * samples / leaves * q @ q) / 2).item()


def _turn(conditional: Tensor, is_exact: bool) -> Callable[[], None]:
    """One step's share of a balancer in full swing: count, solve, choose."""
    samples, leaves = conditional.shape
    device, generator = conditional.device, torch.Generator().manual_seed(0)
    how: dict[str, Any] = {"ridge": RIDGE, "floor": FLOOR, "exact": is_exact, "device": device}
    balancer = LeafBalancer(leaves, samples, **how)
    winners = conditional.cpu().multinomial(1, generator=generator)[:, 0].to(device)
    balancer.update(torch.arange(samples, device=device), winners)
    size = min(BATCH, samples)

    def turn() -> None:
        chosen = next(balancer.batches(size, generator))
        balancer.weights(chosen)
        balancer.update(chosen, winners[chosen])

    return turn


def _solve(cvxpy: Any, conditional: Tensor) -> Tensor:
    """The same programme in the scale that suits the solver best: N q, and the misfit apart."""
    samples, leaves = conditional.shape
    share, misfit = cvxpy.Variable(samples), cvxpy.Variable(leaves)
    penalty = RIDGE / leaves / samples * cvxpy.sum_squares(share)
    found = conditional.numpy().T @ share / samples
    limits = [misfit == found - 1 / leaves, cvxpy.sum(share) == samples, share >= FLOOR]
    goal = cvxpy.Minimize((cvxpy.sum_squares(misfit) + penalty) / 2)
    cvxpy.Problem(goal, limits).solve(solver=cvxpy.CLARABEL)
    return torch.from_numpy(share.value) / samples


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
    dice = torch.Generator()
    for count in images:
        x = make_samples(count, samples, (channels, *size)).to(device)
        host = x.cpu().flatten(2).numpy()
        trees: tuple[Any, ...] = x, branching, depth, RESTARTS
        calls: dict[str, Callable[[], Any]] = {
            OURS: lambda trees=trees: hierarchical_kmeans(*trees, dice.manual_seed(0)).leaves
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
