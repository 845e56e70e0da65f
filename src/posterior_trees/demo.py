"""`ptrees demo`: trees of sample digits, predicted on the spot by the model that ships with the
package, as one web page and a few figures. It needs neither data nor a GPU nor the network."""

from os import PathLike

import torch

from posterior_trees.assets import sample_digits
from posterior_trees.data import evenly_spaced
from posterior_trees.explore import save_page
from posterior_trees.figure import save_figure
from posterior_trees.models.card import describe_model
from posterior_trees.models.checkpoint import load
from posterior_trees.store import make_folder

TEST_DIGITS = 10_000
"""The sample digits are evenly spaced in MNIST's test set, see assets/README.md."""
DRAWN = 4
"""How many trees become figures."""
SAMPLES = "(commonly CC BY-SA 3.0), evenly spaced in its test set, not seen in training"


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
    card = describe_model(predictor)
    card["data"] += f" {SAMPLES}"
    title = "Posterior trees of handwritten digits"
    save_page(
        out / "index.html", tree, inputs=y, truths=x, names=names, title=title, model_card=card
    )
    drawn = evenly_spaced(len(x), DRAWN)
    figures = [out / "overview.png", *(out / f"tree_{numbers[i]}.png" for i in drawn)]
    path = tree.descend(x)
    for file, rows in zip(figures, [drawn, *([i] for i in drawn)], strict=True):
        i = torch.tensor(rows)
        shown = [names[row] for row in rows]
        save_figure(tree[i], file, y=y[i], x=x[i], path=path[i], names=shown)
    listed = ", ".join(str(file) for file in figures)
    return (
        f"wrote {out / 'index.html'}: trees of {len(x)} digits; open it in a browser:\n"
        f"  {(out / 'index.html').resolve().as_uri()}\nfigures: {listed}"
    )
