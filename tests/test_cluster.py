"""Hierarchical K-means: identities of its trees, and its objective against scikit-learn."""

import math

import pytest
import torch
from posterior_trees_paper.bench.rivals import make_samples

from posterior_trees import clustering as cluster
from posterior_trees.clustering import hierarchical_kmeans
from posterior_trees.toys import GaussianMixture
from posterior_trees.tree import Tree


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clouds(images: int, count: int, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Samples around a few random centres, far from the origin, in float64."""
    generator = seeded(seed)
    size = math.prod(shape)
    centers = 3 * torch.randn(images, 5, size, dtype=torch.float64, generator=generator)
    label = torch.randint(5, (images, count, 1), generator=generator).expand(-1, -1, size)
    noise = torch.randn(images, count, size, dtype=torch.float64, generator=generator)
    return (100 + centers.gather(1, label) + noise).reshape(images, count, *shape)


def within(samples: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """Mean over samples of the squared distance to the nearest centre, `(b,)`."""
    distance = (samples.unsqueeze(2) - centers.unsqueeze(1)).square().flatten(3).sum(dim=3)
    return distance.amin(dim=2).mean(dim=1)


@pytest.mark.parametrize("shape", [(2,), (1, 3, 3), (3, 8, 8)])
@pytest.mark.parametrize(("branching", "depth"), [(2, 1), (3, 2), ((2, 3), 2), (2, 4)])
def test_weighted_children_are_their_parent(shape, branching, depth) -> None:
    samples = clouds(3, 100, shape)
    tree = hierarchical_kmeans(samples, branching, depth, generator=seeded())
    torch.testing.assert_close(tree.root, samples.mean(dim=1), rtol=0, atol=1e-10)
    for level, k in enumerate(tree.branching):
        parents, children = tree.images[level], tree.images[level + 1].unflatten(1, (-1, k))
        weights = tree.probs[level + 1].unflatten(1, (-1, k))
        torch.testing.assert_close(weights.sum(dim=2), tree.probs[level], rtol=0, atol=1e-12)
        weights = weights.reshape(*weights.shape, *[1] * len(shape))
        mass = tree.probs[level].reshape(*tree.probs[level].shape, *[1] * len(shape))
        torch.testing.assert_close(
            (weights * children).sum(dim=2), mass * parents, rtol=0, atol=1e-10
        )
        torch.testing.assert_close(
            tree.probs[level + 1] * 100, (tree.probs[level + 1] * 100).round(), rtol=0, atol=1e-9
        )


def test_children_are_the_means_and_shares_of_the_samples_that_descend_to_them() -> None:
    """At convergence the greedy path of a sample ends in the cluster it belongs to."""
    samples = clouds(2, 120, (2,))
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    for image in range(2):
        wide = tree[torch.full((120,), image)]
        leaf = wide.descend(samples[image])[:, -1]
        for node in range(9):
            mine = samples[image][leaf == node]
            assert len(mine) / 120 == pytest.approx(tree.probs[-1][image, node].item())
            torch.testing.assert_close(mine.mean(dim=0), tree.leaves[image, node])


def test_the_total_spread_is_what_clustering_removes_and_what_it_leaves() -> None:
    samples = clouds(4, 80, (2,))
    tree = hierarchical_kmeans(samples, 4, 1, generator=seeded())
    total = within(samples, tree.images[0])
    between = (tree.images[1] - tree.images[0]).square().sum(dim=2)
    removed = (tree.probs[1] * between).sum(dim=1)
    torch.testing.assert_close(total, removed + within(samples, tree.images[1]))


def test_the_objective_is_that_of_scikit_learn() -> None:
    """Mean over 60 random problems within 0.5 % of KMeans with 5 restarts (K = 3, 100 samples)."""
    kmeans = pytest.importorskip("sklearn.cluster").KMeans
    samples = torch.cat([clouds(30, 100, (2,), seed=1), clouds(30, 100, (2,), seed=2) * 1.5])
    samples[:10] = torch.rand(10, 100, 2, generator=seeded(3), dtype=torch.float64)
    tree = hierarchical_kmeans(samples, 3, 1, generator=seeded())
    ours = within(samples, tree.leaves)
    reference = torch.tensor(
        [kmeans(3, n_init=5, random_state=i).fit(s).inertia_ / 100 for i, s in enumerate(samples)]
    )
    assert (ours / reference).mean().item() == pytest.approx(1.0, abs=0.005)
    assert ours.mean().item() == pytest.approx(reference.mean().item(), rel=0.005)


def test_images_give_the_objective_of_scikit_learn_too() -> None:
    kmeans = pytest.importorskip("sklearn.cluster").KMeans
    samples = clouds(20, 100, (2, 8, 8), seed=4)
    ours = within(samples, hierarchical_kmeans(samples, 3, 1, generator=seeded()).leaves)
    flat = samples.flatten(2).numpy()
    reference = [kmeans(3, n_init=5, random_state=0).fit(s).inertia_ / 100 for s in flat]
    assert ours.mean().item() == pytest.approx(sum(reference) / 20, rel=0.005)


def test_every_level_gives_the_objective_of_scikit_learn() -> None:
    """Mean over 60 images and over their 180 nodes, a dozen prototypes where K-means looks for 3.

    The nodes are our own: which of several equally good first cuts a tree starts with moves the sum
    over its leaves by more than a percent, either way.
    """
    kmeans = pytest.importorskip("sklearn.cluster").KMeans
    samples = make_samples(60, 100, (1, 20, 28))
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    ours, reference = torch.zeros(2, 60), torch.zeros(2, 60)
    for i, image in enumerate(samples):
        path = tree[torch.full((100,), i)].descend(image)
        ours[:, i] = torch.stack(
            [(image - tree.images[level][i, path[:, level]]).square().sum() for level in (1, 2)]
        )
        flat = image.flatten(1)
        reference[0, i] = kmeans(3, n_init=5, random_state=i).fit(flat).inertia_
        for node in range(3):
            inside = flat[path[:, 1] == node]
            if len(inside) > 3:
                reference[1, i] += kmeans(3, n_init=5, random_state=i).fit(inside).inertia_
    assert (ours.sum(dim=1) / reference.sum(dim=1)).tolist() == pytest.approx([1, 1], abs=0.005)


def test_restarts_only_lower_the_objective() -> None:
    samples = clouds(40, 60, (2,), seed=5)
    once = within(samples, hierarchical_kmeans(samples, 4, 1, 1, seeded()).leaves).mean()
    often = within(samples, hierarchical_kmeans(samples, 4, 1, 20, seeded()).leaves).mean()
    assert often < once


def test_separate_clusters_are_found() -> None:
    corners = torch.tensor([[0.0, 0.0], [0.0, 10.0], [30.0, 0.0], [30.0, 10.0]])
    samples = corners.repeat(25, 1) + 0.1 * torch.randn(100, 2, generator=seeded())
    tree = hierarchical_kmeans(samples.unsqueeze(0), 2, 2, generator=seeded())
    middles = tree.images[1][0]
    torch.testing.assert_close(
        middles[:, 0].sort().values, torch.tensor([0.0, 30.0]), atol=0.1, rtol=0
    )
    order = (tree.leaves[0, :, 0].round() * 10 + tree.leaves[0, :, 1]).argsort()
    torch.testing.assert_close(tree.leaves[0][order], corners, atol=0.1, rtol=0)
    torch.testing.assert_close(tree.probs[2], torch.full((1, 4), 0.25))


@pytest.mark.parametrize("shape", [(2,), (3, 4, 4)])
@pytest.mark.parametrize("distinct", [1, 2, 3])
def test_few_distinct_samples_become_one_child_each(distinct: int, shape) -> None:
    different = clouds(4, distinct, shape)
    samples = different.repeat_interleave(7, dim=1)
    samples = samples[:, torch.randperm(7 * distinct, generator=seeded())]
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    for level in (1, 2):
        assert ((~tree.is_absent(level)).sum(dim=1) == distinct).all()
        for image in range(4):
            present = tree.images[level][image][~tree.is_absent(level)[image]]
            found = torch.cdist(different[image].flatten(1), present.flatten(1)).amin(dim=1)
            assert found.max() < 1e-9
            assert torch.allclose(
                tree.probs[level][image].sort().values[-distinct:],
                torch.tensor(1 / distinct).double(),
            )
    assert all(level.isfinite().all() for level in tree.images)


def test_an_absent_node_has_the_image_of_its_parent() -> None:
    samples = torch.tensor([[[0.0], [0.0], [5.0]]])
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    absent = tree.is_absent(2).unflatten(1, (3, 3))
    children = tree.images[2].unflatten(1, (3, 3))
    parents = tree.images[1].unsqueeze(2).expand_as(children)
    assert absent.sum() == 7
    assert torch.equal(children[absent], parents[absent])


def test_one_sample_is_a_tree() -> None:
    samples = torch.randn(2, 1, 2, generator=seeded())
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    assert torch.equal(tree.root, samples[:, 0])
    assert ((~tree.is_absent(2)).sum(dim=1) == 1).all()


def test_more_distinct_samples_than_children_leave_no_child_absent() -> None:
    samples = clouds(50, 12, (2,), seed=6).repeat(1, 3, 1)
    tree = hierarchical_kmeans(samples, 3, 1, generator=seeded())
    assert not tree.is_absent(1).any()


def extended(points: torch.Tensor) -> torch.Tensor:
    """Points as `kmeans` wants them: a last coordinate says that they are not padding."""
    return torch.cat([points, torch.ones_like(points[..., :1])], dim=-1)


def test_an_empty_cluster_gets_the_farthest_point() -> None:
    points = extended(torch.tensor([[[0.0], [1.0], [2.0], [10.0]]]))
    centers = torch.tensor([[[[0.0, 1.0], [math.nan, math.nan]]]])
    filled = cluster._refill(points, torch.zeros(1, 1, 4, dtype=torch.int16), centers)
    assert filled[0, 0, :, 0].tolist() == [1.0, 10.0]


def test_a_cluster_keeps_its_last_point() -> None:
    points = extended(torch.tensor([[[0.0], [10.0]]]))
    centers = torch.tensor([[[[5.0, 1.0], [math.nan, math.nan], [math.nan, math.nan]]]])
    filled = cluster._refill(points, torch.zeros(1, 1, 2, dtype=torch.int16), centers)
    assert filled[0, 0, :2, 0].tolist() == [10.0, 0.0]
    assert filled[0, 0, 2].isnan().all()


def test_no_point_leaves_a_centre_it_sits_on() -> None:
    """Points less than a unit apart are the same, and padding is no point at all."""
    points = torch.cat([extended(torch.tensor([[[0.0], [0.5]]])), torch.zeros(1, 3, 2)], dim=1)
    centers = torch.tensor([[[[0.25, 1.0], [math.nan, math.nan]]]])
    filled = cluster._refill(points, torch.zeros(1, 1, 5, dtype=torch.int16), centers)
    assert filled[0, 0, 0].tolist() == [0.25, 1.0]
    assert filled[0, 0, 1].isnan().all()


def test_a_seed_that_nobody_is_near_still_ends_in_a_full_clustering() -> None:
    """Lloyd from two good centres and one in the void fills the third from the farthest point."""
    points = extended(torch.tensor([[[0.0], [3.0], [20.0], [23.0], [40.0]]]) - 17.2)
    seeds = extended(torch.tensor([[[[-16.0], [4.0], [1e4]]]]))
    labels = cluster._lloyd(points, seeds)
    assert labels[0, 0] == labels[0, 1] != labels[0, 2] == labels[0, 3]
    assert len(labels[0].unique()) == 3


def test_a_point_between_two_centres_goes_to_the_first_and_none_to_a_missing_one() -> None:
    points = extended(torch.tensor([[[-1.0], [0.0], [1.0]]]))
    centers = extended(torch.tensor([[[[math.nan], [1.0], [-1.0], [1.0]]]]))
    excess, nearest = cluster._assign(points, centers)
    assert nearest.tolist() == [[[2, 1, 1]]]
    squares = excess + points.square().sum(dim=2)
    torch.testing.assert_close(squares, torch.tensor([[[0.0, 1.0, 0.0]]]))


@pytest.mark.parametrize("patience", [2, 3, 7, 50])
def test_how_often_one_looks_for_convergence_does_not_matter(
    patience: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has settled stays as it is, also where clusters have to be filled again."""
    samples = torch.cat([clouds(20, 100, (4,)), clouds(20, 100, (4,), seed=1).round()])
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    monkeypatch.setitem(cluster.PATIENCE, "cpu", patience)
    again = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    torch.testing.assert_close(again.leaves, tree.leaves, rtol=0, atol=1e-12)
    assert torch.equal(again.log_probs[-1], tree.log_probs[-1])
    points = extended(torch.rand(30, 40, 2, generator=seeded()) * 1000)
    seeds = extended(torch.rand(30, 3, 5, 2, generator=seeded(1)) * 3000)  # most are in the void
    labels = cluster._lloyd(points, seeds)
    monkeypatch.setitem(cluster.PATIENCE, "cpu", 1)
    assert torch.equal(labels, cluster._lloyd(points, seeds))
    assert all(len(row.unique()) == 5 for row in labels)


DEGENERATE = {
    "spread out": lambda x: x,
    "far from the origin": lambda x: x + 1000,
    "tiny": lambda x: 1e-12 * x,
    "on a line": lambda x: x[:, :, :1] * x[:, :1],
    "few distinct": lambda x: x[:, :4].repeat(1, 10, 1),
    "with an outlier": lambda x: torch.cat([1e5 * x[:, :1], x[:, 1:]], dim=1),
    "all equal": lambda x: x[:, :1].repeat(1, 40, 1) + 3,
    "zero": torch.zeros_like,
    "one": lambda x: x[:, :1],
}


@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("name", ["_factor", "_span"])
def test_the_smaller_basis_keeps_all_distances(name: str, kind: str) -> None:
    """Up to half a unit, that is, of the distance at which samples become distinct."""
    samples = DEGENERATE[kind](torch.randn(5, 40, 300, generator=seeded()))
    points = cluster._measure(getattr(cluster, name)(samples)).double()
    assert points.shape[2] == samples.shape[1]
    centered = samples.double() - samples.double().mean(dim=1, keepdim=True)
    mode = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(centered, centered, compute_mode=mode)
    farthest = centered.square().sum(dim=2).amax(dim=1).sqrt().reshape(-1, 1, 1)
    unit = (farthest * 100 * torch.finfo(torch.float32).eps).clamp_min(1e-30)
    found = torch.cdist(points, points, compute_mode=mode)
    torch.testing.assert_close(found, distance / unit, rtol=1e-6, atol=0.5)


def assert_same_clusters(samples: torch.Tensor, one: Tree, other: Tree) -> None:
    """The same sizes and the same spread at every level, whatever the order of siblings."""
    for level in range(one.depth + 1):
        sizes = [tree.probs[level].sort(dim=1).values for tree in (one, other)]
        torch.testing.assert_close(sizes[0], sizes[1])
        spreads = [within(samples, tree.images[level]) for tree in (one, other)]
        torch.testing.assert_close(spreads[0], spreads[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("distinct", [1, 2, 5, 100])
def test_either_basis_gives_the_same_tree(distinct: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the order of siblings, which rounding decides where two seeds are equally good."""
    samples = clouds(10, distinct, (2, 9, 9)).float().repeat(1, 100 // distinct, 1, 1, 1)
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    monkeypatch.setattr(cluster, "_span", cluster._factor)
    again = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    assert_same_clusters(samples, again, tree)


def test_a_far_offset_costs_no_accuracy_in_float32() -> None:
    samples = clouds(10, 100, (2,)).float() - 100
    near = within(samples, hierarchical_kmeans(samples, 3, 1, generator=seeded()).leaves)
    far = hierarchical_kmeans(samples + 4096, 3, 1, generator=seeded()).leaves - 4096
    torch.testing.assert_close(within(samples, far), near, rtol=1e-3, atol=0)


def test_chunks_and_neighbours_do_not_change_a_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = clouds(6, 50, (2,))
    tree = hierarchical_kmeans(samples, 2, 2, generator=seeded(7))
    alone = hierarchical_kmeans(samples[:2], 2, 2, generator=seeded(7))
    monkeypatch.setattr(cluster, "CHUNK", 1)
    chunked = hierarchical_kmeans(samples, 2, 2, generator=seeded(7))
    torch.testing.assert_close(chunked.leaves, tree.leaves)
    torch.testing.assert_close(alone.leaves, tree.leaves[:2])


def test_rotating_the_samples_rotates_the_tree() -> None:
    samples = clouds(3, 60, (6,))
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=seeded())).Q
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded(1))
    turned = hierarchical_kmeans(samples @ rotation, 3, 2, generator=seeded(1))
    torch.testing.assert_close(turned.leaves, tree.leaves @ rotation)


def test_a_posterior_tree_beats_chance_on_fresh_samples() -> None:
    """Clusters of posterior samples explain new samples of the same posterior, level by level."""
    mixture, y = GaussianMixture(), torch.tensor([[-2.5, 2.0], [0.0, 4.0]])
    tree = hierarchical_kmeans(
        mixture.sample_posterior(y, 2.0, 2000, seeded()), 2, 2, generator=seeded()
    )
    fresh = mixture.sample_posterior(y, 2.0, 2000, seeded(9))
    spread = [within(fresh, level) for level in tree.images]
    assert (spread[1] < 0.75 * spread[0]).all()
    assert (spread[2] < 0.75 * spread[1]).all()


def test_half_precision_samples_are_clustered_in_float32() -> None:
    samples = clouds(3, 60, (2,)).sub(100).half()
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    assert tree.leaves.dtype == torch.float32
    full = hierarchical_kmeans(samples.float(), 3, 2, generator=seeded())
    assert torch.equal(tree.leaves, full.leaves)


def test_depth_zero_is_the_mean() -> None:
    samples = clouds(2, 10, (2,))
    tree = hierarchical_kmeans(samples, 3, 0)
    assert tree.depth == 0
    torch.testing.assert_close(tree.root, samples.mean(dim=1))


def test_wrong_calls_are_named() -> None:
    samples = torch.zeros(1, 4, 2)
    with pytest.raises(ValueError, match=r"branching \(2, 3\) has 2 levels, but depth is 1"):
        hierarchical_kmeans(samples, (2, 3), 1)
    with pytest.raises(ValueError, match="give its depth"):
        hierarchical_kmeans(samples, 2)
    with pytest.raises(ValueError, match="NaN"):
        hierarchical_kmeans(samples.log(), 2, 1)
    with pytest.raises(ValueError, match="restarts is 0"):
        hierarchical_kmeans(samples, 2, 1, restarts=0)
    with pytest.raises(ValueError, match="at least one sample"):
        hierarchical_kmeans(samples[:, :0], 2, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_gives_the_tree_of_the_cpu(dtype: torch.dtype) -> None:
    samples = clouds(4, 100, (3, 8, 8)).to(dtype)
    tree = hierarchical_kmeans(samples, 3, 2, generator=seeded())
    there = hierarchical_kmeans(samples.cuda(), 3, 2, generator=seeded())
    assert there.device.type == "cuda"
    assert_same_clusters(samples, there.to("cpu"), tree)
    if dtype == torch.float64:  # in float32 another basis rounds, and orders siblings, otherwise
        torch.testing.assert_close(there.leaves.cpu(), tree.leaves)


@pytest.mark.gpu
def test_a_gpu_is_fifty_times_faster_than_a_loop_over_images() -> None:
    """100 images of 100 samples of 560 dimensions, 3 × 3 leaves; scikit-learn's time is that of
    10 images, ten times."""
    import time

    kmeans = pytest.importorskip("sklearn.cluster").KMeans
    samples = clouds(100, 100, (560,)).float()
    there = samples.cuda()
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        hierarchical_kmeans(there, 3, 2, generator=seeded())
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    for image in samples[:10].numpy():
        label = kmeans(3, n_init=5, random_state=0).fit(image).labels_
        for child in range(3):
            if (label == child).sum() > 3:
                kmeans(3, n_init=5, random_state=0).fit(image[label == child])
    assert 10 * (time.perf_counter() - start) / min(seconds) >= 50
