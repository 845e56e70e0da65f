r"""Draw training samples so that every leaf learns equally often (appendix "Weighted Sampler").

A leaf that stands for a rare answer wins few samples, and Adam serves such a leaf badly. So the
samples that rare leaves win are drawn more often, and each loss is weighted by
$\gamma_j = 1 / (N q_j)$, which keeps it unbiased: only the *number of steps* per leaf changes.

With $P_{ij} = p(\text{leaf } i \mid \text{sample } j)$ counted during training, $n$ leaves and $N$
samples, the drawing probabilities $q$ should make all leaves equally frequent, $P q = 1/n$, and
stay near uniform:

$$ \min_q \tfrac12 \| P q - \tfrac1n \|^2 + \tfrac\lambda2 \| q \|^2
   \quad \text{s.t.} \quad \textstyle\sum_j q_j = 1, \; q_j \ge \rho / N,
   \qquad \lambda = \text{ridge} \cdot N / n $$

Choice: the paper does not give $\lambda$; written like this, its effect does not depend on $N$.
Deviation: the paper has $\rho = 0$. A sample with $q_j = 0$ is never drawn, no $\gamma_j$ can make
up for it, and the root is no longer the posterior mean. With $\rho > 0$, $\gamma_j \le 1/\rho$ too.
Choice: a batch holds $B$ different samples, so it cannot serve a $q_j > 1/B$. Batches are drawn by,
and $\gamma$ is that of, the nearest $q$ that they can serve (`limit_shares`).

In code $P$ is transposed, one row per sample, so that a batch touches whole rows. All of it happens
where the counts are, in few operations: beside a small network on a GPU each launch counts, and
nothing may wait. `refresh_every` steps may share all of it: the winners of as many batches are then
counted as those of one, q is solved for once, and the batches are drawn together (but those of a
`window` are counted, and those of a window or not `greedy` are drawn, one by one).
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float, Float64, Int, Int64
from torch import Tensor

from posterior_trees.balance.shares import (
    closed_form,
    exact_form,
    limit_shares,
    put_in_order,
    sweep,
    take_furthest_behind,
)
from posterior_trees.errors import InputError
from posterior_trees.seeding import make_marks

REBASE_EPOCHS = 32  # stored counts double every epoch; this often they are scaled back
AT_ONCE = 1024  # samples counted together: each is compared with each, to find repeated ones
GRAM_UPDATES = 2000  # the running P Pᵀ is recomputed this often, against drift
TENSORS = ("conditional", "totals", "gram", "debt", "dual")
OPTIONAL = ("in_force", "ahead")
NUMBERS = ("age", "updates", "due", "active")


class LeafBalancer:
    r"""Counts which leaf wins each sample, and draws the batches that train all leaves equally.

    The association matrix decays with each batch of $B$ samples that is counted,
    $A \leftarrow \mu A + (1 - \mu) A_{batch}$, $\mu = 2^{-B/N}$: a half-life of one epoch. The
    decay is the same for all entries and cancels in $P$, so it is one number (`age`, in samples),
    and an update touches only its own rows of $P$ (`conditional`) and the small $P P^\top$ (`gram`;
    its row sums are $P 1$). A sample not seen yet has $P_j = 1/n$.

    `greedy` batches hold the samples that are furthest behind what $q$ asks: by all draws so far,
    $\sum_t (B q_j - [j \in \text{batch}])$, so that each is drawn exactly as often as $q$ says
    (this is the cup game: who adds at most 1 to each of $N$ cups and $B$ in all, while 1 is taken
    from each of the $B$ fullest, fills none beyond $O(\log N)$; Kuszmaul, SODA 2020; $m$ times as
    much where $m$ batches share a $q$).
    The batches that share a $q$ are drawn as one and dealt out, so that none of them has more of
    those furthest behind.
    Deviation: the paper compares $q_j$ with the share a sample had of late,
    $p_j = \sum_i A_{ij} / \sum A$ (`window=True`). $A$ forgets within an epoch, so that
    samples with $q_j$ below about $0.3/N$ are *never* drawn, floor or not, and the weighted loss is
    biased.
    `greedy=False` draws batches from $q$: different samples, each with the probability $B q_j$.

    While `active` is False, epochs are plain shuffles with weights 1, and `update` still counts.

    `num_leaves` is $n$, `num_samples` $N$; `ridge` and `floor` ($\rho$) are those of the problem
    above, which `exact=True` solves exactly and not in closed form; `refresh_every` steps share one
    $q$; the counts live on `device`.

    >>> balancer = LeafBalancer(num_leaves=2, num_samples=4)
    >>> balancer.update(torch.tensor([0, 1, 2, 3]), torch.tensor([0, 0, 0, 1]))  # leaf 1 is rare
    >>> balancer.probabilities().argmax().item()
    3
    """

    def __init__(
        self,
        num_leaves: int,
        num_samples: int,
        *,
        ridge: float = 1e-3,
        floor: float = 0.1,
        greedy: bool = True,
        exact: bool = False,
        window: bool = False,
        refresh_every: int = 1,
        device: str | torch.device | None = None,
    ) -> None:
        _check(num_leaves >= 1, f"num_leaves is {num_leaves}", ">= 1", "pass branching ** depth")
        _check(num_samples >= 1, f"num_samples is {num_samples}", ">= 1", "pass len(dataset)")
        _check(0 < ridge < math.inf, f"ridge is {ridge}", "positive and finite", "try 1e-3")
        _check(0 <= floor < 1, f"floor is {floor}", "in [0, 1)", "0 is the paper, 0.1 is safer")
        _check(refresh_every >= 1, f"refresh_every is {refresh_every}", ">= 1", "1 is the paper")
        self.num_leaves, self.num_samples = num_leaves, num_samples
        self.ridge, self.floor, self.refresh_every = ridge, floor, refresh_every
        self.greedy, self.exact, self.window = greedy, exact, window
        self.active = True
        self.device = torch.device("cpu" if device is None else device)
        # Apple's GPUs have no float64: there the counts stay on the CPU and only indices travel.
        self._home = torch.device("cpu") if self.device.type == "mps" else self.device
        one = torch.ones((), dtype=torch.float64, device=self._home)
        self._table = one.new_full((num_samples, num_leaves + 1), 1.0 / num_leaves)
        self.conditional, self.totals = self._table[:, :-1], self._table[:, -1].zero_()
        self.gram = self.conditional.T @ self.conditional
        self._uniform = one / num_samples
        self.debt, self.dual = one.new_zeros(num_samples), one.new_ones(num_leaves)
        # A win of each leaf: in its own column, and in that of the totals.
        self._wins = torch.cat([one.new_ones(num_leaves).diag(), one.new_ones(num_leaves, 1)], 1)
        self._marks = make_marks(num_samples).to(self._home)
        self.in_force: Tensor | None = None  # the q that the last batch was drawn by
        self.ahead: Int64[Tensor, "batches size"] | None = None  # drawn already, not asked for yet
        self.age = self.updates = self.due = 0
        self.size = 0  # of the batches that q is limited for; 0: not known
        self._waiting: list[Int64[Tensor, "2 b"]] = []  # samples and winners not counted yet

    @property
    def associations(self) -> Float64[Tensor, "leaves samples"]:
        """The paper's A, decayed to now."""
        self._count()
        return (self.conditional * self.totals[:, None] * 2.0 ** (-self.age / self.num_samples)).T

    def update(self, indices: Int[Tensor, "..."], winners: Int[Tensor, "..."]) -> None:
        """Count the winning leaf of each sample of a batch; a sample may occur several times.

        With `refresh_every` above 1 they wait, to be counted together, until q is solved for anew
        or they are asked for.
        """
        shapes = tuple(indices.shape), tuple(winners.shape)
        agree = indices.ndim == 1 and shapes[0] == shapes[1]
        fix = "pass tree.descend(x)[:, -1] as winners"
        _check(agree, f"indices and winners have shapes {shapes}", "two equal vectors", fix)
        indices = self._bring(indices, self.num_samples, "indices")
        winners = self._bring(winners, self.num_leaves, "winners")
        if len(indices) == 0:
            return
        self.updates += 1
        is_enough = self.due == 0 if self.active else self.updates % self.refresh_every == 0
        if is_enough or self.window:  # a window looks at each batch
            self._count(indices, winners)
        else:
            self._waiting.append(torch.stack([indices, winners]))
        if self.updates % GRAM_UPDATES == 0:
            self.gram = self.conditional.T @ self.conditional

    def _count(self, *batch: Tensor) -> None:
        """Add samples and winners to A, together with those that are waiting."""
        if self._waiting:
            last = [torch.stack(batch)] if batch else []
            batch = torch.cat([*self._waiting, *last], dim=1).unbind()
            self._waiting.clear()
        if not batch:
            return
        indices, winners = batch
        epochs = len(indices) / self.num_samples
        self.age += len(indices)
        gain = (1.0 - 2.0**-epochs) * 2.0 ** (self.age / self.num_samples)
        for rows, leaves in zip(indices.split(AT_ONCE), winners.split(AT_ONCE), strict=True):
            self._add(rows, self._wins[leaves], gain)
        if self.age > REBASE_EPOCHS * self.num_samples:
            self.totals.mul_(2.0 ** (-self.age / self.num_samples))
            self.age = 0

    def _add(self, rows: Tensor, wins: Tensor, gain: float) -> None:
        r"""Add wins, each worth `gain`, to rows of A. With $a$ the wins of a row and $m$ their sum,

        $$ P_j \leftarrow \frac{t_j P_j + a}{t_j + m}, \qquad t_j \leftarrow t_j + m . $$

        A row that occurs several times has all its wins at each occurrence, is written as often,
        and counts once in $P P^\top$: each occurrence with the share gain / m.
        """
        is_same = (rows[:, None] == rows).to(wins.dtype)
        gains = torch.addmm(wins, is_same, wins, beta=0.0, alpha=gain)
        # The columns of the leaves, and that of their total.
        (old, total), (new, m) = ((t[:, :-1], t[:, -1:]) for t in (self._table[rows], gains))
        new_total = total + m
        new.addcmul_(old, total).div_(new_total)
        self.conditional[rows], self.totals[rows] = new, new_total[:, 0]
        change = (new - old).div_(m)
        self.gram.addmm_(change.T, new, alpha=gain).addmm_(old.T, change, alpha=gain)

    def probabilities(self, exact: bool = False) -> Float64[Tensor, "samples"]:
        """The drawing probability q of every sample, from all that `update` was told so far."""
        self._count()
        if exact:
            return exact_form(self.conditional, self.ridge, self.floor, self.dual)[0]
        return closed_form(self.conditional, self.ridge, self.floor, self.gram)

    def weights(self, indices: Int[Tensor, "b"]) -> Float[Tensor, "b"]:
        r"""Loss weights $\gamma_j = 1 / (N q_j)$, with the q by which the last batch was drawn.

        0 where $q_j = 0$, which only a floor of 0 allows.
        """
        rows = self._bring(indices, self.num_samples, "indices")
        if not self.active:
            return torch.ones(len(rows), device=indices.device)
        q = self.probabilities(self.exact) if self.in_force is None else self.in_force
        gamma = self._uniform / q[rows]
        if self.floor == 0:
            gamma.nan_to_num_(posinf=0.0)
        return gamma.to(torch.get_default_dtype()).to(indices.device)

    def batches(
        self, size: int, generator: torch.Generator | None = None
    ) -> Iterator[Int64[Tensor, "b"]]:
        """One epoch: ceil(N / size) batches of `size` different samples (of N, if N is smaller).

        A batch is chosen when it is asked for, from what `update` was told until then, but for
        those that share a q (`refresh_every`). `active` is read when this is called.
        """
        _check(size >= 1, f"size is {size}", ">= 1", "the paper uses 32")
        size = min(size, self.num_samples)
        return self._balanced(size, generator) if self.active else self._plain(size, generator)

    def _plain(self, size: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """A shuffled epoch; its last batch is filled up from the first."""
        self._put_back()
        self.in_force, self.due = torch.full_like(self.totals, 1.0 / self.num_samples), 0
        place = self._home if generator is None else generator.device
        order = torch.randperm(self.num_samples, generator=generator, device=place).to(self.device)
        yield from torch.cat([order, order])[: -(-self.num_samples // size) * size].split(size)

    def _balanced(self, size: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        for _ in range(-(-self.num_samples // size)):
            if self.size not in (0, size):  # what is drawn ahead is of the q of another size
                self._put_back()
            if self.in_force is None or self.due == 0 or self.size not in (0, size):
                self.in_force = limit_shares(self._solve(), size)
                self.due = self.due or self.refresh_every
            self.size = size
            batch = self._next(self.in_force, size, generator)
            self.due -= 1
            yield batch.to(self.device)

    def _solve(self) -> Tensor:
        if not self.exact:
            return self.probabilities()
        self._count()
        q, self.dual = exact_form(self.conditional, self.ridge, self.floor, self.dual)
        return q

    def _next(self, q: Tensor, size: int, generator: torch.Generator | None) -> Tensor:
        """A batch; greedy ones are drawn ahead, as many as share this q."""
        if not self.greedy:
            return sweep(q, size, self._marks, generator)
        if self.window:
            behind = self.num_samples * (q - self.totals / self.totals.sum().clamp_min(1e-300))
            return put_in_order(behind, self._marks, generator).topk(size).indices
        if self.ahead is None:
            self.debt = torch.add(self.debt, q, alpha=self.due * size)
            self.ahead = take_furthest_behind(self.debt, size, self.due, self._marks, generator)
        batch, rest = self.ahead[0], self.ahead[1:]
        self.ahead = rest if len(rest) else None
        return batch

    def _put_back(self) -> None:
        """What was drawn ahead and will not be asked for was never owed, nor drawn."""
        if self.ahead is not None and self.in_force is not None:
            drawn = self.ahead.flatten()
            self.debt.sub_(self.in_force, alpha=len(drawn))
            self.debt.index_add_(0, drawn, torch.ones_like(drawn, dtype=self.debt.dtype))
        self.ahead = None

    def _bring(self, numbers: Tensor, limit: int, name: str) -> Tensor:
        """Numbers to where the counts are, checked unless the check would stall a GPU."""
        numbers = numbers.to(self._home, torch.int64)
        if numbers.device.type == "cpu" and numbers.numel() > 0:
            low, high = (int(end) for end in numbers.aminmax())
            fix = f"build the LeafBalancer for as many {name} as the data or the tree has"
            holds = low >= 0 and high < limit
            _check(holds, f"{name} run from {low} to {high}", f"in 0 … {limit - 1}", fix)
        return numbers

    def state_dict(self) -> dict[str, Tensor | int | bool]:
        """All that decides future batches and weights, as tensors and plain numbers."""
        tensors = {name: getattr(self, name) for name in (*TENSORS, *OPTIONAL)}
        state = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
        if self._waiting:
            state["waiting"] = torch.cat(self._waiting, dim=1)
        return state | {name: getattr(self, name) for name in (*NUMBERS, "size")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, to the bit; options such as `ridge` are not part of it."""
        missing = [name for name in (*TENSORS, *NUMBERS) if name not in state]
        _check(not missing, f"the balancer's state lacks {missing}", "whole", "save it again")
        stored, mine = tuple(state["conditional"].shape), (self.num_samples, self.num_leaves)
        fix = "resume with the data and the tree of the first run"
        _check(stored == mine, f"the state has (samples, leaves) {stored}", f"{mine}", fix)
        self.conditional.copy_(state["conditional"])
        self.totals.copy_(state["totals"])
        for name in (*TENSORS[2:], *OPTIONAL):
            tensor = state.get(name)
            setattr(self, name, None if tensor is None else tensor.to(self._home, copy=True))
        for name in NUMBERS:
            setattr(self, name, type(getattr(self, name))(state[name]))
        self.size = int(state.get("size", 0))
        waiting = state.get("waiting")
        self._waiting = [] if waiting is None else [waiting.to(self._home, copy=True)]


def _check(holds: bool, value: str, limit: str, fix: str) -> None:
    if not holds:
        raise InputError(f"{value}; it must be {limit}: {fix}")
