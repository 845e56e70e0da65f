"""Stored trees in napari: lazily, in the right place, as themselves."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from napari_posterior_trees.layers import NODE, NUCLEI, TREE, Level, prob_at, prob_of
from napari_posterior_trees.reader import get_reader
from small import make_tree

from posterior_trees import Tree, grow
from posterior_trees.errors import DataError
from posterior_trees.imaging.ngff import Frame, write_plate
from posterior_trees.imaging.stored import StoredTree, Tiles
from posterior_trees.imaging.tree_zarr import Nuclei, write_tree

PLUGIN = "napari-posterior-trees"


def counted(h: int = 40, w: int = 60) -> Nuclei:
    labels = np.zeros((h, w), dtype=np.uint32)
    labels[3:9, 4:12], labels[20:30, 20:25] = 1, 2
    rows = [{"label-value": 1, "probability": 0.25, "pixels": 48},
            {"label-value": 2, "probability": 1.0, "pixels": 50}]  # fmt: skip
    return Nuclei(labels, rows, "label,row,pixels,probability\n1,5.5,48,0.25\n2,24.5,50,1.0\n")


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_a_stored_tree_is_its_root_and_its_nuclei(headless: Any, tmp_path: Path, ngff: str) -> None:
    tree = make_tree()
    folder = write_tree(tmp_path / "A1.tree.ome.zarr", tree, dtype="float32", ngff=ngff,
                        frame=Frame(0.65, 2, (5.0, 7.0)), nuclei=counted())  # fmt: skip
    root, nuclei = headless.open(folder, plugin=PLUGIN)
    assert [layer.name for layer in headless.layers] == ["A1 tree", "A1 nuclei"]
    assert isinstance(root.metadata[TREE], StoredTree)
    np.testing.assert_array_equal(np.asarray(root.data[0]), tree.root[0, 0])
    for layer in (root, nuclei):
        np.testing.assert_allclose(layer.scale, [1.3, 1.3])
        np.testing.assert_allclose(layer.translate, [5 + 0.325, 7 + 0.325])
        assert [str(unit) for unit in layer.units] == ["micrometer"] * 2
        assert layer.axis_labels == ("y", "x")
    assert list(nuclei.features["probability"]) == [0.25, 1.0]
    assert list(nuclei.features["index"]) == [1, 2]
    doubtful, sure = (nuclei.get_color(label) for label in (1, 2))
    assert doubtful[0] > doubtful[1] > doubtful[2], "orange"
    assert sure[1] > sure[0], "green"
    assert nuclei.metadata[NUCLEI] is root.metadata[TREE]
    assert tuple(root.contrast_limits) == (0, 1)


def test_pictures_are_read_where_they_are_looked_at(headless: Any, tmp_path: Path) -> None:
    tree = make_tree(1100, 530)
    folder = write_tree(tmp_path / "big.tree.ome.zarr", tree)
    root = headless.open(folder, plugin=PLUGIN)[0]
    assert root.multiscale
    assert [level.shape for level in root.data] == [(1100, 530), (550, 265)]
    assert all(type(level).__module__.startswith("dask") for level in root.data)
    part = np.asarray(root.data[0][700:710, 3:9])
    np.testing.assert_allclose(part, tree.root[0, 0, 700:710, 3:9], atol=0.5 / 255 + 1e-6)
    (folder / "0/c/0/2/0").unlink()
    np.asarray(root.data[0][:1000])  # does not need it
    with pytest.raises(DataError, match=r"lacks the chunk c/0/2/0\. Predict it again"):
        np.asarray(root.data[0][1050:1060])


def test_a_level_is_the_node_of_its_channel(tmp_path: Path) -> None:
    from posterior_trees.imaging.stored import open_tree

    tree = make_tree()
    stored = open_tree(write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype="uint16"))
    level = Level(stored, "0", 7)
    expected = tree.node((1, 0)).image[0, 0]
    np.testing.assert_allclose(level[:, :], expected, atol=1e-5)
    assert prob_of(stored, (1, 0)) == pytest.approx(tree.node((1, 0)).prob.item())


def test_trees_in_safetensors_are_opened_too(headless: Any, tmp_path: Path) -> None:
    tree = make_tree()
    tree.save(tmp_path / "mine.safetensors")
    (root,) = headless.open(tmp_path / "mine.safetensors", plugin=PLUGIN)
    assert root.name == "mine tree"
    assert torch.equal(root.metadata[TREE].leaves, tree.leaves)
    np.testing.assert_array_equal(root.data, tree.root[0, 0])
    assert NODE not in root.metadata


def test_several_pictures_get_a_slider_and_colour_stays_colour(
    headless: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    tree = grow(torch.rand(4, 3, 3, 9, 8), torch.randn(4, 3).log_softmax(1), 3)
    tree.save(tmp_path / "four.safetensors")
    (root,) = headless.open(tmp_path / "four.safetensors", plugin=PLUGIN)
    assert root.rgb
    assert root.data.shape == (4, 9, 8, 3)
    np.testing.assert_array_equal(root.data[2], tree.root[2].permute(1, 2, 0))


def test_what_holds_no_tree_is_left_to_others(tmp_path: Path) -> None:
    from posterior_trees.assets import __file__ as assets

    (tmp_path / "x.tree.ome.zarr").mkdir()
    (tmp_path / "noise.safetensors").write_bytes(b"12345678 no header")
    folder = write_tree(tmp_path / "A1.tree.ome.zarr", make_tree(), nuclei=counted())
    model = Path(assets).with_name("digits.safetensors")
    mine = [tmp_path / name for name in ("x.tree.ome.zarr", "noise.safetensors", "missing")]
    others = [*mine, folder / "labels" / "nuclei", model]
    assert [get_reader(str(path)) for path in others] == [None] * 5
    assert get_reader([str(folder), str(folder)]) is None
    assert get_reader(str(folder)) is not None


def test_fields_of_a_plate_are_opened_one_by_one(headless: Any, tmp_path: Path) -> None:
    plate = tmp_path / "p.tree.ome.zarr"
    fields = [write_tree(plate / place, make_tree(seed=i), is_pyramid=False)
              for i, place in enumerate(("A/1/0", "B/2/0"))]  # fmt: skip
    write_plate(plate, "p", fields, "0.5")
    assert get_reader(str(plate)) is None
    (root,) = headless.open(fields[1], plugin=PLUGIN)
    expected = Tree.load(fields[1]).root[0, 0]
    np.testing.assert_allclose(np.asarray(root.data[0]), expected, atol=1e-6)


@pytest.mark.parametrize("wrong", [{"datasets": []}, {"axes": 3}, None])
def test_damage_is_named(tmp_path: Path, wrong: Any) -> None:
    folder = write_tree(tmp_path / "a.tree.ome.zarr", make_tree())
    facts = json.loads((folder / "zarr.json").read_text())
    image = facts["attributes"]["ome"]["multiscales"]
    facts["attributes"]["ome"]["multiscales"] = wrong and [image[0] | wrong]
    (folder / "zarr.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"a\.tree\.ome\.zarr is truncated or damaged"):
        get_reader(str(folder))(str(folder))


def test_very_many_nuclei_are_read_from_the_table(headless: Any, tmp_path: Path) -> None:
    nuclei = counted()._replace(properties=counted().properties * 6000)
    folder = write_tree(tmp_path / "A1.tree.ome.zarr", make_tree(), nuclei=nuclei)
    labels = headless.open(folder, plugin=PLUGIN)[1]
    assert list(labels.features["probability"]) == [0.25, 1.0]


def test_each_place_has_the_probability_of_its_tile(tmp_path: Path) -> None:
    from posterior_trees.imaging.stored import open_tree

    local = torch.rand(2, 9).softmax(dim=1)
    tiles = Tiles(40, 8, (40, 60), (0, 0), (0, 40), (0, 33, 60))
    tree = open_tree(write_tree(tmp_path / "a.tree.ome.zarr", make_tree(), tiles=tiles,
                                local=list(local)))  # fmt: skip
    for place, tile in (((0, 0), 0), ((39, 32), 0), ((0, 33), 1)):
        found = prob_at(tree, tree.parts, (2, 1), place)
        assert found == pytest.approx(local[tile, 7].item(), abs=1e-6)
        found = prob_at(tree, tree.parts, (2,), place)
        assert found == pytest.approx(local[tile, 6:].sum().item(), abs=1e-6)
    assert prob_at(tree, tree.parts, (), (40, 0)) is None
