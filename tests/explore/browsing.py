"""What the browser tests share: a small tree, a model of it, and what a reader's hands do.

The tree has four leaves on a dark ground: a light patch L at the upper left is in leaves 0 and 1, a
patch R at the upper right in leaves 1 and 3, with these probabilities:

              L        no L
    R        0.23      0.07
    no R     0.40      0.30
"""

import base64
import contextlib
import io
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from posterior_trees import Inpaint, Tree, TreePredictor, grow
from posterior_trees.networks.head import Leaves
from posterior_trees.serve.listen import listen

PROBS = [0.40, 0.23, 0.30, 0.07]
LEFT, RIGHT = (slice(2, 10), slice(2, 10)), (slice(2, 10), slice(18, 26))


def make_leaves(size: int = 28, channels: int = 1) -> torch.Tensor:
    zoom = size // 28
    leaves = torch.full((4, channels, 28, 28), 0.2)
    leaves[:2, :, *LEFT] = 0.8
    leaves[1::2, :, *RIGHT] = 0.8
    return leaves.repeat_interleave(zoom, -1).repeat_interleave(zoom, -2)


def make_tree(batch: int = 1) -> Tree:
    leaves = make_leaves().expand(batch, 4, 1, 28, 28)
    return grow(leaves, torch.tensor(PROBS).log().expand(batch, 4), 2)


class Patches(torch.nn.Module):
    """A network that always gives the four leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = torch.nn.Parameter(make_leaves())

    def forward(self, y: torch.Tensor) -> Leaves:
        images = self.leaves.expand(len(y), *self.leaves.shape)
        return Leaves(images - 0.5, torch.tensor(PROBS).log().expand(len(y), 4))


def make_predictor() -> TreePredictor:
    hole = Inpaint.box((0, 19), (0, 27), (28, 28))
    return TreePredictor(
        Patches(), hole, branching=2, depth=2, channels=1, name="patches",
        about={"input_brightness": [0.3, 0.5], "card": {"importer": "digit"}},
    ).eval()  # fmt: skip


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    import uvicorn

    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)


def selected(opened: Any) -> str:
    return opened.locator("#crumbs [aria-current]").inner_text().split()[0]


def address_of(opened: Any) -> str:
    """Where the page says it is; what the driver keeps of it may be one event behind."""
    return opened.evaluate("location.href")


def press(opened: Any, *keys: str) -> None:
    for key in keys:
        opened.keyboard.press(key)


def drag(opened: Any, place: tuple[slice, slice], size: int = 28) -> None:
    """Draw a box on the large picture, in pixels of the image."""
    stage = opened.locator("#stage").bounding_box()
    (top, bottom), (left, right) = ((s.start + 0.2, s.stop - 0.2) for s in place)
    across, down = stage["width"] / size, stage["height"] / size
    opened.mouse.move(stage["x"] + left * across, stage["y"] + top * down)
    opened.mouse.down()
    opened.mouse.move(stage["x"] + right * across, stage["y"] + bottom * down, steps=3)
    opened.mouse.up()


def answers(opened: Any, box: int = 0) -> list[str]:
    opened.wait_for_selector(".question >> nth=0")
    return opened.locator(".question").nth(box).locator("strong").all_inner_texts()


def drawn_order(opened: Any, level: int) -> list[str]:
    """Names of a level's nodes from left to right."""
    return opened.evaluate(
        """level => [...document.querySelectorAll('.node')]
        .filter(n => Number(n.getAttribute('aria-level')) === level + 1)
        .sort((a, b) => new DOMMatrix(a.style.transform).e - new DOMMatrix(b.style.transform).e)
        .map(n => n.path.map(c => c + 1).join('.'))""",
        level,
    )


def keep(opened: Any, button: str) -> bytes:
    opened.locator("#share summary").click()
    with opened.expect_download() as download:
        opened.locator(f"#{button}").click()
    return Path(download.value.path()).read_bytes()


def picture_of(opened: Any, image: Any) -> np.ndarray:
    """The pixels of an image on the page."""
    found = opened.locator(image) if isinstance(image, str) else image
    source = found.get_attribute("src")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(source.split(",")[1]))).convert("RGB"))
