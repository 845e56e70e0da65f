"""What trees say of images whose truth is known, and the certificate that follows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee import balls, boxes, cuts
from posterior_trees.guarantee.answers import Scores
from posterior_trees.guarantee.boxes import Grid
from posterior_trees.guarantee.certificate import SCHEMA, Guarantee
from posterior_trees.guarantee.measures import source_of
from posterior_trees.guarantee.numbers import (
    Measure,
    choose_form,
    limits_of,
    measure_each,
    measure_leaves,
)
from posterior_trees.guarantee.typical import fit_familiar
from posterior_trees.tree import Tree

LEAST = 4
"""Images that fit scales, and groups that give scores, at least: fewer promise nothing of use."""

Rows = dict[str, Tensor]


class Plan(NamedTuple):
    """What is promised about: cuts of at most `nodes` nodes, these measures, boxes of this grid;
    the `hole` is what a measurement hides."""

    nodes: int = 3
    measures: Mapping[str, Measure] = {}
    hole: Bool[Tensor, "*space"] | None = None
    grid: Grid | None = None


def judge(tree: Tree, x: Float[Tensor, "b *shape"], plan: Plan, names: Sequence[str]) -> Rows:
    """What scores are made of, for every image of a batch."""
    layout = cuts.antichains(tree.branching, plan.nodes)
    rows = {
        f"cut{plan.nodes}": cuts.score(tree, x, layout),
        "leaves": cuts.score(tree, x, None),
        "ball.features": balls.features(tree, plan.hole),
        "ball.error": balls.nearest_error(tree, x, plan.hole),
        "probs": tree.probs[-1].double().cpu(),
    }
    for name, measure in plan.measures.items():
        rows[f"values.{name}"] = measure_leaves(tree, measure, name)
        rows[f"truth.{name}"] = measure_each(x, measure, name, names)
    if plan.grid is not None:
        mean, rows["box.variance"] = boxes.moments(tree, plan.grid)
        rows["box.off"] = plan.grid.means(x.cpu()) - mean
    return rows


def conclude(
    rows: Rows, labels: Sequence[str], fits: Bool[Tensor, "n"], plan: Plan, about: dict[str, Any]
) -> Guarantee:
    """Scales from the images that `fits` says, scores from the others. Images are put in an order
    of their own first, so that the order in which they came changes nothing."""
    order, groups, fits = _sorted(rows, labels, fits)
    rows = {name: row[order] for name, row in rows.items()}
    n, count = int((~fits).sum()), len(groups[~fits].unique())
    if int(fits.sum()) < LEAST or count < LEAST:
        raise GuaranteeError(
            f"{int(fits.sum())} images would fit the scales and {n} in {count} groups give scores; "
            f"both take {LEAST} at least. Give more groups, or other images to fit the scales "
            "(fit=…, or --fit SPLIT), which leaves all groups for scores"
        )
    own = None if len(groups.unique()) == len(groups) else groups
    scored = None if own is None else groups[~fits]
    result = _Result(rows, fits, own)
    scores = {name: Scores.of(values, scored) for name, values in result.scores(plan)}
    facts = {
        "guarantee": SCHEMA,
        "n": n,
        "groups": None if own is None else count,
        "fitted_on": int(fits.sum()),
        "nodes": plan.nodes,
        "measures": result.measures,
        "grid": None if plan.grid is None else plan.grid._asdict(),
        **about,
    }
    return Guarantee(scores, result.fitted, facts, dict(plan.measures))


def _sorted(
    rows: Rows, labels: Sequence[str], fits: Bool[Tensor, "n"]
) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"], Bool[Tensor, "n"]]:
    """An order that depends on what is there, not on how it came, and group numbers in it."""
    number = {label: i for i, label in enumerate(sorted(set(labels)))}
    groups = torch.tensor([number[label] for label in labels])
    keys = list(zip(groups.tolist(), rows["ball.error"].tolist(), strict=True))
    order = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__))
    return order, groups[order], fits[order]


class _Result:
    """Scales as they are fitted, promise after promise."""

    def __init__(self, rows: Rows, fits: Bool[Tensor, "n"], groups: Tensor | None) -> None:
        self.rows, self.fits, self.groups = rows, fits, groups
        self.fitted: dict[str, Tensor] = {}
        self.measures: dict[str, dict[str, Any]] = {}

    def part(self, name: str) -> tuple[Tensor, Tensor]:
        """The rows that fit and those that are scored."""
        return self.rows[name][self.fits], self.rows[name][~self.fits]

    def scores(self, plan: Plan) -> Iterator[tuple[str, Tensor]]:
        for name in (f"cut{plan.nodes}", "leaves"):
            yield name, self.part(name)[1]
        yield "ball", self._ball(plan)
        for name, measure in plan.measures.items():
            yield f"measure.{name}", self._number(name, measure)
        if plan.grid is not None:
            off, variance = self.part("box.off"), self.part("box.variance")
            self.fitted["boxes"] = boxes.fit_widths(off[0]).float()
            yield "boxes", boxes.score(off[1], variance[1], self.fitted["boxes"].double())
        if "pooled" in self.rows:
            fit, scored = self.part("pooled")
            familiar = fit_familiar(fit)
            kept = familiar._asdict().items()
            self.fitted |= {f"familiar.{name}": tensor for name, tensor in kept}
            yield "typical", familiar.distance(scored).float()

    def _ball(self, plan: Plan) -> Tensor:
        features, errors = self.part("ball.features"), self.part("ball.error")
        self.fitted["ball"] = balls.fit_scale(features[0], errors[0]).float()
        if plan.hole is not None:
            self.fitted["hole"] = plan.hole.to(torch.uint8)
        return errors[1] / balls.scale(features[1], self.fitted["ball"])

    def _number(self, name: str, measure: Measure) -> Tensor:
        values, probs = self.part(f"values.{name}"), self.part("probs")
        truth = self.part(f"truth.{name}")
        own = None if self.groups is None else self.groups[self.fits]
        form = choose_form(values[0], probs[0], truth[0], own)
        source = source_of(measure)
        self.measures[name] = {"form": list(form), "limits": limits_of(measure), "source": source}
        return form.score(values[1], probs[1], truth[1])
