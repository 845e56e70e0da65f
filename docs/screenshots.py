"""The pictures of docs/explorer.md, taken in Chromium: python docs/screenshots.py [MODEL]

With the training digits at hand (--data DIR, as for `ptrees train`) also the one of a comparison:
the rival is a tree of the training digits whose visible part is nearest to the input.

explorer.png is the page of `make demo`: chromium --headless --force-prefers-reduced-motion
--hide-scrollbars --window-size=1400,1000 --screenshot=docs/explorer.png demo/index.html
"""

import argparse
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees import Tree, TreePredictor, hierarchical_kmeans, load
from posterior_trees.assets import sample_digits
from posterior_trees.data import read_idx
from posterior_trees.explore import describe_trees
from posterior_trees.explore.export import frame_content, inline_page
from posterior_trees.models.card import describe_model
from posterior_trees.serve.listen import listen
from posterior_trees.serve.server import make_app
from posterior_trees.serve.start import describe_start

HERE = Path(__file__).parent
TITLE = "Posterior trees of handwritten digits"
SEVEN = [(0.30, 0.22), (0.68, 0.22), (0.62, 0.45), (0.52, 0.68), (0.47, 0.92)]
"""A drawing: points on the paper, of its width and height."""
VIEWS = {
    "explorer": "#1/1",
    "explorer-ask": "#2/1;mode=heat;box=5,3,17,9,0;box=4,12,19,8,0",
}


def nearest_digits(x: Tensor, training: Tensor, count: int = 100) -> Tree:
    """A tree of the training digits whose lower 8 rows are nearest to those of each `x`."""
    rows, samples = slice(20, 28), []
    visible = training[:, :, rows].flatten(1)
    for image in x:
        distance = (visible - image[:, rows].flatten()).square().sum(dim=1)
        chosen = training[distance.argsort()[:count]].clone()
        chosen[:, :, rows] = image[:, rows]
        samples.append(chosen)
    return hierarchical_kmeans(
        torch.stack(samples), 3, 2, generator=torch.Generator().manual_seed(0)
    )


def take(predictor: TreePredictor, training: Tensor | None = None, out: Path = HERE) -> None:
    """Take all pictures with this model."""
    app = make_app(predictor, examples=describe_start(predictor, ()), title=TITLE,
                   model_card=describe_model(predictor))  # fmt: skip
    with visiting(app) as (browser, address), tempfile.TemporaryDirectory() as folder:
        for name, view in VIEWS.items():
            shoot(browser, address + view, out / f"{name}.png")
        shoot(browser, address, out / "explorer-own.png", drawing=SEVEN)
        if training is not None:
            page = Path(folder) / "compare.html"
            page.write_text(compare(predictor, training), encoding="utf-8")
            view = page.as_uri() + "#2/1.1;truth;box=5,2,17,12,0"
            shoot(browser, view, out / "explorer-compare.png", scheme="dark")


@contextmanager
def visiting(app: Any) -> Iterator[tuple[Any, str]]:
    """A browser, and the address where the app is served meanwhile."""
    import uvicorn
    from playwright.sync_api import sync_playwright

    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            yield browser, f"http://127.0.0.1:{opened.getsockname()[1]}/"
            browser.close()
    finally:
        server.should_exit = True
        thread.join()


def compare(predictor: TreePredictor, training: Tensor) -> str:
    """A page with the model's trees and those of nearest training digits."""
    x = sample_digits(6)
    y = predictor.measure(x.to(predictor.device))
    names = [f"digit {i + 1}" for i in range(6)]
    examples = describe_trees(
        predictor(y).to("cpu"), inputs=y.cpu(), truths=x, names=names,
        rivals={"100 nearest training digits": nearest_digits(x, training)},
    )  # fmt: skip
    frame = frame_content(predictor.branching, (28, 28), TITLE, describe_model(predictor))
    return inline_page(frame | {"examples": examples})


def shoot(browser, address: str, file: Path, scheme: str = "light", drawing: Sequence = ()) -> None:
    size = {"width": 1280, "height": 720}
    page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1.5)
    page.goto(address)
    page.wait_for_timeout(600)
    if drawing:
        page.locator("#own-button").click()
        paper = page.locator("#draw").bounding_box()
        for i, (across, down) in enumerate(drawing):
            x, y = paper["x"] + across * paper["width"], paper["y"] + down * paper["height"]
            page.mouse.move(x, y, steps=6)
            if i == 0:
                page.mouse.down()
        page.mouse.up()
        page.wait_for_timeout(1500)
    page.screenshot(path=file)
    page.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="digits")
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    digits = None
    if arguments.data:
        digits = read_idx(arguments.data / "mnist" / "train-images-idx3-ubyte.gz")
        digits = torch.as_tensor(digits).reshape(-1, 1, 28, 28).float() / 255
    take(load(arguments.model), digits)
