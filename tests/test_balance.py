"""The leaf balancer: its counts are the paper's, its q solves the problem, its batches follow q."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from posterior_trees.balance import LeafBalancer
from posterior_trees.balance import balancer as balance
from posterior_trees.balance.shares import closed_form, exact_form, limit_shares
from posterior_trees.seeding import make_marks, shake


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_conditional(samples: int, leaves: int, skew: float = 4.0, seed: int = 0) -> Tensor:
    """p(leaf | sample), one row per sample; the last leaf is exp(skew) as likely as the first."""
    prior = torch.linspace(0, skew, leaves, dtype=torch.float64).softmax(0)
    rows = torch.rand(samples, leaves, generator=seeded(seed), dtype=torch.float64) ** 8 * prior
    return rows / rows.sum(dim=1, keepdim=True)


def make_one_hot(counts: list[int]) -> Tensor:
    winners = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return torch.nn.functional.one_hot(winners, len(counts)).double()


def objective(conditional: Tensor, q: Tensor, ridge: float) -> float:
    samples, leaves = conditional.shape
    misfit = q @ conditional - 1 / leaves
    return float(misfit @ misfit + ridge * samples / leaves * q @ q) / 2


def kkt_residual(conditional: Tensor, q: Tensor, ridge: float, floor: float) -> float:
    """Zero only at the optimum: above the floor the gradient is one number, at the floor more."""
    samples, leaves = conditional.shape
    gradient = conditional @ (q @ conditional - 1 / leaves) + ridge * samples / leaves * q
    spare = q - floor / samples
    nu = (spare @ gradient) / spare.sum()
    natural = torch.minimum(samples * spare, gradient - nu).abs().max()
    return max(float(natural), abs(float(q.sum()) - 1.0))


def solve_with_clarabel(conditional: Tensor, ridge: float, floor: float, **options) -> Tensor:
    cp = pytest.importorskip("cvxpy", reason="the solver is in the extra `bench`")
    samples, leaves = conditional.shape
    share, misfit = cp.Variable(samples), cp.Variable(leaves)  # share = N q
    penalty = ridge / leaves / samples * cp.sum_squares(share)
    problem = cp.Problem(
        cp.Minimize((cp.sum_squares(misfit) + penalty) / 2),
        [
            misfit == conditional.numpy().T @ share / samples - 1 / leaves,
            cp.sum(share) == samples,
            share >= floor,
        ],
    )
    problem.solve(solver=cp.CLARABEL, **options)
    return torch.from_numpy(share.value) / samples


class Obeying(LeafBalancer):
    """A balancer that wants a given q."""

    wanted: Tensor

    def _solve(self) -> Tensor:
        return self.wanted


def run(balancer: LeafBalancer, size: int, epochs: int, seed: int = 0) -> Tensor:
    """How often each sample is drawn per batch; leaf 0 wins them all."""
    counts = torch.zeros(balancer.num_samples, dtype=torch.float64)
    generator, batches = seeded(seed), 0
    for _ in range(epochs):
        for indices in balancer.batches(size, generator):
            balancer.update(indices, torch.zeros_like(indices))
            counts[indices] += 1
            batches += 1
    return counts / batches


# --- counting


class Dense:
    """The appendix, formula by formula, on whole matrices."""

    def __init__(self, leaves: int, samples: int) -> None:
        self.A = torch.zeros(leaves, samples, dtype=torch.float64)

    def update(self, indices: Tensor, winners: Tensor) -> None:
        samples = self.A.shape[1]
        batch = torch.zeros_like(self.A)
        for j, i in zip(indices.tolist(), winners.tolist(), strict=True):
            batch[i, j] += 1
        mu = 2 ** (-len(indices) / samples)
        self.A = mu * self.A + (1 - mu) * batch

    @property
    def P(self) -> Tensor:  # noqa: N802
        total = self.A.sum(dim=0)
        return torch.where(total > 0, self.A / total, 1 / len(self.A))

    def q(self, ridge: float) -> Tensor:
        leaves, samples = self.A.shape
        P, one = self.P, torch.ones(samples, dtype=torch.float64)
        system = P @ P.T + ridge * samples / leaves * torch.eye(leaves, dtype=torch.float64)
        q = one - P.T @ torch.linalg.solve(system, P @ one)
        q = (q / q.sum()).clamp_min(0)
        return q / q.sum()


@pytest.mark.parametrize(("gram_updates", "at_once"), [(7, 16), (10**9, 16), (10**9, 5)])
@pytest.mark.parametrize("samples", [40, 300])
def test_incremental_counts_equal_the_papers_dense_formulas(
    samples: int, gram_updates: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with samples repeated in a batch, counted in parts, some never seen, and over many
    half-lives."""
    monkeypatch.setattr(balance, "GRAM_UPDATES", gram_updates)
    monkeypatch.setattr(balance, "AT_ONCE", at_once)
    monkeypatch.setattr(balance, "REBASE_EPOCHS", 3)
    generator = seeded()
    balancer, dense = LeafBalancer(6, samples, floor=0.0), Dense(6, samples)
    for step in range(200):
        indices = torch.randint(samples - 5, (16,), generator=generator)
        winners = torch.randint(36, (16,), generator=generator).sqrt().long()
        balancer.update(indices, winners)
        dense.update(indices, winners)
        if step % 20 == 0:
            assert torch.allclose(balancer.associations, dense.A, rtol=1e-12, atol=0)
            assert torch.allclose(balancer.conditional.T, dense.P, rtol=1e-12, atol=1e-14)
            assert torch.allclose(balancer.gram, dense.P @ dense.P.T, rtol=1e-12)
            assert torch.allclose(balancer.gram.sum(dim=1), dense.P.sum(dim=1), rtol=1e-12)
            assert torch.allclose(balancer.probabilities(), dense.q(1e-3), rtol=1e-8, atol=1e-14)


