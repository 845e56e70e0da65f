"""The folder of one picture: its tree in every form that people look at.

out/<stem>/picture.png       your picture as the model took it, where it shows what the model hid of
                             it (a hole, a lost colour); it may be the truth
out/<stem>/tree.png          the tree in the style of the paper, with the measurement
out/<stem>/node_<path>.png   every node: `root`, `0`, `0.1`, … by child numbers from 0
out/<stem>/tree.safetensors  the tree itself, unclipped (`Tree.load`)
out/<stem>/tree.json         `{"schema": 1, "picture", "model", "branching", "size", "nodes":
                             [{"path": [0, 1], "probability", "image": "node_0.1.png"}…]}`, and
                             `"shows_hidden": "picture.png"` where that is there, a `"note"` of what
                             may be wrong with the picture, how it was `"resized"`, if it was, and
                             to which `"scale"`, if that was asked for; of a model with a guarantee
                             the `"promise"`: `"cut"` (paths), `"intervals"` by measure, `"radius"`,
                             `"level"`, the p-value `"p"`, or why it is `"withdrawn"`
out/<stem>/count*            with `--count`: the nuclei in the leaves, see `nuclei/report.py`
"""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from posterior_trees.explore.content import SIDE
from posterior_trees.explore.export import frame_content, inline_page
from posterior_trees.figure import save_figure
from posterior_trees.imaging.size import shrink
from posterior_trees.imaging.stored import name_of
from posterior_trees.models.card import describe_model
from posterior_trees.pictures.answer import Answer
from posterior_trees.predictor import Predictor
from posterior_trees.store import write_bytes, write_json
from posterior_trees.tree import Tree

SCHEMA = 1
LeafNumbers = Mapping[str, Sequence[float | int | None]]
"""Numbers of a tree's leaves by their names; None for an absent leaf."""
Also = Callable[[Answer, Path, dict], LeafNumbers | None]


def write_folder(folder: Path, made: Answer, facts: dict, also: Also | None) -> dict:
    """Fill a new folder; returns the page's example."""
    folder.mkdir()
    tree = made.tree
    small = tree.map_images(lambda images: shrink(images, SIDE))
    save_figure(small, folder / "tree.png", y=shrink(made.y, SIDE))
    tree.save(folder / "tree.safetensors")
    if made.x is not None:
        _save_png(made.x[0], folder / "picture.png")
        facts = facts | {"shows_hidden": "picture.png"}
    layout = {"branching": list(tree.branching), "size": list(tree.shape[1:])}
    facts = facts | dict(made.remarks)
    if tree.guarantee is not None:
        said = tree.guarantee.for_page(tree)
        facts = facts | {"promise": {k: v for k, v in said.items() if k != "boxes"}}
    table = {"schema": SCHEMA, **facts, **layout, "nodes": _write_nodes(folder, tree)}
    write_json(folder / "tree.json", table)
    measures = (also(made, folder, facts) if also else None) or {}
    described = made.describe(folder.name)
    return described | {"measures": {title: list(v) for title, v in measures.items()}}


def write_page(file: Path, predictor: Predictor, examples: Sequence[dict]) -> None:
    """The explorer of pictures that are done."""
    size, card = examples[0]["size"], describe_model(predictor)
    frame = frame_content(predictor.branching, size, "Posterior trees", card)
    write_bytes(file, inline_page(frame | {"examples": list(examples)}).encode())


def write_links(file: Path, names: Iterable[str]) -> None:
    """The page of many pictures, each of which has one of its own."""
    shown = [html.escape(name) for name in names]
    links = "".join(f'<li><a href="{n}/index.html">{n}</a></li>' for n in shown)
    head = '<!doctype html><meta charset="utf-8"><title>Posterior trees</title>'
    write_bytes(file, f"{head}<ol>{links}</ol>".encode())


def _write_nodes(folder: Path, tree: Tree) -> list[dict]:
    """Every node as a picture, clipped to [0, 1]; an absent one has none."""
    nodes = []
    for level, probs in enumerate(tree.probs):
        absent = tree.is_absent(level)[0].tolist()
        for node, path in enumerate(tree.paths(level)):
            image = None if absent[node] else f"node_{name_of(path)}.png"
            if image:
                _save_png(tree.images[level][0, node], folder / image)
            probability = probs[0, node].item()
            nodes.append({"path": list(path), "probability": probability, "image": image})
    return nodes


def _save_png(image: Float[Tensor, "c h w"], file: Path) -> None:
    """Eight bits, clipped to [0, 1]."""
    pixels = image.clamp(0, 1).mul(255).round().byte().numpy()
    pixels = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    Image.fromarray(np.ascontiguousarray(pixels)).save(file)
