r"""Counting nuclei in the answers of a tree: how many, how sure, and which of them are in doubt.

A leaf is a plausible stain. In each of them nuclei are the connected bright regions: pixels above a
threshold, the same for all leaves, in regions of at least `smallest` pixels. With the leaves'
probabilities $\alpha_l$ and counts $n_l$, the count of the tree and its spread are

$$ \bar n = \sum_l \alpha_l n_l, \qquad s^2 = \sum_l \alpha_l (n_l - \bar n)^2 . $$

The *inventory* is every nucleus that some leaf shows, from the likeliest leaf down: a region joins
if nuclei that are in it already cover less than half of it. A leaf shows a nucleus of the inventory
if at least half of its pixels are bright there; its probability is the sum of $\alpha_l$ over the
leaves that show it. Nuclei below 1 come and go between the leaves.

Choice: threshold and label, nothing cleverer; nuclei that overlap widely count as one.

`write_count` puts three files and a picture beside a predicted tree:

count.json          `{"schema": 1, "threshold", "smallest", "mean", "spread", "leaves": [{"path",
                    "probability", "nuclei", "bright_pixels"}…], "nuclei": [{"row", "column",
                    "pixels", "probability", "leaves": [path…]}…]}`
count_leaves.csv    the leaves, a row each
count_nuclei.csv    the inventory, a row each
count.png           the root with the inventory: green is in all leaves, orange is not
"""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.label import label, sizes
from posterior_trees.tree import Tree

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
PRINTED = 20
SMALLEST = 25
"""Pixels of the smallest nucleus; in our BBBC022 fields the median nucleus has about 180."""
BRIDGE = 3
"""Nuclei that touch along fewer than about twice as many pixels count as two."""
FAINTEST = 0.2
"""No threshold of Otsu's below this: a field without nuclei is split at its noise."""


class Nucleus(NamedTuple):
    """A nucleus of the inventory: its centre and size in pixels, and the leaves that show it."""

    row: float
    column: float
    pixels: int
    probability: float
    leaves: tuple[tuple[int, ...], ...]


class Leaf(NamedTuple):
    """What one leaf shows."""

    path: tuple[int, ...]
    probability: float
    nuclei: int
    bright_pixels: int


class Count(NamedTuple):
    """The table of one tree."""

    threshold: float
    smallest: int
    mean: float
    spread: float
    leaves: list[Leaf]
    nuclei: list[Nucleus]

    @property
    def uncertain(self) -> list[Nucleus]:
        """Nuclei that some of the leaves do not show."""
        return [n for n in self.nuclei if len(n.leaves) < len(self.leaves)]


def count_nuclei(
    tree: Tree, threshold: float | int | None = None, smallest: int = SMALLEST
) -> Count:
    """Count the nuclei in the tree of one picture; without a `threshold` it is Otsu's."""
    if len(tree) != 1 or len(tree.shape) != 3 or tree.shape[0] != 1:
        raise ValueError(
            f"nuclei are counted in one tree of grey images; this is {tree}: take tree[i], and a "
            "model that predicts one channel"
        )
    tree = tree.to("cpu", torch.float64)
    present = (~tree.is_absent(tree.depth)[0]).nonzero()[:, 0]
    images, probs = tree.leaves[0, present, 0], tree.probs[-1][0, present]
    paths = [tree.paths(tree.depth)[leaf] for leaf in present.tolist()]
    if threshold is None:
        threshold = max(otsu(images), FAINTEST)
    regions = [find_regions(image > threshold, smallest) for image in images]
    counts = torch.tensor([int(r.max()) for r in regions], dtype=probs.dtype)
    mean = (probs * counts).sum()
    spread = (probs * (counts - mean).square()).sum().sqrt()
    rows = zip(paths, probs.tolist(), counts.long().tolist(), regions, strict=True)
    leaves = [Leaf(path, p, n, int((r > 0).sum())) for path, p, n, r in rows]
    nuclei = _inventory(torch.stack(regions), probs, paths)
    return Count(threshold, smallest, mean.item(), spread.item(), leaves, nuclei)


def otsu(values: Float[Tensor, "..."], bins: int = 256) -> float:
    r"""The threshold $t$ in [0, 1] that parts values best into two classes (Otsu, 1979).

    It maximises the variance between them,
    $\omega(t) \, (1 - \omega(t)) \, (\mu_1(t) - \mu_0(t))^2$, $\omega$ the share below $t$.
    """
    clipped = values.detach().double().clamp(0, 1).flatten()
    share = torch.histc(clipped, bins, 0, 1) / len(clipped)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below, mass = share.cumsum(0), (share * centres).cumsum(0)
    between = (mass[-1] * below - mass).square() / (below * (1 - below)).clamp(min=1e-12)
    best = (between >= between.max() * (1 - 1e-9)).nonzero()[:, 0].double()
    return (best.mean().item() + 1) / bins  # the middle, where an empty gap makes many the best


