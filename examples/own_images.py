r"""Pairs of images in two folders → recipe → trained tree → explorer page.

    python examples/own_images.py --inputs cells/actin --targets cells/dna --out runs/cells

`inputs` holds the measurements $y$ and `targets` the clean images $x$, files of one name belonging
together, of one size (or set data.size in the recipe). Without folders it paints pairs of its own:
outlines of shapes, and the shapes filled in one of three colours that no outline can tell.

Everything here is also a command line; each step prints its own.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from posterior_trees import load
from posterior_trees.cli import main as ptrees
from posterior_trees.data import evenly_spaced, load_split
from posterior_trees.evaluation.examples import predict_examples
from posterior_trees.explore import save_page
from posterior_trees.recipe import read_recipe

BATCH = 8
RECIPE = """\
# Every key is optional but those of [data] and [measurement]; docs/recipes.md explains them all.
task = "{name}"
seed = 0

[data]
name = "{name}"
kind = "pairs"
inputs = "{inputs}"
targets = "{targets}"
channels = {channels}
input_channels = {input_channels}
validation = 0.1
test = 0.1

[measurement]
kind = "paired"

[tree]
branching = 3
depth = 1

[network]
c_init = 4

[loss]
epsilon_start = {epsilon_start}
epsilon_scale = {epsilon_scale}

[balancer]
is_on = true
start = {epsilon_start}

[training]
epochs = {epochs}
batch_size = {batch}
picture_every = {epochs}
"""


def paint_pairs(folder: Path, n: int, seed: int = 0) -> tuple[Path, Path]:
    """Outlines of shapes and the same shapes in colour, 32×32, as PNG files in two folders."""
    random = np.random.default_rng(seed)
    inputs, targets = folder / "outlines", folder / "painted"
    for channel in (inputs, targets):
        channel.mkdir(parents=True, exist_ok=True)
    for number in range(n):
        left, top = random.integers(2, 12, 2).tolist()
        width, height = random.integers(10, 18, 2).tolist()
        colour = ["crimson", "gold", "royalblue"][random.choice(3, p=[0.5, 0.3, 0.2])]
        shape = ["rectangle", "ellipse"][random.integers(2)]
        outline, painted = Image.new("L", (32, 32), 255), Image.new("RGB", (32, 32), "white")
        box = (left, top, left + width, top + height)
        getattr(ImageDraw.Draw(outline), shape)(box, outline=0)
        getattr(ImageDraw.Draw(painted), shape)(box, fill=colour, outline="black")
        outline.save(inputs / f"{number:04d}.png")
        painted.save(targets / f"{number:04d}.png")
    return inputs, targets


def list_images(folder: Path) -> list[Path]:
    endings = Image.registered_extensions()
    files = [file for file in sorted(folder.rglob("*")) if file.suffix.lower() in endings]
    if not files:
        raise SystemExit(f"there are no images in {folder}; put the pairs' files there")
    return files


def count_channels(folder: Path) -> int:
    """1 if the first image of a folder is grey, else 3."""
    with Image.open(list_images(folder)[0]) as image:
        return 1 if image.mode in ("1", "L", "I", "I;16") else 3


def write_recipe(file: Path, inputs: Path, targets: Path, steps: int) -> None:
    """A recipe that trains about `steps` steps and anneals in their middle.

    The first 30 % are plain MSE: leaves that part before they have learned the mean leave the
    first winner alone with all images.
    """
    per_epoch = max(len(list_images(targets)) * 8 // 10 // BATCH, 1)
    epochs = max(steps // per_epoch, 1)
    text = RECIPE.format(
        name=targets.parent.name,
        inputs=inputs.name,
        targets=targets.name,
        channels=count_channels(targets),
        input_channels=count_channels(inputs),
        epochs=epochs,
        epsilon_start=0.3 * epochs,
        epsilon_scale=0.1 * epochs,
        batch=BATCH,
    )
    file.write_text(text, encoding="utf-8")


def run(*words: object) -> None:
    """A `ptrees` command, shown and run."""
    command = [str(word) for word in words]
    print("$ ptrees", *command)
    ptrees(command)


def explore(model: Path, recipe_file: Path, data: Path, page: Path) -> None:
    """The explorer of a few test images, with the truth to compare."""
    images = load_split(read_recipe(recipe_file).data, data, "test")
    numbers = evenly_spaced(len(images), 6)
    tree, y, x = predict_examples(load(model), images, numbers)
    names = [images.names[i] for i in numbers]
    save_page(page, tree, inputs=y, truths=x, names=names, title="My trees")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tree on pairs of images.")
    parser.add_argument("--inputs", type=Path, help="folder of measurements y")
    parser.add_argument("--targets", type=Path, help="folder of clean images x, beside the other")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, default=Path("runs/own_images"))
    arguments = parser.parse_args()
    inputs, targets, out = arguments.inputs, arguments.targets, arguments.out
    out.mkdir(parents=True, exist_ok=True)
    if inputs is None or targets is None:
        inputs, targets = paint_pairs(out / "data" / "shapes", n=240)
    if inputs.resolve().parent != targets.resolve().parent:
        parser.error(f"{inputs} and {targets} must lie in one folder, the set's")

    recipe, data = out / "recipe.toml", targets.resolve().parent.parent
    write_recipe(recipe, inputs.resolve(), targets.resolve(), arguments.steps)
    run("train", recipe, "--data", data, "--out", out / "run")
    run("evaluate", out / "run", "--data", data)
    explore(out / "run", recipe, data, out / "index.html")
    print(f"open {out / 'index.html'}")


if __name__ == "__main__":
    main()
