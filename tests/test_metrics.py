"""Metrics: hand computations, exact offsets, and a diagnostic that tells estimators apart."""

import math

import pytest
import torch
from tiny import make_recipe
from torch import Tensor

from posterior_trees import Tree, entropy, grow, nll, psnr
from posterior_trees.data import ImageSet
from posterior_trees.evaluation.score import leaf_table, report, score, validate
from posterior_trees.loss import probability_loss
from posterior_trees.measure import Denoise, Inpaint, Paired
from posterior_trees.metrics import clamp_nll, displacement, information, summarize
from posterior_trees.networks.head import Leaves
from posterior_trees.predictor import TreePredictor

F64 = torch.float64


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_tree(b: int = 4, branching=(3, 3), shape=(2, 5, 4), seed: int = 0) -> Tree:
    generator, n = seeded(seed), math.prod(branching)
    leaves = torch.rand(b, n, *shape, dtype=F64, generator=generator)
    logits = torch.randn(b, n, dtype=F64, generator=generator)
    return grow(leaves, logits.log_softmax(1), branching)


def random_truth(b: int = 4, shape=(2, 5, 4), seed: int = 9) -> Tensor:
    return torch.rand(b, *shape, dtype=F64, generator=seeded(seed))


def test_psnr_by_hand():
    """Two children at 0 and 1 of even odds, truth 0.9: errors 0.4² at the root and 0.1² below."""
    leaves = torch.tensor([0.0, 1.0], dtype=F64).reshape(1, 2, 1, 1, 1)
    tree = grow(leaves, torch.full((1, 2), math.log(0.5), dtype=F64), 2)
    values = psnr(tree, torch.full((1, 1, 1, 1), 0.9, dtype=F64))
    expected = [[-10 * math.log10(0.4**2), -10 * math.log10(0.1**2)]]
    torch.testing.assert_close(values, torch.tensor(expected, dtype=F64))
    assert values[0, 1].item() == pytest.approx(20.0)


def test_psnr_follows_the_path():
    tree, x = random_tree(), random_truth()
    path, values = tree.descend(x), psnr(tree, x)
    for i in range(len(tree)):
        for level in range(3):
            error = (tree.images[level][i, path[i, level]] - x[i]).square().mean()
            assert values[i, level].item() == pytest.approx(-10 * math.log10(error))


@pytest.mark.parametrize("mask_shape", [(5, 4), (2, 5, 4)])
def test_hole_and_whole_psnr_differ_by_the_hole_fraction(mask_shape):
    """If everything outside the hole is exact, PSNR_whole = PSNR_hole − 10 log10(f)."""
    x = random_truth()
    hole = torch.rand(mask_shape, generator=seeded(3)) < 0.4
    tree = random_tree()
    leaves = torch.where(hole, tree.leaves, x[:, None])
    tree = grow(leaves, tree.log_probs[-1], tree.branching)
    offset = -10 * math.log10(hole.double().mean().item())
    torch.testing.assert_close(psnr(tree, x), psnr(tree, x, hole) + offset)


def test_psnr_is_not_clipped():
    leaves = torch.full((1, 2, 1, 1, 1), -1.0)
    tree = grow(leaves, torch.full((1, 2), math.log(0.5)), 2)
    assert psnr(tree, torch.zeros(1, 1, 1, 1)).abs().max() < 1e-6  # error 1: 0 dB


def test_nll_of_a_uniform_tree_is_1_10_and_2_20():
    leaves = random_tree().leaves
    tree = grow(leaves, torch.full((4, 9), -math.log(9), dtype=F64), 3)
    expected = torch.tensor([0.0, math.log(3), math.log(9)], dtype=F64).expand(4, 3)
    torch.testing.assert_close(nll(tree, random_truth()), expected)
    torch.testing.assert_close(entropy(tree), expected)
    assert [round(v, 4) for v in expected[0].tolist()] == [0, 1.0986, 2.1972]


def test_nll_is_cumulative_and_ends_in_the_probability_loss():
    tree, x = random_tree(), random_truth()
    values = nll(tree, x)
    torch.testing.assert_close(values[:, 0], torch.zeros(4, dtype=F64))
    assert (values.diff(dim=1) >= 0).all()
    torch.testing.assert_close(values[:, -1], probability_loss(tree, x))


def test_the_root_holds_every_answer_exactly_whatever_rounding_makes_of_its_leaves():
    tree = grow(torch.rand(500, 9, 2), torch.randn(500, 9).log_softmax(1), 3)
    assert (tree.log_probs[0] != 0).any()  # float32
    assert torch.equal(nll(tree, torch.rand(500, 2))[:, 0], torch.zeros(500))
    assert torch.equal(entropy(tree)[:, 0], torch.zeros(500))


