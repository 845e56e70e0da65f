r"""Drawing probabilities that make all leaves equally frequent; see `balancer.py` for the problem.

`closed_form` drops the inequality as the paper does, `exact_form` keeps it. Both take
$P_{ij} = p(\text{leaf } i \mid \text{sample } j)$ transposed, one row per sample. `limit_shares`
makes of their q one that batches of different samples can serve: all samples of a batch are
different, so that no $q_j$ may exceed $1/B$.

Which samples make the next batches is said by `take_furthest_behind`, which goes by what each
sample is owed, and is exact over time, or by `sweep`, which goes by chance. `marks` are those of
`seeding.make_marks`: luck is made where the samples are.
"""

import functools
import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from posterior_trees.seeding import shake

DIGITS = 9  # of a debt; smaller differences are no preference, and leave bits for a random order


def closed_form(
    conditional: Float64[Tensor, "samples leaves"],
    ridge: float = 1e-3,
    floor: float = 0.1,
    gram: Float64[Tensor, "leaves leaves"] | None = None,
) -> Float64[Tensor, "samples"]:
    r"""Drawing probabilities without the inequality (the paper's), then lifted onto the floor.

    $$ \tilde q = (I - P^\top (P P^\top + \lambda I)^{-1} P) \, 1
                = \lambda P^\top (P P^\top + \lambda I)^{-1} 1, \qquad
       q^\diamond = \tilde q / \textstyle\sum_j \tilde q_j $$

    The second form holds because the columns of $P$ sum to 1 ($P^\top 1 = 1$), and does not cancel.
    Then $q = \rho/N + (1-\rho) \, r / \sum_j r_j$ with $r = [q^\diamond - \rho/N]_+$, which is the
    paper's clipping at $\rho = 0$ and $q^\diamond$ itself where that is above the floor everywhere.
    `gram` is $P P^\top$, if it is known.
    """
    samples, leaves = conditional.shape
    gram = conditional.T @ conditional if gram is None else gram
    eye, ones = _eye_and_ones(leaves, gram.device)
    factor = torch.linalg.cholesky_ex(torch.add(gram, eye, alpha=ridge * samples / leaves)).L
    q = conditional @ torch.cholesky_solve(ones, factor)[:, 0]
    return _lift(torch.sub(q, q.mean(), alpha=floor), floor)  # the scale of q falls out


def exact_form(
    conditional: Float64[Tensor, "samples leaves"],
    ridge: float = 1e-3,
    floor: float = 0.1,
    start: Float64[Tensor, "leaves"] | None = None,
) -> tuple[Float64[Tensor, "samples"], Float64[Tensor, "leaves"]]:
    r"""The exact minimiser $q$, and its dual $w$, by semi-smooth Newton with line search.

    One number per leaf decides everything: $N q_j = \max(\rho, P_j^\top w)$, where $w$ minimises

    $$ F(w) = \tfrac{c}{2} \| C w \|^2 - \bar w + \tfrac1N \sum_j h(P_j^\top w), \qquad
       h'(t) = \max(\rho, t), \quad c = \text{ridge} / n, \quad C = I - \tfrac1n 1 1^\top $$

    This is the dual with multipliers $y = -c \, C w$ of $P q = 1/n$ and $\nu = -c \, \bar w$ of
    $\sum q = 1$, which one vector can hold because $P^\top 1 = 1$. $\nabla F = c \, C w - \tfrac1n
    + P q$, and only samples above the floor enter the curvature $c \, C + \tfrac1N P_{free}
    P_{free}^\top$. $F$ is convex and piecewise quadratic: one step inside the last piece ends it.
    `start` is the dual of a similar problem.
    """
    samples, leaves = conditional.shape
    pull = ridge / leaves
    # C has the null vector 1; a trace of 1 1ᵀ keeps the system solvable when no sample is free.
    eye = torch.eye(leaves, dtype=conditional.dtype, device=conditional.device)
    centre = eye - (1.0 - 1e-6) / leaves
    w = torch.ones_like(conditional[0]) if start is None else start
    before, error = None, math.inf
    for _ in range(100):
        scores = conditional @ w
        free = scores > floor
        balance = scores.clamp_min(floor) @ conditional / samples - 1.0 / leaves
        gradient = pull * (w - w.mean()) + balance
        last, error = error, float(gradient.abs().max())
        has_stalled = before is not None and error > last / 2 and torch.equal(free, before)
        if error < 1e-14 or has_stalled:
            break
        curvature = (conditional * free[:, None]).T @ conditional / samples + pull * centre
        d = -torch.linalg.solve(curvature, gradient)
        linear = float(pull * (w - w.mean()) @ d - d.mean())
        quadratic = float(pull * (d - d.mean()) @ d)
        w, before = w + _bottom(scores, conditional @ d, linear, quadratic, floor) * d, free
    return _lift(conditional @ w - floor, floor), w


