r"""Trees that a page's reader grows: for a region, as many branches as it takes, one node further.

A request says all of what is wanted, so that nothing is lost if it comes twice:

    {"token": "…",                of an example, as `keep` gave it
     "region": [top, left, height, width], or a PNG as a data URL: white is in it; null: everything
     "worth": 3}                  as many branches as are worth $2^{-3}$ of the first one's gain
     "split": [[], [0], [0, 2]]   or just these nodes split

What a picture's nodes were asked before is kept (`Growth`), and the newest `KEPT` pictures.
"""

import base64
import math
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.explore.content import Measure, describe_growth
from posterior_trees.pictures.answer import Answer
from posterior_trees.predictor import GrowingPredictor, Growth, Predictor, evaluating
from posterior_trees.predictor.growth import MOST_NODES
from posterior_trees.schema import Maybe, parse_json
from posterior_trees.serve.ask import read_mask

KEPT, REGIONS, PIXELS = 32, 4, 2_000_000
"""Pictures, regions of each, and pixels of a picture that can be grown on."""
NODES = 61
"""Of a tree that grows by itself; who splits node by node may go on."""
FORM = {"token": str, "region": Any, "worth": Maybe(float), "split": Maybe(list[list[int]])}


class Growths:
    """What a page may grow on; of a predictor that does not grow nothing."""

    def __init__(self, predictor: Predictor, measures: Mapping[str, Measure] | None = None) -> None:
        self.predictor = predictor if isinstance(predictor, GrowingPredictor) else None
        self.measures = measures or {}
        self.kept: OrderedDict[str, tuple[Answer, OrderedDict]] = OrderedDict()

    def keep(self, made: Answer) -> dict[str, str]:
        """What an example says so that it can be grown on."""
        pixels = math.prod(made.tree.shape[-2:])
        if self.predictor is None or made.parts or pixels > PIXELS:
            return {}
        token = secrets.token_urlsafe(12)
        self.kept[token] = made, OrderedDict()
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return {"token": token}

    @torch.inference_mode()
    def grow(self, request: str) -> dict:
        """The tree that a request asks for, as an example's (`describe_growth`)."""
        asked = parse_json(request, FORM, "the request")
        if self.predictor is None or asked.get("token") not in self.kept:
            raise InputError("this picture is no longer kept: give it to the page again")
        made, growths = self.kept[asked["token"]]
        self.kept.move_to_end(asked["token"])
        region, split = asked.get("region"), asked.get("split")
        with evaluating(self.predictor):
            if (key := str(region)) not in growths:
                where = read_region(region, made.tree.shape[-2:])
                growths[key] = self.predictor.begin(made.y.to(self.predictor.device), where)
                while len(growths) > REGIONS:
                    growths.popitem(last=False)
            growth = growths[key]
            growth.fold(())
            if split is None:
                worth = 2.0 ** -abs(asked.get("worth") or 0.0)
                growth.grow(nodes=NODES, gain=worth * max(growth.gain(()), 1e-12))
            else:
                self._split(growth, split)
        tree = describe_growth(growth, made.x, self.measures)
        tree["grown"] |= {"region": region, "note": self._note(growth)}
        return tree

    def _split(self, growth: Growth, split: Sequence[Sequence[int]]) -> None:
        """Level by level, each in one batch."""
        paths = sorted(set(map(tuple, split)), key=lambda path: (len(path), path))
        if len(paths) > MOST_NODES:
            raise InputError(f"{len(paths)} nodes to split, at most {MOST_NODES} are")
        for _, level in groupby(paths, key=len):
            growth.expand(*level)

    def _note(self, growth: Growth) -> str:
        """Where knowledge ends."""
        assert self.predictor is not None
        levels, depth = self.predictor.network.levels, max(map(len, growth.nodes))
        if depth <= levels:
            return ""
        return (
            f"Below level {levels} the model was not trained: it splits on as there, and knows "
            "less and less"
        )


def read_region(region: Any, size: Sequence[int]) -> Tensor | list[int] | None:
    """A box, or the mask that a picture of the model's size shows."""
    if region is None:
        return None
    if isinstance(region, str) and region.startswith("data:image/png;base64,"):
        try:
            content = base64.b64decode(region.partition(",")[2], validate=True)
        except ValueError as error:
            raise InputError(f"the region is no picture ({error}). Paint it again") from error
        return read_mask(content, size, "the region").float()
    if isinstance(region, list) and len(region) == 4 and all(type(v) is int for v in region):
        return region
    raise InputError("the region is a box [top, left, height, width], a PNG, or null")
