"""Trees that grow where they are asked to: theorems for any weights, and what is refused."""

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

from posterior_trees import Colorize, Downsample, Inpaint, UNet, grow, wrap
from posterior_trees.errors import InputError, ModelError
from posterior_trees.measure import Denoise, Measurement
from posterior_trees.networks import NodeNetwork, ResidualUNet
from posterior_trees.predictor import GrowingPredictor, Growth, grow_each
from posterior_trees.tree import Tree

HOLE = Inpaint.box((3, 14), (2, 18), size=(20, 24))
KINDS = [HOLE, Colorize(), Downsample(4), Denoise(0.1)]
LEVELS = 3


def noise(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=torch.float64, generator=generator)


def make_growing(
    measurement: Measurement = HOLE, *, is_residual: bool = False, depth: int = 2
) -> GrowingPredictor:
    """A growing predictor with random weights in float64, in the probability head too."""
    torch.manual_seed(1)
    into = measurement.channels(3) + NodeNetwork.extra_channels(3, LEVELS)
    if is_residual:
        trunk: nn.Module = ResidualUNet(
            into, 3, 3, width=8, multipliers=(1, 2), attention=(1,), blocks=1, is_regional=True
        )
    else:
        trunk = UNet(into, 3, 3, width=6, steps=2, is_disjoint=False, is_regional=True)
    for parameter in trunk.parameters():
        nn.init.normal_(parameter, std=0.3)
    return GrowingPredictor(
        NodeNetwork(trunk, LEVELS), measurement, branching=3, depth=depth, channels=3, multiple=4
    ).to(torch.float64).eval()  # fmt: skip


def begun(measurement: Measurement = HOLE, **options) -> Growth:
    predictor = make_growing(measurement, **options)
    y = predictor.measure(noise(1, 3, 20, 24), torch.Generator().manual_seed(0))
    return predictor.begin(y, region=(4, 4, 8, 8))


