r"""Trees as data for the explorer: the one form that saved pages, the server and notebooks share.

    {"schema": 1,
     "title": "Digits",
     "branching": [3, 3],                        one number per level, as in `Tree.branching`
     "size": [28, 28],                           height and width of a node's image
     "model": {"name": "…", "citation": "…"},    shown in the footer, in this order
     "examples": [
       {"name": "Seven",
        "size": [28, 28],                        of this example, which may differ
        "input": "data:image/png;base64,…",      null: not given
        "truth": "data:image/png;base64,…",      null: not known
        "truth_path": [0, 2, 7],                 node indices of the truth's greedy path, or null
        "levels": [[{"p": 1.0, "image": "data:…"}], [{"p": 0.4, …}, null, …], …],
        "measures": {"count": [3, 4, null, …]},  f(leaf) of every leaf, null for an absent one
        "promise": {"level": 0.9, …},            of `Guarantee.for_page`; only where there is one
        "note": "",                              what to beware of, if anything; may be left out
        "resized": "",                           "resized from 512×512 to 256×256 (height×width)" or
                                                 the like, if it was; may be left out
        "token": "…",                            of a served example that can be grown on
        "grown": {"split": [[], [0], …],         where it was: what was split, for which region,
                  "region": null, "note": ""},   and what to beware of
        "rivals": [{"name": "K-means of samples", "branching": [3, 3],
                    "truth_path": […], "levels": […], "measures": {…}}]}]}

`levels[l][i]` is node i of level l, in the order of `Tree`: the children of node i are nodes
K·i … K·i+K−1 of the next level. `p` is absolute, so that the nodes of a level sum to 1. `null` is
an absent node, and `{"p": …, "same": true}` one that stands for its parent where a tree that was
grown is not split. Images are 8-bit PNG, clipped to [0, 1] for display; the trees are not changed.

A measure is any $f(\text{image}) \to \mathbb R$, such as a count of nuclei; with the probabilities
of the leaves it becomes the distribution of $f$ that the page draws.
"""

import base64
import io
import math
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.errors import InputError, plural
from posterior_trees.imaging.size import shrink
from posterior_trees.predictor.growth import Growth
from posterior_trees.tree import Tree

SCHEMA = 1

SIDE = 512
"""Pixels of the longer side up to which the trees of large pictures are shown."""

Measure = Callable[[Tensor], float]
"""A number of one image `(c, h, w)`, unclipped."""


def describe_trees(
    trees: Tree, *, inputs: Float[Tensor, "_ _ _ _"] | None = None,
    truths: Float[Tensor, "_ _ _ _"] | None = None, names: Sequence[str] | None = None,
    rivals: Mapping[str, Tree] | None = None, measures: Mapping[str, Measure] | None = None,
    side: int | None = None,
) -> list[dict]:  # fmt: skip
    """One example of the page for each tree. `inputs` are the measurements y, `truths` the clean
    images x if they are known; the page hides them until the reader asks. `rivals` are other
    methods' trees of the same inputs, by the method's name, and `measures` functions of an image,
    shown as distributions over the leaves. Pictures are shown shrunk to `side` pixels, if that is
    given; measures and the truth's path are those of the whole ones."""
    rivals, measures = rivals or {}, measures or {}
    _check(trees, inputs=inputs, truths=truths, names=names, rivals=rivals)
    names = [f"Example {i + 1}" for i in range(len(trees))] if names is None else names
    examples = []
    for i, (tree, name) in enumerate(zip(trees, names, strict=True)):
        x = None if truths is None else truths[i]
        examples.append({
            "name": name,
            "size": list(shrink(tree.root[0], side).shape[1:] if side else trees.shape[1:]),
            "input": None if inputs is None else to_png(inputs[i], f"the input of {name!r}", side),
            "truth": None if x is None else to_png(x, f"the truth of {name!r}", side),
            **_describe(tree, name, x, measures, side),
            "rivals": [
                {"name": str(method), "branching": list(rival.branching)}
                | _describe(rival[i], f"{method} of {name}", x, measures, side)
                for method, rival in rivals.items()
            ],
        })  # fmt: skip
    return examples


