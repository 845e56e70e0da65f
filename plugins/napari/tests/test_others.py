"""Other programs open our trees: napari-ome-zarr."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import make_tree
from test_reader import counted

from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.tree_zarr import write_tree


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_napari_ome_zarr_shows_a_layer_for_each_node_and_only_the_root(
    headless: Any, tmp_path: Path, ngff: str
) -> None:
    tree = make_tree(1100, 530)
    nuclei = counted(1100, 530)
    folder = write_tree(tmp_path / "A1.tree.ome.zarr", tree, ngff=ngff, frame=Frame(0.65, 2),
                        nuclei=nuclei)  # fmt: skip
    *nodes, labels = headless.open(folder, plugin="napari-ome-zarr")
    names = [layer.name for layer in nodes]
    assert len(nodes) == 13
    assert names[0] == "A1.tree.ome.zarr: root p=1.000"
    assert names[5] == f"A1.tree.ome.zarr: 0.1 p={tree.probs[2][0, 1]:.3f}"
    assert [layer.visible for layer in nodes] == [True, *[False] * 12]
    for layer in (*nodes, labels):
        np.testing.assert_allclose(layer.scale, [1.3, 1.3])
        assert [str(unit) for unit in layer.units] == ["micrometer"] * 2
    assert [level.shape for level in nodes[4].data] == [(1100, 530), (550, 265)]
    expected = 255 * tree.node((0, 1)).image[0, 0, 5:9, 5:9]
    np.testing.assert_allclose(np.asarray(nodes[5].data[0][5:9, 5:9]), expected, atol=0.51)
    assert list(labels.features["probability"]) == [0.25, 1.0]


def test_napari_ome_zarr_leaves_translations_out(headless: Any, tmp_path: Path) -> None:
    """So trees of shrunk pictures lie half a pixel off there (0.10.0), and right in our reader;
    pictures at their own size lie right in both."""
    for shrink, offset in ((1, 0.0), (2, 0.325)):
        folder = write_tree(tmp_path / f"{shrink}.tree.ome.zarr", make_tree(),
                            frame=Frame(0.65, shrink))  # fmt: skip
        theirs = headless.open(folder, plugin="napari-ome-zarr")[0]
        (ours,) = headless.open(folder, plugin="napari-posterior-trees")
        np.testing.assert_allclose(theirs.data_to_world((0, 0)), 0)
        np.testing.assert_allclose(ours.data_to_world((0, 0)), offset)
        np.testing.assert_allclose(theirs.scale, ours.scale)
