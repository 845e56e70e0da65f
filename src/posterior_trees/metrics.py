r"""What a tree is judged by: per-image values on the greedy path of the truth (Sec. 4.1).

From the root the truth goes to the nearest child, level by level. At each depth of that path we
read the PSNR of the node and the negative log of its probability. Nothing is clipped; values are
per image and reduced once, by `summarize`, with a bootstrap interval over images; windows of one
image say much the same, and are drawn together.

NLL alone is no score of quality (a tree with one sure child scores 0): read it next to the PSNR and
next to the entropy of the predicted probabilities. NLL − entropy ≈ 0 means calibrated.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.tree import Tree

LEAST_ERROR = 1e-10
"""No squared error below this, 100 dB: one exact hit would make every mean infinite."""
LEAST_PROBABILITY = 1e-6
"""In a table no probability is below this, so that no single image decides the mean NLL."""


def psnr(
    tree: Tree, x: Float[Tensor, "b *shape"], mask: Bool[Tensor, "*space"] | None = None
) -> Float[Tensor, "b levels"]:
    """PSNR in dB, range 1, of the nodes on the path of `x`; over the pixels of `mask` if given.

    The path is always the path over all pixels. `tree` holds one tree for each truth of `x`.

    >>> tree = grow(torch.tensor([[[0.0], [0.2]]]), torch.tensor([[0.5, 0.5]]).log(), branching=2)
    >>> psnr(tree, torch.tensor([[0.3]])).round()  # root 0.1, nearest leaf 0.2
    tensor([[14., 20.]])
    """
    path = tree.descend(x)
    values = []
    for level, images in enumerate(tree.images):
        nodes = images[torch.arange(len(tree), device=images.device), path[:, level]]
        squares = (nodes - x).square()
        if mask is not None:
            squares = squares[..., mask.to(squares.device)]
        values.append(-10 * squares.flatten(1).mean(dim=1).clamp_min(LEAST_ERROR).log10())
    return torch.stack(values, dim=1)


def nll(tree: Tree, x: Float[Tensor, "b *shape"]) -> Float[Tensor, "b levels"]:
    """−ln of the absolute probability of the nodes of `tree` on the path of `x`; 0 at the root,
    which holds every answer, and not what rounding makes of the sum of its leaves.

    >>> tree = grow(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[0.75, 0.25]]).log(), branching=2)
    >>> nll(tree, torch.tensor([[2.0]]))
    tensor([[0.0000, 1.3863]])
    """
    path = tree.descend(x)
    levels = [-logs.gather(1, path[:, i : i + 1]) for i, logs in enumerate(tree.log_probs)]
    return torch.cat([torch.zeros_like(levels[0]), *levels[1:]], dim=1)


def entropy(tree: Tree) -> Float[Tensor, "b levels"]:
    """Entropy in nats of each level's probabilities; what a calibrated `tree` expects of its NLL.
    It is 0 at the root.

    >>> tree = grow(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[0.5, 0.5]]).log(), branching=2)
    >>> entropy(tree)
    tensor([[0.0000, 0.6931]])
    """
    levels = [
        -(log_probs.exp() * log_probs.masked_fill(log_probs.isneginf(), 0.0)).sum(dim=1)
        for log_probs in tree.log_probs
    ]
    return torch.stack([torch.zeros_like(levels[0]), *levels[1:]], dim=1)


def information(probs: Float[Tensor, "n leaves"]) -> float:
    r"""How many nats the predicted probabilities tell about single images: the entropy of their
    mean minus their mean entropy. 0: every image gets the same ones, whatever it shows."""
    mean, each = probs.double().mean(dim=0), probs.double()
    return (torch.special.entr(mean).sum() - torch.special.entr(each).sum(dim=1).mean()).item()


def displacement(
    seen: Float[Tensor, "b c h w"], x: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b 2"]:
    r"""By how many rows and columns `x` lies from `seen`: the $d$ that minimises
    $\sum (x - \text{seen} + d \cdot \nabla \text{seen})^2$, for offsets of about a pixel."""
    slopes = torch.stack(torch.gradient(seen.double(), dim=(2, 3))).flatten(2)  # (2, b, pixels)
    rest = (x - seen).double().flatten(1)
    normal = torch.einsum("ibp,jbp->bij", slopes, slopes)
    normal = normal + 1e-12 * torch.eye(2, dtype=normal.dtype, device=normal.device)
    return -torch.linalg.solve(normal, torch.einsum("ibp,bp->bi", slopes, rest)).to(seen.dtype)


class Summary(NamedTuple):
    """Mean and standard deviation over images, with a 95 % bootstrap interval of the mean."""

    mean: float
    std: float
    low: float
    high: float


def summarize(
    values: Float[Tensor, "b"], draws: int = 1000, groups: Int[Tensor, "b"] | None = None
) -> Summary:
    """`groups` numbers what each value belongs to: the interval is that of drawing whole groups,
    and NaN where there is but one."""
    values = values.detach().cpu().double()
    generator = torch.Generator().manual_seed(0)
    place = torch.arange(len(values)) if groups is None else groups.unique(return_inverse=True)[1]
    counts = place.bincount().double()
    sums = torch.zeros_like(counts).index_add_(0, place, values)
    means = torch.empty(draws, dtype=sums.dtype)
    for i in range(draws):
        drawn = torch.randint(len(sums), (len(sums),), generator=generator)
        means[i] = sums[drawn].sum() / counts[drawn].sum()
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=means.dtype)).tolist()
    if groups is not None and len(sums) < 2:
        low = high = math.nan
    std = values.std(correction=0).item()
    return Summary(values.mean().item(), std, low, high)


def per_depth(
    values: Float[Tensor, "b levels"], groups: Int[Tensor, "b"] | None = None
) -> list[dict[str, float | int]]:
    """A summary of each level, for tables."""
    columns = enumerate(values.T)
    return [{"depth": d, **summarize(column, groups=groups)._asdict()} for d, column in columns]


def clamp_nll(values: Float[Tensor, "b levels"]) -> tuple[Float[Tensor, "b levels"], int]:
    """NLL for tables, with `LEAST_PROBABILITY`, and for how many images that made a difference."""
    limit = -math.log(LEAST_PROBABILITY)
    return values.clamp_max(limit), int((values > limit).any(dim=1).sum())
