"""Identities of the tree, in float64."""

import math

import numpy as np
import pytest
import torch

from posterior_trees import Tree, grow

LAYOUTS = [(2, 1), (2, 4), (3, 2), (5, 0), ((2, 3), 2), ((4, 1 + 1), 2)]


def levels_of(branching, depth):
    return branching if isinstance(branching, tuple) else (branching,) * depth


def random_tree(branching, depth, batch=3, shape=(2, 4, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    n = math.prod(levels_of(branching, depth))
    leaves = torch.randn(batch, n, *shape, dtype=torch.float64, generator=generator)
    logits = torch.randn(batch, n, dtype=torch.float64, generator=generator)
    return leaves, logits.log_softmax(1), levels_of(branching, depth)


def mean_and_spread(images, probs):
    p = probs.reshape(*probs.shape, *[1] * (images.ndim - 2))
    mean = (p * images).sum(1)
    return mean, (p * (images - mean.unsqueeze(1)).square()).sum(1)


@pytest.mark.parametrize(("branching", "depth"), LAYOUTS)
def test_root_is_the_mean_of_the_leaves(branching, depth):
    leaves, log_probs, levels = random_tree(branching, depth)
    tree = grow(leaves, log_probs, levels)
    mean, _ = mean_and_spread(leaves, log_probs.exp())
    torch.testing.assert_close(tree.root, mean, rtol=0, atol=1e-12)
    assert tree.branching == levels
    assert tree.depth == len(levels)


@pytest.mark.parametrize(("branching", "depth"), LAYOUTS)
def test_variance_splits_over_levels(branching, depth):
    """The leaves' spread is the sum of the spreads of the children about their parents."""
    leaves, log_probs, levels = random_tree(branching, depth)
    tree = grow(leaves, log_probs, levels)
    _, total = mean_and_spread(leaves, log_probs.exp())
    parts = torch.zeros_like(total)
    for level, k in enumerate(levels, start=1):
        parents = tree.images[level - 1].repeat_interleave(k, dim=1)
        p = tree.probs[level].reshape(*tree.probs[level].shape, 1, 1, 1)
        parts = parts + (p * (tree.images[level] - parents).square()).sum(1)
    torch.testing.assert_close(parts, total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("branching", "depth"), LAYOUTS)
def test_every_level_sums_to_one(branching, depth):
    tree = grow(*random_tree(branching, depth))
    for probs in tree.probs:
        torch.testing.assert_close(probs.sum(1), torch.ones(3, dtype=torch.float64))


def test_permuting_siblings_changes_nothing_above_them():
    leaves, log_probs, _ = random_tree(3, 2)
    order = torch.tensor([1, 2, 0, 5, 4, 3, 6, 8, 7])
    before, after = grow(leaves, log_probs, 3), grow(leaves[:, order], log_probs[:, order], 3)
    for level in (0, 1):
        torch.testing.assert_close(before.images[level], after.images[level])
        torch.testing.assert_close(before.log_probs[level], after.log_probs[level])


def test_children_of_node_i_are_k_i_to_k_i_plus_k_minus_1():
    leaves, log_probs, _ = random_tree((2, 3), 2)
    tree = grow(leaves, log_probs, (2, 3))
    for path in tree.paths(2):
        node = tree.node(path)
        index = path[0] * 3 + path[1]
        torch.testing.assert_close(node.image, tree.leaves[:, index])
        torch.testing.assert_close(node.prob, tree.probs[2][:, index])
        parent = tree.node(path[:1])
        share = tree.log_probs[2][:, 3 * path[0] : 3 * path[0] + 3].logsumexp(1)
        torch.testing.assert_close(parent.log_prob, share)


def test_descend_finds_each_leaf_from_its_own_image_when_clusters_are_far_apart():
    centres = torch.arange(9, dtype=torch.float64).reshape(1, 9, 1)
    leaves = (centres + 100 * (centres // 3)).expand(1, 9, 1)
    tree = grow(leaves, torch.full((1, 9), -math.log(9), dtype=torch.float64), 3)
    for leaf in range(9):
        assert tree.descend(leaves[:, leaf]).tolist() == [[0, leaf // 3, leaf]]


def test_descend_is_greedy_and_ties_go_to_the_lowest_index():
    leaves = torch.tensor([[[0.0], [4.0], [1.0], [1.0]]])
    tree = grow(leaves, torch.full((1, 4), -math.log(4)), 2)
    # parents are at 2 and 1: the truth 0 goes to the second although leaf 0 is exact
    assert tree.descend(torch.tensor([[0.0]])).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dead", [[0], [0, 1, 2], [0, 1, 2, 3, 4], list(range(8))])
def test_zero_probability_subtree_leaves_ancestors_finite(dead):
    leaves, log_probs, _ = random_tree(3, 2)
    log_probs = log_probs.clone()
    log_probs[:, dead] = -math.inf
    log_probs = log_probs.log_softmax(1).requires_grad_()
    leaves[:, dead[0]] = math.nan  # nobody looks at the image of an absent leaf
    leaves.requires_grad_()
    tree = grow(leaves, log_probs, 3)
    alive = [i for i in range(9) if i not in dead]
    mean, _ = mean_and_spread(leaves[:, alive], log_probs[:, alive].exp())
    torch.testing.assert_close(tree.root, mean)
    for level in range(3):
        assert tree.images[level].isfinite().all()
    for leaf in dead:
        parent = tree.images[1][:, leaf // 3]
        torch.testing.assert_close(tree.leaves[:, leaf], parent)
    from posterior_trees import probability_loss, tree_loss

    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    assert not set(tree.descend(x)[:, -1].tolist()) & set(dead)
    (tree_loss(tree, x, 0.3) + probability_loss(tree, x)).sum().backward()
    assert leaves.grad.isfinite().all()
    assert log_probs.grad.isfinite().all()
    assert leaves.grad[:, dead].abs().max() == 0


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (1, 3, 8, 8), (4, 8, 8), (4, 3, 8, 9)])
def test_a_truth_of_another_shape_is_refused(shape):
    """It would be stretched to fit, and give an error of something else."""
    tree = grow(torch.rand(4, 3, 3, 8, 8), torch.zeros(4, 3).log_softmax(1), 3)
    for judge in (tree.errors, tree.descend):
        with pytest.raises(ValueError, match=r"x has shape .* each tree has \(4, 3, 8, 8\)"):
            judge(torch.rand(shape))


def test_numbers_of_numpy_and_torch_choose_a_tree():
    tree = grow(torch.rand(4, 3, 2), torch.zeros(4, 3).log_softmax(1), 3)
    for index in (np.int64(2), torch.tensor(2), 2, -2):
        assert torch.equal(tree[index].leaves, tree.leaves[2:3])
    assert torch.equal(tree[torch.tensor([2, 0])].leaves, tree.leaves[[2, 0]])


def test_growth_stays_in_float32_under_autocast():
    leaves = torch.rand(2, 9, 3, 8, 8)
    log_probs = torch.randn(2, 9).log_softmax(1)
    exact = grow(leaves.double(), log_probs.double(), 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tree = grow(leaves, log_probs, 3)
    assert tree.root.dtype == torch.float32
    torch.testing.assert_close(tree.root.double(), exact.root, rtol=0, atol=1e-6)
    assert grow(leaves.bfloat16(), log_probs.bfloat16(), 3).root.dtype == torch.float32


def test_growth_has_the_right_gradient():
    leaves, log_probs, _ = random_tree(2, 2, batch=1, shape=(2,))
    leaves.requires_grad_()
    logits = log_probs.clone().requires_grad_()

    def images(leaves, logits):
        return torch.cat(grow(leaves, logits.log_softmax(1), 2).images, dim=1)

    assert torch.autograd.gradcheck(images, (leaves, logits))


def test_points_work_like_images():
    tree = grow(torch.rand(4, 4, 2), torch.randn(4, 4).log_softmax(1), 2)
    assert tree.root.shape == (4, 2)
    assert tree.descend(torch.rand(4, 2)).shape == (4, 3)


def test_one_images_tree_is_a_tree():
    tree = grow(*random_tree(3, 2))
    one = tree[-1]
    assert len(one) == 1
    assert repr(one).startswith("Tree(1 image of (")
    torch.testing.assert_close(one.root, tree.root[2:])
    assert [len(t) for t in tree] == [1, 1, 1]
    with pytest.raises(IndexError, match="image 3 of a batch of 3"):
        tree[3]


def test_a_saved_tree_comes_back_bit_for_bit(tmp_path):
    leaves, log_probs, levels = random_tree((2, 3), 2)
    log_probs[:, 0] = -math.inf
    tree = grow(leaves, log_probs, levels)
    tree.save(tmp_path / "tree.safetensors")
    back = Tree.load(tmp_path / "tree.safetensors")
    assert (tmp_path / "tree.safetensors").stat().st_mode & 0o044 == 0o044, "for others to read"
    assert back.branching == (2, 3)
    for a, b in zip(tree.images + tree.log_probs, back.images + back.log_probs, strict=True):
        assert torch.equal(a, b)


def test_a_damaged_tree_file_is_refused(tmp_path):
    file = tmp_path / "tree.safetensors"
    file.write_bytes(b"not a tree")
    with pytest.raises(ValueError, match="damaged or not a safetensors file"):
        Tree.load(file)


@pytest.mark.parametrize(
    ("branching", "leaves", "message"),
    [
        (1, 4, "at least 2"),
        (3, 8, "8 leaves do not fill"),
        ((2, 1), 2, "at least 2"),
        (0, 1, "at least 2"),
    ],
)
def test_impossible_layouts_are_refused(branching, leaves, message):
    with pytest.raises(ValueError, match=message):
        grow(torch.rand(1, leaves, 2), torch.zeros(1, leaves), branching)


def test_a_path_outside_the_tree_is_refused():
    tree = grow(*random_tree(3, 2))
    with pytest.raises(IndexError, match="child 3"):
        tree.node((0, 3))
    with pytest.raises(IndexError, match="longer than the tree"):
        tree.node((0, 0, 0))