def test_entropy_lies_between_zero_and_the_log_of_the_nodes():
    tree = random_tree(b=50)
    values = entropy(tree)
    for level, nodes in enumerate((1, 3, 9)):
        assert (values[:, level] >= -1e-12).all()
        assert (values[:, level] <= math.log(nodes) + 1e-12).all()
    assert (values.diff(dim=1) >= 0).all()  # a finer partition is never surer
    sure = grow(tree.leaves, torch.full((50, 9), -1e4, dtype=F64).index_fill(
        1, torch.tensor([4]), 0.0), 3)  # fmt: skip
    assert entropy(sure).abs().max() < 1e-9


def test_absent_nodes_are_never_met_and_leave_all_values_finite():
    tree, x = random_tree(), random_truth()
    log_probs = tree.log_probs[-1].clone()
    log_probs[:, [0, 1, 2, 4]] = -math.inf  # a whole subtree and one leaf
    gone = grow(tree.leaves, log_probs.log_softmax(1), 3)
    exact = gone.leaves.clone()
    exact[:, 4] = x  # the absent leaf would win
    gone = Tree([*gone.images[:-1], exact], gone.log_probs, gone.branching)
    for values in (psnr(gone, x), nll(gone, x), entropy(gone)):
        assert values.isfinite().all()
    assert not torch.isin(gone.descend(x)[:, -1], torch.tensor([0, 1, 2, 4])).any()
    assert (entropy(gone)[:, 1] <= math.log(2)).all()
    assert (entropy(gone)[:, 2] <= math.log(5)).all()


def test_permuting_siblings_changes_no_metric():
    tree, x = random_tree(), random_truth()
    order = torch.tensor([5, 3, 4, 0, 2, 1, 7, 8, 6])  # subtrees and children inside them
    other = grow(tree.leaves[:, order], tree.log_probs[-1][:, order], 3)
    for metric in (psnr, nll):
        torch.testing.assert_close(metric(other, x), metric(tree, x))
    torch.testing.assert_close(entropy(other), entropy(tree))


