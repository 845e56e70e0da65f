r"""Which samples make the next batches, if sample $j$ is to be drawn with probability $q_j$.

All samples of a batch are different, so that no $q_j$ may exceed $1/B$ (`limit_shares` in
`shares.py`). `take_furthest_behind` goes by what each sample is owed, and is exact over
time; `sweep` goes by chance. `marks` are those of `seeding.make_marks`: luck is made where the
samples are.
"""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from posterior_trees.seeding import shake

DIGITS = 9  # of a debt; smaller differences are no preference, and leave bits for a random order


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
