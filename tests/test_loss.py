"""The hierarchical oracle loss and its limits."""

import math

import pytest
import torch
from test_tree import random_tree

from posterior_trees import Tree, epsilon_at, grow, probability_loss, tree_loss
from posterior_trees.training.association.surprise import Surprise
from posterior_trees.training.objective import objective


def setup(branching=3, depth=2):
    leaves, log_probs, levels = random_tree(branching, depth)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    return grow(leaves, log_probs, levels), x


@pytest.mark.parametrize(("branching", "depth"), [(2, 1), (3, 2), ((2, 3), 2), (2, 0)])
def test_epsilon_one_is_plain_mse_of_all_nodes(branching, depth):
    tree, x = setup(branching, depth)
    plain = sum((level - x[:, None]).square().flatten(2).mean(2).sum(1) for level in tree.images)
    torch.testing.assert_close(tree_loss(tree, x, 1.0), plain)


@pytest.mark.parametrize(("branching", "depth"), [(2, 1), (3, 2), ((2, 3), 2), (2, 0)])
def test_epsilon_zero_is_the_path_alone(branching, depth):
    tree, x = setup(branching, depth)
    path = tree.descend(x)
    on_path = sum(
        (images[torch.arange(3), path[:, level]] - x).square().flatten(1).mean(1)
        for level, images in enumerate(tree.images)
    )
    torch.testing.assert_close(tree_loss(tree, x, 0.0), on_path)


def test_depth_zero_is_a_plain_mse_estimator():
    tree, x = setup(2, 0)
    torch.testing.assert_close(tree_loss(tree, x), (tree.root - x).square().flatten(1).mean(1))
    assert probability_loss(tree, x).abs().max() == 0


def test_gradients_of_losers_scale_with_epsilon():
    """A leaf that lost against a sibling once gets ε of the winner's weight, one whose parent lost
    too ε². Probabilities are fixed so that only the leaf's own term is compared."""
    tree, x = setup()
    path = tree.descend(x)[0].tolist()
    for epsilon in (0.5, 0.01):
        for leaf in range(9):
            weight = (1 if leaf // 3 == path[1] else epsilon) * (
                1 if leaf == 3 * (leaf // 3) + _nearest(tree, x, leaf // 3) else epsilon
            )
            images = [level.clone() for level in tree.images]
            images[2].requires_grad_()
            from posterior_trees import Tree

            tree_loss(Tree(images, tree.log_probs, (3, 3)), x, epsilon)[0].backward()
            plain = 2 * (tree.leaves[0, leaf] - x[0]) / x[0].numel()
            torch.testing.assert_close(images[2].grad[0, leaf], weight * plain)


def _nearest(tree, x, parent):
    errors = (tree.leaves[0, 3 * parent : 3 * parent + 3] - x[0]).square().flatten(1).mean(1)
    return int(errors.argmin())


def test_loss_is_one_value_per_image_and_images_do_not_mix():
    tree, x = setup()
    whole = tree_loss(tree, x, 0.2)
    single = torch.cat([tree_loss(tree[i], x[i : i + 1], 0.2) for i in range(3)])
    torch.testing.assert_close(whole, single)


def test_permuting_siblings_does_not_change_the_loss():
    leaves, log_probs, _ = random_tree(3, 2)
    x = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    order = torch.tensor([5, 3, 4, 0, 2, 1, 8, 7, 6])
    before = grow(leaves, log_probs, 3)
    after = grow(leaves[:, order], log_probs[:, order], 3)
    for epsilon in (0.0, 0.3):
        torch.testing.assert_close(tree_loss(before, x, epsilon), tree_loss(after, x, epsilon))
    torch.testing.assert_close(probability_loss(before, x), probability_loss(after, x))


def test_probability_loss_is_minimal_at_the_true_frequencies():
    """A proper score: over truths that reach leaf i with frequency f_i, f minimises it."""
    leaves = torch.tensor([[[0.0], [1.0], [10.0], [11.0]]], dtype=torch.float64)
    truths = torch.tensor([0.0, 0.0, 0.0, 1.0, 10.0, 10.0, 11.0, 11.0], dtype=torch.float64)
    frequency = torch.tensor([3, 1, 2, 2], dtype=torch.float64) / 8
    logits = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=50)

    def closure():
        optimizer.zero_grad()
        tree = grow(leaves.expand(8, 4, 1), logits.log_softmax(0).expand(8, 4), 2)
        loss = probability_loss(tree, truths[:, None]).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    torch.testing.assert_close(logits.softmax(0), frequency, rtol=0, atol=1e-5)


