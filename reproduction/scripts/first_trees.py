"""The first tree of three tasks in one picture: `python reproduction/scripts/first_trees.py`.

Cut from the figures that `ptrees study` drew, each of six evenly spaced test images.
"""

from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
TASKS, TREES = ("cats_colorize", "shoes_from_edges", "faces_colorize"), 6

figures = [Image.open(ROOT / "results" / task / "trees.jpg") for task in TASKS]
firsts = [figure.crop((0, 0, figure.width, figure.height // TREES)) for figure in figures]
sheet = Image.new("RGB", (max(f.width for f in firsts), sum(f.height for f in firsts)), "white")
top = 0
for first in firsts:
    sheet.paste(first, (0, top))
    top += first.height
sheet.save(ROOT / "docs" / "images" / "first_trees.jpg", quality=88)
