r"""Samples → tree: hierarchical K-means, the baseline that any posterior sampler can feed.

The samples of one image are split by K-means into K clusters, each cluster is split again, and so
on for `depth` levels. A node's image is the mean of its samples and its probability their share, so
that children average to their parent exactly, as in a predicted tree.

K-means minimises the within-cluster sum of squares

$$ J = \sum_i \min_k \lVert x_i - c_k \rVert^2 $$

with k-means++ seeds, Lloyd's iteration, and the best of a few restarts for every node. Only inner
products between samples matter to it: $s$ samples of $D > s$ pixels are first rotated into their
own $s$-dimensional span, which is exact and makes large pictures as cheap as small ones.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posterior_trees.tree import Tree, grow, layout, level_sizes

MAX_ITERATIONS = 300
CHUNK = 2**20
"""Numbers held at a time, of distances (samples × centres × restarts × images) or coordinates."""


def hierarchical_kmeans(
    samples: Float[Tensor, "b s *shape"],
    branching: int | Sequence[int],
    depth: int | None = None,
    restarts: int = 5,
    generator: torch.Generator | None = None,
) -> Tree:
    """Cluster the samples of every image into a tree.

    `branching` is one number for all `depth` levels or one number per level. A node with no more
    distinct samples than children gives one child to each of them; the other children are absent.
    The tree of image i depends on the generator's seed, on i and on its own samples only.
    """
    if depth is None and isinstance(branching, int):
        raise ValueError(f"branching is the one number {branching}; give its depth too")
    levels = layout(branching, depth=depth)
    _check(samples, levels, depth, restarts)
    parents = sum(level_sizes(levels)[:-1])
    draws = 1 + max(levels, default=1) * _candidates(max(levels, default=1))
    device = generator.device if generator else None
    size = len(samples), parents, restarts, draws
    uniform = torch.rand(size, generator=generator, device=device).to(samples.device)
    wide = torch.promote_types(samples.dtype, torch.float32)
    leaves = [
        _cluster(samples[chunk].to(wide), levels, uniform[chunk].to(wide))
        for chunk in _chunks(samples, levels, restarts)
    ]
    images, log_probs = (torch.cat(part) for part in zip(*leaves, strict=True))
    return grow(images, log_probs, levels)


def kmeans(
    points: Float[Tensor, "p s d"],
    present: Bool[Tensor, "p s"],
    k: int,
    uniform: Float[Tensor, "p r draws"],
    resolution: Float[Tensor, "p"],
) -> Int[Tensor, "p s"]:
    """The cluster of every point of `p` separate problems, best of `r` restarts.

    Only points that are `present` count. Squared distances up to `resolution` mean that two points
    are the same. `uniform` holds the random numbers of the seeds. Clusters without points can only
    be left over when a problem has fewer than `k` distinct points.
    """
    count = present.sum(dim=1).clamp_min(1).to(points.dtype)
    weight = present.to(points.dtype)
    center = (points * weight.unsqueeze(2)).sum(dim=1) / count.unsqueeze(1)
    centered = (points - center.unsqueeze(1)) * weight.unsqueeze(2)
    seeds = _seed(centered, present, k, uniform, resolution)
    return _lloyd(centered, present, seeds, resolution)


def _check(samples: Tensor, levels: tuple[int, ...], depth: int | None, restarts: int) -> None:
    if depth is not None and len(levels) != depth:
        raise ValueError(f"branching {levels} has {len(levels)} levels, but depth is {depth}")
    if 0 in samples.shape:
        raise ValueError(f"samples are {tuple(samples.shape)}; an image needs at least one sample")
    if restarts < 1:
        raise ValueError(f"restarts is {restarts}; K-means runs at least once")
    if not samples.isfinite().all():
        raise ValueError("samples hold NaN or infinite values; drop those samples first")


def _chunks(samples: Tensor, levels: tuple[int, ...], restarts: int) -> Iterator[slice]:
    """Images to cluster together, so that the distances fit in `CHUNK` numbers."""
    count, coordinates = samples.flatten(2).shape[1:]
    per_image = count * max(restarts * max(levels, default=1), min(count, coordinates))
    size = max(1, CHUNK // per_image)
    return (slice(i, i + size) for i in range(0, len(samples), size))


def _cluster(samples: Tensor, levels: tuple[int, ...], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Images and log-probabilities of the leaves of one chunk."""
    flat = samples.flatten(2)
    points = _span(flat - flat.mean(dim=1, keepdim=True))
    # Rounding moves equal samples apart by a few units in the last place of the largest one.
    largest = points.square().sum(dim=2).amax(dim=1)
    resolution = largest * (100 * torch.finfo(points.dtype).eps) ** 2
    node = torch.zeros(flat.shape[:2], dtype=torch.long, device=flat.device)
    done = 0
    for level, nodes in enumerate(level_sizes(levels)[:-1]):
        draws = uniform[:, done : done + nodes].flatten(0, 1)
        index, present = _members(node, nodes)
        inside = points.gather(1, index.flatten(1).unsqueeze(2).expand(-1, -1, points.shape[2]))
        child = kmeans(
            inside.reshape(-1, index.shape[2], points.shape[2]),
            present.flatten(0, 1),
            levels[level],
            draws,
            resolution.repeat_interleave(nodes),
        ).reshape(index.shape)
        child += torch.arange(nodes, device=node.device).reshape(1, -1, 1) * levels[level]
        # Padding points at a spare last sample that is cut off again.
        spare = index.masked_fill(~present, node.shape[1]).flatten(1)
        node = torch.zeros_like(node[:, :1]).expand(-1, node.shape[1] + 1).clone()
        node = node.scatter(1, spare, child.flatten(1))[:, :-1]
        done += nodes
    return _means(samples, node, math.prod(levels))


