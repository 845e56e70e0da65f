"""The window in a real napari: predict, cancel, walk, count, save."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from napari_posterior_trees import job
from napari_posterior_trees.layers import NODE, TREE
from small import make_predictor, make_tree, paint

from posterior_trees import Tree
from posterior_trees.imaging.tree_zarr import write_tree

UM = ("um", "um")
Wait = Callable[..., None]


def names(viewer: Any, is_shown: bool = False) -> list[str]:
    return [layer.name for layer in viewer.layers if layer.visible or not is_shown]


def predict(window: Any, wait: Wait) -> None:
    window.button.native.click()
    assert window.button.text == "Cancel", window.status.value
    wait(lambda: window.job is None)


def test_predicting_gives_the_tree_where_the_picture_lies(
    viewer: Any, window: Any, model: Any, wait: Wait
) -> None:
    """The same tree as in Python, half a pixel further where it is half as fine."""
    field = paint()
    viewer.add_image(field, name="actin", scale=(0.65, 0.65), units=UM, translate=(10, 20))
    window.predicting.scale.value = 0.5
    window.predicting.black.value, window.predicting.white.value = 5000, 60000
    window.predicting.gamma.value = 0.5
    predict(window, wait)
    assert names(viewer) == ["actin", "actin tree"]
    root = viewer.layers["actin tree"]
    np.testing.assert_allclose(root.scale, [1.3, 1.3])
    np.testing.assert_allclose(root.translate, [10.325, 20.325])
    assert [str(unit) for unit in root.units] == ["micrometer"] * 2
    assert tuple(root.contrast_limits) == (0, 1)
    means = np.floor(field.reshape(20, 2, 30, 2).mean(axis=(1, 3)) + 0.5).astype(np.float32)
    y = (torch.from_numpy(means).sub(5000).div(55000)).clamp(0, 1).sqrt()
    expected = model(y[None, None])
    assert torch.equal(root.metadata[TREE].leaves, expected.leaves)
    np.testing.assert_array_equal(root.data, expected.root[0, 0])
    assert "Predicted at 0.5 of its size" in window.status.value
    assert window.button.text == "Predict"


def test_the_shipped_model_predicts_as_the_library_does(
    viewer: Any, window: Any, wait: Wait, tmp_path: Path, take: Any
) -> None:
    import tifffile

    from posterior_trees import load

    field = paint(96, 128)
    viewer.add_image(field, name="actin")
    assert window.predicting.model.value == "cells"
    assert window.predicting.white.value == 65535
    predict(window, wait)
    tifffile.imwrite(tmp_path / "actin.tif", field)
    expected = load("cells", "cpu").predict(tmp_path / "actin.tif")
    assert torch.equal(viewer.layers[-1].metadata[TREE].leaves, expected.leaves)
    take("predicted", canvas_only=False)


def test_walking_replaces_one_layer(
    viewer: Any, window: Any, model: Any, wait: Wait, take: Any
) -> None:
    viewer.add_image(paint(), name="actin", scale=(2, 2))
    predict(window, wait)
    walk, tree = window.walking, viewer.layers["actin tree"].metadata[TREE]
    viewer.layers["actin tree"].contrast_limits = (0.1, 0.6)
    seen = [take()]
    for path, button in (((1,), 1), ((1, 2), 2)):
        walk.branches[button].native.click()
        prob = tree.node(path).prob.item()
        name = f"actin tree {'.'.join(map(str, path))}  p = {prob:.3f}"
        assert names(viewer) == ["actin", "actin tree", name]
        assert names(viewer, is_shown=True) == ["actin", name]
        node = viewer.layers[name]
        np.testing.assert_array_equal(node.data, tree.node(path).image[0, 0])
        np.testing.assert_allclose(node.scale, [2, 2])
        assert tuple(node.contrast_limits) == (0.1, 0.6)
        assert walk.where.value == f"Node {'.'.join(map(str, path))}  p = {prob:.3f}"
        seen.append(take())
        if path == (1,):
            part = tree.node((1, 2)).prob.item()
            share = f"1.2  p = {part:.3f} ({part / prob:.0%} of this branch)"
            assert walk.branches[2].text == share
    assert not any(button.visible for button in walk.branches), "a leaf has no branches"
    assert np.abs(seen[0] - seen[1]).max() > 0.05
    assert np.abs(seen[1] - seen[2]).max() > 0.05
    walk.up.native.click()
    walk.up.native.click()
    assert names(viewer, is_shown=True) == ["actin", "actin tree"]
    assert not walk.up.enabled
    np.testing.assert_allclose(take(), seen[0], atol=0.02)


def test_leaves_stand_side_by_side_and_go_again(
    viewer: Any, window: Any, model: Any, wait: Wait, take: Any
) -> None:
    viewer.add_image(paint(), name="actin")
    predict(window, wait)
    walk = window.walking
    before = viewer.scene.camera.zoom
    walk.leaves.native.click()
    nodes = [layer.metadata[NODE] for layer in viewer.layers if NODE in layer.metadata]
    assert nodes == [(i, j) for i in range(3) for j in range(3)]
    assert len(names(viewer, is_shown=True)) == 9
    assert viewer.canvas.grid.enabled
    take("leaves", canvas_only=False)
    walk.leaves.native.click()
    assert not viewer.canvas.grid.enabled
    assert names(viewer, is_shown=True) == ["actin", "actin tree"]
    assert viewer.scene.camera.zoom == pytest.approx(before)
    walk.go((2,))
    walk.leaves.native.click()
    nodes = [layer.metadata[NODE] for layer in viewer.layers if NODE in layer.metadata]
    assert nodes == [(2, 0), (2, 1), (2, 2)]
    walk.up.native.click()
    assert names(viewer) == ["actin", "actin tree"]


def test_predicting_again_replaces_the_tree_and_offers_no_tree_as_input(
    viewer: Any, window: Any, model: Any, wait: Wait
) -> None:
    source = viewer.add_image(paint(), name="actin")
    predict(window, wait)
    window.walking.go((0,))
    assert list(window.predicting.image.choices) == [source]
    first = viewer.add_image(paint(), name="first")
    viewer.layers.move(viewer.layers.index(first), 0)
    source.name = "renamed"
    assert window.predicting.image.value is source
    viewer.layers.remove(first)
    predict(window, wait)
    assert names(viewer) == ["renamed", "renamed tree"]
    other = viewer.add_image(paint(), name="another")
    window.predicting.image.value = other
    predict(window, wait)
    assert names(viewer) == ["renamed", "renamed tree", "another", "another tree"]
    assert window.walking.root is viewer.layers["another tree"]


class Gate:
    """A model whose passes can be counted and held up."""

    def __init__(self) -> None:
        self.passes, self.open = 0, threading.Event()

    def __call__(self) -> None:
        self.passes += 1
        assert self.open.wait(60)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    predictor = make_predictor(gate)
    monkeypatch.setattr(job, "load_model", lambda *_: predictor)
    return gate


def test_large_pictures_show_their_tiles_and_can_be_stopped_between_them(
    viewer: Any, window: Any, gate: Gate, wait: Wait, take: Any
) -> None:
    viewer.add_image(paint(1100, 1000), name="actin")
    window.button.native.click()
    wait(lambda: gate.passes == 1)
    wait(lambda: window.bar.max == 9)
    assert window.bar.value == 0
    assert not window.predicting.enabled
    assert not window.walking.enabled
    take("predicting", canvas_only=False)
    window.button.native.click()
    gate.open.set()
    wait(lambda: window.job is None)
    assert window.status.value == "Cancelled"
    assert gate.passes == 1
    assert names(viewer) == ["actin"]
    assert window.predicting.enabled
    predict(window, wait)
    assert gate.passes == 10
    assert len(viewer.layers["actin tree"].metadata["posterior_parts"]) == 9


@pytest.mark.parametrize("fate", ["removed", "renamed"])
def test_a_layer_may_go_while_it_is_predicted(
    viewer: Any, window: Any, gate: Gate, wait: Wait, fate: str
) -> None:
    layer = viewer.add_image(paint(), name="actin", scale=(3, 3))
    window.button.native.click()
    wait(lambda: gate.passes == 1)
    if fate == "removed":
        viewer.layers.remove(layer)
    else:
        layer.name = "other"
    gate.open.set()
    wait(lambda: window.job is None)
    assert names(viewer) == ([] if fate == "removed" else ["other"]) + ["actin tree"]
    np.testing.assert_allclose(viewer.layers["actin tree"].scale, [3, 3])


def test_a_tree_may_go_while_one_walks_in_it(
    viewer: Any, window: Any, model: Any, wait: Wait
) -> None:
    viewer.add_image(paint(), name="actin")
    predict(window, wait)
    window.walking.go((1, 1))
    viewer.layers.remove("actin tree")
    assert names(viewer) == ["actin"]
    assert window.walking.where.value == "No tree yet"
    for button in (window.walking.up, window.walking.leaves, window.walking.nuclei):
        assert not button.enabled
        button.native.click()
    window.walking.go((0,))
    assert names(viewer) == ["actin"]


def test_nuclei_have_the_colours_of_their_probabilities_and_are_saved(
    viewer: Any, window: Any, model: Any, wait: Wait, tmp_path: Path, monkeypatch: Any, take: Any
) -> None:
    """… with the tree, which opens again as it was, in its place."""
    from posterior_trees.pictures.nuclei.count import count_nuclei

    viewer.add_image(paint(80, 90), name="actin", scale=(0.5, 0.5), units=UM, translate=(3, 4))
    predict(window, wait)
    root = viewer.layers["actin tree"]
    for _ in range(2):
        window.walking.nuclei.native.click()
        wait(lambda: window.job is None)
    counted = count_nuclei(root.metadata[TREE])
    assert names(viewer) == ["actin", "actin tree", "actin tree nuclei"]
    labels = viewer.layers[-1]
    np.testing.assert_array_equal(labels.data, counted.labels)
    probs = [nucleus.probability for nucleus in counted.nuclei]
    assert len(probs) > 0
    assert list(labels.features["probability"]) == probs
    assert window.status.value.startswith(f"{len(probs)} nuclei")
    np.testing.assert_allclose(labels.translate, [3, 4])
    take("nuclei", canvas_only=False)
    window.walking.dtype.value = "float32"
    window.walking.ask = lambda _: str(tmp_path / "mine")
    window.walking.save.native.click()
    wait(lambda: window.job is None)
    folder = tmp_path / "mine.tree.ome.zarr"
    assert window.status.value == f"Saved as {folder}"
    assert torch.equal(Tree.load(folder).leaves, root.metadata[TREE].leaves)
    again, nuclei = viewer.open(folder, plugin="napari-posterior-trees")
    np.testing.assert_allclose(again.translate, [3, 4])
    np.testing.assert_allclose(again.scale, [0.5, 0.5])
    assert list(nuclei.features["probability"]) == probs
    assert window.walking.root is again
    assert not window.walking.save.enabled


def test_nothing_but_a_tree_is_replaced(
    viewer: Any, window: Any, model: Any, wait: Wait, tmp_path: Path, monkeypatch: Any
) -> None:
    viewer.add_image(paint(), name="actin")
    predict(window, wait)
    (tmp_path / "thesis.tree.ome.zarr").mkdir()
    window.walking.ask = lambda _: str(tmp_path / "thesis.tree.ome.zarr")
    window.walking.save.native.click()
    wait(lambda: window.job is None)
    assert "exists, and is no tree" in window.status.value


def test_the_place_under_the_cursor_has_its_own_probability(
    viewer: Any, window: Any, tmp_path: Path
) -> None:
    from posterior_trees.imaging.stored import Tiles

    local = torch.rand(2, 9).softmax(dim=1)
    tiles = Tiles(40, 8, (40, 60), (0, 0), (0, 40), (0, 33, 60))
    write_tree(tmp_path / "a.tree.ome.zarr", make_tree(), tiles=tiles, local=list(local))
    viewer.open(tmp_path / "a.tree.ome.zarr", plugin="napari-posterior-trees")
    walk = window.walking
    walk.go((1,))
    viewer.cursor.position = (20, 40)
    for callback in viewer.mouse_move_callbacks:
        callback(viewer, None)
    want = [local[1, 3:6].sum(), *local[1, 3:6]]
    words = zip(("1", "1.0", "1.1", "1.2"), want, strict=True)
    said = ", ".join(f"{name}: {prob:.3f}" for name, prob in words)
    assert walk.here.value == f"Probability of this place: {said}"
    viewer.cursor.position = (20, 70)
    for callback in viewer.mouse_move_callbacks:
        callback(viewer, None)
    assert walk.here.value == ""


def test_several_pictures_each_have_their_probabilities(
    viewer: Any, window: Any, tmp_path: Path
) -> None:
    from posterior_trees import grow

    torch.manual_seed(0)
    tree = grow(torch.rand(4, 3, 1, 9, 8), torch.randn(4, 3).log_softmax(1), 3)
    tree.save(tmp_path / "four.safetensors")
    viewer.open(tmp_path / "four.safetensors", plugin="napari-posterior-trees")
    for picture in (0, 3):
        viewer.dims.set_current_step(0, picture)
        prob = tree.probs[1][picture, 2].item()
        assert window.walking.branches[2].text.startswith(f"2  p = {prob:.3f}")
    window.walking.branches[2].native.click()
    np.testing.assert_array_equal(viewer.layers[-1].data, tree.images[1][:, 2, 0])


def test_a_huge_picture_is_predicted_to_disk_where_that_is_wanted(
    viewer: Any, window: Any, model: Any, wait: Wait, tmp_path: Path, monkeypatch: Any
) -> None:
    """… to the same tree, part by part, from data that are never read whole."""
    import dask.array as da

    from posterior_trees.pictures.tiles import predict_tiled

    monkeypatch.setattr(job, "HUGE", 500 * 500)
    field = paint(700, 600) // 2 + 25000  # nothing black
    layer = viewer.add_image(da.from_array(field, chunks=256), name="slide", translate=(7, 0))
    window.predicting.ask = lambda seen: None
    window.button.native.click()
    assert window.job is None
    window.predicting.ask = lambda seen: str(tmp_path)
    predict(window, wait)
    assert window.status.value == "Predicted at 1 of its size"
    root = viewer.layers["slide tree"]
    assert root.multiscale
    np.testing.assert_allclose(root.translate, [7, 0])
    y = torch.from_numpy(field.astype(np.float32) / 65535)[None, None]
    expected, _ = predict_tiled(model, y)
    folder = tmp_path / "slide.tree.ome.zarr"
    back = Tree.load(folder)
    torch.testing.assert_close(back.leaves, expected.leaves.clamp(0, 1), atol=0.51 / 255, rtol=0)
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "nothing else is left"
    viewer.layers.clear()
    (again,) = viewer.open(folder, plugin="napari-posterior-trees")
    np.testing.assert_allclose(again.translate, [7, 0])
    del layer


def test_what_cannot_be_predicted_is_said_in_the_window(
    viewer: Any, window: Any, wait: Wait, monkeypatch: Any, tmp_path: Path
) -> None:
    window.button.native.click()
    assert window.status.value == "there is no image to predict: open one"
    viewer.add_image(3 + paint() / 1e4, name="floats")
    predict(window, wait)
    assert "without levels they must be in [0, 1]" in window.status.value
    window.predicting.contrast.native.click()
    assert window.predicting.white.value == pytest.approx(8.2, abs=0.01)
    (tmp_path / "x.safetensors").write_bytes(b"no model")
    window.predicting.file.value = tmp_path / "x.safetensors"
    predict(window, wait)
    assert "x.safetensors is damaged or not a safetensors file" in window.status.value


def test_a_closed_window_stops_its_job_and_answers_no_more(
    viewer: Any, window: Any, gate: Gate, wait: Wait
) -> None:
    viewer.add_image(paint(), name="actin")
    gate.open.set()
    predict(window, wait)
    window.walking.go((1,))
    gate.open.clear()
    window.button.native.click()
    wait(lambda: gate.passes == 2)
    viewer.window.remove_dock_widget(window.native)
    assert names(viewer, is_shown=True) == ["actin", "actin tree"]
    gate.open.set()
    from qtpy.QtCore import QThreadPool

    wait(lambda: QThreadPool.globalInstance().activeThreadCount() == 0)
    viewer.add_image(paint(), name="more")
    for callback in viewer.mouse_move_callbacks:
        callback(viewer, None)
    assert names(viewer) == ["actin", "actin tree", "more"]
    second = viewer.window.add_plugin_dock_widget("napari-posterior-trees")[1]
    second.walking.go((2,))
    viewer.layers.remove("more")
    assert second.walking.path == (2,)
    assert len(names(viewer)) == 3
