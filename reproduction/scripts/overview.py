"""The README's picture of all tasks: `overview.py DATA [NAME=MODEL:IMAGE …] [--out FILE]`.

A row for each model: what it is given, the root, its three children, the nine leaves. Of what hides
a part, nodes are cut out around it. IMAGE is the number of a test image. Without rows: all models
that are found by name.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from posterior_trees import Tree, load
from posterior_trees.data import load_evaluation
from posterior_trees.evaluation.examples import around_hole, predict_examples
from posterior_trees.explore.content import visible
from posterior_trees.figure import FAINT, INK
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.models.shelf import list_models

HERE = Path(__file__).parents[2]
ROWS = ("a grey face=faces_colorize:3", "eyes hidden=faces_eyes:7", "mouth hidden=faces_mouth:7",
        "a grey cat=cats_colorize:0", "edges of a shoe=shoes_from_edges:0",
        "actin=cells:0", "part of a digit=digits:7")  # fmt: skip
COLUMNS = {"given": 0.0, "the average": 1.2, "three kinds": 2.4, "each in three": 5.6}
"""Where the pictures of each level begin, in sides of a picture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("rows", nargs="*", metavar="NAME=MODEL:IMAGE")
    parser.add_argument("--out", type=Path, default=HERE / "docs" / "images" / "overview.jpg")
    arguments = parser.parse_args()
    here = list_models()
    rows = arguments.rows or [row for row in ROWS if row.split("=")[1].split(":")[0] in here]
    width, left, top = COLUMNS["each in three"] + 9.4, 1.55, 0.35
    figure = Figure(figsize=(0.72 * (left + width), 0.72 * (top + 1.2 * len(rows))))
    canvas = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    canvas.set(xlim=(-left, width), ylim=(1.2 * len(rows), -top), aspect="equal")
    canvas.axis("off")
    for title, place in COLUMNS.items():
        canvas.text(place, -0.1, title, color=INK, fontsize=8)
    for number, row in enumerate(rows):
        name, _, chosen = row.partition("=")
        model, _, image = chosen.rpartition(":")
        tree, given = predict(model, int(image), arguments.data)
        line = 1.2 * number
        canvas.text(-0.1, line + 0.5, name, color=INK, fontsize=8, ha="right", va="center")
        show(canvas, given, 0.0, line)
        for level, place in enumerate([*COLUMNS.values()][1:]):
            for node, (picture, prob) in enumerate(
                zip(tree.images[level][0], tree.probs[level][0].tolist(), strict=True)
            ):
                show(canvas, visible(picture, "a node", "a figure"), place + 1.03 * node, line)
                if level:
                    canvas.text(place + 1.03 * node + 0.5, line + 1.12, f"{prob:.2f}"[1:],
                                color=INK, fontsize=5.5, ha="center")  # fmt: skip
    figure.savefig(arguments.out, dpi=170, pil_kwargs={"quality": 88})
    print(arguments.out)


def predict(model: str, image: int, data: Path) -> tuple[Tree, np.ndarray]:
    predictor, recipe = load(model, "cpu"), load_recipe(model)
    images = load_evaluation(recipe.data, data, "test")
    tree, y, _ = predict_examples(predictor, images, [image], recipe.seed)
    hole = predictor.measurement.hole
    if hole is not None and hole.float().mean() < 0.5:
        part = (..., *around_hole(predictor))
        tree = tree.map_images(lambda nodes: nodes[part])
    return tree, visible(y[0], "the measurement", "a figure")


def show(canvas, picture: np.ndarray, left: float, top: float) -> None:
    height, width = picture.shape[:2]
    side = max(height, width)
    w, h = width / side, height / side
    left, top = left + (1 - w) / 2, top + (1 - h) / 2
    grey = {"cmap": "gray", "vmin": 0, "vmax": 1} if picture.ndim == 2 else {}
    canvas.imshow(picture, extent=(left, left + w, top + h, top), aspect="auto", **grey)
    canvas.plot([left, left + w, left + w, left, left], [top, top, top + h, top + h, top],
                color=FAINT, linewidth=0.3)  # fmt: skip


if __name__ == "__main__":
    main()
