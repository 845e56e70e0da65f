"""Large pictures in tiles: no seams, one numbering of the branches, bounded memory."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from standins import _cells
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import Downsample, Inpaint, Paired, Tree, TreePredictor, UNet, cli, grow
from posterior_trees.models.checkpoint import save_model
from posterior_trees.networks import Leaves
from posterior_trees.pictures import tiles as tiles_module
from posterior_trees.pictures.tiles import assign, cut, needs_tiles, predict_tiled, ramp, renumber
from posterior_trees.pictures.write import predict_files
from posterior_trees.recipe import parse_recipe


class Answers(nn.Module):
    """A translation-equivariant network: leaf i is a fixed 5×5 filter of the input, and the
    probabilities are fixed. With `shuffle`, its numbering of the branches is random at each call;
    `sizes` are those of the inputs it has seen."""

    def __init__(self, branching: tuple[int, ...] = (3, 2), shuffle: bool = False) -> None:
        super().__init__()
        self.branching, self.shuffle = branching, shuffle
        self.leaves = math.prod(branching)
        torch.manual_seed(1)
        self.filters = nn.Parameter(torch.randn(self.leaves, 1, 5, 5, dtype=torch.float64) / 5)
        self.levels = nn.Parameter(torch.randn(self.leaves, 1, 1, dtype=torch.float64))
        self.logits = nn.Parameter(torch.randn(self.leaves, dtype=torch.float64))
        self.sizes: list[tuple[int, ...]] = []

    def forward(self, y: Tensor) -> Leaves:
        self.sizes.append(tuple(y.shape))
        images = (F.conv2d(y, self.filters, padding=2) + self.levels).unsqueeze(2)
        log_probs = self.logits.log_softmax(0).expand(len(y), -1)
        if self.shuffle and len(self.sizes) > 1:
            order = random_order(self.branching)[-1]
            images, log_probs = images[:, order], log_probs[:, order]
        return Leaves(images, log_probs)


def random_order(branching: tuple[int, ...]) -> list[list[int]]:
    """A random numbering of all nodes that keeps every family together."""
    order = [[0]]
    for k in branching:
        order.append([k * parent + child for parent in order[-1] for child in
                      torch.randperm(k).tolist()])  # fmt: skip
    return order


def test_several_large_pictures_are_not_matched_as_one() -> None:
    """Branches of a tile are numbered for each picture; in one tensor they would be the first's."""
    model = predictor_of(Answers())
    with pytest.raises(ValueError, match=r"2 pictures of 40×30 in one tensor.*one at a time"):
        model.predict(torch.rand(2, 1, 40, 30), tile=16)
    assert len(model.predict(torch.rand(2, 1, 40, 30), tile=0)) == 2


def predictor_of(network: Answers, multiple: int = 1) -> TreePredictor:
    return TreePredictor(
        network,
        Paired(1, 1, is_residual=False),
        branching=network.branching,
        channels=1,
        multiple=multiple,
    ).eval()


def field(height: int, width: int) -> Tensor:
    """A field of cells (actin), tiled from the stand-ins, in float64."""
    parts = [np.asarray(_cells(seed)[0], dtype=np.float64) / 255 for seed in range(12)]
    grid = np.block([[parts[(3 * i + j) % 12] for j in range(8)] for i in range(8)])
    return torch.from_numpy(grid[:height, :width])[None, None]


# ---- blending -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "tile", "overlap", "step"),
    [
        ((64, 64), 32, 16, 16),
        ((97, 31), 20, 10, 1),
        ((160, 48), 48, 16, 16),
        ((16, 16), 64, 16, 16),
    ],
)
def test_windows_cover_every_pixel_and_sum_to_one(size, tile, overlap, step) -> None:
    total = torch.zeros(size, dtype=torch.float64)
    for part in cut(size, tile, overlap, step):
        assert part.rows.start % step == part.columns.start % step == 0
        assert part.rows.stop - part.rows.start <= tile
        assert (part.window > 0).all()
        total[part.rows, part.columns] += part.window
    torch.testing.assert_close(total, torch.ones_like(total), rtol=0, atol=1e-14)


def test_neighbours_overlap_at_least_as_far_as_asked() -> None:
    for side, tile, overlap in itertools.product(range(64, 400, 16), (64, 96), (16, 32)):
        edges = sorted(
            {(p.columns.start, p.columns.stop) for p in cut((64, side), tile, overlap, 16)}
        )
        assert edges[0][0] == 0
        assert edges[-1][1] == side
        for (_, stop), (start, _) in itertools.pairwise(edges):
            assert stop - start >= overlap