def _span(points: Tensor) -> Tensor:
    """The same points in an orthonormal basis of their own span, if that is smaller."""
    if points.shape[2] <= points.shape[1]:
        return points
    return torch.linalg.qr(points.mT, mode="r").R.mT


def _members(node: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Indices of the samples of every node, `(b, nodes, longest)`, and which are not padding."""
    order = node.argsort(dim=1, stable=True)
    counts = torch.nn.functional.one_hot(node, nodes).sum(dim=1)
    start = counts.cumsum(dim=1) - counts
    place = torch.arange(int(counts.max()), device=node.device)
    present = place < counts.unsqueeze(2)
    position = (start.unsqueeze(2) + place).clamp_max(node.shape[1] - 1)
    return order.gather(1, position.flatten(1)).reshape(position.shape), present


def _means(samples: Tensor, node: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Mean and log-share of the samples of every leaf; a leaf without samples is absent."""
    counts = torch.nn.functional.one_hot(node, nodes).sum(dim=1).to(samples.dtype)
    flat = samples.flatten(2)
    offset = flat.mean(dim=1, keepdim=True)
    sums = flat.new_zeros(len(flat), nodes, flat.shape[2])
    sums.scatter_add_(1, node.unsqueeze(2).expand_as(flat), flat - offset)
    means = offset + sums / counts.clamp_min(1).unsqueeze(2)
    return means.unflatten(2, samples.shape[2:]), (counts / samples.shape[1]).log()


def _candidates(k: int) -> int:
    """Candidates that greedy k-means++ tries for every new centre, as scikit-learn does."""
    return 2 + int(math.log(k))


def _seed(
    points: Tensor, present: Tensor, k: int, uniform: Tensor, resolution: Tensor
) -> Float[Tensor, "p r k d"]:
    """Greedy k-means++: each centre is the best of a few points drawn ∝ squared distance.

    When no point is left apart from the centres, the remaining ones are infinitely far away.
    """
    p, r, _ = uniform.shape
    tries = _candidates(k)
    closest = present.to(points.dtype).unsqueeze(1).expand(p, r, -1)
    centers = torch.full((p, r, k, points.shape[2]), math.inf).to(points)
    for number in range(k):
        if number == 0:
            draws = uniform[:, :, :1]
        else:
            first = 1 + (number - 1) * tries
            draws = uniform[:, :, first : first + tries]
        total = closest.sum(dim=2, keepdim=True)
        chosen = _draw(closest, draws * total)
        picked = points.gather(1, chosen.flatten(1).unsqueeze(2).expand(-1, -1, points.shape[2]))
        # Differences, not products: equal points must be at distance 0.
        distance = torch.cdist(picked, points, compute_mode="donot_use_mm_for_euclid_dist")
        distance = distance.square().unflatten(1, (r, -1))
        near = distance <= resolution.reshape(-1, 1, 1, 1)
        distance = distance.masked_fill(near | ~present[:, None, None], 0.0)
        reached = distance if number == 0 else torch.minimum(distance, closest.unsqueeze(2))
        best = reached.sum(dim=3).argmin(dim=2).reshape(p, r, 1, 1)
        center = picked.unflatten(1, (r, -1)).take_along_dim(best, dim=2).squeeze(2)
        centers[:, :, number] = torch.where(total > 0, center, math.inf)
        closest = reached.take_along_dim(best, dim=2).squeeze(2)
    return centers


def _draw(weights: Tensor, heights: Tensor) -> Tensor:
    """Index at which the running sum of the weights passes each height."""
    running = weights.cumsum(dim=2)
    below_top = torch.minimum(heights, running[:, :, -1:] * (1 - 1e-6))
    index = torch.searchsorted(running, below_top.contiguous(), right=True)
    return index.clamp_max(weights.shape[2] - 1)


def _lloyd(
    points: Tensor, present: Tensor, centers: Tensor, resolution: Tensor
) -> Int[Tensor, "p s"]:
    r"""Points go to their nearest centre, centres to the mean of their points, until none moves.

    Keeps the restart that lowers the sum of squares most, by $\sum_k n_k \lVert c_k \rVert^2$ for
    centred points. A last coordinate, 1 for points that are present, turns distances and counts
    into parts of the matrix products.
    """
    p, r, k, _ = centers.shape
    extended = torch.cat([points, present.to(points.dtype).unsqueeze(2)], dim=2)
    counts = torch.zeros(p, r, k, dtype=points.dtype, device=points.device)
    active = torch.arange(p, device=points.device)
    for _ in range(MAX_ITERATIONS):
        old, inside = centers[active], extended[active]
        cluster, excess = _assign(inside, old)
        new, count = _move(inside, cluster, k)
        if ((count == 0) & old[..., 0].isfinite()).any():
            _refill(cluster, excess, inside, resolution[active], count)
            new, count = _move(inside, cluster, k)
        centers[active], counts[active] = new, count
        # The same centres again: from here on, the assignments repeat.
        active = active[(new != old).flatten(1).any(dim=1)]
        if len(active) == 0:
            break
    gain = (counts * centers.masked_fill(centers.isinf(), 0.0).square().sum(dim=3)).sum(dim=2)
    best = gain.argmax(dim=1).reshape(-1, 1, 1, 1)
    cluster, _ = _assign(extended, centers.take_along_dim(best, dim=1))
    return cluster.squeeze(1).long()


def _assign(extended: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    r"""Nearest centre of every point, and $\lVert c \rVert^2 - 2 x \cdot c$, its distance up to
    $\lVert x \rVert^2$."""
    missing = centers[..., :1].isinf()
    norms = centers.square().sum(dim=3, keepdim=True)
    norms = norms.masked_fill(missing, torch.finfo(centers.dtype).max)
    planes = torch.cat([-2 * centers.masked_fill(missing, 0.0), norms], dim=3)
    excess = (planes.flatten(1, 2) @ extended.mT).unflatten(1, centers.shape[1:3])
    nearest = excess[:, :, 0]
    cluster = torch.zeros(nearest.shape, dtype=torch.int16, device=nearest.device)
    for number in range(1, centers.shape[2]):
        closer = excess[:, :, number] < nearest
        nearest = torch.minimum(excess[:, :, number], nearest)
        cluster.masked_fill_(closer, number)
    return cluster, nearest


def _move(extended: Tensor, cluster: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Means of the clusters, infinite for empty ones, and how many points each has."""
    numbers = torch.arange(k, dtype=cluster.dtype, device=cluster.device)
    member = (cluster.unsqueeze(2) == numbers.reshape(1, 1, k, 1)).to(extended.dtype)
    sums = (member.flatten(1, 2) @ extended).unflatten(1, member.shape[1:3])
    counts = sums[..., -1]
    means = sums[..., :-1] / counts.clamp_min(1).unsqueeze(3)
    return means.masked_fill((counts == 0).unsqueeze(3), math.inf), counts


def _refill(
    cluster: Tensor, excess: Tensor, extended: Tensor, resolution: Tensor, counts: Tensor
) -> None:
    """Give every empty cluster the point farthest from its centre, in place.

    The point comes from a cluster that keeps another one. If all points sit on their centres the
    cluster stays empty: there are no more distinct points than clusters.
    """
    points, present = extended[..., :-1], extended[:, None, :, -1] > 0
    distance = (excess + points.square().sum(dim=2).unsqueeze(1)).masked_fill(~present, 0.0)
    for number in range(counts.shape[2]):
        crowded = counts.gather(2, cluster.long()) > 1
        farthest, index = distance.masked_fill(~crowded, 0.0).max(dim=2, keepdim=True)
        is_empty = counts[:, :, number : number + 1] == 0
        moves = is_empty & (farthest > resolution.reshape(-1, 1, 1))
        source = cluster.gather(2, index)
        cluster.scatter_(2, index, source.masked_fill(moves, number))
        distance.scatter_(2, index, farthest.masked_fill(moves, 0.0))
        counts.scatter_add_(2, source.long(), -moves.to(counts.dtype))
        counts[:, :, number] += moves.squeeze(2)