def limit_shares(q: Float64[Tensor, "samples"], size: int) -> Float64[Tensor, "samples"]:
    r"""The distribution nearest to $q$ that no sample has more than $1/B$ of, $B$ being `size`: a
    batch of $B$ different samples has each once at most.

    $$ q^* = \min(q + c, \tfrac1B), \qquad
       c = \max_{0 \le k < N} \frac{\sum_{j \le k} q_{(j)} - k/B}{N - k}, \qquad
       q_{(1)} \ge q_{(2)} \ge \dots $$

    For each k, $\sum_{j \le k} \tfrac1B + \sum_{j > k} (q_{(j)} + c)$ is at least the sum of
    $q^*$, and equal to it where k samples are at the limit: so the c that makes it 1 is at most
    the right one, and that is the largest. No more than B samples can be at the limit.
    """
    slope, offset = _rows_of_limits(len(q), size, q.device)
    if not len(slope):
        return q
    shift = torch.addcmul(offset, q.topk(len(slope)).values.cumsum_(0), slope).amax()
    return (q + shift).clamp_max_(1.0 / size)


@functools.lru_cache(maxsize=8)
def _rows_of_limits(
    samples: int, size: int, device: torch.device
) -> tuple[Float64[Tensor, "k"], Float64[Tensor, "k"]]:
    """1/(N - k) and -k/B/(N - k) for k = 1, 2, … and, at the end, for the c = 0 of k = 0."""
    most = min(size, samples - 1)
    k = torch.arange(1, most + 1, dtype=torch.float64)
    slope = 1.0 / (samples - k)
    none = slope.new_zeros(min(1, most))
    return torch.cat([slope, none]).to(device), torch.cat([-k / size * slope, none]).to(device)


def _bottom(scores: Tensor, change: Tensor, linear: float, quadratic: float, floor: float) -> float:
    """The step along one direction at which F' has all but vanished: Newton, kept inside a
    shrinking bracket. F' rises, in straight pieces, from below 0 to above."""

    def slopes(step: float) -> tuple[float, float]:
        """F' and F'' after `step`."""
        there = scores + step * change
        first = float((change * there.clamp_min(floor)).mean())
        second = float((change.square() * (there > floor)).mean())
        return linear + step * quadratic + first, quadratic + second

    enough = 0.1 * abs(slopes(0.0)[0])
    low, high, step = 0.0, math.inf, 1.0
    for _ in range(40):
        first, second = slopes(step)
        if abs(first) <= enough:
            break
        low, high = (step, high) if first < 0 else (low, step)
        step = step - first / second if second > 0 else math.inf
        if not low < step < high:
            step = 2 * low if math.isinf(high) else (low + high) / 2
    return step


def _lift(excess: Tensor, floor: float) -> Tensor:
    """q from what exceeds the floor, in any unit: that on top of the floor, and all sums to 1."""
    spare = excess.clamp_min(0.0)
    least = _constant(floor / len(spare), spare.device)
    return torch.addcdiv(least, spare, spare.sum(), value=1.0 - floor)


@functools.lru_cache(maxsize=8)
def _constant(value: float, device: torch.device) -> Float64[Tensor, ""]:
    """Kept where it is used: each launch counts."""
    return torch.tensor(value, dtype=torch.float64, device=device)


@functools.lru_cache(maxsize=8)
def _eye_and_ones(
    leaves: int, device: torch.device
) -> tuple[Float64[Tensor, "leaves leaves"], Float64[Tensor, "leaves 1"]]:
    eye = torch.eye(leaves, dtype=torch.float64, device=device)
    return eye, eye.new_ones(leaves, 1)


def sweep(
    q: Float64[Tensor, "samples"],
    size: int,
    marks: Int64[Tensor, "samples"],
    generator: torch.Generator | None,
) -> Int64[Tensor, "b"]:
    """Systematic sampling: lay the samples in random order along a line, each as long as size times
    its q, at most 1, and take those under points at distances of 1."""
    order = shake(marks, generator).argsort()
    start = shake(marks[:1], generator).to(q.dtype).mul_(2.0**-64).add_(0.5)
    ends = q[order].mul_(size).cumsum(0)
    points = torch.arange(size, device=q.device).add(start)
    return order[torch.searchsorted(ends, points, right=True).clamp_max_(len(q) - 1)]


def take_furthest_behind(
    behind: Float64[Tensor, "samples"],
    size: int,
    batches: int,
    marks: Int64[Tensor, "samples"],
    generator: torch.Generator | None,
) -> Int64[Tensor, "batches b"]:
    """Batches of those furthest behind, each of different samples; who is owed x draws competes
    with x, x - 1, x - 2, … for places in as many of them. What is drawn is no longer owed: `behind`
    changes in place."""
    order = put_in_order(behind, marks, generator)
    chosen = order.topk(min(batches * size, len(behind))).indices
    owed = behind[chosen]
    if batches == 1:
        drawn, times = chosen, 1.0
    else:
        turns = torch.arange(batches, device=behind.device)
        wishes = (order[chosen].unsqueeze(1) - turns).flatten()
        # In order of samples, so that those of one go to different batches.
        granted = wishes.topk(batches * size).indices.sort().values
        drawn = chosen[granted // batches]
        times = torch.zeros_like(wishes).index_fill_(0, granted, 1.0).reshape(-1, batches).sum(1)
    behind[chosen] = owed - times
    return drawn.reshape(size, batches).T.contiguous()


def put_in_order(
    behind: Float64[Tensor, "samples"],
    marks: Int64[Tensor, "samples"],
    generator: torch.Generator | None,
) -> Float64[Tensor, "samples"]:
    """How far samples are behind, with equals in random order: luck is at most a quarter of the
    last digit that counts."""
    luck = shake(marks, generator)
    return behind.round(decimals=DIGITS).add_(luck, alpha=2.0**-65 * 0.1**DIGITS)
