"""Trees in OME-Zarr: read back, in parts and whole, accepted by the validators of others."""

import importlib
import json
import math
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pydantic_zarr.v2
import pytest
import torch
import zarr
from tiny import make_tree
from yaozarrs import validate_zarr_store

from posterior_trees import Tree, grow
from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.ngff import Frame, write_plate
from posterior_trees.imaging.ome_zarr import attributes_of
from posterior_trees.imaging.source import open_source
from posterior_trees.imaging.stored import Tiles, open_tree
from posterior_trees.imaging.tree_zarr import (
    CHUNK,
    Nuclei,
    TreeWriter,
    halve,
    pyramid_of,
    write_tree,
)

LABELS = np.zeros((40, 40), dtype=np.uint32)
LABELS[3:9, 4:12], LABELS[20:30, 20:25] = 1, 2
NUCLEI = Nuclei(
    LABELS, [{"label-value": 1, "probability": 0.5, "pixels": 48},
             {"label-value": 2, "probability": 1.0, "pixels": 50}],
    "label,probability\n1,0.5\n2,1.0\n",
)  # fmt: skip


def one_tree(side: int = 40, branching: int = 3) -> Tree:
    tree, _ = make_tree(1, side)
    return grow(tree.leaves.float(), tree.log_probs[-1].float(), branching)


def test_float32_is_the_lossless_form(tmp_path: Path) -> None:
    tree = one_tree()
    folder = write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype="float32")
    back = Tree.load(folder)
    for name in ("images", "log_probs"):
        for one, other in zip(getattr(tree, name), getattr(back, name), strict=True):
            assert torch.equal(one, other), name
    assert back.branching == (3, 3)
    assert not open_tree(folder).is_clipped


@pytest.mark.parametrize(("dtype", "one"), [("uint8", 255), ("uint16", 65535)])
@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_integers_are_within_half_a_step_and_clipped(
    tmp_path: Path, dtype: str, one: int, ngff: str
) -> None:
    tree = one_tree().map_images(lambda images: 1.4 * images - 0.2)
    folder = write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype=dtype, ngff=ngff)
    back, stored = Tree.load(folder), open_tree(folder)
    assert stored.is_clipped
    assert stored.array.metadata.zarr_format == (2 if ngff == "0.4" else 3)
    errors = [
        (mine.clamp(0, 1) - theirs).abs().max().item()
        for mine, theirs in zip(tree.images, back.images, strict=True)
    ]
    assert 0 < max(errors) <= 0.5 / one + 1e-7
    assert tree.images[-1].max() > 1.01


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_black_is_written_too(tmp_path: Path, ngff: str) -> None:
    """A chunk of zeros is a chunk: a missing one means that a copy stopped half-way."""
    tree = grow(torch.zeros(1, 2, 1, 1100, 20), torch.zeros(1, 2).log_softmax(1), 2)
    empty = Nuclei(np.zeros((1100, 20), np.uint32), [], "")
    folder = write_tree(tmp_path / "a.tree.ome.zarr", tree, ngff=ngff, nuclei=empty)
    assert Tree.load(folder).leaves.max() == 0
    for name, chunks in (("0", 9), ("1", 6), ("labels/nuclei/0", 3), ("labels/nuclei/1", 2)):
        assert zarr.open_array(folder / name, mode="r").nchunks_initialized == chunks, name


def test_absent_nodes_stay_absent(tmp_path: Path) -> None:
    tree = one_tree()
    logs = tree.log_probs[-1].clone()
    logs[0, [1, 6, 7, 8]] = -math.inf
    tree = grow(tree.leaves, logs, 3)
    back = Tree.load(write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype="float32"))
    for one, other in zip(tree.log_probs, back.log_probs, strict=True):
        assert torch.equal(one, other)
    assert back.is_absent(1).tolist() == [[False, False, True]]


def test_parts_are_read_lazily(tmp_path: Path) -> None:
    tree = one_tree(side=CHUNK + 60)
    folder = write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype="float32")
    shutil.rmtree(folder / "0/c/4/1")  # nobody asks for that
    stored = open_tree(folder)
    node = stored.node((0,))
    assert (node.channel, node.shape) == (1, (CHUNK + 60, CHUNK + 60))
    assert node.prob == pytest.approx(tree.node((0,)).prob.item())
    part = stored.node((0, 1))[500:540, 3:77]
    assert torch.equal(part, tree.node((0, 1)).image[0, 0, 500:540, 3:77])
    assert torch.equal(node[0:9, 0:9], tree.node((0,)).image[0, 0, :9, :9])
    with pytest.raises(DataError, match=r"lacks the chunk 0/c/4/1/0\. Predict it again"):
        stored.node((0, 0))[CHUNK : CHUNK + 1, 0:1]
    with pytest.raises(IndexError, match=r"\(3,\) is no path"):
        stored.node((3,))


