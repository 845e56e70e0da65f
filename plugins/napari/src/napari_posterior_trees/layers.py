"""What napari is told of a tree: the images of its nodes, its probabilities, its nuclei.

The layer of the root keeps the tree (`metadata["posterior_tree"]`) and where in it each tile lies
(`"posterior_parts"`). Other nodes are shown by layers of their own, with `"posterior_node"`, that
take their place from the root's. Values are those of [0, 1] everywhere.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import dask.array as da
import numpy as np
from jaxtyping import Float
from torch import Tensor

from posterior_trees.errors import DataError
from posterior_trees.imaging.ngff import colour_of
from posterior_trees.imaging.ome_zarr import attributes_of, missing_chunks
from posterior_trees.imaging.stack import damage_named
from posterior_trees.imaging.stored import StoredTree, name_of
from posterior_trees.tree import Tree, level_sizes

TREE, PARTS, NODE, NUCLEI, COUNT, SOURCE, PROVENANCE = (
    f"posterior_{name}"
    for name in ("tree", "parts", "node", "nuclei", "count", "source", "provenance")
)
"""Names in a layer's metadata."""
Path = tuple[int, ...]
LayerData = tuple[Any, dict[str, Any], str]
INHERITED = ("scale", "translate", "affine", "rotate", "shear", "units", "axis_labels")
LOOK = ("contrast_limits", "colormap", "gamma", "interpolation2d")


class Level:
    """One node at one resolution of a stored tree; a part of it is read when it is looked at."""

    dtype, ndim = np.dtype(np.float32), 2

    def __init__(self, tree: StoredTree, name: str, channel: int) -> None:
        import zarr

        self.folder, self.channel, self.one = tree.path / name, channel, tree.value_of_one
        self.array = zarr.open_array(self.folder, mode="r")
        self.shape, self.chunks = self.array.shape[1:], self.array.chunks[1:]

    def __getitem__(self, place: tuple[slice, ...]) -> Float[np.ndarray, "h w"]:
        index = (self.channel, *place)
        with damage_named(str(self.folder)):
            for key in missing_chunks(self.folder, self.array, index):
                raise DataError(f"{self.folder} lacks the chunk {key}. Predict it again")
            return np.asarray(self.array[index], dtype=np.float32) / np.float32(self.one)


def number_of(tree: Tree | StoredTree, path: Path) -> int:
    """The place of a node in its level."""
    number = 0
    for child, k in zip(path, tree.branching, strict=False):
        number = number * k + child
    return number


def prob_of(tree: Tree | StoredTree, path: Path, picture: int = 0) -> float:
    """The probability of a node, in the tree of one picture of several."""
    return tree.probs[len(path)][picture, number_of(tree, path)].item()


def prob_at(
    tree: Tree | StoredTree, parts: Sequence[tuple], path: Path, place: tuple[int, int]
) -> float | None:
    """The probability of a node in the tile of a pixel; None outside of the picture."""
    under = math.prod(tree.branching[len(path) :])
    first = under * number_of(tree, path)
    for rows, columns, leaves in parts:
        if rows.start <= place[0] < rows.stop and columns.start <= place[1] < columns.stop:
            return leaves[first : first + under].sum().item()
    return None


def leaves_under(tree: Tree | StoredTree, path: Path) -> list[Path]:
    """The paths of the leaves below a node."""
    below: list[Path] = [path]
    for k in tree.branching[len(path) :]:
        below = [(*node, child) for node in below for child in range(k)]
    return below


def pixels_of(tree: Tree | StoredTree, path: Path) -> tuple[Any, bool]:
    """A node for napari, and whether it is in colour; of a stored tree all resolutions, lazily."""
    if isinstance(tree, StoredTree):
        channel = sum(level_sizes(tree.branching)[: len(path)]) + number_of(tree, path)
        sets = attributes_of(tree.path)["multiscales"][0]["datasets"]
        levels = [Level(tree, str(data["path"]), channel) for data in sets]
        return [da.from_array(level, chunks=level.chunks) for level in levels], False
    images: Tensor = tree.node(path).image.detach().cpu()
    is_colour = images.shape[1] == 3
    images = images.movedim(1, -1).clamp(0, 1) if is_colour else images
    images = images[:, 0] if images.shape[1] == 1 and not is_colour else images
    return (images[0] if len(images) == 1 else images).numpy(), is_colour


def root_layer(
    tree: Tree | StoredTree,
    parts: Sequence[tuple],
    name: str,
    place: Mapping[str, Any],
    **metadata: Any,
) -> LayerData:
    """The layer that a tree is kept in."""
    pixels, is_colour = pixels_of(tree, ())
    return pixels, {
        "name": name, "rgb": is_colour, "multiscale": isinstance(pixels, list),
        "contrast_limits": (0, 1), "metadata": {TREE: tree, PARTS: list(parts), **metadata},
        **place,
    }, "image"  # fmt: skip


def node_layer(root: Any, path: Path, name: str) -> LayerData:
    """The layer of a node below `root`, which says where it lies and how it looks."""
    pixels, is_colour = pixels_of(root.metadata[TREE], path)
    look = INHERITED if is_colour else (*INHERITED, *LOOK)
    options = {key: getattr(root, key) for key in look}
    return pixels, {
        "name": name, "rgb": is_colour, "multiscale": isinstance(pixels, list),
        "metadata": {NODE: path}, **options,
    }, "image"  # fmt: skip


def nuclei_layer(
    labels: Any, rows: Sequence[Mapping[str, Any]], name: str, tree: Tree | StoredTree,
    place: Mapping[str, Any],
) -> LayerData:  # fmt: skip
    """Labels in the colours of their probabilities: green of nuclei that are in all leaves, orange
    of others. `rows` have the `label` of each, its `probability`, and more."""
    from napari.utils.colormaps import DirectLabelColormap

    colours: dict[int | None, Any] = {None: (0, 0, 0, 0), 0: (0, 0, 0, 0)}
    for row in rows:
        colours[row["label"]] = [value / 255 for value in colour_of(row["probability"])]
    features = {"index" if key == "label" else key: [row[key] for row in rows]
                for key in (rows[0] if rows else ())}  # fmt: skip
    return labels, {
        "name": name, "features": features, "colormap": DirectLabelColormap(color_dict=colours),
        "metadata": {NUCLEI: tree}, **place,
    }, "labels"  # fmt: skip


def title(path: Path, prob: float) -> str:
    return f"{name_of(path)}  p = {prob:.3f}"
