"""Figures of a few images of a set."""

import pytest
import torch

from posterior_trees import TreePredictor, wrap
from posterior_trees.data import ImageSet, evenly_spaced
from posterior_trees.evaluation.examples import (
    Grown,
    around_hole,
    predict_examples,
    save_examples,
)
from posterior_trees.figure import arrange
from posterior_trees.measure import Colorize, Inpaint
from posterior_trees.networks import NodeNetwork
from posterior_trees.networks.head import Leaves


class Shades(torch.nn.Module):
    """Two leaves, one darker and one lighter than grey."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels, self.weight = channels, torch.nn.Parameter(torch.zeros(1))

    def forward(self, y: torch.Tensor) -> Leaves:
        shades = torch.tensor([0.2, 0.7]).view(1, 2, 1, 1, 1)
        images = shades.expand(len(y), 2, self.channels, *y.shape[-2:])
        return Leaves(images, torch.full((len(y), 2), 0.5).log())


def predictor(measurement) -> TreePredictor:
    return TreePredictor(Shades(3), measurement, branching=(2,), channels=3, name="shades")


def hole(rows: slice, columns: slice, size: tuple[int, int] = (64, 64)) -> Inpaint:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[rows, columns] = True
    return Inpaint(mask)


def test_the_surroundings_end_where_the_picture_does() -> None:
    assert around_hole(predictor(hole(slice(20, 30), slice(8, 50)))) == (
        slice(16, 34),
        slice(4, 54),
    )
    assert around_hole(predictor(hole(slice(2, 64), slice(0, 5)))) == (slice(0, 64), slice(0, 9))
    wide = hole(slice(10, 12), slice(30, 40), (32, 160))
    assert around_hole(predictor(wide)) == (slice(0, 22), slice(20, 50))


def test_a_closer_figure_shows_the_same_pixels(tmp_path, monkeypatch) -> None:
    model = predictor(hole(slice(20, 30), slice(8, 50)))
    images = ImageSet(torch.randint(256, (5, 3, 64, 64), dtype=torch.uint8))
    drawn = {}

    def note(tree, file, **others) -> None:
        drawn.update(tree=tree, file=file, **others)

    monkeypatch.setattr("posterior_trees.figure.save_figure", note)
    save_examples(tmp_path / "f.png", model, images, count=2, is_closer=True)
    tree, y, x = predict_examples(model, images, evenly_spaced(5, 2))
    part = ..., slice(16, 34), slice(4, 54)
    assert torch.equal(drawn["x"], x[part])
    assert torch.equal(drawn["y"], y[part])
    for ours, whole in zip(drawn["tree"].images, tree.images, strict=True):
        assert torch.equal(ours, whole[part])
    assert drawn["tree"].branching == tree.branching
    save_examples(tmp_path / "f.png", model, images, count=2)
    assert torch.equal(drawn["x"], x)


def test_without_a_hole_there_is_nothing_to_come_closer_to(tmp_path) -> None:
    images = ImageSet(torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"shades fills no hole.*leave out --closer"):
        save_examples(tmp_path / "f.png", predictor(Colorize()), images, is_closer=True)


def growing() -> TreePredictor:
    """Random weights that split where they look."""
    torch.manual_seed(1)
    backbone = torch.nn.Conv2d(3 + NodeNetwork.extra_channels(3, 6), 8, 3, padding=1)
    torch.nn.init.normal_(backbone.weight, std=0.3)
    measurement = hole(slice(20, 30), slice(8, 50))
    return wrap(backbone, features=8, channels=3, branching=2, measurement=measurement, levels=6)


def test_a_grown_figure_has_so_many_nodes_of_every_image(tmp_path, monkeypatch) -> None:
    model = growing()
    images = ImageSet(torch.randint(256, (5, 3, 64, 64), dtype=torch.uint8))
    drawn = {}

    def note(tree, file, **others) -> None:
        drawn.update(tree=tree, **others)

    monkeypatch.setattr("posterior_trees.figure.save_figure", note)
    grown = Grown(model.begin_each, 9, (22, 10, 4, 30))
    save_examples(tmp_path / "f.png", model, images, count=3, grown=grown, is_closer=True)
    assert drawn["box"] == [6, 6, 4, 30], "moved with what is shown"
    for i, y in enumerate(predict_examples(model, images, evenly_spaced(5, 3))[1]):
        growth = model.begin(y[None], (22, 10, 4, 30)).grow(9)
        shown = arrange(drawn["tree"][i])
        assert len(shown) == len(growth.nodes) == 9
        wanted = growth.tree(drawn["tree"].branching)
        for ours, theirs in zip(drawn["tree"][i].images, wanted.images, strict=True):
            assert torch.equal(ours, theirs[..., slice(16, 34), slice(4, 54)])


def test_a_finished_tree_grows_to_its_likeliest_part(tmp_path) -> None:
    model = predictor(hole(slice(20, 30), slice(8, 50)))
    images = ImageSet(torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8))
    for nodes, depth in ((1, 0), (2, 0), (3, 1), (99, 1)):
        tree, *_ = predict_examples(model, images, [0, 1], grown=Grown(model.begin_each, nodes))
        assert tree.depth == depth
        assert len(tree) == 2
    file = tmp_path / "f.png"
    save_examples(file, model, images, count=2, grown=Grown(model.begin_each, 1), dpi=40)
    assert file.stat().st_size > 500
