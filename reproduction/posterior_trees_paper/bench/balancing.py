"""`ptrees bench balancer`: what choosing the next batch costs, against a general solver.

The drawing probabilities q are the solution of a quadratic programme with one unknown per image
(see `balance`). Ours are the closed form, the exact form through its dual of one unknown per leaf,
and a whole turn of the balancer: count a batch, solve, choose the next one. The rival is the same
programme given to cvxpy with the solver Clarabel at its default tolerance.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from posterior_trees.balance import LeafBalancer
from posterior_trees.balance.shares import closed_form, exact_form
from posterior_trees_paper.bench.clock import time_together
from posterior_trees_paper.bench.report import Report, conditions
from posterior_trees_paper.bench.rivals import find_rivals_or_note

RIDGE, FLOOR, BATCH = 1e-3, 0.1, 32


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
    balancer = LeafBalancer(
        leaves, samples, ridge=RIDGE, floor=FLOOR, exact=is_exact, device=conditional.device
    )
    generator = torch.Generator().manual_seed(0)
    winners = conditional.cpu().multinomial(1, generator=generator)[:, 0].to(conditional.device)
    balancer.update(torch.arange(samples, device=conditional.device), winners)
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
    problem = cvxpy.Problem(
        cvxpy.Minimize((cvxpy.sum_squares(misfit) + penalty) / 2),
        [
            misfit == conditional.numpy().T @ share / samples - 1 / leaves,
            cvxpy.sum(share) == samples,
            share >= FLOOR,
        ],
    )
    problem.solve(solver=cvxpy.CLARABEL)
    return torch.from_numpy(share.value) / samples