def _describe(
    tree: Tree, name: str, x: Tensor | None, measures: Mapping[str, Measure], side: int | None,
    shown: Container[tuple[int, ...]] | None = None,
) -> dict:  # fmt: skip
    """One tree: its nodes, its measures, and where the truth goes in it; of a grown one what is not
    `shown` stands for its parent."""
    levels = []
    for level, probs in enumerate(tree.probs):
        absent, paths = tree.is_absent(level)[0].tolist(), tree.paths(level)
        nodes: list[dict | None] = []
        for node, prob in enumerate(probs[0].tolist()):
            what = f"node {paths[node]} of {name!r}"
            if np.isnan(prob):
                raise InputError(f"{what} has probability NaN; probabilities must be numbers")
            if absent[node]:
                nodes.append(None)
            elif shown is not None and paths[node] not in shown:
                nodes.append({"p": prob, "same": True})
            else:
                png = to_png(tree.images[level][0, node], what, side)
                nodes.append({"p": prob, "image": png})
        levels.append(nodes)
    said = {} if tree.guarantee is None else {"promise": tree.guarantee.for_page(tree)}
    if said and side and max(tree.shape[1:]) > side:
        said["promise"].pop("boxes", None)  # a box of a shrunk picture is none of the promise's
    return {
        "truth_path": None if x is None else tree.descend(x[None].to(tree.root))[0].tolist(),
        "levels": levels,
        "measures": {str(title): _values(tree, f, str(title)) for title, f in measures.items()},
        **said,
    }


def describe_growth(
    growth: Growth, x: Float[Tensor, "1 c h w"] | None, measures: Mapping[str, Measure]
) -> dict:
    """What takes the place of an example's tree once it was grown. Where nothing was split a node
    stands for itself below, and `"grown"` lists the paths that were split."""
    tree, split = growth.tree(), [list(path) for path in growth.children]
    truth = None if x is None else x[0]
    made = _describe(tree, "what was grown", truth, measures, None, growth.nodes)
    return made | {"branching": list(tree.branching), "grown": {"split": split}}


def _values(tree: Tree, measure: Measure, title: str) -> list[float | None]:
    """The measure of every leaf; none for an absent one."""
    values: list[float | None] = []
    for leaf, is_absent in zip(tree.leaves[0], tree.is_absent(tree.depth)[0].tolist(), strict=True):
        try:
            value = None if is_absent else float(measure(leaf.detach().cpu()))
        except Exception as error:  # the user's own function
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"the measure {title!r} failed: {reason}") from error
        if value is not None and not math.isfinite(value):
            raise InputError(f"the measure {title!r} gave {value}; it must give finite numbers")
        values.append(value)
    return values


def to_png(image: Float[Tensor, "c h w"], what: str, side: int | None = None) -> str:
    """An image, shrunk to `side` pixels if it is larger, as the data URL of an 8-bit PNG."""
    values = visible(shrink(image, side) if side else image, what, "a page")
    return png_url(Image.fromarray((values * 255).round().astype(np.uint8, order="C")))


def visible(image: Float[Tensor, "c h w"], what: str, where: str) -> np.ndarray:
    """Grey `(h, w)` or colour `(h, w, 3)` values, clipped to [0, 1]."""
    values = image.detach().cpu().double().numpy()
    if bad := int(values.size - np.isfinite(values).sum()):
        raise InputError(
            f"{what} has {bad} NaN or infinite pixels of {values.size}; "
            f"{where} needs finite values: look for a training run that diverged"
        )
    values = values.clip(0.0, 1.0)
    return values[0] if len(values) == 1 else values.transpose(1, 2, 0)


def png_url(picture: Image.Image) -> str:
    stream = io.BytesIO()
    picture.save(stream, format="PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def check_images(trees: Tree, batches: Mapping[str, Tensor | None], who: str) -> None:
    """Refuse what is not grey or in colour; `who` says what takes only that."""
    if len(trees.shape) != 3:
        raise InputError(f"nodes have shape {tuple(trees.shape)}; {who} images (c, h, w)")
    for name, batch in batches.items():
        if batch is not None and batch.shape[1] not in (1, 3):
            channels = plural(batch.shape[1], "channel")
            raise InputError(f"{name}: {channels}; {who} 1 (grey) or 3 (RGB)")


def _check(trees: Tree, *, inputs, truths, names, rivals: Mapping[str, Tree]) -> None:
    if len(trees) == 0:
        raise InputError("the batch holds no trees; a page needs at least one")
    check_images(trees, {"trees": trees.root, "inputs": inputs, "truths": truths}, "a page shows")
    for name, batch in {"inputs": inputs, "truths": truths, "names": names}.items():
        if batch is not None and len(batch) != len(trees):
            have = plural(len(batch), name.removesuffix("s"))
            raise InputError(f"{have} for {plural(len(trees), 'tree')}: give one for each tree")
    if truths is not None and truths.shape[1:] != trees.shape:
        raise InputError(
            f"truths have shape {tuple(truths.shape[1:])}, nodes {tuple(trees.shape)}: "
            "a truth must be an image of the nodes' shape"
        )
    for name, rival in rivals.items():
        if len(rival) != len(trees) or rival.shape != trees.shape:
            raise InputError(
                f"{name!r} has {len(rival)} trees of {tuple(rival.shape)}, the page {len(trees)} "
                f"of {tuple(trees.shape)}: a comparison needs trees of the same inputs"
            )