@pytest.mark.parametrize(
    ("sharpness", "sign"), [(1.0, 0), (2.0, +1), (0.5, -1)], ids=["exact", "over", "under"]
)
def test_nll_minus_entropy_tells_exact_over_and_under_confident_apart(sharpness, sign):
    """The truth is drawn from known leaf probabilities; the estimator reports them, sharpened or
    flattened. E[NLL − entropy] is 0, above or below, at both depths, beyond 5 standard errors."""
    n, generator = 4000, seeded(1)
    probs = torch.randn(n, 9, dtype=F64, generator=generator).mul(1.5).softmax(1)
    place = torch.arange(9, dtype=F64) + 10 * (torch.arange(9) // 3)  # three far-apart families
    leaf = probs.multinomial(1, generator=generator)[:, 0]
    x = place[leaf, None] + 0.1 * torch.randn(n, 1, dtype=F64, generator=generator)
    claimed = (sharpness * probs.log()).log_softmax(1)
    tree = grow(place[None, :, None].expand(n, 9, 1), claimed, 3)
    # at depth 1 nodes are means under the claimed probabilities, still nearest to their family
    assert torch.equal(tree.descend(x)[:, -1], leaf)
    gap = (nll(tree, x) - entropy(tree))[:, 1:]
    error = gap.std(dim=0) / math.sqrt(n)
    if sign == 0:
        assert (gap.mean(dim=0).abs() < 4 * error).all()
    else:
        assert (sign * gap.mean(dim=0) > 5 * error).all()


def test_summary_is_mean_std_and_an_interval_that_shrinks_with_the_root_of_n():
    values = torch.randn(400, dtype=F64, generator=seeded())
    one, many = summarize(values), summarize(values.repeat(16))
    assert one.mean == pytest.approx(values.mean().item())
    assert one.std == pytest.approx(values.std(correction=0).item())
    assert one.low < one.mean < one.high
    assert one.high - one.low == pytest.approx(2 * 1.96 * one.std / 20, rel=0.15)
    assert (one.high - one.low) / (many.high - many.low) == pytest.approx(4, rel=0.15)


def test_bootstrap_interval_covers_the_truth_95_times_in_100():
    generator = seeded(2)
    hits = 0
    for _ in range(200):
        s = summarize(torch.randn(60, dtype=F64, generator=generator), draws=200)
        hits += s.low <= 0 <= s.high
    assert 180 <= hits <= 198


def test_copies_in_a_group_say_no_more_than_one_of_them():
    """Windows of an image are drawn together: the interval is that of the images."""
    values = torch.randn(40, dtype=F64, generator=seeded())
    groups = torch.arange(40).repeat_interleave(4)
    one, four = summarize(values), summarize(values.repeat_interleave(4), groups=groups)
    assert four == pytest.approx(one)
    shuffled = torch.randperm(160, generator=seeded(1))
    mixed = values.repeat_interleave(4)[shuffled]
    assert summarize(mixed, groups=groups[shuffled]) == pytest.approx(one)
    alone = summarize(values.repeat_interleave(4))
    assert (one.high - one.low) / (alone.high - alone.low) == pytest.approx(2, rel=0.15)


def test_groups_of_different_sizes_keep_the_mean_of_all_values():
    values = torch.tensor([1.0, 1.0, 1.0, 5.0], dtype=F64)
    found = summarize(values, groups=torch.tensor([7, 7, 7, 2]))
    assert (found.mean, found.low, found.high) == pytest.approx((2.0, 1.0, 5.0))
    assert math.isnan(summarize(values, groups=torch.zeros(4, dtype=torch.long)).low), "one group"
    groups = torch.cat([torch.arange(30).repeat_interleave(9), torch.arange(30, 60)])
    found = summarize((groups >= 30).double(), groups=groups)  # large groups have 0, small ones 1
    assert found.low < found.mean < found.high < 0.2


def test_an_exact_hit_does_not_make_a_mean_infinite():
    tree = grow(torch.zeros(2, 2, 1, 2, 2), torch.zeros(2, 2).log_softmax(1), 2)
    torch.testing.assert_close(psnr(tree, torch.zeros(2, 1, 2, 2)), torch.full((2, 2), 100.0))


def test_a_probability_of_nothing_counts_as_a_millionth_and_is_counted():
    values = torch.tensor([[0.0, 1.0, 40.0], [0.0, 13.0, 13.5], [0.0, 20.0, math.inf]])
    shown, count = clamp_nll(values)
    limit = math.log(1e6)
    assert shown.tolist() == [pytest.approx(row) for row in
                              ([0, 1, limit], [0, 13, 13.5], [0, limit, limit])]  # fmt: skip
    assert count == 2


class Constant(torch.nn.Module):
    """A network that always says the same leaves, with the same probabilities."""

    def __init__(self, leaves: Tensor, log_probs: Tensor) -> None:
        super().__init__()
        self.leaves, self.log_probs = torch.nn.Parameter(leaves), log_probs

    def forward(self, y: Tensor) -> Leaves:
        b = len(y)
        return Leaves(
            self.leaves.expand(b, *self.leaves.shape), self.log_probs.expand(b, len(self.log_probs))
        )


def constant_predictor(measurement) -> TreePredictor:
    leaves = torch.stack([torch.full((1, 4, 4), v) for v in (0.0, 0.3, 0.5)])
    network = Constant(leaves, torch.tensor([0.5, 0.25, 0.25]).log())
    return TreePredictor(network, measurement, branching=3, depth=1, channels=1)


def test_score_of_batches_equals_score_of_the_whole(blobs):
    images = ImageSet(blobs(10).x[:, :, :4, :4].contiguous())
    predictor = constant_predictor(Denoise(0.3))
    whole = score(predictor, images, batch_size=10, seed=4)
    parts = score(predictor, images, batch_size=3, seed=4)
    assert whole.keys() == parts.keys()
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name])
    other = score(predictor, images, batch_size=10, seed=5)
    assert not torch.equal(other["psnr"], whole["psnr"])  # another seed, other noise


def test_report_holds_what_the_contract_names(blobs):
    images = ImageSet(blobs(10).x[:, :, :4, :4].contiguous())
    hole = Inpaint.box((0, 1), (0, 3), size=(4, 4))
    scores = score(constant_predictor(hole), images)
    table = report(constant_predictor(hole), scores, model="m", task="t", split="test")
    assert list(table) == ["schema", "model", "task", "split", "n", "branching", "clip", "psnr",
                           "psnr_hole", "nll", "entropy", "hole_pixels", "leaves"]  # fmt: skip
    assert (table["n"], table["branching"], table["clip"], table["hole_pixels"]) == (
        10,
        [3],
        False,
        8,
    )
    for name in ("psnr", "psnr_hole", "nll", "entropy"):
        assert [row["depth"] for row in table[name]] == [0, 1]
        assert set(table[name][0]) == {"depth", "mean", "std", "low", "high"}
    offset = table["psnr"][1]["mean"] - table["psnr_hole"][1]["mean"]
    assert offset == pytest.approx(10 * math.log10(2), abs=1e-4)
    free = report(
        constant_predictor(Denoise(0.1)), score(constant_predictor(Denoise(0.1)), images),
        model="m", task="t", split="test",
    )  # fmt: skip
    assert free["psnr_hole"] is None
    assert free["hole_pixels"] is None
    scores["nll"] = scores["nll"].clone()
    scores["nll"][3, 1] = 40.0
    pairs = torch.arange(10) // 2
    table = report(constant_predictor(hole), scores, model="m", task="t", split="test",
                   groups=pairs)  # fmt: skip
    assert (table["n"], table["groups"], table["nll_clamped"]) == (10, 5, 1)
    expected = summarize(scores["psnr"][:, 1], groups=pairs)
    assert table["psnr"][1] == {"depth": 1, **expected._asdict()}