def test_objective_is_the_sum_of_both_losses():
    tree, x = setup()
    parts = objective(tree, x, 0.3)
    scale = (tree.root - x).square().mean()
    expected = tree_loss(tree, x, 0.3) + 0.4 * scale * probability_loss(tree, x)
    torch.testing.assert_close(parts.total(0.4, parts.root.mean()), expected)
    torch.testing.assert_close(parts.total(0.0, parts.root.mean()), tree_loss(tree, x, 0.3))
    assert torch.equal(parts.leaf, tree.descend(x)[:, -1])


def test_a_rate_changes_only_whom_the_truth_teaches():
    tree, x = setup()
    plain, free = objective(tree, x, 0.3), objective(tree, x, 0.3, [Surprise(1e-12)])
    torch.testing.assert_close(free.squared, plain.squared)
    dear = objective(tree, x, 0.0, [Surprise(1e9)])  # the likeliest path, whatever its error
    errors, node = tree.errors(x), torch.zeros(len(x), dtype=torch.long)
    want = errors[0][:, 0]
    for level, k in enumerate(tree.branching, start=1):
        children = node[:, None] * k + torch.arange(k)
        node = children.gather(1, tree.log_probs[level].gather(1, children).argmax(1, keepdim=True))
        want = want + errors[level].gather(1, node).squeeze(1)
        node = node.squeeze(1)
    torch.testing.assert_close(dear.squared, want)
    for part in ("nll", "entropy", "root", "leaf"):
        assert torch.equal(getattr(dear, part), getattr(plain, part))


def test_every_level_may_have_a_rate_of_its_own():
    tree, x = setup()
    errors = tree.errors(x)
    for rates, level in (([0.3, 0.0], 1), ([0.0, 0.3], 2)):
        mixed, both = (Surprise(rate).adjust(tree, x, errors) for rate in (rates, 0.3))
        assert torch.equal(mixed[level], both[level])
        assert torch.equal(mixed[3 - level], errors[3 - level])
    same = objective(tree, x, 0.1, [Surprise((0.2,))]).squared
    assert torch.equal(same, objective(tree, x, 0.1, [Surprise([0.2, 0.2])]).squared)
    assert torch.equal(same, objective(tree, x, 0.1, [Surprise(0.2)]).squared)
    root = Tree(tree.images[:1], tree.log_probs[:1], ())
    assert len(Surprise([0.1, 0.2]).adjust(root, x, errors[:1])) == 1
    with pytest.raises(ValueError, match="3 rates for a tree of depth 2"):
        Surprise([0.1, 0.2, 0.3]).adjust(tree, x, errors)


def test_a_rate_moves_the_border_between_two_leaves_towards_the_rarer():
    """Of leaves at 0 and 1 with odds p : 1 − p a point z belongs to the first up to
    z = ½ + ½ λ e_root ln(p / (1 − p))."""
    p, rate, z = 0.8, 0.1, torch.linspace(0.3, 0.8, 501, dtype=torch.float64)[:, None]
    leaves = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(len(z), 2, 1)
    log_probs = torch.tensor([p, 1 - p], dtype=torch.float64).log().expand(len(z), 2)
    tree = grow(leaves, log_probs, 2)
    errors = tree.errors(z)
    first = tree.winners(Surprise(rate).adjust(tree, z, errors))[0][:, 0] == 0
    border = 0.5 + 0.5 * rate * errors[0][:, 0] * math.log(p / (1 - p))
    assert torch.equal(first, z[:, 0] <= border)
    assert (border > 0.5).all()


def test_epsilon_starts_at_one_and_halves_as_published():
    assert epsilon_at(0) == epsilon_at(5) == 1.0
    assert epsilon_at(7) == pytest.approx(math.exp(-1))
    assert epsilon_at(2.5, start=0.5, scale=0.25) == pytest.approx(math.exp(-8))
    with pytest.raises(ValueError, match="scale is 0"):
        epsilon_at(1, scale=0)


@pytest.mark.parametrize("epochs", [1, 4, 5, 70])
def test_epsilon_falls_within_a_loop_of_any_length_that_it_is_told(epochs):
    values = [epsilon_at(epoch, epochs=epochs) for epoch in range(epochs + 1)]
    assert values[0] == 1.0
    assert values[-1] == pytest.approx(math.exp(-7.5))
    assert sorted(values, reverse=True) == values
