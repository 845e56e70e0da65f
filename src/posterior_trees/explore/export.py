r"""Trees as one self-contained web page: the explorer, opened from disk, without any network.

The page is `static/page.html` with the style sheet, the script and the trees put inside it. The
trees are JSON in a script tag (`<script type="application/json" id="trees">`), in this form:

    {"schema": 1,
     "title": "Digits",
     "branching": [3, 3],                        one number per level, as in `Tree.branching`
     "size": [28, 28],                           height and width of a node's image
     "model": {"name": "…", "citation": "…"},    shown in the footer, in this order
     "examples": [
       {"name": "Seven",
        "input": "data:image/png;base64,…",
        "truth": "data:image/png;base64,…",      null: not known
        "truth_path": [0, 2, 7],                 node indices of the truth's greedy path, or null
        "levels": [[{"p": 1.0, "image": "data:…"}], [{"p": 0.4, …}, null, …], …]}]}

`levels[l][i]` is node i of level l, in the order of `Tree`: the children of node i are nodes
K·i … K·i+K−1 of the next level. `p` is absolute, so that the nodes of a level sum to 1. `null` is
an absent node. Images are 8-bit PNG, clipped to [0, 1] for display; the trees are not changed.

Whatever the user wrote (names, title, model card) goes through the JSON, where `<` is `\u003c`, and
the script only ever puts it on the page as text.
"""

import base64
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from os import PathLike
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.tree import Tree

SCHEMA = 1


def page(
    trees: Tree,
    *,
    inputs: Float[Tensor, "_ _ _ _"],
    truths: Float[Tensor, "_ _ _ _"] | None = None,
    names: Sequence[str] | None = None,
    title: str = "Posterior trees",
    model_card: Mapping[str, object] | None = None,
) -> str:
    """The explorer of these trees as one HTML text.

    `inputs` are the measurements y, `truths` the clean images x if they are known; the page hides
    them until the reader asks. `model_card` may hold any words for the footer, such as `name`,
    `citation` and `attribution`.
    """
    _check(trees, inputs=inputs, truths=truths, names=names)
    names = [f"Example {i + 1}" for i in range(len(trees))] if names is None else names
    content = {
        "schema": SCHEMA,
        "title": title,
        "branching": list(trees.branching),
        "size": list(trees.shape[1:]),
        "model": {str(key): str(value) for key, value in (model_card or {}).items()},
        "examples": [
            _describe(tree, name, inputs[i], None if truths is None else truths[i])
            for i, (tree, name) in enumerate(zip(trees, names, strict=True))
        ],
    }
    return _inline(title, content)


def save_page(
    file: str | PathLike[str],
    trees: Tree,
    *,
    inputs: Float[Tensor, "_ _ _ _"],
    truths: Float[Tensor, "_ _ _ _"] | None = None,
    names: Sequence[str] | None = None,
    title: str = "Posterior trees",
    model_card: Mapping[str, object] | None = None,
) -> None:
    """Write `page` to a file."""
    text = page(
        trees, inputs=inputs, truths=truths, names=names, title=title, model_card=model_card
    )
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OSError(
            f"cannot write the page {file} ({error.strerror or error}): "
            "name a file in a folder that exists and that you may write to"
        ) from error


def _describe(tree: Tree, name: str, y: Tensor, x: Tensor | None) -> dict:
    """One example in the form of the module's docstring."""
    levels = []
    for level, probs in enumerate(tree.probs):
        absent, paths = tree.is_absent(level)[0].tolist(), tree.paths(level)
        nodes: list[dict | None] = []
        for node, prob in enumerate(probs[0].tolist()):
            what = f"node {paths[node]} of {name!r}"
            if np.isnan(prob):
                raise ValueError(f"{what} has probability NaN; probabilities must be numbers")
            image = None if absent[node] else _to_png(tree.images[level][0, node], what)
            nodes.append(None if image is None else {"p": prob, "image": image})
        levels.append(nodes)
    return {
        "name": name,
        "input": _to_png(y, f"the input of {name!r}"),
        "truth": None if x is None else _to_png(x, f"the truth of {name!r}"),
        "truth_path": None if x is None else tree.descend(x[None].to(tree.root))[0].tolist(),
        "levels": levels,
    }


def _to_png(image: Float[Tensor, "c h w"], what: str) -> str:
    values = image.detach().cpu().double().numpy()
    bad = int(values.size - np.isfinite(values).sum())
    if bad:
        raise ValueError(
            f"{what} has {bad} NaN or infinite pixels of {values.size}; "
            "a page needs finite values: look for a training run that diverged"
        )
    pixels = (values.clip(0.0, 1.0) * 255).round().astype(np.uint8)
    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0).copy())
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode("ascii")


def _inline(title: str, content: dict) -> str:
    """Put style, script and data where `page.html` refers to them, all in one pass, so that
    nothing the user wrote is taken for a reference."""
    static = resources.files("posterior_trees.explore") / "static"
    style, script, frame = (
        (static / file).read_text(encoding="utf-8")
        for file in ("style.css", "explorer.js", "page.html")
    )
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    parts = {
        "<title>Posterior trees</title>": f"<title>{html.escape(title)}</title>",
        '<link rel="stylesheet" href="style.css">': f"<style>\n{style}</style>",
        '<script type="application/json" id="trees"></script>': (
            f'<script type="application/json" id="trees">{data}</script>'
        ),
        '<script type="module" src="explorer.js"></script>': (
            f'<script type="module">\n{script}</script>'
        ),
    }
    return re.sub("|".join(map(re.escape, parts)), lambda match: parts[match[0]], frame)


def _check(trees: Tree, *, inputs: Tensor, truths: Tensor | None, names) -> None:
    if len(trees) == 0:
        raise ValueError("the batch holds no trees; a page needs at least one")
    if len(trees.shape) != 3:
        raise ValueError(f"nodes have shape {tuple(trees.shape)}; a page shows images (c, h, w)")
    for name, batch in {"trees": trees.root, "inputs": inputs, "truths": truths}.items():
        if batch is not None and batch.shape[1] not in (1, 3):
            raise ValueError(
                f"{name} have {batch.shape[1]} channels; a page shows 1 (grey) or 3 (RGB)"
            )
    for name, batch in {"inputs": inputs, "truths": truths, "names": names}.items():
        if batch is not None and len(batch) != len(trees):
            raise ValueError(f"{len(batch)} {name} for {len(trees)} trees: give one for each tree")
    if truths is not None and truths.shape[1:] != trees.shape:
        raise ValueError(
            f"truths have shape {tuple(truths.shape[1:])}, nodes {tuple(trees.shape)}: "
            "a truth must be an image of the nodes' shape"
        )