def test_information_is_what_probabilities_tell_apart():
    same = torch.tensor([[0.5, 0.3, 0.2]]).expand(7, 3)
    assert information(same) == pytest.approx(0, abs=1e-7)
    assert information(torch.eye(3)) == pytest.approx(math.log(3))
    random = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).softmax(dim=1)
    assert information(random) > 0
    twice = torch.cat([random, random])
    assert information(twice) == pytest.approx(information(random))


@pytest.mark.parametrize("shift", [(0.1, -0.73), (-0.4, 0.0), (0.0, 0.0)])
def test_displacement_finds_by_how_much_an_image_was_moved(shift):
    rows, columns = torch.meshgrid(*[torch.arange(40.0, dtype=torch.float64)] * 2, indexing="ij")

    def nuclei(at):
        places = [(12.0, 15.0), (25.0, 22.0)]
        spots = [((rows - r - at[0]) ** 2 + (columns - c - at[1]) ** 2) / -30 for r, c in places]
        return sum(spot.exp() for spot in spots).expand(3, 1, 40, 40)

    found = displacement(nuclei((0, 0)), nuclei(shift))
    want = torch.tensor(shift, dtype=torch.float64).expand(3, 2)
    torch.testing.assert_close(found, want, rtol=0.08, atol=0.01)
    assert torch.equal(
        displacement(torch.ones(2, 1, 8, 8), torch.ones(2, 1, 8, 8)), torch.zeros(2, 2)
    )


def test_only_pairs_have_an_offset(blobs):
    images = blobs(10)
    small = images.x[:, :, :4, :4].contiguous()
    pair = constant_predictor(Paired(1, 1))
    scores = score(pair, ImageSet(small, small))
    table = report(pair, scores, model="m", task="t", split="test")
    assert table["offset"] == pytest.approx(scores["offset"].mean(dim=0).tolist())
    assert "offset" not in score(constant_predictor(Denoise(0.1)), ImageSet(small))


def test_leaf_table_is_over_the_images_that_reach_a_leaf():
    scores = {
        "psnr": torch.tensor([[10.0, 20.0], [12.0, 22.0], [14.0, 30.0]]),
        "leaf": torch.tensor([0, 0, 2]),
        "probs": torch.tensor([[0.5, 0.2, 0.3]]).expand(3, 3),
    }
    first, second, third = leaf_table(scores)
    assert first == pytest.approx(
        {"frequency": 2 / 3, "probability": 0.5, "psnr": 21.0, "root_psnr": 11.0}
    )
    assert second["frequency"] == 0
    assert second["psnr"] is second["root_psnr"] is None
    assert third["psnr"] == pytest.approx(30.0)


def test_the_path_is_over_all_pixels_though_the_psnr_is_not():
    leaves = torch.tensor([[[0.0, 1.0], [0.4, 0.0]]]).reshape(1, 2, 1, 1, 2)
    tree = grow(leaves, torch.full((1, 2), 0.5).log(), 2)
    x, mask = torch.zeros(1, 1, 1, 2), torch.tensor([[True, False]])
    assert tree.descend(x)[0, -1] == 1
    assert psnr(tree, x, mask)[0, 1].item() == pytest.approx(-20 * math.log10(0.4))


def test_validation_speaks_of_the_hole(blobs):
    images = ImageSet(blobs(10).x[:, :, :4, :4].contiguous())
    predictor, recipe = constant_predictor(Inpaint.box((0, 1), (0, 3), size=(4, 4))), make_recipe()
    scores = score(predictor, images, seed=recipe.seed)
    line = validate(predictor, images, recipe)
    assert line["val_psnr"] == pytest.approx(scores["psnr_hole"].mean(dim=0).tolist())
