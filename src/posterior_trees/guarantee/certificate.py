"""The certificate: scores of held-out images, what scaled them, and what they were made with.

Any level can be asked of it, up to the finest that so many images or groups allow; beyond that an
answer is empty of promise (the root, the whole range, an infinite radius), never narrow.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor

from posterior_trees import store
from posterior_trees.errors import GuaranteeError, MeasureError
from posterior_trees.guarantee import balls, boxes, cuts
from posterior_trees.guarantee.answers import Ball, Cut, Interval, Scores, Terms, Withdrawn
from posterior_trees.guarantee.boxes import Box, Grid
from posterior_trees.guarantee.conformal import finest_level, p_values
from posterior_trees.guarantee.measures import find_known
from posterior_trees.guarantee.numbers import Form, Measure, measure_leaves
from posterior_trees.guarantee.prints import fingerprint_of, state_of
from posterior_trees.guarantee.typical import Familiar, pooled_features
from posterior_trees.predictor import TreePredictor
from posterior_trees.schema import check
from posterior_trees.tree import Tree

if TYPE_CHECKING:
    from posterior_trees.guarantee.bank import Bank

PREFIX = "guarantee."
SCHEMA = 1
FORM = {
    "guarantee": int,
    "predictor": str | None,
    "branching": list[int],
    "shape": list[int],
    "n": int,
    "groups": int | None,
    "kind": str,
    "nodes": int,
    "measures": dict[str, dict],
    "grid": dict | None,
}
MEASURE = {
    "form": (bool, float, float),
    "limits": (float | None, float | None),
    "source": str | None,
}
GRID = {"inside": (int, int, int, int), "size": (int, int), "step": (int, int)}
OTHER = (
    "the guarantee was made for another predictor: other weights, another dtype, layout or hole "
    "make other trees, and so does compiling. Calibrate what you run (ptrees calibrate), or set "
    "predictor.guarantee = None"
)
_SEEN: WeakKeyDictionary = WeakKeyDictionary()
"""For a predictor the state that it was last seen in, and whether its guarantee holds for that."""


@dataclass(eq=False, repr=False)
class Guarantee:
    """Promises for the trees of one predictor; `calibrate` makes it."""

    scores: dict[str, Scores]
    fitted: dict[str, Tensor]
    facts: dict[str, Any]
    measures: dict[str, Measure] = field(default_factory=dict)
    bank: "Bank | None" = None
    judged: Any = None
    """The `Judged` that it was concluded from, until it is stored: for `report`."""

    def __repr__(self) -> str:
        of = f"{self.n:,} images" + (f" in {self.groups} groups" if self.groups else "")
        return f"Guarantee({', '.join(self.scores)}; {of}, up to {100 * self.finest_level:.4g} %)"

    @property
    def n(self) -> int:
        return self.facts["n"]

    @property
    def groups(self) -> int | None:
        """How many groups the images were in; None if each stood for itself."""
        return self.facts["groups"]

    @property
    def finest_level(self) -> float:
        return finest_level(self.groups or self.n)

    def terms(self, level: float) -> Terms:
        return Terms(level, self.n, self.groups, kind=self.facts["kind"])

    def check(self, predictor: TreePredictor) -> None:
        """Refuse a predictor that is not the one these promises were made for."""
        if not self._is_of(predictor):
            raise GuaranteeError(OTHER)

    def _is_of(self, predictor: TreePredictor) -> bool:
        is_same_layout = tuple(self.facts["branching"]) == predictor.branching
        return is_same_layout and self.facts["predictor"] == fingerprint_of(predictor)

    def promise(self, predictor: TreePredictor, y: Float[Tensor, "b *shape"]) -> Tree:
        """The predictor's trees with these promises, if it still is what they were made for and
        the pictures are of their size, and with how typical `y` is."""
        with pooled_features(predictor) as pooled:
            tree = predictor.tree_of(y)
        tree.guarantee = self._bound_to(predictor, tree)
        if pooled and "typical" in self.scores and tree.guarantee is self:
            known, familiar = self.scores["typical"], Familiar.of(self.fitted)
            far = familiar.distance(pooled[0].float().cpu()).float()
            tree.p_values = p_values(known.values, far, known.groups)
        return tree

    def _bound_to(self, predictor: TreePredictor, tree: Tree) -> "Guarantee | Withdrawn":
        state = state_of(predictor)
        seen = _SEEN.get(predictor)
        if seen is None or seen[:2] != (id(self), state):
            seen = _SEEN[predictor] = (id(self), state, self._is_of(predictor))
        if not seen[2]:
            return Withdrawn(OTHER)
        size, have = ("×".join(map(str, shape[1:])) for shape in (self.facts["shape"], tree.shape))
        if size == have:
            return self
        return Withdrawn(
            f"the promises are about pictures of {size}, this one is {have}: calibrate on pictures "
            "of that size"
        )

    def p_values_of(self, tree: Tree) -> Float[Tensor, "b"]:
        if isinstance(tree.guarantee, Withdrawn):
            raise GuaranteeError(tree.guarantee.reason)
        if tree.p_values is None:
            raise GuaranteeError(
                "whether an input is typical is not known for this model: its network has no "
                "ProbabilityHead (posterior_trees.networks), whose features are compared, or is "
                "compiled"
            )
        return tree.p_values

    def cut(self, tree: Tree, level: float, nodes: int | None = 3) -> list[Cut]:
        key = "leaves" if nodes is None else f"cut{nodes}"
        q = self._quantile(key, f"cuts of at most {nodes} nodes", level)
        terms = vars(self.terms(level))
        return [
            Cut(**terms, paths=tuple(paths), masses=tuple(masses))
            for paths, masses in cuts.cut(tree, q, nodes)
        ]

    def ball(self, tree: Tree, level: float) -> Ball:
        q = self._quantile("ball", "balls", level)
        hole = self.fitted["hole"].bool() if "hole" in self.fitted else None
        radius = q * balls.scale(balls.features(tree, hole), self.fitted["ball"])
        nodes = tuple(tree.paths(tree.depth))
        return Ball(**vars(self.terms(level)), nodes=nodes, radius=radius)

    def interval(
        self, tree: Tree, of: str | Sequence[int] | Measure, level: float, chosen: str = "before"
    ) -> Interval:
        if chosen not in ("before", "after"):
            raise MeasureError(f"chosen is {chosen!r}: 'before' looking at the answers, or 'after'")
        if isinstance(of, str):
            return self._of_name(tree, of, level)
        if not isinstance(of, Sequence):
            return self._of_function(tree, of, level)
        if len(of) != 4:
            raise MeasureError(f"a box is (top, left, height, width), not {tuple(of)}")
        if chosen == "after":
            return self._after(tree, Box(*of), level)
        return self._of_name(tree, "box=" + ",".join(map(str, of)), level)

    @property
    def least_p(self) -> float:
        """Inputs of at most this p-value are called unlike the calibration's: 1 of 20 that are
        like them, or the fewest that so few groups can tell."""
        return max(0.05, 1 - self.finest_level)

    def for_page(self, tree: Tree) -> dict[str, Any]:
        """All that a page says of one image's tree, as JSON, at the level that was asked for."""
        level = self.facts.get("level", 0.9)
        terms = self.terms(level)
        if terms.too_fine:
            return {"withdrawn": terms.too_fine}
        p = None if tree.p_values is None else tree.p_values[0].item()
        said: dict[str, Any] = {"level": level, "words": str(terms), "p": p, "withdrawn": ""}
        if p is not None and p <= self.least_p:
            return said | {"withdrawn": f"unlike the calibration images (p = {p:.2g})"}
        names = [name for name in self.facts["measures"] if name in self.measures]
        named = {name: self.interval(tree, name, level) for name in names}
        said |= {
            "cut": [list(path) for path in self.cut(tree, level)[0].paths],
            "radius": self.ball(tree, level).radius[0].item(),
            "intervals": {k: [v.low[0].item(), v.high[0].item()] for k, v in named.items()},
        }
        if "boxes" in self.scores:
            said["boxes"] = self.grid._asdict() | {
                "counts": self.grid.counts,
                "q": self.scores["boxes"].quantile(level),
                "widths": self.fitted["boxes"].tolist(),
            }
        return said

    def _of_name(self, tree: Tree, name: str, level: float) -> Interval:
        if name not in self.facts["measures"]:
            known = ", ".join(self.facts["measures"]) or "none"
            after = ", or ask for a box that may be chosen after looking (chosen='after')"
            raise MeasureError(
                f"nothing is promised about {name!r}; measures of this calibration: {known}. Name "
                "it when calibrating (measures={…}, or --measure), or give a function and a bank"
                f"{after * name.startswith('box=')}"
            )
        if name not in self.measures:
            raise MeasureError(
                f"{name!r} is measured by code of your own, which no file brings along: give the "
                f"function that it was calibrated with, guarantee.measures[{name!r}] = …, or "
                "--measure MODULE:FUNCTION"
            )
        values, kept = measure_leaves(tree, self.measures[name], name), self.facts["measures"][name]
        q, probs = self._quantile(f"measure.{name}", name, level), tree.probs[-1].double().cpu()
        low, high = Form(*kept["form"]).interval(values, probs, q, kept["limits"])
        return Interval(**vars(self.terms(level)), low=low, high=high, of=name)

    def _of_function(self, tree: Tree, measure: Measure, level: float) -> Interval:
        if self.bank is None:
            raise MeasureError(
                "nothing is promised about a function that is given after calibrating: name it "
                "then (measures={…}, or --measure MODULE:FUNCTION), or keep a bank of calibration "
                "images (--bank N) and set guarantee.bank = Bank.load(FILE)"
            )
        if self.bank.prints != self.facts["predictor"]:
            raise GuaranteeError("the bank is of another predictor than this calibration")
        return self.bank.interval(tree, measure, level)

    def _after(self, tree: Tree, box: Box, level: float) -> Interval:
        q = self._quantile("boxes", "boxes", level)
        numbers, taken = self.grid.fill(box)
        mean, variance = boxes.moments(tree, self.grid)
        half = q * (variance + self.fitted["boxes"].double()).sqrt()
        low, high = ((mean + way * half).clamp(0, 1)[:, numbers].mean(dim=1) for way in (-1, 1))
        return Interval(**vars(self.terms(level)), low=low, high=high, of=taken)

    @property
    def grid(self) -> Grid:
        kept = self.facts["grid"]
        return Grid(Box(*kept["inside"]), tuple(kept["size"]), tuple(kept["step"]))

    def _quantile(self, key: str, what: str, level: float) -> float:
        if key not in self.scores:
            raise GuaranteeError(
                f"this calibration promises nothing about {what}; it has {', '.join(self.scores)}"
            )
        return self.scores[key].quantile(level)

    def tensors(self) -> dict[str, Tensor]:
        """All that a file keeps of it, beside `facts`."""
        kept = {f"fitted.{name}": tensor for name, tensor in self.fitted.items()}
        for name, (values, groups) in self.scores.items():
            kept[f"scores.{name}"] = values
            if groups is not None:
                kept[f"groups.{name}"] = groups
        return {PREFIX + name: tensor for name, tensor in kept.items()}

    def save(self, file: str | PathLike[str]) -> None:
        """Write it into a file of its own; `models.checkpoint.keep_guarantee` into a model's."""
        store.write(file, self.tensors(), self.facts)

    @classmethod
    def load(cls, file: str | PathLike[str]) -> "Guarantee":
        tensors, facts = store.read(file)
        if not isinstance(facts.get("guarantee"), int):
            raise GuaranteeError(f"{file} is no guarantee: Guarantee.save writes one")
        return cls.of(tensors, facts)

    @classmethod
    def of(cls, tensors: dict[str, Tensor], facts: dict[str, Any]) -> "Guarantee":
        """The certificate that `tensors` and `facts` describe."""
        check(facts, FORM | {"level": float}, "the guarantee", required=tuple(FORM))
        if facts["guarantee"] > SCHEMA:
            raise GuaranteeError(
                f"the guarantee has schema {facts['guarantee']}, this version reads up to "
                f"{SCHEMA}: upgrade posterior-trees"
            )
        parts: dict[str, dict[str, Tensor]] = {"fitted": {}, "scores": {}, "groups": {}}
        for name, tensor in tensors.items():
            part, _, key = name.removeprefix(PREFIX).partition(".")
            parts.setdefault(part, {})[key] = tensor
        for name, kept in facts["measures"].items():
            check(kept, MEASURE, f"the guarantee.measures[{name!r}]", required=tuple(MEASURE))
        scores = {k: Scores(v, parts["groups"].get(k)) for k, v in parts["scores"].items()}
        for name, score in scores.items():
            score.check(name, facts["n"], facts["groups"])
        needed = ["cut" + str(facts["nodes"]), "leaves", "ball"]
        needed += [f"measure.{name}" for name in facts["measures"]]
        lost = [name for name in needed if name not in scores]
        if lost or "ball" not in parts["fitted"]:
            raise GuaranteeError(
                f"the guarantee is damaged: it lacks {[*lost, 'ball'][0]}; calibrate again"
            )
        if bad := [k for k, v in parts["fitted"].items() if not v.isfinite().all()]:
            raise GuaranteeError(f"the guarantee is damaged: {bad[0]} is not finite")
        sources = {name: kept["source"] for name, kept in facts["measures"].items()}
        known = {k: find_known(v) for k, v in sources.items() if v is not None and ":" not in v}
        found = cls(scores, parts["fitted"], facts, known)
        if facts["grid"] is not None:
            check(facts["grid"], GRID, "the guarantee.grid", required=tuple(GRID))
            found.grid.check(facts["shape"])
        return found