def test_the_ramp_rises_smoothly_and_two_of_them_sum_to_one() -> None:
    window = ramp(40, 16)
    torch.testing.assert_close(window[:16] + window[-16:], torch.ones(16).double())
    assert (window[16:24] == 1).all()
    assert window.diff().abs().max() < 1.6 / 16  # the steepest place of sin² over 16 pixels


@pytest.mark.parametrize(("height", "width"), [(130, 170), (96, 200), (40, 56)])
def test_an_equivariant_network_gives_the_tree_of_one_pass(height: int, width: int) -> None:
    """In float64: exactly, wherever the overlap is wider than what the network sees beyond a tile's
    edge. A pixel of a tile's edge differs, and has weight there, so the margin is left out."""
    network = Answers()
    predictor, y = predictor_of(network), field(height, width)
    whole, (tiled, _) = predictor(y), predict_tiled(predictor, y, tile=64, overlap=16)
    assert tiled.branching == whole.branching
    near = near_tile_edges((height, width), 64, 16)
    for got, want in zip(tiled.images, whole.images, strict=True):
        assert (got - want).abs()[..., ~near].max() < 1e-12
    for got, want in zip(tiled.log_probs, whole.log_probs, strict=True):
        torch.testing.assert_close(got, want)


def near_tile_edges(size: tuple[int, int], tile: int, overlap: int, reach: int = 2) -> Tensor:
    """Pixels within `reach` of the cut edge of any tile that has them."""
    near = torch.zeros(size, dtype=torch.bool)
    for part in cut(size, tile, overlap):
        inner = torch.ones(part.window.shape, dtype=torch.bool)
        top, bottom = reach * (part.rows.start > 0), reach * (part.rows.stop < size[0])
        left, right = reach * (part.columns.start > 0), reach * (part.columns.stop < size[1])
        inner[top : inner.shape[0] - bottom, left : inner.shape[1] - right] = False
        near[part.rows, part.columns] |= inner
    return near


def test_what_differs_between_tiles_is_blended_without_a_step() -> None:
    """Each tile adds its own constant: the picture is smooth where plain tiles would jump by 1."""

    class Uneven(Answers):
        def forward(self, y: Tensor) -> Leaves:
            leaves = super().forward(y)
            level = self.levels + len(self.sizes) % 2
            return leaves._replace(images=level.expand(-1, *y.shape[2:])[None, :, None])

    predictor = predictor_of(Uneven())
    tree, _ = predict_tiled(predictor, field(64, 200), tile=64, overlap=32)
    steps = tree.leaves.diff(dim=-1).abs()
    assert steps.max() < 1.6 / 32
    assert tree.leaves.amax(dim=-1).sub(tree.leaves.amin(dim=-1)).min() > 0.99


# ---- matching -----------------------------------------------------------------------------------


@pytest.mark.parametrize("branching", [(3, 2), (2, 2, 2), (6,), (2, 5)])
def test_shuffled_branches_are_recovered(branching: tuple[int, ...]) -> None:
    """Every tile but the first numbers its branches at random; the result is as if none did."""
    y = field(150, 180)
    plain, others = predict_tiled(predictor_of(Answers(branching)), y, tile=64, overlap=16)
    shuffled, parts = predict_tiled(
        predictor_of(Answers(branching, shuffle=True)), y, tile=64, overlap=16
    )
    for level in range(len(branching) + 1):
        torch.testing.assert_close(shuffled.images[level], plain.images[level])
        torch.testing.assert_close(shuffled.log_probs[level], plain.log_probs[level])
    for part in parts:
        torch.testing.assert_close(part.probs, others[0].probs)


def test_without_matching_the_branches_would_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_module, "assign", lambda cost: list(range(len(cost))))
    y = field(150, 180)
    plain, _ = predict_tiled(predictor_of(Answers()), y, tile=64, overlap=16)
    mixed, _ = predict_tiled(predictor_of(Answers(shuffle=True)), y, tile=64, overlap=16)
    assert (plain.leaves - mixed.leaves).abs().mean() > 0.1


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_the_assignment_is_the_best_of_all_permutations(n: int) -> None:
    rows = torch.arange(n)
    for seed in range(40):
        cost = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        found = assign(cost)
        assert sorted(found) == list(range(n))
        best = min(cost[rows, list(p)].sum() for p in itertools.permutations(range(n)))
        assert cost[rows, found].sum() == pytest.approx(float(best))


def test_equal_costs_keep_the_order() -> None:
    assert assign(torch.full((7, 7), 0.5)) == list(range(7))


def test_renumbering_moves_whole_families() -> None:
    tree = grow(torch.rand(1, 6, 2), torch.rand(1, 6).log_softmax(1), (3, 2))
    order = random_order((3, 2))
    moved = renumber(tree, order)
    again = grow(moved.leaves, moved.log_probs[-1], (3, 2))
    for level in range(3):
        torch.testing.assert_close(moved.images[level], again.images[level])
        torch.testing.assert_close(moved.log_probs[level], again.log_probs[level])


