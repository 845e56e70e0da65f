r"""The paper's toy example, measured: is the tree of a network the tree of the posterior?

A network sees pairs $(x, y = x + \sigma n)$ of the 2-D mixture, one posterior sample for each $y$,
and learns trees of branching 2 and depth 2. Here the posterior is known, so every claim can be
checked, over 200 random $y$:

* the root is the posterior mean: root-mean-square error per coordinate;
* the nodes are as good as clusters: expected distortion $\mathbb E \lVert x - x_{n(x)} \rVert^2$ of
  the greedy path at each level, relative to hierarchical K-means on 10,000 posterior samples;
* the probabilities are masses: $\mathrm{KL}(q \,\|\, \alpha) = \sum_n q_n \ln (q_n / \alpha_n)$,
  where $q_n$ is the true posterior mass of the cell in which $x$ descends to node $n$.

Distortions are means over coordinates, on samples that neither tree has seen; masses are shares of
these samples. Numbers are medians over seeds.
"""

import json
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from threading import Lock

import torch
from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.errors import InputError, RunError
from posterior_trees.loss import epsilon_at
from posterior_trees.training.objective import objective
from posterior_trees.tree import Tree, grow
from posterior_trees_paper.toy.network import MIXTURE, SIGMA, TreeMLP

BRANCHING, DEPTH = 2, 2
STEPS, BATCH, LEARNING_RATE = 3000, 256, 3e-3
GAIN = 3.0
WARM_UP, EPSILON_START, EPSILON_SCALE, AVERAGE_FROM = 0.02, 0.02, 0.01, 0.7
"""The schedule, in fractions of the training."""
BETA = {"cross_entropy": 0.4, "paper": 0.0}
GLOBAL_RANDOM_STATE = Lock()
TEST_POINTS, CLUSTERED_SAMPLES, UNSEEN_SAMPLES, TEST_SEED = 200, 10_000, 20_000, 2024
FILES = "metrics.json", "toy.png", "toy_more.png"
LIMITS = {"root_rmse": 0.05, "distortion_1": 1.03, "distortion_2": 1.10, "kl_2": 0.01}
LABELS = {
    "root_rmse": "root, RMSE per coordinate",
    "distortion_1": "d=1 distortion / K-means",
    "distortion_2": "d=2 distortion / K-means",
    "kl_1": "d=1 KL of probabilities",
    "kl_2": "d=2 KL of probabilities",
}


def run(
    out: Path,
    *,
    steps: int = STEPS,
    seeds: int = 3,
    probability: str = "cross_entropy",
    progress: bool = True,
) -> dict:
    """Train, measure, print, and write `metrics.json`, `toy.png` and `toy_more.png` to `out`."""
    from posterior_trees_paper.toy import figure as toy_figure

    if probability not in BETA:
        raise InputError(f"probability is {probability!r}; choose one of {', '.join(BETA)}")
    if steps < 1 or seeds < 1:
        raise InputError(f"steps is {steps} and seeds is {seeds}; both must be at least 1")
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with _one_thread():
        networks = _train_all(steps, seeds, probability, progress)
        seconds = time.perf_counter() - start
        exam = Exam.draw(TEST_POINTS)
        per_seed = [exam.grade(network) for network in networks]
    medians = {name: median(grades[name] for grades in per_seed) for name in LABELS}
    metrics = {
        "schema": 1, "sigma": SIGMA, "steps": steps, "batch": BATCH, "probability": probability,
        "test_points": len(exam.y), "training_seconds": round(seconds, 1), "median": medians,
        "per_seed": per_seed, "limits": LIMITS,
        "passed": {name: medians[name] <= limit for name, limit in LIMITS.items()},
    }  # fmt: skip
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    toy_figure.save(out, networks[0])
    if progress:
        _report(metrics, out)
    return metrics


def train(
    steps: int,
    seed: int,
    probability: str = "cross_entropy",
    tick: Callable[[], object] = lambda: None,
) -> TreeMLP:
    """One network, from fresh pairs (x, y), with Adam and a learning rate that falls to zero.

    `tick` is called after every step.

    Choice: ε falls within a tenth of the training, because leaves that part late have no time left
    to sharpen the jumps between neighbouring trees. Choice: the weights of the last 30 % of the
    steps are averaged, which takes a quarter off the root's error.
    """
    generator = torch.Generator().manual_seed(seed)
    network = build(seed)
    optimizer = torch.optim.Adam(network.parameters(), betas=(0.9, 0.99), fused=True)
    average = AveragedModel(network)
    for step in range(steps):
        done = step / steps
        slope = min((step + 1) / (WARM_UP * steps), 1 - done)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * slope
        x = MIXTURE.sample(BATCH, generator)
        y = x + SIGMA * torch.randn(x.shape, generator=generator)
        parts = objective(predict(network, y), x, epsilon_at(done, EPSILON_START, EPSILON_SCALE))
        optimizer.zero_grad()
        parts.total(BETA[probability], parts.root.mean()).mean().backward()
        optimizer.step()
        if done >= AVERAGE_FROM or step == steps - 1:
            average.update_parameters(network)
        tick()
    network.load_state_dict(average.module.state_dict())
    return network