def test_an_association_has_a_half_life_of_one_epoch() -> None:
    balancer = LeafBalancer(2, 12)
    balancer.update(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]))
    first = balancer.associations[0, 0].clone()
    for start in (3, 6, 9, 3):
        balancer.update(torch.arange(start, start + 3), torch.ones(3, dtype=torch.long))
    assert torch.allclose(balancer.associations[0, 0], first / 2, rtol=1e-14)
    balancer.update(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 1]))
    new_over_old = balancer.associations[1, 0] / balancer.associations[0, 0]
    assert torch.allclose(new_over_old, torch.tensor(2 ** (5 / 4), dtype=torch.float64))


def test_batches_that_wait_are_counted_as_one() -> None:
    """Once there are enough of them or they are asked for, after a restart too; their memory may be
    reused."""
    generator = seeded()
    rare, dense = LeafBalancer(6, 80, refresh_every=3), LeafBalancer(6, 80)
    rare.active = False
    for asked_at in (3, 2, 3, 1, 3):
        before, seen, rare.updates = rare.conditional.clone(), [], 0
        for _ in range(asked_at):
            indices = torch.randint(80, (16,), generator=generator)
            winners = torch.randint(6, (16,), generator=generator)
            seen.append((indices.clone(), winners.clone()))
            assert torch.equal(rare.conditional, before)
            rare.update(indices, winners)
            indices.zero_(), winners.zero_()
            restored = LeafBalancer(6, 80, refresh_every=3)
            restored.load_state_dict(rare.state_dict())
            rare = restored
        dense.update(*(torch.cat(parts) for parts in zip(*seen, strict=True)))
        if asked_at == 3:
            assert torch.equal(rare.conditional, dense.conditional)
        assert torch.equal(rare.probabilities(), dense.probabilities())
        assert torch.equal(rare.associations, dense.associations)


