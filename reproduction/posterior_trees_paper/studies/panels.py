"""Findings → the panels of each study's figure, of the first seed of every variant."""

from collections.abc import Callable
from itertools import chain

from posterior_trees.training.run import read_log
from posterior_trees_paper.studies import figures
from posterior_trees_paper.studies.rows import REACHED, Findings, has_diverged
from posterior_trees_paper.studies.watch import read_watch


def epsilon_panels(found: Findings) -> list[figures.Panel]:
    """ε over the epochs, and the distance of every leaf from the truth; the range is that of the
    leaves which are alive in the end, because dead ones are several times as far away."""
    lines = {job.label: read_watch(found.place.run(job)) for job in found.first.values()}
    schedule = {
        label: ([r["epoch"] for r in rows], [r["epsilon"] for r in rows])
        for label, rows in lines.items()
    }
    for row in chain(*lines.values()):
        row["leaf_rmse"] = [value**0.5 for value in row["leaf_mse"]]
    alive = [
        [row["leaf_rmse"][leaf] for row in rows]
        for rows in lines.values()
        for leaf, share in enumerate(rows[-1]["leaf_share"])
        if share >= REACHED
    ]
    limits = 0.97 * min(map(min, alive)), 1.08 * max(values[-1] for values in alive)
    leaves = "leaf_rmse", "RMSE of each leaf", limits
    return [
        figures.curves("ε at the end of an epoch", "epoch", "ε", schedule),
        *(figures.leaf_lines(label, rows, *leaves) for label, rows in lines.items()),
    ]


def balancer_panels(found: Findings) -> list[figures.Panel]:
    """Which leaves won, epoch by epoch."""
    return [
        figures.leaf_shares(job.label, read_log(found.place.run(job) / "log.jsonl"))
        for job in found.first.values()
    ]


def layout_panels(found: Findings) -> list[figures.Panel]:
    """Probability and leaves of the runner-up digit, and its probability in two layouts of equally
    many leaves."""
    mass, truth, share = (
        {job.label: row[f"runner_up_{key}"] for job, row in found.first_rows()}
        for key in ("mass", "truth", "leaf_share")
    )
    panels = [
        figures.bars("probability of the runner-up (mark: true)", mass, truth),
        figures.bars("its share of the leaves", share),
    ]
    for one, other in found.equal_pairs():
        assert found.runner_up is not None
        a, b = (found.runner_up.mass[job.name] for job in (one, other))
        panels.append(figures.points("runner-up's probability", one.label, other.label, a, b))
    return panels


def gain_panels(found: Findings) -> list[figures.Panel]:
    """PSNR that each depth has over the root, and the distance between leaves."""
    gains = {
        job.label: (range(len(row["psnr"])), [value - row["psnr"][0] for value in row["psnr"]])
        for job, row in found.first_rows()
    }
    distances = {job.label: row["diversity"] for job, row in found.first_rows()}
    return [
        figures.curves("PSNR over the root's", "depth", "dB", gains),
        figures.bars("distance between leaves", distances),
    ]


def decoder_panels(found: Findings) -> list[figures.Panel]:
    """PSNR at each depth, a panel per task, and the distance between leaves, whose names are those
    of the curves too. A run that diverged is not drawn: nothing else could be seen beside it."""
    curves: dict[str, dict[str, tuple[figures.Numbers, figures.Numbers]]] = {}
    distances = {}
    for job, row in found.first_rows():
        psnr, label, distance = row["psnr"], job.label, row["diversity"]
        if has_diverged(row):
            psnr, label, distance = [], f"{label}: diverged", 0.0
        curves.setdefault(job.recipe.task, {})[label] = range(len(psnr)), psnr
        distances[label] = distance
    panels, first = [], 0
    for task, values in curves.items():
        title = f"PSNR, {task.replace('_', ' ')}"
        panels.append(figures.curves(title, "depth", "dB", values, first=first, has_names=False))
        first += len(values)
    in_order = {label: distances[label] for values in curves.values() for label in values}
    return [*panels, figures.bars("distance between leaves", in_order)]


def look_panels(found: Findings) -> list[figures.Panel]:
    """How many users have seen the right picture after so many looks."""
    lines = {}
    for job in found.first.values():
        values, depth = found.values[job.name], job.recipe.tree.depth
        for how in ("scan", "walk") if depth > 1 else ("scan",):
            counts = range(1, values["probs"].shape[1] + 1)
            shares = [(values[how] <= n).double().mean().item() for n in counts]
            lines[f"{job.label}, {'scanning' if how == 'scan' else 'walking'}"] = counts, shares
    return [
        figures.curves("right picture seen", "looks", "share of the test images", lines),
        *gain_panels(found),
    ]


PANELS: dict[str, Callable[[Findings], list[figures.Panel]]] = {
    "epsilon": epsilon_panels,
    "balancer": balancer_panels,
    "layouts": layout_panels,
    "decoders": decoder_panels,
    "tree_or_flat": look_panels,
}
