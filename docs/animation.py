"""A film of a tree that grows where one looks: python docs/animation.py MODEL [IMAGE …]

MODEL is a growing one (recipes/growing), with images of its own or its samples. Twenty seconds: the
tree of the whole picture, a place that is marked, what may be there, a leaf that is split further,
and one step back.
"""

import argparse
import io
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from screenshots import visiting

from posterior_trees import load
from posterior_trees.errors import InputError
from posterior_trees.models.card import describe_model
from posterior_trees.predictor import GrowingPredictor
from posterior_trees.serve.growths import Growths
from posterior_trees.serve.server import make_app
from posterior_trees.serve.start import describe_start

FILE = Path(__file__).parent / "images" / "growing.webp"
SIZE, CAPTION = (1200, 780), 34
FONT = ImageFont.load_default(18)
POINTER = [(0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12)]


class Film:
    """Pictures of a page, each with how long it is shown and what is said below."""

    def __init__(self, page: Any) -> None:
        self.page, self.words, self.at = page, "", (0.5 * SIZE[0], 0.5 * SIZE[1])
        self.frames: list[Image.Image] = []
        self.milliseconds: list[int] = []

    def take(self, milliseconds: int) -> None:
        shot = Image.open(io.BytesIO(self.page.screenshot())).convert("RGB")
        frame = Image.new("RGB", (SIZE[0], SIZE[1] + CAPTION), "#222222")
        frame.paste(shot, (0, 0))
        pen = ImageDraw.Draw(frame)
        pen.text((14, SIZE[1] + 6), self.words, fill="white", font=FONT)
        x, y = self.at
        pen.polygon([(x + a, y + b) for a, b in POINTER], fill="black", outline="white")
        self.frames.append(frame)
        self.milliseconds.append(milliseconds)

    def say(self, words: str, milliseconds: int) -> None:
        self.words = words
        self.take(milliseconds)

    def move(self, x: float, y: float, steps: int = 6) -> None:
        """The pointer, seen on its way."""
        (from_x, from_y) = self.at
        for step in range(1, steps + 1):
            part = step / steps
            self.at = from_x + part * (x - from_x), from_y + part * (y - from_y)
            self.page.mouse.move(*self.at)
            self.take(90)

    def click(self, found: Any) -> None:
        place = found.bounding_box()
        self.move(place["x"] + place["width"] / 2, place["y"] + place["height"] / 2)
        found.click()
        self.page.wait_for_selector("body:not(.waiting)")
        self.page.wait_for_timeout(500)

    def save(self, file: Path) -> None:
        first, *others = self.frames
        first.save(file, save_all=True, append_images=others, duration=self.milliseconds, loop=0,
                   quality=60, method=4)  # fmt: skip
        seconds, kilobytes = sum(self.milliseconds) / 1000, file.stat().st_size / 1000
        print(f"{file}: {len(self.frames)} pictures, {seconds:.0f} s, {kilobytes:.0f} kB")


def shoot(film: Film, place: tuple[float, float, float, float]) -> None:
    """`place` is the box that is marked: left, top, right, bottom, as shares of the picture."""
    page = film.page
    film.say("Everything that may be in the hidden part: its average, three kinds, …", 3000)
    stage = page.locator("#stage").bounding_box()
    left, top, right, bottom = place
    across = [stage["x"] + part * stage["width"] for part in (left, right)]
    down = [stage["y"] + part * stage["height"] for part in (top, bottom)]
    film.words = "Mark the place that you doubt"
    film.move(across[0], down[0])
    page.mouse.down()
    film.move(across[1], down[1], steps=8)
    page.mouse.up()
    film.take(1200)
    film.words = "What may be here?"
    film.click(page.get_by_role("button", name="What may be here?"))
    film.say("The tree now splits by what is in that place", 3500)
    film.words = "Look at one of the answers"
    for _ in range(8):  # down to a leaf
        page.keyboard.press("ArrowDown")
        page.wait_for_timeout(400)
        film.take(1400)
        if page.locator("#split").is_enabled():
            break
    film.words = "Not sure yet? Split it further"
    film.click(page.locator("#split"))
    film.take(2500)
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(400)
    film.say("Its children have probabilities of their own", 2500)
    film.words = "One step back"
    film.click(page.locator("#undo"))
    film.take(2000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("images", nargs="*", type=Path)
    parser.add_argument("--box", type=float, nargs=4, default=(0.2, 0.1, 0.8, 0.4),
                        metavar=("LEFT", "TOP", "RIGHT", "BOTTOM"))  # fmt: skip
    parser.add_argument("--example", type=int, default=2)
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    predictor = load(arguments.model, "cpu")
    if not isinstance(predictor, GrowingPredictor):
        raise InputError(f"{arguments.model} has a fixed layout: name one of recipes/growing")
    growths = Growths(predictor, {})
    examples = describe_start(predictor, arguments.images, growths=growths)
    app = make_app(predictor, examples=examples, title="Trees that grow where you look",
                   model_card=describe_model(predictor), growths=growths)  # fmt: skip
    with visiting(app) as (browser, address):
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto(f"{address}#{min(arguments.example, len(examples))}")
        page.wait_for_selector("body.ready")
        film = Film(page)
        shoot(film, tuple(arguments.box))
    film.save(arguments.out)


if __name__ == "__main__":
    main()