def find_regions(
    bright: Bool[Tensor, "h w"], smallest: int, bridge: int = BRIDGE
) -> Int64[Tensor, "h w"]:
    """Bright regions of at least `smallest` pixels, numbered from 1; 0 elsewhere.

    Their edges are taken off `bridge` times, what is then still connected is one region, and it
    grows back over the bright pixels around it.
    """
    cores = bright
    for _ in range(bridge):
        cores = ~_grow(~cores)
    labels = label(cores)
    while not torch.equal(
        grown := torch.where(labels == 0, _grow(labels) * bright, labels), labels
    ):
        labels = grown
    is_large = torch.cat([torch.tensor([False]), sizes(labels) >= smallest])
    return (is_large.cumsum(0) * is_large)[labels]


def _grow(values: Tensor) -> Tensor:
    """The maximum of each pixel and its four neighbours; nothing comes in from outside."""
    wide = F.pad(values.double()[None, None], (1, 1, 1, 1))[0, 0]
    places = (wide[1:-1, 1:-1], wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:])
    return torch.stack(places).amax(dim=0).to(values.dtype)


def _inventory(
    regions: Int64[Tensor, "n h w"],
    probs: Float[Tensor, "n"],
    paths: list[tuple[int, ...]],
) -> list[Nucleus]:
    covered = torch.zeros(regions.shape[1:], dtype=torch.bool)
    is_bright = regions > 0
    found = []
    for leaf in probs.argsort(descending=True, stable=True).tolist():
        for number in range(1, int(regions[leaf].max()) + 1):
            pixels = regions[leaf] == number
            if 2 * (covered & pixels).sum() >= pixels.sum():
                continue
            covered |= pixels
            shown = 2 * is_bright[:, pixels].sum(dim=1) >= pixels.sum()
            row, column = pixels.nonzero().double().mean(dim=0).tolist()
            found.append(
                Nucleus(
                    row,
                    column,
                    int(pixels.sum()),
                    min(probs[shown].sum().item(), 1.0),
                    tuple(path for path, is_shown in zip(paths, shown, strict=True) if is_shown),
                )
            )
    return found


def write_count(count: Count, tree: Tree, folder: Path) -> None:
    """Write the table of a tree as JSON and CSV, and its picture."""
    leaves = [leaf._asdict() for leaf in count.leaves]
    nuclei = [nucleus._asdict() for nucleus in count.nuclei]
    facts = {"schema": SCHEMA, **count._asdict(), "leaves": leaves, "nuclei": nuclei}
    (folder / "count.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for leaf in leaves:
        leaf["path"] = _name(leaf["path"])
    for nucleus in nuclei:
        nucleus["leaves"] = " ".join(map(_name, nucleus["leaves"]))
    for name, fields, rows in (
        ("leaves", Leaf._fields, leaves),
        ("nuclei", Nucleus._fields, nuclei),
    ):
        text = io.StringIO()
        writer = csv.DictWriter(text, fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        (folder / f"count_{name}.csv").write_text(text.getvalue(), encoding="utf-8")
    draw_count(count, tree).save(folder / "count.png")


def draw_count(count: Count, tree: Tree, zoom: int = 3) -> Image.Image:
    """The root, enlarged, with a ring around each nucleus and the probability of those in doubt."""
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
    listed = [sum(leaf["path"] in n["leaves"] for n in nuclei) for leaf in leaves]
    if listed != [leaf["nuclei"] for leaf in leaves]:
        caption += "; nuclei that touch are one in some leaves and two in others"
    table = Table(
        title=f"{title}: {facts['mean']:.1f} ± {facts['spread']:.1f} nuclei; {len(doubtful)} of "
        f"{len(nuclei)} are not in all leaves",
        caption=caption,
    )
    for name in ("leaf", "probability", "nuclei", "bright pixels"):
        table.add_column(name, justify="right")
    for leaf in leaves:
        cells = (f"{leaf['probability']:.3f}", str(leaf["nuclei"]), str(leaf["bright_pixels"]))
        table.add_row(_name(leaf["path"]), *cells)
    if doubtful:
        table.add_section()
        table.add_row("row, column", "probability", "pixels", "in leaves", style="bold")
    for n in sorted(doubtful, key=lambda n: -n["probability"])[:PRINTED]:
        place = f"{n['row']:.0f}, {n['column']:.0f}"
        shown = " ".join(map(_name, n["leaves"]))
        table.add_row(place, f"{n['probability']:.3f}", str(n["pixels"]), shown)
    if len(doubtful) > PRINTED:
        table.add_row("…", "", "", f"{len(doubtful) - PRINTED} more: count_nuclei.csv")
    return table


def _name(path: Sequence[int]) -> str:
    return ".".join(map(str, path)) or "root"
