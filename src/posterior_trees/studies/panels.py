"""Findings → the panels of each study's figure, of the first seed of every variant."""

from collections.abc import Callable

from posterior_trees.run import read_log
from posterior_trees.studies import figures
from posterior_trees.studies.findings import Findings
from posterior_trees.studies.watch import read_watch


def epsilon_panels(found: Findings) -> list[figures.Panel]:
    """ε over the epochs, and the distance of every leaf from the truth."""
    lines = {name: read_watch(found.place.run(job)) for name, job in found.first.items()}
    schedule = {
        found.first[name].label: ([r["epoch"] for r in rows], [r["epsilon"] for r in rows])
        for name, rows in lines.items()
    }
    for rows in lines.values():
        for row in rows:
            row["leaf_rmse"] = [value**0.5 for value in row["leaf_mse"]]
    highest = 1.05 * max(max(row["leaf_rmse"]) for rows in lines.values() for row in rows)
    return [
        figures.curves("ε at the end of an epoch", "epoch", "ε", schedule),
        *(
            figures.leaf_lines(
                found.first[name].label, rows, "leaf_rmse", "RMSE of each leaf", highest
            )
            for name, rows in lines.items()
        ),
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
    rows = {row["run"]: row for row in found.rows}
    first = {job.label: rows[job.name] for job in found.first.values()}
    truth = {label: row["runner_up_truth"] for label, row in first.items()}
    panels = [
        figures.bars("probability of the runner-up (mark: true)",
                     {label: row["runner_up_mass"] for label, row in first.items()}, truth),
        figures.bars("its share of the leaves",
                     {label: row["runner_up_leaf_share"] for label, row in first.items()}),
    ]  # fmt: skip
    for one, other in found.equal_pairs():
        assert found.runner_up is not None
        a, b = (found.runner_up.mass[job.name] for job in (one, other))
        panels.append(figures.points("runner-up's probability", one.label, other.label, a, b))
    return panels


def gain_panels(found: Findings) -> list[figures.Panel]:
    """PSNR that each depth has over the root, and the distance between leaves."""
    rows = {row["run"]: row for row in found.rows}
    first = {job.label: rows[job.name] for job in found.first.values()}
    gains = {
        label: (range(len(row["psnr"])), [value - row["psnr"][0] for value in row["psnr"]])
        for label, row in first.items()
    }
    distances = {label: row["diversity"] for label, row in first.items()}
    return [
        figures.curves("PSNR over the root's", "depth", "dB", gains),
        figures.bars("distance between leaves", distances),
    ]


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
    "decoders": gain_panels,
    "tree_or_flat": look_panels,
}
