r"""Diagnostics of a calibration: does it cover what it promises, and were the trees honest before?

Coverage is judged on halves: the scored groups are halved `SPLITS` times by a hash of their names,
one half gives the quantile, the other is covered or not.

Whether a tree was honest before is the rank of the truth in its own order of leaves, the mass of
the likelier leaves and, at random, a part $U$ of its own:

$$ r = \sum_{l:\, \alpha_l > \alpha_{l^*}} \alpha_l + U \alpha_{l^*}, $$

uniform if the probabilities are right. It piles up near 1 if they are too sure, near 0 if they are
too unsure; $z$ is its mean in standard errors, over groups.
"""

from itertools import compress
from os import PathLike
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee import balls, cuts
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.conformal import beta_range, finest_level, quantile, weights
from posterior_trees.guarantee.judging import Rows, number_of, score_rows, take
from posterior_trees.guarantee.numbers import Form
from posterior_trees.seeding import unit_hash
from posterior_trees.store import whole
from posterior_trees.tree import grow, level_sizes

LEVELS = tuple(i / 20 for i in range(10, 20))
SPLITS = 20
BINS = 10
FEW = 60
"""Groups up to which each is left out in turn, and shown."""
TELLING = 3.0
"""Standard errors from which on trees are called too sure or too unsure."""


class Diagnosis(NamedTuple):
    """Numbers behind the figure; `coverage` by promise, over `levels` and then splits."""

    verdict: str
    z: float
    rank: Float[Tensor, "n"]
    levels: list[float]
    coverage: dict[str, Float[Tensor, "levels splits"]]
    band: list[tuple[float, float]]
    by_group: Float[Tensor, "groups"]
    group: str
    level: float
    by_size: list[tuple[int, int, float]]
    reliability: list[tuple[float, float, int]]

    @property
    def words(self) -> str:
        """Few images cannot tell that trees are a little too sure."""
        seen = f", as far as {len(self.rank):,} images tell" * (self.verdict == "honest")
        return f"{self.verdict}{seen} (z = {self.z:+.1f})"