# ---- probabilities ------------------------------------------------------------------------------


def test_probabilities_are_means_over_the_area_and_add_up_in_the_tree() -> None:
    class Local(Answers):
        def forward(self, y: Tensor) -> Leaves:
            leaves = super().forward(y)
            return leaves._replace(log_probs=(len(self.sizes) * self.logits)[None].log_softmax(1))

    network = Local()
    tree, _ = predict_tiled(predictor_of(network), field(64, 160), tile=64, overlap=16)
    assert len(network.sizes) == 3  # at columns 0, 48 and 96; an overlap is shared half and half
    areas = [56 / 160, 48 / 160, 56 / 160]
    want = sum(a * (n * network.logits).softmax(0) for n, a in enumerate(areas, start=1))
    torch.testing.assert_close(tree.probs[-1][0], want)
    for level, k in enumerate(tree.branching, start=1):
        torch.testing.assert_close(
            tree.probs[level].unflatten(1, (-1, k)).sum(dim=2), tree.probs[level - 1]
        )
    assert tree.log_probs[0].abs().max() < 1e-12


@pytest.mark.parametrize(("height", "width"), [(64, 160), (97, 131), (40, 50)])
def test_parts_share_out_the_pixels_among_the_tiles_that_weigh_most(height, width) -> None:
    class Local(Answers):
        def forward(self, y: Tensor) -> Leaves:
            leaves = super().forward(y)
            return leaves._replace(log_probs=(len(self.sizes) * self.logits)[None].log_softmax(1))

    network = Local()
    _, parts = predict_tiled(predictor_of(network), field(height, width), tile=48, overlap=16)
    tiles = list(cut((height, width), 48, 16))
    assert len(parts) == len(tiles) == len(network.sizes)
    owner = torch.full((height, width), -1)
    windows = torch.zeros(len(tiles), height, width, dtype=torch.float64)
    for number, (part, tile) in enumerate(zip(parts, tiles, strict=True)):
        assert (owner[part.rows, part.columns] == -1).all()
        owner[part.rows, part.columns] = number
        windows[number, tile.rows, tile.columns] = tile.window
        torch.testing.assert_close(part.probs.sort()[0], ((number + 1) * network.logits).softmax(0)
                                   .sort()[0])  # fmt: skip
    assert (windows.gather(0, owner[None])[0] >= windows.amax(dim=0) - 1e-12).all()


# ---- memory and limits --------------------------------------------------------------------------


