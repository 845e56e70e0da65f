"""`ptrees demo`: trees of sample digits, predicted on the spot by the model that ships with the
package, as one web page and a few figures. It needs neither data nor a GPU nor the network."""

from os import PathLike

import torch

from posterior_trees.assets import DIGITS, sample_digits
from posterior_trees.data import evenly_spaced
from posterior_trees.explore import page
from posterior_trees.figure import save_figure
from posterior_trees.models.card import describe_model
from posterior_trees.models.checkpoint import load
from posterior_trees.store import make_folder, write_bytes

TEST_DIGITS = 10_000
"""The sample digits are evenly spaced in MNIST's test set, see assets/README.md."""
DRAWN = 4
"""How many trees become figures."""

SAMPLES = f"{DIGITS} (commonly CC BY-SA 3.0), evenly spaced in its test set, not seen in training"


@torch.inference_mode()
def make_demo(out: str | PathLike[str]) -> str:
    """Write `index.html`, `overview.png` and a few `tree_*.png` into `out`; says where they are."""
    out = make_folder(out)
    predictor = load("digits")
    x = sample_digits()
    numbers = evenly_spaced(TEST_DIGITS, len(x))
    y = predictor.measure(x.to(predictor.device))
    tree, y = predictor(y).to("cpu"), y.cpu()
    names = [f"test {number}" for number in numbers]
    text = page(
        tree,
        inputs=y,
        truths=x,
        names=names,
        title="Posterior trees of handwritten digits",
        model_card=describe_model(predictor) | {"data": SAMPLES},
    )
    write_bytes(out / "index.html", text.encode())
    drawn = evenly_spaced(len(x), DRAWN)
    figures = [out / "overview.png", *(out / f"tree_{numbers[i]}.png" for i in drawn)]
    path = tree.descend(x)
    for file, rows in zip(figures, [drawn, *([i] for i in drawn)], strict=True):
        index = torch.tensor(rows)
        save_figure(
            tree[index],
            file,
            y=y[index],
            x=x[index],
            path=path[index],
            names=[names[i] for i in rows],
        )
    listed = ", ".join(str(file) for file in figures)
    return (
        f"wrote {out / 'index.html'}: trees of {len(x)} digits; open it in a browser:\n"
        f"  {(out / 'index.html').resolve().as_uri()}\nfigures: {listed}"
    )
