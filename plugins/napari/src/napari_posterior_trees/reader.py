"""Trees from files: OME-Zarr folders that `ptrees predict --write zarr` makes, and safetensors."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da

from napari_posterior_trees.layers import LayerData, nuclei_layer, root_layer
from posterior_trees.errors import DataError, PosteriorTreesError
from posterior_trees.imaging.ome_zarr import attributes_of, is_zarr
from posterior_trees.imaging.stack import damage_named, need
from posterior_trees.imaging.stored import open_tree
from posterior_trees.store import read_facts
from posterior_trees.tree import Tree


def get_reader(path: str | list[str]) -> Callable[[str], list[LayerData]] | None:
    """What reads this path; None if it holds no tree, and is for other readers."""
    if isinstance(path, list):  # several are opened one by one, not as a stack
        return None
    return read_tree if is_tree(Path(path)) else None


def is_tree(path: Path) -> bool:
    """Whether the attributes of a folder, or the facts of a file, say that it holds a tree."""
    try:
        if path.is_dir():
            return is_zarr(path) and "posterior_trees" in attributes_of(path)
        return "tree" in read_facts(path)
    except PosteriorTreesError:
        return False


def read_tree(path: str) -> list[LayerData]:
    """The root with its tree and, where nuclei were counted, their labels."""
    file = Path(path)
    name = file.name.removesuffix(".safetensors").removesuffix(".tree.ome.zarr")
    if file.is_dir():
        with damage_named(path):
            return _read_folder(file, name)
    tree = Tree.load(file)
    if len(tree.shape) != 3:
        raise DataError(f"{file} has nodes of shape {tuple(tree.shape)}: napari shows images")
    return [root_layer(tree, (), f"{name} tree", {})]


def _read_folder(folder: Path, name: str) -> list[LayerData]:
    tree = open_tree(folder)
    found = [root_layer(tree, tree.parts, f"{name} tree", place_of(folder))]
    labels = folder / "labels" / "nuclei"
    if is_zarr(labels):
        array = need("zarr").open_array(labels / "0", mode="r")
        rows = _properties(folder, labels)
        pixels = da.from_array(array, chunks=array.chunks)
        found.append(nuclei_layer(pixels, rows, f"{name} nuclei", tree, place_of(labels)))
    return found


def _properties(folder: Path, labels: Path) -> list[dict[str, Any]]:
    """Of each nucleus its number, probability and pixels; of very many only the table has them."""
    listed = attributes_of(labels).get("image-label", {}).get("properties", ())
    kinds: dict[str, Callable[[Any], Any]] = {"label": int, "probability": float, "pixels": int}
    if listed:
        return [{key: kind({**row, "label": row["label-value"]}[key])
                 for key, kind in kinds.items()} for row in listed]  # fmt: skip
    with (folder / "tables" / "nuclei.csv").open(encoding="utf-8", newline="") as table:
        return [{key: kind(row[key]) for key, kind in kinds.items()}
                for row in csv.DictReader(table)]  # fmt: skip


def place_of(folder: Path) -> dict[str, Any]:
    """Scale, translation and units of an OME-Zarr image, of its last two axes."""
    image = attributes_of(folder)["multiscales"][0]
    steps = {s["type"]: s[s["type"]] for s in image["datasets"][0]["coordinateTransformations"]}
    axes = image["axes"][-2:]
    place = {"scale": steps["scale"][-2:], "translate": steps["translation"][-2:],
             "axis_labels": [axis["name"] for axis in axes]}  # fmt: skip
    units = [axis.get("unit") for axis in axes]
    return place | ({"units": units} if all(units) else {})