def test_no_pass_sees_more_than_a_tile_however_large_the_picture() -> None:
    for side in (128, 512):
        network = Answers((2,))
        predict_tiled(predictor_of(network, multiple=16), torch.rand(1, 1, side, side).double(),
                      tile=64, overlap=16)  # fmt: skip
        assert max(math.prod(size) for size in network.sizes) == 64 * 64
        assert len(network.sizes) >= (side // 64) ** 2


def test_sizes_off_the_grid_are_padded_and_cropped() -> None:
    network = UNet(1, 1, 2, width=4).double()
    predictor = TreePredictor(network, Paired(1, 1), branching=2, depth=1, channels=1, multiple=16)
    tree, _ = predict_tiled(predictor.eval(), field(101, 75), tile=50, overlap=10)
    assert tree.shape == (1, 101, 75)
    assert all(level.isfinite().all() for level in tree.images)


def test_a_smaller_picture_than_a_tile_is_one_pass() -> None:
    network = UNet(1, 1, 2, width=4).double()
    predictor = TreePredictor(network, Paired(1, 1), branching=2, depth=1, channels=1, multiple=16)
    y = field(37, 50)
    torch.testing.assert_close(
        predict_tiled(predictor.eval(), y, tile=64, overlap=16)[0].leaves, predictor(y).leaves
    )


def test_downsampled_measurements_are_cut_in_their_own_pixels() -> None:
    network = UNet(1, 1, 2, width=4).double()
    predictor = TreePredictor(network, Downsample(2), branching=2, depth=1, channels=1, multiple=16)
    y = field(70, 90)
    tree, _ = predict_tiled(predictor.eval(), y, tile=32, overlap=16)
    assert tree.shape == (1, 140, 180)
    torch.testing.assert_close(F.avg_pool2d(tree.root, 2), y)


def test_tiles_are_used_above_the_limit_or_when_asked_for() -> None:
    predictor = predictor_of(Answers())
    assert not needs_tiles(predictor, (1024, 1024), None)
    assert needs_tiles(predictor, (1024, 1025), None)
    assert needs_tiles(predictor, (100, 65), 64)
    assert not needs_tiles(predictor, (64, 64), 64)
    assert not needs_tiles(predictor, (5000, 5000), 0)


def test_wrong_tiles_are_explained() -> None:
    with pytest.raises(ValueError, match=r"tiles of 64 pixels overlap by 48; choose .* to 32"):
        predict_tiled(predictor_of(Answers()), field(100, 100), tile=64, overlap=48)
    with pytest.raises(ValueError, match=r"tiles of 1 pixel are too small; choose at least 2"):
        predict_tiled(predictor_of(Answers()), field(100, 100), tile=1, overlap=1)
    hole = Inpaint.box((0, 3), (0, 3), (100, 100))
    predictor = TreePredictor(Answers(), hole, branching=(3, 2), channels=1)
    assert not needs_tiles(predictor, (5000, 5000), None)
    with pytest.raises(ValueError, match="fills one hole in pictures of 100×100"):
        predict_tiled(predictor, field(100, 100), tile=64, overlap=16)


@pytest.mark.parametrize("multiple", [1, 8, 16])
@pytest.mark.parametrize("tile", [33, 50, 64, 100])
def test_the_overlaps_that_are_recommended_work(tile: int, multiple: int) -> None:
    predictor = predictor_of(Answers(), multiple)
    with pytest.raises(ValueError, match="choose an overlap") as caught:
        predict_tiled(predictor, field(120, 120), tile=tile, overlap=tile)
    low, high = map(int, re.findall(r"from (\d+) to (\d+)", str(caught.value))[0])
    for overlap in (low, high):
        tree, _ = predict_tiled(predictor, field(120, 120), tile, overlap)
        assert tree.shape == (1, 120, 120)
    with pytest.raises(ValueError, match="choose an overlap"):
        predict_tiled(predictor, field(120, 120), tile, high + 1)


# ---- the command --------------------------------------------------------------------------------


def save_cells_model(file: Path) -> None:
    from posterior_trees.models.build import build_predictor

    changes = ["tree.branching=2", "tree.depth=1", "network.c_init=2"]
    recipe = parse_recipe('task = "cells_actin_to_dna"', changes)
    save_model(file, build_predictor(recipe), recipe)


def test_the_command_predicts_a_large_field_in_tiles(tmp_path: Path, capsys) -> None:
    save_cells_model(tmp_path / "cells.safetensors")
    pixels = (255 * field(320, 300)[0, 0]).round().byte().numpy()
    Image.fromarray(pixels).save(tmp_path / "big.tif")
    words = ["predict", tmp_path / "cells.safetensors", tmp_path / "big.tif", "--out",
             tmp_path / "trees", "--tile", 128, "--overlap", 32]  # fmt: skip
    cli.main([str(word) for word in words])
    folder = tmp_path / "trees" / "big"
    assert str(folder) in capsys.readouterr().out
    tree = Tree.load(folder / "tree.safetensors")
    assert tree.shape == (1, 320, 300)
    assert Image.open(folder / "node_root.png").size == (300, 320)


def test_large_pictures_are_cut_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_module, "WHOLE", 64 * 64)
    network = Answers((2,))
    Image.fromarray(np.zeros((16, 700), np.uint8)).save(tmp_path / "long.png")
    Image.fromarray(np.zeros((16, 30), np.uint8)).save(tmp_path / "short.png")
    network.float()
    files = [tmp_path / "long.png", tmp_path / "short.png"]
    predict_files(predictor_of(network), files, tmp_path / "out")
    assert network.sizes == [(1, 1, 16, 512), (1, 1, 16, 512), (1, 1, 16, 30)]


@pytest.mark.parametrize(
    ("tile", "limit", "largest"),
    [(None, 10**6, 700), (200, 10**6, 200), (None, 99, 512), (0, 99, 700)],
)
def test_predict_cuts_pictures_by_itself_and_as_told(tile, limit, largest, monkeypatch) -> None:
    monkeypatch.setattr(tiles_module, "WHOLE", limit)
    network = Answers((2,)).float()
    tree = predictor_of(network).predict(torch.rand(1, 40, 700), tile=tile)
    assert max(size[-1] for size in network.sizes) == largest
    assert tree.shape == (1, 40, 700)


def test_a_network_in_training_predicts_tiles_without_dropout() -> None:
    torch.manual_seed(0)
    network = UNet(1, 1, 2, width=4, dropout=0.5, head_dropout=0.5).double()
    predictor = TreePredictor(network, Paired(1, 1), branching=2, depth=1, channels=1, multiple=16)
    y = torch.rand(1, 1, 48, 64, dtype=torch.float64)
    expected, _ = predict_tiled(predictor.eval(), y, 32, 16)
    found, _ = predict_tiled(predictor.train(), y, 32, 16)
    assert predictor.training
    for one, other in zip(found.images, expected.images, strict=True):
        torch.testing.assert_close(one, other)
