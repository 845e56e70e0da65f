"""What was counted in a tree, as files, as a picture and for the terminal.

`write_count` puts three files and a picture beside a predicted tree:

count.json          `{"schema": 1, "threshold", "smallest", "tiles", "mean", "spread",
                    "spread_together", "leaves": [{"path", "probability", "nuclei",
                    "bright_pixels"}…], "nuclei": [{"row", "column", "pixels", "probability",
                    "leaves": [path…]}…]}`, and of `tree.json` the `"note"`, `"resized"`,
                    `"scale"` and `"promise"` that it has: places and pixels are those of the scaled
                    picture
count_leaves.csv    the leaves, a row each
count_nuclei.csv    the inventory, a row each
count.png           the root with the inventory: green is in all leaves, orange is not
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from posterior_trees.imaging.stored import name_of
from posterior_trees.pictures.nuclei.count import Count, Leaf, Nucleus
from posterior_trees.pictures.tables import promised_nuclei, to_csv
from posterior_trees.store import write_json
from posterior_trees.tree import Tree

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
PRINTED = 20
KEPT = ("note", "resized", "scale", "promise")
"""What `count.json` repeats of `tree.json`: who reads a number should read its doubts."""
ENLARGED = 3072
"""Pixels of the longer side up to which `count.png` is enlarged, three times at most."""


def write_count(
    count: Count, tree: Tree, folder: Path, remarks: Mapping[str, object] | None = None
) -> None:
    """Write the table of a tree as JSON and CSV, and its picture; `remarks` go into the JSON."""
    leaves = [leaf._asdict() for leaf in count.leaves]
    nuclei = [nucleus._asdict() for nucleus in count.nuclei]
    facts = {"schema": SCHEMA, **(remarks or {}), **count._asdict()}
    facts |= {"leaves": leaves, "nuclei": nuclei}
    del facts["labels"], facts["owned"]
    write_json(folder / "count.json", facts)
    for leaf in leaves:
        leaf["path"] = name_of(leaf["path"])
    for nucleus in nuclei:
        nucleus["leaves"] = " ".join(map(name_of, nucleus["leaves"]))
    for name, kind, rows in (("leaves", Leaf, leaves), ("nuclei", Nucleus, nuclei)):
        (folder / f"count_{name}.csv").write_text(to_csv(kind._fields, rows), encoding="utf-8")
    draw_count(count, tree).save(folder / "count.png")


def per_leaf(count: Count, tree: Tree) -> dict[str, list[int | None]]:
    """The nuclei of every leaf, for the explorer's histogram; none of a mosaic of tiles, which
    choose their leaves on their own, so that no leaf's count is the field's."""
    if count.tiles > 1:
        return {}
    nuclei = {leaf.path: leaf.nuclei for leaf in count.leaves}
    return {"nuclei": [nuclei.get(path) for path in tree.paths(tree.depth)]}


def draw_count(count: Count, tree: Tree) -> Image.Image:
    """The root, enlarged unless it is large, with a ring around each nucleus and the probability of
    those in doubt."""
    zoom = max(1, min(3, ENLARGED // max(tree.shape)))
    pixels = tree.root[0, 0].clamp(0, 1).mul(255).round().byte().cpu().numpy()
    grey = Image.fromarray(pixels)
    picture = grey.resize((grey.width * zoom, grey.height * zoom)).convert("RGB")
    pen = ImageDraw.Draw(picture)
    for nucleus in count.nuclei:
        is_sure = len(nucleus.leaves) == len(count.leaves)
        colour = (70, 200, 90) if is_sure else (255, 150, 0)
        x, y = (zoom * (place + 0.5) for place in (nucleus.column, nucleus.row))
        radius = zoom * (nucleus.pixels / 3.1416) ** 0.5 + 2
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=2)
        if not is_sure:
            pen.text((x - 9, y - 6), f"{nucleus.probability:.0%}", fill=colour)
    return picture


def count_table(facts: dict[str, Any], title: str) -> "Table":
    """What `count.json` says, for the terminal: the leaves, then the nuclei in doubt."""
    from rich.table import Table

    leaves, nuclei = facts["leaves"], facts["nuclei"]
    doubtful = [n for n in nuclei if len(n["leaves"]) < len(leaves)]
    caption = f"brighter than {facts['threshold']:.3f}, at least {facts['smallest']} pixels"
    if facts["tiles"] > 1:
        caption += (
            f"; {facts['tiles']} tiles that vary on their own, if all were in the same leaf: "
            f"± {facts['spread_together']:.1f}"
        )
    listed = [sum(leaf["path"] in n["leaves"] for n in nuclei) for leaf in leaves]
    if listed != [leaf["nuclei"] for leaf in leaves]:
        caption += "; nuclei that touch are one in some leaves and two in others"
    if "scale" in facts:
        caption += (
            f"; rows, columns and pixels are those of the picture at {facts['scale']:g} of its "
            "size: divide rows and columns by that"
        )
    if words := promised_nuclei(facts.get("promise", {})):
        caption += f"; {words['promise']}"
        if words["low"] != "":
            caption += ", counted in each leaf by Otsu's threshold of its own"
    table = Table(
        title=f"{title}: {facts['mean']:.1f} ± {facts['spread']:.1f} nuclei; {len(doubtful)} of "
        f"{len(nuclei)} are not in all leaves",
        caption=caption,
    )
    for name in ("leaf", "probability", "nuclei", "bright pixels"):
        table.add_column(name, justify="right")
    for leaf in leaves:
        cells = (f"{leaf['probability']:.3f}", str(leaf["nuclei"]), str(leaf["bright_pixels"]))
        table.add_row(name_of(leaf["path"]), *cells)
    if doubtful:
        table.add_section()
        table.add_row("row, column", "probability", "pixels", "in leaves", style="bold")
    for n in sorted(doubtful, key=lambda n: -n["probability"])[:PRINTED]:
        place = f"{n['row']:.0f}, {n['column']:.0f}"
        shown = " ".join(map(name_of, n["leaves"]))
        table.add_row(place, f"{n['probability']:.3f}", str(n["pixels"]), shown)
    if len(doubtful) > PRINTED:
        table.add_row("…", "", "", f"{len(doubtful) - PRINTED} more: count_nuclei.csv")
    return table