def test_a_tree_too_large_to_load_is_read_in_parts(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "a.tree.ome.zarr", one_tree())
    with pytest.raises(InputError, match="read parts of it with open_tree"):
        Tree.load(folder, limit=13 * 40 * 40 * 4 - 1)
    assert Tree.load(folder, limit=13 * 40 * 40 * 4).shape == (1, 40, 40)


def test_the_layout_is_the_one_that_is_promised(tmp_path: Path) -> None:
    tree, tiles = one_tree(), Tiles(24, 8, (40, 40), (0, 0), (0, 20, 40), (0, 40))
    local = [tree.probs[-1][0], tree.probs[-1][0].flip(0)]
    frame = Frame(pixel=0.5, shrink=2)
    folder = write_tree(tmp_path / "A1.tree.ome.zarr", tree, frame=frame, tiles=tiles,
                        local=local, provenance={"model": "cells"}, nuclei=NUCLEI)  # fmt: skip
    assert attributes_of(folder)["multiscales"][0]["name"] == "A1.tree.ome.zarr"
    facts = attributes_of(folder)["posterior_trees"]
    assert facts["branching"] == [3, 3]
    assert [node["path"] for node in facts["nodes"]][:5] == [[], [0], [1], [2], [0, 0]]
    assert [node["channel"] for node in facts["nodes"]] == list(range(13))
    assert facts["nodes"][0]["probability"] == pytest.approx(1)
    assert (facts["value_of_one"], facts["clipped"]) == (255, True)
    assert facts["provenance"] == {"model": "cells"}
    assert facts["tiles"] | {"size": 24, "overlap": 8, "grid": [2, 1], "padded": [40, 40],
                             "offset": [0, 0]} == facts["tiles"]  # fmt: skip
    channels = attributes_of(folder)["omero"]["channels"]
    assert [c["active"] for c in channels] == [True, *[False] * 12]
    assert channels[5]["label"] == f"0.1 p={tree.probs[2][0, 1]:.3f}"
    stored = open_tree(folder)
    assert [part[:2] for part in stored.parts] == [
        (slice(0, 20), slice(0, 40)), (slice(20, 40), slice(0, 40))
    ]  # fmt: skip
    torch.testing.assert_close(stored.parts[1][2], local[1])
    levels = zarr.open_array(folder / "probabilities/0", mode="r")[:]
    assert levels.shape == (13, 2, 1)
    np.testing.assert_allclose(levels[1:4].sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_array_equal(zarr.open_array(folder / "labels/nuclei/0", mode="r")[:], LABELS)
    label = attributes_of(folder / "labels/nuclei")["image-label"]
    assert label["properties"] == NUCLEI.properties
    assert (folder / "tables/nuclei.csv").read_text() == NUCLEI.table
    assert attributes_of(folder / "labels")["labels"] == ["nuclei"]
    for wrong in (folder, folder / "labels/nuclei"):
        with pytest.raises(DataError, match=r"holds a tree, not a picture|holds labels"):
            open_source(wrong)


def test_shrinking_moves_the_centres_of_pixels(tmp_path: Path) -> None:
    """A bright dot lies at the same µm in the input and in every array that it is in."""
    pixel, shrink, size = 0.65, 2, (1600, 1040)
    centre = (shrink * 800 + 0.5, shrink * 520 + 0.5)  # of the input pixels 1600, 1601; 1040, 1041
    want = [pixel * place for place in centre]
    images = torch.zeros(1, 1, 1, *size)
    images[..., 800, 520] = 1
    frame = Frame(pixel, shrink)
    labels = (images[0, 0, 0].numpy() > 0).astype(np.uint32)
    tiles = Tiles(800, 64, size, (0, 0), (0, 500, 1000, 1600), (0, 520, 1040))
    folder = write_tree(
        tmp_path / "a.tree.ome.zarr", grow(images, torch.zeros(1, 1), ()), dtype="float32",
        frame=frame, tiles=tiles, local=[torch.ones(1)] * 6, nuclei=Nuclei(labels, [], ""),
    )  # fmt: skip

    def places(group: Path, i: int) -> tuple[np.ndarray, np.ndarray]:
        steps = attributes_of(group)["multiscales"][0]["datasets"][i]["coordinateTransformations"]
        return np.array(steps[0]["scale"][-2:]), np.array(steps[1]["translation"][-2:])

    for group, i in ((folder, 0), (folder / "labels/nuclei", 0)):
        scale, first = places(group, i)
        array = zarr.open_array(group / str(i), mode="r")[:]
        index = np.array(np.unravel_index(array.argmax(), array.shape))[-2:]
        np.testing.assert_allclose(first + scale * index, want, rtol=1e-12)
    half = zarr.open_array(folder / "1", mode="r")[0]
    weights = np.stack(np.indices(half.shape)).reshape(2, -1) @ half.ravel() / half.sum()
    scale, first = places(folder, 1)
    np.testing.assert_array_less(np.abs(first + scale * weights - want), scale)
    edges = [(first - scale / 2, first + scale * (np.array(shape) - 0.5)) for (scale, first), shape
             in zip((places(folder, 0), places(folder, 1), places(folder / "probabilities", 0)),
                    (size, (800, 520), (3, 2)), strict=True)]  # fmt: skip
    for one, other in pairwise(edges):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    np.testing.assert_allclose(edges[0][0], -pixel / 2)


def test_pyramids_are_means(tmp_path: Path) -> None:
    assert pyramid_of((1024, 1000)) == [(1024, 1000)]
    assert pyramid_of((1025, 9)) == [(1025, 9), (513, 5)]
    assert len(pyramid_of((10**6, 10**6))) == 6
    values = np.array([[0, 255, 7], [255, 255, 8], [9, 10, 12]], dtype=np.uint8)
    np.testing.assert_array_equal(halve(values), [[191, 8], [10, 12]])
    torch.manual_seed(0)
    tree = grow(torch.rand(1, 2, 1, 1101, 530), torch.randn(1, 2).log_softmax(1), 2)
    folder = write_tree(tmp_path / "a.tree.ome.zarr", tree, dtype="float32")
    level = zarr.open_array(folder / "1", mode="r")[:]
    assert level.shape == (3, 551, 265)
    mean = tree.leaves[0, 1, 0, 1022:1024, 510:512].mean()
    assert level[2, 511, 255] == pytest.approx(mean.item(), rel=1e-6)
    assert level[0, 550, 0] == pytest.approx(tree.root[0, 0, 1100, :2].mean().item(), rel=1e-6)


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tree(tmp_path / "a.tree.ome.zarr", one_tree())
    before = (folder / "zarr.json").read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(TreeWriter, "finish", fail)
        with pytest.raises(OSError, match="No space left"):
            write_tree(folder, one_tree(side=20))
    assert (folder / "zarr.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tree.ome.zarr"]
    write_tree(folder, one_tree(side=20))
    assert Tree.load(folder).shape == (1, 20, 20)


def test_what_is_no_tree_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no OME-Zarr folder"):
        Tree.load(tmp_path)
    zarr.open_group(tmp_path / "x.zarr", mode="w")
    with pytest.raises(DataError, match="is OME-Zarr, but not a tree"):
        open_tree(tmp_path / "x.zarr")
    colours = grow(torch.rand(1, 2, 3, 8, 8), torch.zeros(1, 2), 2)
    with pytest.raises(InputError, match="one grey picture"):
        write_tree(tmp_path / "c.tree.ome.zarr", colours)
    with pytest.raises(InputError, match="--dtype is int8"):
        write_tree(tmp_path / "c.tree.ome.zarr", one_tree(), dtype="int8")
    with pytest.raises(InputError, match=r"--ngff is 0\.6"):
        write_tree(tmp_path / "c.tree.ome.zarr", one_tree(), ngff="0.6")
    folder = write_tree(tmp_path / "n.tree.ome.zarr", one_tree())
    facts = json.loads((folder / "zarr.json").read_text())
    facts["attributes"]["posterior_trees"]["tree"] = 9
    (folder / "zarr.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="has tree schema 9"):
        open_tree(folder)


def write_sample(folder: Path, ngff: str, is_pyramid: bool = True) -> Path:
    return write_tree(folder, one_tree(), ngff=ngff, frame=Frame(0.65, 2), nuclei=NUCLEI,
                      is_pyramid=is_pyramid)  # fmt: skip


def check_with_others(group: Path, ngff: str, kind: str) -> None:
    """yaozarrs, and ome-zarr-models, whose models of 0.4 pydantic 2.14 leaves half made."""
    if (kind, ngff) != ("Labels", "0.4"):  # which says no version; its image's validation has it
        validate_zarr_store(str(group))
    models = importlib.import_module(f"ome_zarr_models.v{ngff.replace('.', '')}")
    if ngff == "0.4":
        names = vars(pydantic_zarr.v2) | vars(models)
        for part in ("Labels", "Image", "ImageLabel", "Well", "HCS"):
            getattr(models, part).model_rebuild(force=True, _types_namespace=names)
    getattr(models, kind).from_zarr(zarr.open_group(group, mode="r"))


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_validators_accept_trees_labels_and_probabilities(tmp_path: Path, ngff: str) -> None:
    folder = write_sample(tmp_path / "a.tree.ome.zarr", ngff)
    for group, kind in (("", "Image"), ("probabilities", "Image"), ("labels", "Labels"),
                        ("labels/nuclei", "ImageLabel")):  # fmt: skip
        check_with_others(folder / group, ngff, kind)


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_a_third_validator_accepts_trees(tmp_path: Path, ngff: str) -> None:
    ngff_zarr = pytest.importorskip("ngff_zarr")
    folder = write_sample(tmp_path / "a.tree.ome.zarr", ngff)
    levels = ngff_zarr.from_ngff_zarr(str(folder), validate=True, version=ngff)
    assert levels.images[0].scale["y"] == pytest.approx(1.3)


@pytest.mark.parametrize("ngff", ["0.4", "0.5"])
def test_validators_accept_plates(tmp_path: Path, ngff: str) -> None:
    plate = tmp_path / "p.tree.ome.zarr"
    places = ["A/1/0", "A/1/1", "B/10/0", "B/2/0"]
    fields = [write_sample(plate / place, ngff, False) for place in places]
    write_plate(plate, "p", fields, ngff)
    check_with_others(plate, ngff, "HCS")
    check_with_others(plate / "A/1", ngff, "Well")
    facts = attributes_of(plate)["plate"]
    assert [w["path"] for w in facts["wells"]] == ["A/1", "B/2", "B/10"]
    assert [c["name"] for c in facts["columns"]] == ["1", "2", "10"]
    assert facts["wells"][2] == {"path": "B/10", "rowIndex": 1, "columnIndex": 2}


def test_validators_refuse_what_is_wrong(tmp_path: Path) -> None:
    """They look: without its second transformation's place an image is refused."""
    folder = write_sample(tmp_path / "a.tree.ome.zarr", "0.5")
    facts = json.loads((folder / "zarr.json").read_text())
    facts["attributes"]["ome"]["multiscales"][0]["axes"].pop()
    (folder / "zarr.json").write_text(json.dumps(facts))
    with pytest.raises(Exception, match="axes"):
        validate_zarr_store(str(folder))


@pytest.mark.parametrize(("key", "wrong"), [
    ("tree", "2"), ("branching", [3, 10**9]), ("branching", [2] * 99_999), ("value_of_one", 0),
    ("nodes", [1]), ("nodes", [{"log_probability": 1.0}] * 13), ("tiles", {"rows": 3}),
    ("provenance", None), ("clipped", None),
])  # fmt: skip
def test_facts_of_the_wrong_types_are_refused(tmp_path: Path, key: str, wrong: object) -> None:
    folder = write_tree(tmp_path / "a.tree.ome.zarr", one_tree(), ngff="0.4")
    facts = json.loads((folder / ".zattrs").read_text())
    facts["posterior_trees"][key] = wrong
    (folder / ".zattrs").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="damaged"):
        open_tree(folder)


def test_a_stored_tree_of_nan_is_refused(tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "a.tree.ome.zarr", one_tree(), dtype="float32")
    zarr.open_array(folder / "0", mode="r+")[4, 3, 3] = math.nan
    with pytest.raises(DataError, match="not finite"):
        Tree.load(folder)
    assert open_tree(folder).node((0,))[10:, 10:].isfinite().all()