def diagnose(guarantee: Guarantee, level: float = 0.9) -> Diagnosis:
    """Coverage and honesty of what a guarantee was concluded from, before it is stored."""
    if guarantee.judged is None:
        raise GuaranteeError("a stored guarantee has forgotten its images: calibrate again")
    judged, kept = guarantee.judged, ~guarantee.judged.fits
    rows, labels = take(judged.rows, kept), list(compress(judged.labels, kept.tolist()))
    groups = number_of(labels)
    scores = score_rows(rows, judged.plan, guarantee.fitted, guarantee.facts["measures"])
    votes, count = weights(groups, len(groups)), len(groups.unique())
    levels = [level for level in LEVELS if level <= finest_level(count // 2)]
    coverage = {name: _cover(values, labels, groups, levels) for name, values in scores.items()}
    ranks = _ranks(rows)
    means = torch.zeros(count, dtype=torch.float64).index_add_(0, groups, votes * (ranks - 0.5))
    z = (means.mean() / (means.std() / count**0.5)).item() if count > 1 else 0.0
    verdict = "too sure" if z > TELLING else "too unsure" if z < -TELLING else "honest"
    at = min(level, finest_level(count - 1))
    inside, sizes = _inside(scores[f"cut{judged.plan.nodes}"], rows, guarantee.facts, groups, at)
    by_group, group = _shares(inside, groups), "group, left out in turn"
    if count > FEW:
        by_group, group = _shares(inside, rows["probs"].argmax(dim=1)), "likeliest leaf"
    band = [beta_range(count // 2, level) for level in levels]
    by_size = [
        (int(size), int((sizes == size).sum()), inside[sizes == size].mean().item())
        for size in sizes.unique()
    ]
    shown = by_group, group, at, by_size, _reliability(rows)
    return Diagnosis(verdict, z, ranks, levels, coverage, band, *shown)


def sizes_of(rows: Rows, guarantee: Guarantee, level: float) -> dict[str, float]:
    """How much each promise says of these images: nodes and leaves of cuts, radius, widths."""
    found, facts = {}, guarantee.facts
    for name, nodes in ((f"cut{facts['nodes']}", facts["nodes"]), ("leaves", None)):
        chosen = _cut(rows, facts["branching"], guarantee.scores[name].quantile(level), nodes)
        found[f"{name}.nodes"] = sum(len(paths) for paths, _ in chosen) / len(chosen)
        found[f"{name}.leaves"] = sum(leaves for _, leaves in chosen) / len(chosen)
    sigma = balls.scale(rows["ball.features"], guarantee.fitted["ball"])
    found["ball.radius"] = (guarantee.scores["ball"].quantile(level) * sigma).mean().item()
    for name, kept in facts["measures"].items():
        q, values = guarantee.scores[f"measure.{name}"].quantile(level), rows[f"values.{name}"]
        low, high = Form(*kept["form"]).interval(values, rows["probs"], q, kept["limits"])
        found[f"{name}.width"] = (high - low).mean().item()
    if "boxes" in guarantee.scores:
        q = guarantee.scores["boxes"].quantile(level)
        widths = 2 * q * (rows["box.variance"] + guarantee.fitted["boxes"].double()).sqrt()
        found["boxes.width"] = widths.clamp(max=1).mean().item()
    return found


def draw_report(file: str | PathLike[str], found: Diagnosis, title: str) -> None:
    """The figure of a diagnosis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.6), layout="constrained")
    axes = figure.subplots(1, 5)
    levels = torch.tensor(found.levels)
    low, high = torch.tensor(found.band).T - levels
    axes[0].fill_between(levels, low, high, color="0.85", label="where 90 of 100 calibrations lie")
    for name, values in found.coverage.items():
        off = values.mean(dim=1) - levels
        axes[0].plot(levels, off, lw=1.2, label=name.removeprefix("measure."))
    axes[0].axhline(0, color="k", lw=0.8)
    axes[0].set(xlabel="level", ylabel="coverage of the other half, less the level")
    axes[1].bar(range(len(found.by_group)), found.by_group.sort().values.tolist(), color="C0")
    axes[1].axhline(found.level, color="k", lw=1)
    words = f"share covered by a cut of {100 * found.level:.3g} %"
    axes[1].set(xlabel=f"{found.group}; sorted", ylabel=words, ylim=(0, 1.05))
    sizes, counts, shares = zip(*found.by_size, strict=True)
    axes[2].scatter(sizes, shares, [20 + 300 * n / sum(counts) for n in counts], alpha=0.6)
    axes[2].axhline(found.level, color="k", lw=1)
    axes[2].set(xlabel="leaves in the cut", ylabel="share covered", ylim=(0, 1.05))
    axes[3].hist(found.rank.tolist(), bins=BINS, range=(0, 1), color="C7")
    axes[3].axhline(len(found.rank) / BINS, color="k", lw=1)
    axes[3].set(xlabel="rank of the truth in its own tree", ylabel="images")
    axes[3].set_title(f"trees by themselves: {found.words}", fontsize=8)
    told, true, counts = zip(*found.reliability, strict=True)
    axes[4].plot([0, 1], [0, 1], color="k", lw=1)
    axes[4].scatter(told, true, [10 + 200 * n / sum(counts) for n in counts], color="C3")
    axes[4].set(xlabel="probability of a leaf", ylabel="how often it is reached")
    figure.suptitle(title, fontsize=11)
    figure.legend(fontsize=8, ncols=12, loc="outside lower left")
    with whole(file) as part:
        figure.savefig(part, dpi=110)


def _shares(inside: Float[Tensor, "n"], groups: Tensor) -> Float[Tensor, "groups"]:
    """The share of each group's images that are covered."""
    place = groups.unique(return_inverse=True)[1]
    return place.bincount(inside) / place.bincount()


def _cover(values: Tensor, labels: list[str], groups: Tensor, levels: list[float]) -> Tensor:
    shares = []
    for split in range(SPLITS):
        half = torch.tensor([unit_hash(label, f"half {split}") < 0.5 for label in labels])
        if not half.any() or half.all():
            continue
        votes = weights(groups[~half], int((~half).sum()))
        quantiles = torch.tensor([quantile(values[half], level, groups[half]) for level in levels])
        inside = values[~half] <= quantiles[:, None]
        shares.append((inside * votes).sum(dim=1) / votes.sum())
    return torch.stack(shares, dim=1)


def _ranks(rows: Rows) -> Float[Tensor, "n"]:
    """The rank of each truth; the part of its own leaf is drawn, always the same."""
    own = rows["probs"].gather(1, rows["leaf"][:, None])[:, 0]
    likelier = (rows["probs"] * (rows["probs"] > own[:, None])).sum(dim=1)
    uniform = torch.rand(len(own), generator=torch.Generator().manual_seed(0), dtype=own.dtype)
    return likelier + uniform * own


def _inside(
    values: Tensor, rows: Rows, facts: dict[str, Any], groups: Tensor, level: float
) -> tuple[Float[Tensor, "n"], Tensor]:
    """Whether each truth is in its cut, its group left out of the calibration where groups are
    few, and how many leaves the cut covers."""
    inside, sizes = torch.zeros(len(values), dtype=torch.float64), torch.zeros(len(values))
    is_few = len(names := groups.unique()) <= FEW
    for own in [groups == name for name in names] if is_few else [groups >= 0]:
        others = ~own if is_few else own
        q = quantile(values[others], level, groups[others])
        inside[own] = (values[own] <= q).double()
        chosen = _cut(take(rows, own), facts["branching"], q, facts["nodes"])
        sizes[own] = torch.tensor([float(leaves) for _, leaves in chosen])
    return inside, sizes


def _cut(
    rows: Rows, branching: list[int], q: float, nodes: int | None
) -> list[tuple[list[cuts.Path], int]]:
    """Paths of every image's cut, and how many leaves they cover; images do not matter to it."""
    probs = rows["probs"]
    stubs = grow(probs.new_zeros((*probs.shape, 1)), probs.log(), branching)
    sizes, found = level_sizes(branching), cuts.cut(stubs, q, nodes)
    return [(paths, sum(sizes[-1] // sizes[len(p)] for p in paths)) for paths, _ in found]


def _reliability(rows: Rows) -> list[tuple[float, float, int]]:
    """Of leaves by their probability, in tenths: the mean probability, how often they are reached,
    and how many there are."""
    told = rows["probs"].flatten()
    true = torch.zeros_like(rows["probs"]).scatter(1, rows["leaf"][:, None], 1.0).flatten()
    tenth = (told * BINS).long().clamp(max=BINS - 1)
    parts = [tenth == i for i in range(BINS)]
    return [(told[p].mean().item(), true[p].mean().item(), int(p.sum())) for p in parts if p.any()]
