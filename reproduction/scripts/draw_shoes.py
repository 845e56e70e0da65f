"""Drawings of shoes for the explorer of shoes: thin black lines, made of curves, by nobody's photo.

python reproduction/scripts/draw_shoes.py src/posterior_trees/assets/shoes.png
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE = 128

# from the heel at the left to the toe at the right; each line goes through its points
SHOES = {
    "low shoe": [
        [(14, 66), (15, 54), (22, 50), (36, 56), (50, 60)],
        [(50, 60), (60, 68), (72, 76), (92, 80), (108, 84), (115, 91), (114, 96)],
        [(14, 66), (12, 78), (13, 92)],
        [(13, 92), (40, 94), (70, 95), (114, 96)],
        [(13, 92), (12, 100), (60, 102), (108, 102), (115, 99), (114, 96)],
        [(52, 62), (48, 70)],
        [(58, 67), (53, 75)],
        [(65, 72), (60, 80)],
        [(72, 76), (67, 84)],
        [(46, 60), (44, 74), (64, 86), (76, 78)],
        [(92, 80), (88, 88), (90, 95)],
    ],
    "boot": [
        [(22, 14), (40, 17), (58, 15)],
        [(22, 14), (22, 40), (18, 66), (16, 90)],
        [(58, 15), (58, 44), (64, 62), (84, 72), (104, 78), (113, 88), (112, 94)],
        [(16, 90), (30, 91), (34, 88), (50, 92), (112, 94)],
        [(16, 90), (16, 101), (33, 101), (34, 96), (50, 97), (108, 100), (114, 97), (112, 94)],
        [(30, 16), (30, 40), (30, 62), (40, 74)],
    ],
    "high heel": [
        [(14, 52), (18, 44), (28, 50), (44, 66), (66, 84), (88, 88)],
        [(14, 52), (20, 62), (40, 76), (60, 92), (84, 98), (108, 99), (117, 96)],
        [(88, 88), (104, 88), (117, 96)],
        [(14, 52), (14, 66), (17, 84), (17, 101)],
        [(17, 101), (22, 101)],
        [(22, 101), (24, 84), (30, 70)],
    ],
    "slipper": [
        [(12, 90), (11, 84), (24, 82), (40, 84)],
        [(40, 84), (44, 74), (58, 68), (84, 68), (106, 76), (117, 88), (115, 96)],
        [(40, 84), (56, 92), (80, 95), (115, 96)],
        [(12, 90), (40, 94), (80, 95)],
        [(12, 90), (12, 98), (40, 101), (80, 101), (110, 101), (115, 96)],
    ],
}


def curve(points: Sequence[tuple[float, float]], steps: int = 24) -> list[tuple[float, float]]:
    """Through the points (Catmull and Rom, 1974)."""
    p = np.array([points[0], *points, points[-1]], dtype=float)
    t = np.linspace(0, 1, steps)[:, None]
    found = []
    for a, b, c, d in zip(p, p[1:], p[2:], p[3:], strict=False):
        bends = (c - a, 2 * a - 5 * b + 4 * c - d, 3 * b - a - 3 * c + d)
        found.append(b + 0.5 * sum(bend * t**n for n, bend in enumerate(bends, start=1)))
    return [tuple(point) for part in found for point in part]


def draw(lines: Sequence[Sequence[tuple[float, float]]]) -> Image.Image:
    image = Image.new("L", (SIDE, SIDE), 255)
    pen = ImageDraw.Draw(image)
    for points in lines:
        pen.line([(round(x), round(y)) for x, y in curve(points)], fill=0)
    return image


def main(file: Path) -> None:
    sheet = Image.new("L", (SIDE * len(SHOES), SIDE))
    for number, lines in enumerate(SHOES.values()):
        sheet.paste(draw(lines), (SIDE * number, 0))
    sheet.convert("1").save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