@pytest.mark.parametrize("before", [0, 1, 6])
def test_between_two_solutions_winners_are_counted_once(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many batches came before the balancer was at work."""
    balancer, counted = LeafBalancer(2, 60, refresh_every=4), []
    balancer.active = False
    for indices in list(balancer.batches(5, seeded()))[:before]:
        balancer.update(indices, indices % 2)
    balancer.active = True
    monkeypatch.setattr(balancer, "_add", lambda rows, *_: counted.append(len(rows)))
    for indices in balancer.batches(5, seeded()):
        balancer.update(indices, indices % 2)
    left_over = [5 * (before % 4)] if before % 4 else []
    assert counted == [*left_over, 20, 20, 20]


def test_a_window_looks_at_each_batch() -> None:
    balancer = LeafBalancer(2, 8, refresh_every=4, window=True)
    balancer.update(torch.arange(4), torch.zeros(4, dtype=torch.long))
    assert balancer.totals[:4].gt(0).all()


def test_an_empty_batch_changes_nothing() -> None:
    balancer = LeafBalancer(2, 4)
    balancer.update(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long))
    assert balancer.updates == balancer.age == 0


# --- the drawing probabilities


@pytest.mark.parametrize("solve", [closed_form, lambda *a: exact_form(*a)[0]])
@pytest.mark.parametrize("floor", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 10.0])
@pytest.mark.parametrize("leaves", [1, 2, 9, 81])
def test_q_is_a_distribution_above_the_floor(
    leaves: int, ridge: float, floor: float, solve: Callable[..., Tensor]
) -> None:
    q = solve(make_conditional(300, leaves), ridge, floor)
    assert abs(q.sum() - 1) < 1e-12
    assert (q >= floor / 300).all()


@pytest.mark.parametrize("exact", [False, True])
def test_weights_undo_the_drawing(exact: bool) -> None:
    """E over q of γ f equals the plain mean of f, for any f; and no weight exceeds 1/ρ."""
    balancer = LeafBalancer(3, 200, exact=exact)
    everyone = torch.arange(200)
    balancer.update(everyone, (everyone > 150).long() + (everyone > 195).long())
    q, gamma = balancer.probabilities(exact), balancer.weights(everyone)
    f = torch.randn(200, generator=seeded(), dtype=torch.float64)
    assert q.max() > 5 * q.min()
    assert gamma.dtype == torch.float32
    assert torch.allclose((q * gamma.double() * f).sum(), f.mean(), atol=1e-7)
    assert gamma.max() <= 10 * (1 + 1e-6)


@pytest.mark.parametrize("exact", [False, True])
def test_balanced_leaves_need_no_balancing(exact: bool) -> None:
    balancer = LeafBalancer(4, 40, exact=exact)
    uniform = torch.full((40,), 1 / 40, dtype=torch.float64)
    assert torch.allclose(balancer.probabilities(exact), uniform, rtol=1e-12)  # nothing seen yet
    balancer.update(torch.arange(40), torch.arange(40) % 4)
    assert torch.allclose(balancer.probabilities(exact), uniform, rtol=1e-12)


def test_leaves_come_nearer_to_uniform_as_ridge_falls() -> None:
    conditional = make_one_hot([900, 80, 20])
    distances = []
    for ridge in (10.0, 1.0, 0.1, 1e-2, 1e-4, 1e-6):
        q, _ = exact_form(conditional, ridge, floor=0.0)
        assert torch.allclose(q, closed_form(conditional, ridge, floor=0.0), rtol=1e-9)
        distances.append(float((q @ conditional - 1 / 3).norm()))
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.5
    assert distances[-1] < 1e-4


@pytest.mark.parametrize("solve", [closed_form, lambda *a: exact_form(*a)[0]])
def test_the_effect_of_ridge_does_not_depend_on_the_number_of_samples(
    solve: Callable[..., Tensor],
) -> None:
    conditional = make_conditional(100, 5)
    once = solve(conditional, 1e-2, 0.1)
    thrice = solve(conditional.repeat(3, 1), 1e-2, 0.1)
    assert torch.allclose(3 * thrice, once.repeat(3), rtol=1e-9)


def test_closed_form_is_exact_unless_the_floor_is_reached() -> None:
    conditional = make_conditional(500, 9, skew=0.5)
    closed = closed_form(conditional, 1.0, 0.1)
    assert (closed > 0.11 / 500).all()
    assert torch.allclose(exact_form(conditional, 1.0, 0.1)[0], closed, rtol=1e-10)
    conditional = make_conditional(500, 9, skew=4.0)
    closed, (exact, _) = closed_form(conditional, 0.1, 0.5), exact_form(conditional, 0.1, 0.5)
    assert (exact == 0.5 / 500).sum() > 50
    assert objective(conditional, exact, 0.1) < objective(conditional, closed, 0.1) - 1e-5


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("floor", [0.0, 0.1])
@pytest.mark.parametrize("ridge", [1e-6, 1e-3, 10.0])
@pytest.mark.parametrize("leaves", [2, 9, 81])
def test_exact_form_is_at_least_as_optimal_as_clarabel(
    leaves: int, ridge: float, floor: float
) -> None:
    conditional = make_conditional(300, leaves, seed=leaves)
    tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-13)
    theirs = solve_with_clarabel(conditional, ridge, floor, **tight)
    ours, dual = exact_form(conditional, ridge, floor)
    values = objective(conditional, ours, ridge), objective(conditional, theirs, ridge)
    assert values[0] <= values[1] * (1 + 1e-9)
    assert values[0] >= values[1] - 1e-9  # not by breaking a constraint
    residual = kkt_residual(conditional, ours, ridge, floor)
    assert residual < 1e-11
    assert residual <= kkt_residual(conditional, theirs, ridge, floor) + 1e-13
    again, _ = exact_form(conditional, ridge, floor, start=dual)
    assert torch.allclose(again, ours, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("ridge", [1e-6, 1e-3])
def test_exact_form_converges_from_any_dual(ridge: float) -> None:
    conditional = torch.cat([make_conditional(200, 9), make_one_hot([0, 0, 1, 0, 5, 0, 0, 90, 0])])
    for start in (-1e3, 0.0, 1e3):
        dual = torch.linspace(start, 1.0, 9, dtype=torch.float64)
        q, _ = exact_form(conditional, ridge, 0.1, start=dual)
        assert kkt_residual(conditional, q, ridge, 0.1) < 1e-11


def test_exact_form_is_ten_times_faster_than_clarabel() -> None:
    conditional = make_conditional(20_000, 9)

    def seconds(solve: Callable[..., object], runs: int) -> float:
        times = []
        for _ in range(runs):
            start = time.perf_counter()
            solve(conditional, 1e-3, 0.1)
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    ours, theirs = seconds(exact_form, 5), seconds(solve_with_clarabel, 3)
    assert theirs > 10 * ours, f"{ours:.4f} s against {theirs:.4f} s"


# --- batches


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize(("size", "number"), [(4, 3), (5, 2), (3, 4), (10, 1), (64, 1)])
def test_an_epoch_is_equal_batches_of_different_samples(
    size: int, number: int, active: bool, greedy: bool
) -> None:
    balancer = LeafBalancer(2, 10, greedy=greedy)
    balancer.active = active
    batches = list(balancer.batches(size, seeded()))
    assert len(batches) == number
    for indices in batches:
        assert indices.dtype == torch.int64
        assert len(indices.unique()) == len(indices) == min(size, 10)


def test_while_inactive_epochs_are_shuffles_and_updates_count() -> None:
    balancer = LeafBalancer(2, 10)
    balancer.active = False
    for seed in range(3):
        drawn = torch.cat(list(balancer.batches(4, seeded(seed))))
        assert drawn[:10].sort().values.tolist() == list(range(10))
        assert drawn[10:].tolist() == drawn[:2].tolist()  # wraps around
    balancer.update(torch.arange(10), torch.tensor([0] * 9 + [1]))
    assert balancer.weights(torch.arange(10)).tolist() == [1.0] * 10
    assert balancer.probabilities()[9] > 5 * balancer.probabilities()[0]
    balancer.active = True
    assert 9 in next(balancer.batches(1, seeded()))
    assert balancer.weights(torch.arange(10)).max() > 1


@pytest.mark.parametrize("window", [True, False])
def test_ties_are_broken_by_the_generator(window: bool) -> None:
    """Nothing is known yet, so every sample must have its chance in the first batch."""

    def first(seed: int) -> list[int]:
        balancer = LeafBalancer(9, 50, window=window)
        return next(balancer.batches(5, seeded(seed))).tolist()

    assert first(3) == first(3)
    assert {j for seed in range(100) for j in first(seed)} == set(range(50))


def test_equals_are_chosen_independently() -> None:
    """Batches of 5 of 10 equal samples hold two given ones in 2 of 9 cases: 5/10 times 4/9."""
    balancer = Obeying(2, 10)
    balancer.wanted = torch.full((10,), 0.1, dtype=torch.float64)
    together, generator = torch.zeros(10, 10, dtype=torch.float64), seeded()
    for _ in range(1500):
        balancer.debt.zero_()
        drawn = torch.zeros(10).index_fill(0, next(balancer.batches(5, generator)), 1.0).double()
        together += torch.outer(drawn, drawn) / 1500
    pairs = together[~torch.eye(10, dtype=torch.bool)]
    assert (pairs - 2 / 9).abs().max() < 4 * (2 / 9 * 7 / 9 / 1500) ** 0.5
    assert (together.diagonal() - 1 / 2).abs().max() < 4 * (1 / 4 / 1500) ** 0.5


def test_shaken_marks_are_different_uniform_and_the_generators() -> None:
    marks = make_marks(20_000)
    assert marks[:2].tolist() == [-2152535657050944081, 7960286522194355700]  # splitmix64 from 0
    numbers = [shake(marks, seeded(seed)) for seed in (0, 0, 1)]
    assert torch.equal(numbers[0], numbers[1])
    shares = [(n.double() * 2.0**-64 + 0.5) for n in numbers]
    for number, share in zip(numbers, shares, strict=True):
        assert len(number.unique()) == 20_000
        steps = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        assert (share.sort().values - steps).abs().max() < 2 / 20_000**0.5  # Kolmogorov–Smirnov
    assert abs(float(torch.corrcoef(torch.stack(shares[1:]))[0, 1])) < 4 / 20_000**0.5


def test_a_greedy_batch_in_the_papers_window_is_those_furthest_behind() -> None:
    balancer = LeafBalancer(3, 60, window=True)
    for indices in balancer.batches(7, seeded()):
        balancer.update(indices, (indices > 40).long() + (indices > 55).long())
    counts = balancer.associations.sum(dim=0)
    behind = balancer.probabilities() - counts / counts.sum()
    chosen = next(balancer.batches(7, seeded()))
    rest = torch.ones(60, dtype=torch.bool).index_fill(0, chosen, False)
    assert behind[chosen].min() >= behind[rest].max() - 1e-9 / 60


def make_world() -> Tensor:
    """N q: a tenth of the samples at the floor, most at 1, a tenth above."""
    return torch.tensor([0.1] * 30 + [1.0] * 240 + [1.9] * 30, dtype=torch.float64)


@pytest.mark.parametrize("shares", [[0.5] * 270 + [5.5] * 30, [0.8] * 150 + [1.2] * 150])
def test_greedy_frequencies_follow_q(shares: list[float]) -> None:
    balancer = Obeying(2, 300)
    balancer.wanted = torch.tensor(shares, dtype=torch.float64) / 300
    drawn = run(balancer, 10, 60) / 10
    assert torch.allclose(drawn, balancer.wanted, rtol=0.15)
    for share in set(shares):
        group = torch.tensor(shares) == share
        assert torch.allclose(drawn[group].mean() * 300, torch.tensor(share).double(), rtol=0.03)


def test_comparing_with_all_draws_serves_the_floor_and_the_papers_window_does_not() -> None:
    """Why `window=False` exists: without those samples the weighted loss is biased."""
    bias = {}
    for window in (True, False):
        balancer = Obeying(2, 300, window=window)
        balancer.wanted = make_world() / 300
        run(balancer, 10, 10)
        drawn = run(balancer, 10, 40, seed=1) / 10
        at_floor = make_world() == 0.1
        bias[window] = float((drawn / make_world())[at_floor].sum()) * 10 - 1
        assert (drawn[at_floor] > 0).all() != window
        assert (drawn[~at_floor] > 0).all()
        if not window:
            assert (drawn - balancer.wanted).abs().max() * 40 * 300 <= 1  # within one draw
    assert bias[True] == -1.0
    assert abs(bias[False]) < 0.05


def test_a_share_no_batch_can_hold_leaves_the_others_equal_and_no_debt() -> None:
    balancer = Obeying(2, 20, window=False)
    balancer.wanted = torch.tensor([0.5] + [0.5 / 19] * 19, dtype=torch.float64)
    drawn = run(balancer, 4, 100)
    assert drawn[0] == 1
    assert torch.allclose(drawn[1:], torch.tensor(3 / 19).double(), atol=0.005)
    balancer.wanted = torch.full((20,), 1 / 20, dtype=torch.float64)
    assert torch.allclose(run(balancer, 4, 20), torch.tensor(0.2).double(), atol=0.03)


@pytest.mark.parametrize("size", [1, 3, 8, 19, 20])
@pytest.mark.parametrize("power", [0, 1, 4, 12])
def test_limited_shares_are_the_nearest_that_batches_can_serve(size: int, power: int) -> None:
    """By bisection for the shift, and none where none is needed."""
    wanted = torch.rand(20, generator=seeded(), dtype=torch.float64) ** power
    wanted /= wanted.sum()
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        short = (wanted + middle).clamp_max(1 / size).sum() < 1
        low, high = (middle, high) if short else (low, middle)
    limited = limit_shares(wanted, size)
    assert torch.allclose(limited, (wanted + high).clamp_max(1 / size), atol=1e-12)
    assert limited.sum().item() == pytest.approx(1)
    if wanted.max() <= 1 / size:
        assert torch.allclose(limited, wanted, atol=1e-15)


@pytest.mark.parametrize("options", [{}, {"exact": True}, {"refresh_every": 4}, {"greedy": False}])
@pytest.mark.parametrize(
    ("samples", "size", "rare"), [(64, 32, 4), (64, 8, 4), (300, 64, 5), (40, 40, 2)]
)
def test_the_weighted_loss_is_unbiased_however_rare_a_leaf_is(
    options: dict[str, Any], samples: int, size: int, rare: int
) -> None:
    """Even where balancing asks for a sample more often than once a batch: a draw is undone by its
    weight, in rare and in common samples."""
    balancer = LeafBalancer(2, samples, **options)
    everyone = torch.arange(samples)
    leaf = (everyone < rare).long()
    for _ in range(5):
        balancer.update(everyone, leaf)
    drawn, steps, generator = torch.zeros(samples), 0, seeded()
    while steps < 800:
        for indices in balancer.batches(size, generator):
            assert len(indices.unique()) == size
            drawn.index_add_(0, indices, balancer.weights(indices))
            balancer.update(indices, leaf[indices])
            steps += 1
    effective = drawn * samples / (size * steps)
    assert effective[:rare].mean().item() == pytest.approx(1, abs=0.03)
    assert effective[rare:].mean().item() == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("options", [{}, {"greedy": False}])
def test_a_batch_of_another_size_gets_a_q_that_it_can_serve(options: dict[str, Any]) -> None:
    """In the middle of a period too; a state without the size goes on as it was."""
    balancer = LeafBalancer(2, 64, refresh_every=4, **options)
    everyone, generator = torch.arange(64), seeded()
    leaf = (everyone < 4).long()
    for _ in range(5):
        balancer.update(everyone, leaf)
    drawn, places = torch.zeros(64), 0
    for step in range(1200):
        size = (4, 4, 4, 32, 32)[step % 5]
        indices = next(balancer.batches(size, generator))
        assert len(indices.unique()) == size
        assert balancer.in_force is not None
        assert balancer.in_force.max() <= 1 / size + 1e-12
        drawn.index_add_(0, indices, balancer.weights(indices))
        places += size
    assert balancer.debt.abs().max() < 20
    for group in (leaf == 1, leaf == 0):
        assert (drawn[group].mean() * 64 / places).item() == pytest.approx(1, abs=0.05)
    state = balancer.state_dict()
    del state["size"]
    other = LeafBalancer(2, 64, refresh_every=4, **options)
    other.load_state_dict(state)
    following = [next(b.batches(32, seeded(3))) for b in (balancer, other)]
    assert torch.equal(*following)


@pytest.mark.parametrize("together", [1, 4])
def test_nobody_falls_far_behind_whatever_q_asks(together: int) -> None:
    """A new q for every solution, some of them at the limit of what a batch can hold."""
    balancer, generator = Obeying(2, 200, refresh_every=together), seeded()
    for _ in range(400):
        wild = torch.rand(200, generator=generator, dtype=torch.float64) ** 30
        balancer.wanted = wild / wild.sum()
        for _ in range(together):
            next(balancer.batches(20, generator))
    assert balancer.debt.sum().item() == pytest.approx(0, abs=1e-6)
    assert balancer.debt.abs().max() < 1.5 * together + 2


def test_drawing_from_q_draws_with_its_frequencies() -> None:
    balancer = Obeying(2, 20, greedy=False)
    balancer.wanted = torch.linspace(0.1, 1.9, 20, dtype=torch.float64) / 20
    for size in (1, 5):  # several at once are of different samples, each as probable
        wanted, runs = size * balancer.wanted, 120 * -(-20 // size)
        deviation = (wanted * (1 - wanted) / runs).sqrt()
        assert ((run(balancer, size, 120) - wanted) / deviation).abs().max() < 3.5


def test_drawing_from_q_never_draws_what_it_excludes() -> None:
    balancer = Obeying(2, 20, greedy=False)
    balancer.wanted = torch.tensor([0.0] * 10 + [0.1] * 10, dtype=torch.float64)
    assert (run(balancer, 5, 50)[:10] == 0).all()


@pytest.mark.parametrize(
    "shares", [[0.5] * 270 + [5.5] * 30, [0.1] * 30 + [1.0] * 240 + [1.9] * 30]
)
def test_batches_drawn_together_follow_q(shares: list[float]) -> None:
    """Each sample within one and a half draws, at the end of every period."""
    balancer = Obeying(2, 300, refresh_every=4)
    balancer.wanted = torch.tensor(shares, dtype=torch.float64) / 300
    drawn = torch.zeros(300, dtype=torch.float64)
    for period in range(1, 60):
        batches = [next(balancer.batches(6, seeded(period))) for _ in range(4)]
        assert balancer.ahead is None
        drawn += torch.cat(batches).bincount(minlength=300)
        assert (drawn - 24 * period * balancer.wanted).abs().max() < 1.5


def test_batches_drawn_together_are_alike() -> None:
    """Ten of the twenty that are drawn are further behind: each batch has its share of them."""
    balancer = Obeying(2, 40, refresh_every=5)
    balancer.wanted = torch.full((40,), 1 / 40, dtype=torch.float64)
    balancer.debt[:10] = 0.6
    for _ in range(5):
        assert (next(balancer.batches(4, seeded())) < 10).sum() == 2


def test_what_is_drawn_ahead_and_not_asked_for_is_owed_again() -> None:
    balancer = Obeying(2, 40, refresh_every=5)
    wanted = torch.linspace(0.5, 1.5, 40, dtype=torch.float64) / 40
    balancer.wanted = wanted
    first = next(balancer.batches(4, seeded()))
    assert balancer.ahead is not None
    assert balancer.ahead.shape == (4, 4)
    ahead = balancer.ahead.flatten()
    owed = (balancer.debt - 16 * wanted).index_add(0, ahead, torch.ones(16).double())
    balancer.active = False
    next(balancer.batches(4, seeded()))
    assert balancer.ahead is None
    assert torch.equal(balancer.debt, owed)
    assert torch.allclose(owed, (4 * wanted).index_add(0, first, -torch.ones(4).double()))
    balancer.active = True
    next(balancer.batches(4, seeded()))
    again = next(balancer.batches(3, seeded()))  # another size
    assert len(again) == 3
    assert balancer.ahead.shape == (3, 3)


@pytest.mark.parametrize(("samples", "size"), [(100, 8), (200, 16), (500, 32)])
def test_few_samples_are_drawn_together_without_a_bias(samples: int, size: int) -> None:
    """Leaves win 84, 12 and 4 %. Rare samples must be drawn several times before q is solved for
    again, and weights undo it."""
    shares = torch.tensor([0.84, 0.12, 0.04])
    leaf = torch.arange(3).repeat_interleave((samples * shares).round().long())
    balancer = LeafBalancer(3, len(leaf), refresh_every=8)
    visits, weighted, generator = torch.zeros(3), torch.zeros(3), seeded()
    for epoch in range(60):
        for indices in balancer.batches(size, generator):
            assert len(indices.unique()) == size
            balancer.update(indices, leaf[indices])
            if epoch >= 10:
                visits.index_add_(0, leaf[indices], torch.ones(size))
                weighted.index_add_(0, leaf[indices], balancer.weights(indices))
    assert torch.allclose(visits / visits.sum(), torch.tensor(1 / 3), atol=0.03)
    assert torch.allclose(weighted / visits.sum(), leaf.bincount() / len(leaf), atol=0.01)


@pytest.mark.parametrize(
    "options", [{}, {"window": True}, {"greedy": False}, {"exact": True}, {"refresh_every": 4}]
)
def test_training_visits_all_leaves_equally(options: dict[str, Any]) -> None:
    """Leaves win 80, 15 and 5 % of the samples; balanced batches hold a third of each."""
    leaf = torch.arange(3).repeat_interleave(torch.tensor([320, 60, 20]))
    balancer = LeafBalancer(3, 400, **options)
    generator, visits = seeded(), torch.zeros(3)
    for epoch in range(8):
        for indices in balancer.batches(5, generator):
            balancer.update(indices, leaf[indices])
            visits += leaf[indices].bincount(minlength=3) * (epoch >= 3)
    assert torch.allclose(visits / visits.sum(), torch.tensor(1 / 3), atol=0.03)


def test_weights_are_those_of_the_q_that_drew_the_batch() -> None:
    balancer = LeafBalancer(2, 50, refresh_every=2)
    epoch, everyone = balancer.batches(5, seeded()), torch.arange(50)
    seen = []
    for _ in range(4):
        indices = next(epoch)
        seen.append(balancer.weights(everyone))
        balancer.update(indices, (indices > 40).long())
        assert torch.equal(balancer.weights(everyone), seen[-1])
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
    assert torch.equal(seen[2], seen[3])


def test_weights_stay_finite_without_a_floor() -> None:
    balancer = Obeying(2, 4, floor=0.0)
    balancer.wanted = torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    assert next(balancer.batches(2, seeded())).sort().values.tolist() == [2, 3]
    assert balancer.weights(torch.arange(4)).tolist() == [0.0, 0.0, 0.5, 0.5]


# --- state


OPTIONS = [
    {},
    {"window": True},
    {"greedy": False},
    {"refresh_every": 5},
    {"exact": True, "refresh_every": 3},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("active", [True, False])
def test_a_restored_balancer_continues_to_the_bit(options: dict[str, Any], active: bool) -> None:
    leaf = torch.randint(9, (100,), generator=seeded()).square() % 9

    def train(balancer: LeafBalancer, generator: torch.Generator) -> list[Tensor]:
        trace = []
        for indices in balancer.batches(8, generator):
            trace += [indices, balancer.weights(indices)]
            balancer.update(indices, leaf[indices])
        everyone = balancer.weights(torch.arange(100))
        return [*trace, everyone, balancer.probabilities(), balancer.probabilities(exact=True)]

    original, generator = LeafBalancer(9, 100, **options), seeded()
    original.active = active
    train(original, generator)
    original.active = True
    state, numbers = original.state_dict(), generator.get_state()
    assert all(isinstance(value, Tensor | int | bool) for value in state.values())
    expected = train(original, generator) + train(original, generator)
    restored, generator = LeafBalancer(9, 100, **options), torch.Generator()
    restored.load_state_dict(state)
    generator.set_state(numbers)
    for one, other in zip(
        expected, train(restored, generator) + train(restored, generator), strict=True
    ):
        assert torch.equal(one, other)


def test_a_fresh_state_restores_a_fresh_balancer() -> None:
    balancer, used = LeafBalancer(2, 10), LeafBalancer(2, 10)
    run(used, 3, 1)
    used.active = False
    used.load_state_dict(balancer.state_dict())
    assert used.active
    assert used.in_force is None
    assert torch.equal(used.conditional, balancer.conditional)


# --- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_leaves": 0}, "num_leaves is 0"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"ridge": 0.0}, r"ridge is 0\.0"),
        ({"ridge": float("nan")}, "ridge is nan"),
        ({"floor": 1.0}, r"floor is 1\.0"),
        ({"floor": -0.1}, r"floor is -0\.1"),
        ({"refresh_every": 0}, "refresh_every is 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"num_leaves": 3, "num_samples": 5} | options
    with pytest.raises(ValueError, match=message):
        LeafBalancer(**arguments)


@pytest.mark.parametrize(
    ("indices", "winners", "message"),
    [
        ([0, 5], [0, 0], r"indices run from 0 to 5; it must be in 0 … 4"),
        ([-1, 2], [0, 0], "indices run from -1 to 2"),
        ([0, 1], [0, 3], r"winners run from 0 to 3; it must be in 0 … 2"),
        ([0, 1], [0, 1, 2], r"shapes \(\(2,\), \(3,\)\)"),
        ([0, 1], [[0, 1], [0, 2]], r"tree\.descend\(x\)\[:, -1\]"),
    ],
)
def test_impossible_updates_are_refused(indices: list, winners: list, message: str) -> None:
    balancer = LeafBalancer(3, 5)
    with pytest.raises(ValueError, match=message):
        balancer.update(torch.tensor(indices), torch.tensor(winners))
    assert balancer.updates == 0


def test_other_impossible_requests_are_refused() -> None:
    balancer = LeafBalancer(3, 5)
    with pytest.raises(ValueError, match="size is 0"):
        balancer.batches(0)
    with pytest.raises(ValueError, match="indices run from 7 to 7"):
        balancer.weights(torch.tensor([7]))
    with pytest.raises(ValueError, match=r"\(samples, leaves\) \(6, 3\); it must be \(5, 3\)"):
        balancer.load_state_dict(LeafBalancer(3, 6).state_dict())
    with pytest.raises(ValueError, match=r"lacks .*'age'"):
        balancer.load_state_dict({"conditional": balancer.conditional})


# --- devices


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"window": True}, {"greedy": False}, {"refresh_every": 8}])
def test_a_gpu_draws_what_the_cpu_draws_without_waiting(options: dict[str, Any]) -> None:
    here, there = LeafBalancer(9, 5000, **options), LeafBalancer(9, 5000, device="cuda", **options)
    generators = seeded(), seeded()
    leaf = torch.randint(9, (5000,), generator=seeded()).square() % 9
    for one, other in zip(
        here.batches(64, generators[0]), there.batches(64, generators[1]), strict=True
    ):
        assert other.device.type == "cuda"
        assert one.sort().values.tolist() == other.sort().values.tolist()
        order = one.sort().values
        assert torch.allclose(here.weights(order), there.weights(order.cuda()).cpu())
        here.update(one, leaf[one])
        there.update(other, leaf[other.cpu()].cuda())
    winners = torch.zeros(64, dtype=torch.long, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for generator in (seeded(), torch.Generator("cuda").manual_seed(0)):
            for indices in there.batches(64, generator):
                there.weights(indices)
                there.update(indices, winners)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert kkt_residual(there.conditional, there.probabilities(exact=True), 1e-3, 0.1) < 1e-11
