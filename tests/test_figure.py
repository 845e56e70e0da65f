"""The paper-style figure: what is on it, and what it refuses."""

import math
import re
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
import torch
from matplotlib._pylab_helpers import Gcf
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from posterior_trees_paper.studies.figures import Strip, draw_strips

from posterior_trees import Tree, grow
from posterior_trees.errors import StoreError
from posterior_trees.figure import ASKED, HIGHLIGHT, arrange, draw, draw_grid, save_figure
from posterior_trees.predictor.growth import Growth, Siblings


def make_tree(
    branching: tuple[int, ...] = (3, 3), batch: int = 1, shape=(1, 6, 5), absent: tuple = ()
) -> Tree:
    generator = torch.Generator().manual_seed(0)
    n = math.prod(branching)
    leaves = torch.rand(batch, n, *shape, generator=generator, dtype=torch.float64)
    log_probs = torch.randn(batch, n, generator=generator, dtype=torch.float64).log_softmax(1)
    log_probs[:, list(absent)] = -math.inf
    return grow(leaves, log_probs.log_softmax(1), branching)


def make_growth(splits: int, seed: int = 0, most: int = 3) -> Growth:
    """A tree that was split at random places, into two to `most` children each."""
    generator = torch.Generator().manual_seed(seed)

    def branch(asked) -> list[Siblings]:
        widths = [int(torch.randint(2, most + 1, (), generator=generator)) for _ in asked]
        shapes = [torch.rand(k, 1, 6, 5, generator=generator) for k in widths]
        return [Siblings(images, torch.zeros(len(images)).log_softmax(0)) for images in shapes]

    growth = Growth(torch.rand(1, 6, 5, generator=generator), branch)
    for _ in range(splits):
        ends = [path for path in growth.leaves if len(path) < 5]
        growth.expand(ends[int(torch.randint(len(ends), (), generator=generator))])
    return growth


def images_of(figure: Figure) -> list:
    return [axes.images[0] for axes in figure.axes if axes.images]