def _train_all(steps: int, seeds: int, probability: str, progress: bool) -> list[TreeMLP]:
    """A network for each seed, side by side: one thread for each is faster than many for one."""
    workers = ThreadPoolExecutor(seeds, initializer=torch.set_num_threads, initargs=(1,))
    with workers as pool, _watch(steps * seeds, progress) as tick:
        jobs = [pool.submit(train, steps, seed, probability, tick) for seed in range(seeds)]
        return [job.result() for job in jobs]


def build(seed: int) -> TreeMLP:
    """The paper's toy network, standardised for the measurements of the mixture."""
    center = MIXTURE.mean().float()
    scale = (MIXTURE.std().square().mean() + SIGMA**2).sqrt().item()
    with GLOBAL_RANDOM_STATE, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TreeMLP(BRANCHING**DEPTH, MIXTURE.dim, center=center, scale=scale, gain=GAIN)


def predict(network: TreeMLP, y: Float[Tensor, "b d"]) -> Tree:
    return grow(*network(y), BRANCHING)


@dataclass(frozen=True)
class Exam:
    """Measurements whose posteriors are known, and what to compare a tree of them with."""

    y: Float[Tensor, "b d"]
    mean: Float[Tensor, "b d"]
    unseen: Float[Tensor, "b s d"]
    clustered: Tree
    distortion: Float[Tensor, "b levels"]

    @classmethod
    def draw(cls, count: int) -> "Exam":
        generator = torch.Generator().manual_seed(TEST_SEED)
        x = MIXTURE.sample(count, generator)
        y = x + SIGMA * torch.randn(x.shape, generator=generator)
        samples = MIXTURE.sample_posterior(y, SIGMA, CLUSTERED_SAMPLES, generator)
        unseen = MIXTURE.sample_posterior(y, SIGMA, UNSEEN_SAMPLES, generator)
        clustered = hierarchical_kmeans(samples, BRANCHING, DEPTH, generator=generator)
        distortion, _ = score(clustered, unseen)
        return cls(y, MIXTURE.posterior_mean(y, SIGMA), unseen, clustered, distortion)

    @torch.no_grad()
    def grade(self, network: TreeMLP) -> dict[str, float]:
        """All numbers of one network."""
        return self.compare(predict(network, self.y))

    def compare(self, tree: Tree) -> dict[str, float]:
        """All numbers of the trees of `y`, whatever made them."""
        distortion, masses = score(tree, self.unseen)
        relative = (distortion.mean(dim=0) / self.distortion.mean(dim=0)).tolist()
        grades = {"root_rmse": (tree.root - self.mean).square().mean().sqrt().item()}
        for level in range(1, DEPTH + 1):
            q, log_probs = masses[level], tree.log_probs[level]
            divergence = torch.where(q > 0, q * (q.log() - log_probs), 0.0).sum(dim=1)
            grades[f"distortion_{level}"] = relative[level]
            grades[f"kl_{level}"] = divergence.mean().item()
        return grades


def score(
    tree: Tree, samples: Float[Tensor, "b s d"]
) -> tuple[Float[Tensor, "b levels"], list[Float[Tensor, "b _"]]]:
    """Expected distortion of each level, and the share of the samples that reach each node."""
    distortions, masses = [], [torch.zeros_like(level) for level in tree.log_probs]
    for i, points in enumerate(samples):
        many = tree[torch.full((len(points),), i, device=points.device)]
        errors = many.errors(points)
        path = many.follow(many.winners(errors))
        levels = [e.gather(1, path[:, n : n + 1]).mean() for n, e in enumerate(errors)]
        distortions.append(torch.stack(levels))
        for level, nodes in enumerate(masses):
            nodes[i] = path[:, level].bincount(minlength=nodes.shape[1]) / len(points)
    return torch.stack(distortions), masses


@contextmanager
def _one_thread() -> Generator[None, None, None]:
    """Small tensors: threads that share one operation mostly wait, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _watch(total: int, is_shown: bool) -> Generator[Callable[[], None], None, None]:
    """A function to call after every step: it moves a bar, or prints a line at every tenth.

    Threads may share it. After the end, for instance by Ctrl-C, it stops those that still call it.
    """
    console = Console(quiet=not is_shown)
    columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task, steps, is_open = bar.add_task("training", total=total), count(1), True

    def tick() -> None:
        if not is_open:
            raise RunError("the training was stopped")
        done = next(steps)
        bar.advance(task)
        if not console.is_terminal and 10 * done // total > 10 * (done - 1) // total:
            console.print(f"training: {done} of {total} steps")

    try:
        with bar:
            yield tick
    finally:
        is_open = False


def _report(metrics: dict, out: Path) -> None:
    console = Console(highlight=False)
    seeds = len(metrics["per_seed"])
    title = f"{metrics['test_points']} measurements, σ = {metrics['sigma']:g}, {seeds} seeds"
    table = Table("", "median", "seeds", "limit", "", title=title)
    for name, label in LABELS.items():
        values = "  ".join(f"{grades[name]:.4f}" for grades in metrics["per_seed"])
        limit = f"≤ {LIMITS[name]:g}" if name in LIMITS else ""
        verdict = {True: "[green]pass", False: "[red]fail", None: ""}[metrics["passed"].get(name)]
        table.add_row(label, f"{metrics['median'][name]:.4f}", values, limit, verdict)
    console.print(table)
    steps = f"{seeds} × {metrics['steps']} steps of {metrics['batch']} pairs"
    console.print(f"trained {steps} in {metrics['training_seconds']} s")
    console.print(f"wrote {', '.join(str(out / name) for name in FILES)}")