@pytest.mark.parametrize("measurement", KINDS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("is_residual", [False, True])
@pytest.mark.filterwarnings("ignore:level 4 is deeper")
def test_children_average_to_their_node_and_levels_sum_to_1(measurement, is_residual):
    growth = begun(measurement, is_residual=is_residual).grow(nodes=22)
    spreads = []
    for path, k in growth.children.items():
        children = [growth.nodes[(*path, child)] for child in range(k)]
        weights = torch.tensor([math.exp(log) for _, log in children], dtype=torch.float64)
        images = torch.stack([image for image, _ in children])
        mean = (weights[:, None, None, None] * images).sum(dim=0) / growth.prob(path)
        assert (mean - growth.nodes[path][0]).abs().max() < 1e-12
        assert abs(weights.sum().item() - growth.prob(path)) < 1e-12
        spreads.append(images.std(dim=0).max())
    assert min(spreads) > 1e-4  # and they do differ
    for level in growth.tree().log_probs:
        assert level.exp().sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.filterwarnings("ignore:level 4 is deeper")
@pytest.mark.parametrize("measurement", KINDS[:3], ids=lambda m: type(m).__name__)
def test_every_node_of_a_growth_agrees_with_the_measurement(measurement):
    predictor = make_growing(measurement)
    y = predictor.measure(noise(1, 3, 20, 24))
    growth = predictor.begin(y).grow(nodes=16)
    for image, _ in growth.nodes.values():
        assert (measurement(image[None]) - y).abs().max() < 1e-12


def test_the_root_is_free_of_the_region_and_the_children_are_not():
    predictor = make_growing()
    y = predictor.measure(noise(1, 3, 20, 24))
    growths = [predictor.begin(y, region).grow(nodes=4) for region in (None, (3, 2, 1, 1))]
    first, second = ([growth.nodes[p][0] for p in ((), (0,))] for growth in growths)
    assert torch.equal(first[0], second[0])
    assert not torch.allclose(first[1], second[1])


def test_a_full_growth_is_the_tree_that_the_predictor_grows():
    predictor = make_growing()
    y = predictor.measure(noise(2, 3, 20, 24))
    tree = predictor(y)
    growths = predictor.begin_each(y)
    grow_each(growths, nodes=13, by="level")
    for i, growth in enumerate(growths):
        for mine, wanted in zip(growth.tree().images, tree[i].images, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)
        for mine, wanted in zip(growth.tree().log_probs, tree[i].log_probs, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)


def finished(seed: int = 0) -> Tree:
    leaves, odds = noise(1, 27, 1, 4, 4, seed=seed), noise(1, 27, seed=seed + 1)
    return grow(leaves, (5 * odds).log_softmax(dim=1), branching=3)


def test_a_finished_tree_is_a_growth_and_back():
    tree = finished()
    back = Growth.of(tree).grow(nodes=40).tree()
    assert back.branching == (3, 3, 3)
    for mine, wanted in zip((*back.images, *back.log_probs), (*tree.images, *tree.log_probs),
                            strict=True):  # fmt: skip
        torch.testing.assert_close(mine, wanted)


@pytest.mark.parametrize("by", ["gain", "probability", "level"])
def test_an_unbalanced_growth_survives_its_dense_tree_and_its_file(by, tmp_path):
    growth = Growth.of(finished()).grow(nodes=16, by=by)
    tree = growth.tree()
    for level in tree.log_probs:
        assert level.exp().sum().item() == pytest.approx(1)
    assert len(tree.descend(noise(1, 1, 4, 4))[0]) == tree.depth + 1
    tree.save(tmp_path / "tree.safetensors")
    loaded = Tree.load(tmp_path / "tree.safetensors")
    again = Growth.of(loaded).grow(nodes=1000)
    assert again.children == growth.children
    assert again.nodes.keys() == growth.nodes.keys()
    for path, (image, log_prob) in growth.nodes.items():
        assert torch.equal(again.nodes[path][0], image)
        assert again.nodes[path][1] == pytest.approx(log_prob)


def test_best_first_takes_what_a_greedy_choice_by_hand_takes():
    """The gain is the squared error that the split takes off, by the tree's own probabilities."""
    tree = finished(3)
    growth = Growth.of(tree)
    expected = []
    for _ in range(5):
        gains = {}
        for path in growth.leaves:
            if len(path) < 3:
                node = tree.node(path)
                kids = [tree.node((*path, c)) for c in range(3)]
                gains[path] = sum(k.prob * (k.image - node.image).square().mean() for k in kids)
                assert growth.gain(path) == pytest.approx(gains[path].item())
        expected.append(max(gains, key=lambda path: gains[path].item()))
        growth.expand(expected[-1])
    assert list(Growth.of(tree).grow(nodes=16).children) == expected


def test_splitting_takes_off_the_expected_error_what_the_gain_says():
    """Law of total variance: the gains of all splits are the spread of the leaves."""
    tree = finished()
    growth = Growth.of(tree).grow(nodes=22)
    total = sum(growth.gain(path) for path in growth.children)
    spread = sum(
        growth.prob(p) * (growth.nodes[p][0] - tree.root[0]).square().mean() for p in growth.leaves
    )
    assert total == pytest.approx(spread.item())


def test_growing_stops_where_it_is_told_to():
    tree = finished()
    full = Growth.of(tree).grow(nodes=1000)
    by_gain = Growth.of(tree).grow(gain=sorted(map(full.gain, full.children))[-4])
    assert len(by_gain.children) == 4
    likely = Growth.of(tree).grow(probability=0.2)
    assert all(likely.prob(path) < 0.2 for path in likely.leaves if len(path) < 3)
    assert all(likely.prob(path) >= 0.2 for path in likely.children)
    assert len(Growth.of(tree).grow(nodes=12).nodes) == 10  # never more than asked for
    with pytest.raises(InputError, match="at least its root"):
        Growth.of(tree).grow(nodes=0)
    with pytest.raises(InputError, match="gain, probability, level"):
        Growth.of(tree).grow(by="luck")


def test_a_split_is_taken_back_with_all_below_it():
    growth = Growth.of(finished())
    growth.expand(())
    growth.expand((1,), (2,))
    growth.expand((1, 0))
    growth.fold((1,))
    assert set(growth.children) == {(), (2,)}
    assert {p for p in growth.nodes if len(p) > 1} == {(2, 0), (2, 1), (2, 2)}
    assert growth.expand((1,))
    assert not growth.expand((1,))
    with pytest.raises(InputError, match=r"path \(1, 0, 0\) is not shown"):
        growth.expand((1, 0, 0))


def test_many_pictures_are_expanded_in_one_batch():
    predictor = make_growing()
    y = predictor.measure(noise(5, 3, 20, 24))
    together = predictor.begin_each(y, region=(4, 4, 8, 8))
    sizes = []
    predictor.network.register_forward_hook(lambda _, given, __: sizes.append(len(given[0])))
    grow_each(together, nodes=10)
    assert sizes == [5, 15, 15]  # the roots' children, then what each best leaf made possible
    alone = predictor.begin(y[3:4], region=(4, 4, 8, 8)).grow(nodes=10)
    assert alone.nodes.keys() == together[3].nodes.keys()
    for path, (image, _) in alone.nodes.items():
        torch.testing.assert_close(image, together[3].nodes[path][0], rtol=0, atol=1e-12)


def test_any_backbone_grows():
    into = 3 + NodeNetwork.extra_channels(3, levels=4)
    backbone = nn.Conv2d(into, 8, 3, padding=1)
    predictor = wrap(backbone, features=8, channels=3, depth=1, levels=4)
    growth = predictor.begin(torch.rand(1, 3, 9, 9), region=(0, 0, 3, 3)).grow(nodes=10)
    assert len(growth.leaves) == 7
    assert predictor(torch.rand(2, 3, 9, 9)).branching == (3,)
    with pytest.raises(InputError, match="one K on every level"):
        wrap(backbone, features=8, channels=3, branching=(2, 3), levels=4)


@pytest.mark.parametrize(
    ("region", "words"),
    [
        ((0, 0, 3, 24), "shows only what is known already.*rows 3 to 14, columns 2 to 18"),
        (torch.zeros(20, 24), "region is empty.*rows 3 to 14"),
        (torch.ones(28, 28), "mask of 28×28, the picture 20×24"),
        ((4, 4, 30, 2), "does not lie inside the picture of 20×24"),
        ((4, 4, 2), "a box is"),
        (2 * torch.ones(20, 24), r"goes from 2 to 2; a mask is in \[0, 1\]"),
        (torch.ones(3, 1, 20, 24), "3 regions for 1 pictures"),
    ],
)
def test_a_region_that_is_not_there_is_refused(region, words):
    predictor = make_growing()
    with pytest.raises(InputError, match=words):
        predictor.begin(predictor.measure(noise(1, 3, 20, 24)), region)


def test_a_region_of_one_pixel_grows():
    predictor = make_growing()
    growth = predictor.begin(predictor.measure(noise(1, 3, 20, 24)), (5, 5, 1, 1)).grow(nodes=10)
    image, root = growth.nodes[(0,)][0], growth.nodes[()][0]
    weights = [growth.prob((c,)) for c in range(3)]
    far = [(growth.nodes[(c,)][0] - root)[:, 5, 5].square().mean().item() for c in range(3)]
    assert growth.gain(()) == pytest.approx(sum(w * f for w, f in zip(weights, far, strict=True)))
    assert not torch.equal(image, root)


def test_deeper_than_trained_works_and_says_so_once():
    growth = begun()
    path: tuple[int, ...] = ()
    for _ in range(LEVELS):
        assert growth.expand(path)
        path = (*path, 0)
    with pytest.warns(UserWarning, match=f"level {LEVELS + 1} is deeper than the {LEVELS}"):
        growth.expand(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert growth.expand((*path, 0))


def test_weights_that_are_nan_are_named():
    predictor = make_growing()
    y = predictor.measure(noise(1, 3, 20, 24))
    growth = predictor.begin(y)
    with torch.no_grad():
        next(predictor.network.parameters()).fill_(math.nan)
    with pytest.raises(ModelError, match="weights are broken"):
        growth.grow(nodes=4)
    with pytest.raises(ModelError, match="weights are broken"):
        predictor.begin(y)


@pytest.mark.filterwarnings("ignore:level 4 is deeper")
def test_a_growth_too_deep_for_a_dense_tree_says_so():
    growth = begun()
    path: tuple[int, ...] = ()
    for _ in range(8):
        growth.expand(path)
        path = (*path, 1)
    with pytest.raises(InputError, match=r"6561 leaves.*at most 4096"):
        growth.tree()
    with pytest.raises(InputError, match="does not fit"):
        Growth.of(finished()).grow(nodes=4).tree((2, 2))


def test_one_pass_predictors_grow_what_they_have():
    predictor = wrap(nn.Conv2d(3, 8, 3, padding=1), features=8, channels=3)
    y = torch.rand(2, 3, 9, 9)
    with pytest.raises(InputError, match="2 pictures"):
        predictor.begin(y)
    growths = predictor.begin_each(y, region=(0, 0, 2, 2))
    grow_each(growths, nodes=100)
    trees = predictor(y)
    for growth, tree in zip(growths, trees, strict=True):
        torch.testing.assert_close(growth.tree().leaves, tree.leaves)