def texts_of(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


@pytest.mark.parametrize("branching", [(), (2,), (3, 3), (2, 3), (3, 3, 3, 3)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_node_has_an_image_and_its_absolute_probability(branching, channels) -> None:
    tree = make_tree(branching, shape=(channels, 4, 4))
    figure = draw(tree, y=torch.rand(1, 1, 4, 4), x=torch.rand(1, channels, 4, 4))
    expected = ["Truth", "Input", "Mean"]
    expected += [f"{p:.2f}" for level in tree.probs[1:] for p in level[0].tolist()]
    assert len(images_of(figure)) == 2 + sum(level.shape[1] for level in tree.probs)
    assert texts_of(figure) == expected


def test_nodes_are_shown_in_the_order_of_the_tree() -> None:
    tree = make_tree((2, 2))
    shown = [torch.from_numpy(image.get_array().data) for image in images_of(draw(tree))]
    nodes = [node for level in tree.images for node in level[0, :, 0]]
    assert all(torch.equal(a, b) for a, b in zip(shown, nodes, strict=True))


@pytest.mark.parametrize("branching", [(), (2,), (2, 3), (4, 4)])
def test_no_two_images_overlap_or_leave_the_figure(branching) -> None:
    tree = make_tree(branching)
    figure = draw(tree, x=torch.rand(1, 1, 6, 5), y=torch.rand(1, 1, 6, 5))
    boxes = [axes.get_position() for axes in figure.axes if axes.images]
    for i, a in enumerate(boxes):
        assert 0 <= a.x0 < a.x1 <= 1
        assert 0 <= a.y0 < a.y1 <= 1
        assert all(a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0 for b in boxes[:i])


def test_a_parent_sits_over_the_middle_of_its_children() -> None:
    boxes = [axes.get_position() for axes in draw(make_tree((2, 3))).axes if axes.images]
    middles = [(box.x0 + box.x1) / 2 for box in boxes]
    assert middles[0] == pytest.approx(sum(middles[1:3]) / 2)
    assert middles[1] == pytest.approx(sum(middles[3:6]) / 3)


def test_edges_are_wider_where_the_probability_is_higher() -> None:
    tree = grow(torch.rand(1, 3, 1, 4, 4), torch.tensor([[0.7, 0.2, 0.1]]).log(), 3)
    stem, *branches = (line.get_linewidth() for line in draw(tree).axes[0].lines)
    assert stem > branches[0] > branches[1] > branches[2] > 0


def test_absent_nodes_are_blank() -> None:
    tree = make_tree((2, 2), absent=(1, 2, 3))
    figure = draw(tree)
    frames = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert len(images_of(figure)) == 3
    assert texts_of(figure) == ["Mean", "1.00", "1.00"]
    assert len(frames) == 4
    assert not any(frame.get_fill() for frame in frames)


@pytest.mark.parametrize("seed", range(6))
def test_a_grown_tree_shows_each_of_its_nodes_once_and_nothing_else(seed: int, tmp_path) -> None:
    growth = make_growth(splits=9, seed=seed, most=2 if seed % 2 else 3)
    growth.tree().save(tmp_path / "grown.safetensors")
    tree = Tree.load(tmp_path / "grown.safetensors")
    figure = draw(tree)
    shown = [image.get_array().data for image in images_of(figure)]
    paths = sorted(growth.nodes, key=lambda path: (len(path), path))
    assert len(shown) == len(paths) < sum(level.shape[1] for level in tree.probs)
    for image, path in zip(shown, paths, strict=True):
        assert (image == growth.nodes[path][0][0].numpy()).all(), path
    chances = [f"{growth.prob(path):.2f}" for path in paths if path]
    assert [t for t in texts_of(figure) if not t.startswith("level")] == ["Mean", *chances]


@pytest.mark.parametrize("seed", range(6))
def test_in_a_grown_tree_nothing_overlaps_and_parents_are_centred(seed: int) -> None:
    tree = make_growth(splits=12, seed=seed).tree()
    columns = arrange(tree)
    for level in range(tree.depth + 1):
        row = [column for (at, _), column in sorted(columns.items()) if at == level]
        assert all(b - a >= 1 - 1e-9 for a, b in pairwise(row)), level
    for (level, node), column in columns.items():
        k = tree.branching[level] if level < tree.depth else 0
        below = [columns[p] for i in range(k) if (p := (level + 1, k * node + i)) in columns]
        assert len(below) in (0, k)
        assert not below or column == pytest.approx((below[0] + below[-1]) / 2)
    boxes = [axes.get_position() for axes in draw(tree).axes if axes.images]
    for i, a in enumerate(boxes):
        assert 0 <= a.x0 < a.x1 <= 1
        assert 0 <= a.y0 < a.y1 <= 1
        assert all(a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0 for b in boxes[:i])


def test_a_grown_tree_is_no_wider_than_its_ends_need() -> None:
    """Two long branches at the sides of a short one: it stands between them, and what is free
    below it is used."""
    growth = make_growth(0)
    growth.branch = lambda asked: [
        Siblings(torch.rand(3, 1, 6, 5), torch.zeros(3).log_softmax(0)) for _ in asked
    ]
    growth.expand(())
    growth.expand((0,), (2,))
    columns = arrange(growth.tree())
    assert max(columns.values()) - min(columns.values()) == 5, "six nodes on the last level"
    middles = [columns[1, node] for node in range(3)]
    assert middles[1] - middles[0] == middles[2] - middles[1] == 1.5
    balanced = arrange(make_tree((3, 3)))
    assert sorted(balanced.values())[::12] == [balanced[2, 0], balanced[2, 8]]
    assert balanced[2, 8] - balanced[2, 0] == 8


def test_where_branches_end_is_bold_and_sums_to_one() -> None:
    figure = draw(make_growth(7, seed=3).tree(), y=torch.rand(1, 1, 6, 5))
    texts = [text for axes in figure.axes for text in axes.texts]
    bold = [float(text.get_text()) for text in texts if text.get_weight() == "bold"]
    assert sum(bold) == pytest.approx(1, abs=0.005 * len(bold))
    levels = [text.get_text() for text in texts if text.get_text().startswith("level")]
    assert levels == [f"level {i + 1}" for i in range(len(levels))]
    assert len(levels) > 1
    plain = draw(make_tree()).axes[0].texts
    assert {text.get_weight() for text in plain} == {"normal"}


def test_below_an_absent_child_of_a_split_node_nothing_is_drawn() -> None:
    figure = draw(make_tree((3, 2, 2), absent=(4, 5, 6, 7)))
    frames = [p for p in figure.axes[0].patches if isinstance(p, Rectangle)]
    assert len(frames) == 1
    assert len(images_of(figure)) == 1 + 2 + 4 + 8


def test_what_was_asked_about_is_outlined() -> None:
    """In pixels of the picture: rows 1 and 2, columns 0 to 3."""
    figure = draw(make_tree((2,)), x=torch.rand(1, 1, 6, 5), box=(1, 0, 2, 4))
    frames = [axes.patches[0] for axes in figure.axes if axes.images]
    assert len(frames) == 4
    assert {to_hex(frame.get_edgecolor()) for frame in frames} == {ASKED}
    assert {frame.get_bbox().bounds for frame in frames} == {(-0.5, 0.5, 4, 2)}


def test_the_path_of_the_truth_is_highlighted() -> None:
    tree = make_tree((3, 3))
    x = tree.leaves[:, 7]
    figure = draw(tree, path=tree.descend(x))
    images = [axes for axes in figure.axes if axes.images]
    marked = [
        i for i, a in enumerate(images) if to_hex(a.spines["left"].get_edgecolor()) == HIGHLIGHT
    ]
    sizes = [0, 1, 4]
    assert marked == [a + int(b) for a, b in zip(sizes, tree.descend(x)[0], strict=True)]
    lines = figure.axes[0].lines
    assert sum(to_hex(line.get_color()) == HIGHLIGHT for line in lines) == 4  # 2 stems, 2 branches


def test_values_are_clipped_only_for_display() -> None:
    leaves = torch.tensor([-0.5, 1.5]).reshape(1, 2, 1, 1, 1).expand(1, 2, 1, 2, 2)
    tree = grow(leaves, torch.zeros(1, 2).log_softmax(1), 2)
    shown = [image.get_array() for image in images_of(draw(tree))]
    assert [float(image.min()) for image in shown] == [0.5, 0.0, 1.0]
    assert tree.leaves.min() == -0.5
    assert tree.leaves.max() == 1.5


def test_half_precision_and_gradients_do_not_matter() -> None:
    leaves = torch.rand(1, 2, 3, 4, 4, requires_grad=True)
    tree = grow(leaves, torch.zeros(1, 2).log_softmax(1), 2).to(torch.bfloat16)
    assert len(images_of(draw(tree))) == 3


def test_small_images_keep_their_pixels() -> None:
    kinds = {
        size: images_of(draw(make_tree((2,), shape=(1, size, size))))[0].get_interpolation()
        for size in (28, 128)
    }
    assert kinds == {28: "nearest", 128: "antialiased"}


def test_a_grid_stacks_trees_of_several_images() -> None:
    trees = make_tree((2, 2), batch=3)
    figure = draw_grid(trees, y=torch.rand(3, 1, 6, 5), names=["a", "b", "c"], title="Three")
    assert len(images_of(figure)) == 3 * (7 + 1)
    assert {"a", "b", "c", "Three"} <= set(texts_of(figure))
    bottoms = [axes.get_position().y0 for axes in figure.axes if axes.images]
    assert min(bottoms[:8]) > max(bottoms[8:16]) > min(bottoms[8:16]) > max(bottoms[16:])


def test_files_are_what_their_extension_says(tmp_path: Path) -> None:
    tree, y = make_tree((2, 2), shape=(3, 8, 8)), torch.rand(1, 3, 8, 8)
    for suffix in ("png", "jpg", "svg", "pdf"):
        save_figure(tree, tmp_path / f"tree.{suffix}", y=y, title="Cost: $5 & <b>", dpi=50)
    assert Image.open(tmp_path / "tree.png").format == "PNG"
    assert Image.open(tmp_path / "tree.jpg").format == "JPEG"
    assert "<svg" in (tmp_path / "tree.svg").read_text()
    assert (tmp_path / "tree.pdf").read_bytes().startswith(b"%PDF")


def test_the_users_matplotlib_is_left_alone() -> None:
    before = dict(matplotlib.rcParams)
    draw(make_tree())
    assert dict(matplotlib.rcParams) == before
    assert Gcf.get_all_fig_managers() == []


def test_a_batch_of_several_trees_is_refused_with_advice() -> None:
    with pytest.raises(ValueError, match=r"batch of 2: choose one with tree\[i\]"):
        draw(make_tree(batch=2))


def test_unfitting_companions_are_named() -> None:
    tree = make_tree()
    with pytest.raises(ValueError, match="y holds 2 images, the tree 1"):
        draw(tree, y=torch.rand(2, 1, 6, 5))
    with pytest.raises(ValueError, match="x: 2 channels"):
        draw(tree, x=torch.rand(1, 2, 6, 5))
    with pytest.raises(ValueError, match="path names 2 nodes; in a tree of depth 2"):
        draw(tree, path=torch.zeros(1, 2, dtype=torch.long))


def test_points_are_not_images() -> None:
    tree = grow(torch.rand(1, 2, 2), torch.zeros(1, 2).log_softmax(1), 2)
    with pytest.raises(ValueError, match=re.escape("nodes have shape (2,)")):
        draw(tree)


def test_nan_pixels_name_their_node() -> None:
    tree = make_tree((2, 2))
    tree.images[2][0, 3, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"node \(1, 1\) of image 0 has 1 NaN or infinite pixels"):
        draw(tree)


def test_nan_probabilities_name_their_node() -> None:
    tree = make_tree((2,))
    tree.log_probs[1][0, 1] = torch.nan
    with pytest.raises(ValueError, match=r"node \(1,\) of image 0 has probability NaN"):
        draw(tree)


def test_an_unknown_format_or_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.png, \.jpg, \.svg, \.pdf"):
        save_figure(make_tree(), tmp_path / "tree.bmp")
    with pytest.raises(StoreError, match=r"could not write .*There is no folder .*make it"):
        save_figure(make_tree(), tmp_path / "nowhere" / "tree.png")


def test_the_studies_strips_name_pictures_as_the_trees_do() -> None:
    """Truth, Input and Mean, everywhere that a picture of them is drawn."""
    tree, x = make_tree((2,)), torch.rand(1, 1, 6, 5)
    figure = Figure()
    draw_strips(figure, [Strip("ours", tree, x, x)], columns=5, left=0.1)
    known = [axes.get_title() for axes in figure.axes[:3]]
    assert known == texts_of(draw(tree, y=x, x=x))[:3] == ["Truth", "Input", "Mean"]
