"""What trees say of images whose truth is known, and the certificate that follows."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.errors import GuaranteeError, plural
from posterior_trees.guarantee import balls, boxes, cuts
from posterior_trees.guarantee.answers import UNITS, Scores, Terms
from posterior_trees.guarantee.boxes import Grid
from posterior_trees.guarantee.certificate import SCHEMA, Guarantee
from posterior_trees.guarantee.conformal import Groups
from posterior_trees.guarantee.numbers import (
    Form,
    Measure,
    choose_form,
    limits_of,
    measure_each,
    measure_leaves,
)
from posterior_trees.guarantee.typical import Familiar, fit_familiar
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
    rows = {
        f"cut{plan.nodes}": cuts.score(tree, x, plan.nodes),
        "leaves": cuts.score(tree, x, None),
        "ball.features": balls.features(tree, plan.hole),
        "ball.error": balls.nearest_error(tree, x, plan.hole),
        "probs": tree.probs[-1].double().cpu(),
        "leaf": tree.descend(x)[:, -1].cpu(),
    }
    is_finite = rows["ball.error"].isfinite() & rows["ball.features"].isfinite().all(dim=1)
    if not is_finite.all():
        bad = [name for name, is_good in zip(names, is_finite.tolist(), strict=True) if not is_good]
        raise GuaranteeError(
            f"the trees of {plural(len(bad), 'image')} are not finite, first that of {bad[0]}: "
            "their scores would be NaN. Train the model again, or mend what made them"
        )
    for name, measure in plan.measures.items():
        rows[f"truth.{name}"] = measure_each(x, measure, name, names)
        rows[f"values.{name}"] = measure_leaves(tree, measure, name, names)
    if plan.grid is not None:
        mean, rows["box.variance"] = boxes.moments(tree, plan.grid)
        rows["box.off"] = plan.grid.means(x.cpu()) - mean
    return rows


class Judged(NamedTuple):
    """What was seen of images and of what each of them belongs to; those of `fits` fit scales."""

    rows: Rows
    labels: list[str]
    fits: Bool[Tensor, "n"]
    plan: Plan
    about: dict[str, Any]

    def conclude(self) -> Guarantee:
        """Scales from the images that fit them, scores from the others. Images are put in an order
        of their own first, so that the order in which they came changes nothing."""
        groups = number_of(self.labels)
        order = torch.from_numpy(np.lexsort((self.rows["ball.error"].tolist(), groups)))
        groups, fits = groups[order], self.fits[order]
        fit, scored = (take(self.rows, order[part]) for part in (fits, ~fits))
        is_alone = len(groups.unique()) == len(groups)
        of_fit, own = (None if is_alone else groups[part] for part in (fits, ~fits))
        fitted, forms = fit_scales(fit, of_fit, self.plan)
        found = score_rows(scored, self.plan, fitted, forms)
        facts = {
            "guarantee": SCHEMA,
            "n": int((~fits).sum()),
            "groups": None if own is None else len(own.unique()),
            "fitted_on": int(fits.sum()),
            "nodes": self.plan.nodes,
            "measures": forms,
            "grid": None if self.plan.grid is None else self.plan.grid._asdict(),
            **self.about,
        }
        scores = {name: Scores.of(values, own) for name, values in found.items()}
        return Guarantee(scores, fitted, facts, dict(self.plan.measures), judged=self)


def check_enough(
    labels: Sequence[str], fits: Bool[Tensor, "n"], level: float | None, kind: str
) -> None:
    """Refuse too few images or groups, and a level finer than they allow."""
    scored = [label for label, is_fit in zip(labels, fits.tolist(), strict=True) if not is_fit]
    n, count, others = len(scored), len(set(scored)), len(labels) - len(scored)
    if min(count, others) < LEAST:
        units = UNITS.get(kind, "groups")
        raise GuaranteeError(
            f"{others} images would fit the scales and {n} in {count} {units} give scores; both "
            f"take {LEAST} at least. Give more {units}, or other images to fit the scales (fit=…, "
            "or --fit SPLIT), which leaves all for scores"
        )
    groups = count if len(set(labels)) < len(labels) else None
    if level is not None and (why := Terms(level, n, groups, kind=kind).too_fine):
        raise GuaranteeError(f"{why} that score (others may fit the scales: fit=…, or --fit SPLIT)")


def number_of(labels: Sequence[str]) -> Int[Tensor, "n"]:
    return torch.from_numpy(np.unique(labels, return_inverse=True)[1])


def take(rows: Rows, index: Tensor) -> Rows:
    return {name: row[index] for name, row in rows.items()}


def fit_scales(rows: Rows, groups: Groups, plan: Plan) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What scores are measured in, and the form of each measure's intervals."""
    fitted = {"ball": balls.fit_scale(rows["ball.features"], rows["ball.error"]).float()}
    if plan.hole is not None:
        fitted["hole"] = plan.hole.to(torch.uint8)
    if plan.grid is not None:
        fitted["boxes"] = boxes.fit_widths(rows["box.off"]).float()
    if "pooled" in rows:
        kept = fit_familiar(rows["pooled"])._asdict().items()
        fitted |= {f"familiar.{name}": tensor for name, tensor in kept}
    forms = {}
    for name, measure in plan.measures.items():
        form = choose_form(rows[f"values.{name}"], rows["probs"], rows[f"truth.{name}"], groups)
        source = getattr(measure, "name", None)  # of a measure of this package
        forms[name] = {"form": list(form), "limits": limits_of(measure), "source": source}
    return fitted, forms


def score_rows(
    rows: Rows, plan: Plan, fitted: dict[str, Tensor], forms: dict[str, Any]
) -> dict[str, Float[Tensor, "n"]]:
    """The scores of every promise."""
    scores = {name: rows[name] for name in (f"cut{plan.nodes}", "leaves")}
    scores["ball"] = rows["ball.error"] / balls.scale(rows["ball.features"], fitted["ball"])
    for name, kept in forms.items():
        values, truth = rows[f"values.{name}"], rows[f"truth.{name}"]
        scores[f"measure.{name}"] = Form(*kept["form"]).score(values, rows["probs"], truth)
    if "boxes" in fitted:
        widths = fitted["boxes"].double()
        scores["boxes"] = boxes.score(rows["box.off"], rows["box.variance"], widths)
    if "pooled" in rows:
        scores["typical"] = Familiar.of(fitted).distance(rows["pooled"])
    return {name: values.float() for name, values in scores.items()}
