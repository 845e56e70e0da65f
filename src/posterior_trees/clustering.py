r"""Samples → tree: hierarchical K-means, the baseline that any posterior sampler can feed.

The samples of one image are split by K-means into K clusters, each cluster is split again, and so
on for `depth` levels. A node's image is the mean of its samples and its probability their share, so
that children average to their parent exactly, as in a predicted tree.

K-means minimises the within-cluster sum of squares

$$ J = \sum_i \min_k \lVert x_i - c_k \rVert^2 $$

with k-means++ seeds, Lloyd's iteration, and the best of a few restarts for every node. Only inner
products between samples matter to it: $s$ samples of $D > s$ pixels are first rotated into their
own $s$-dimensional span, which is exact and makes large pictures as cheap as small ones.

Points are measured in units of the distance below which two samples count as equal, and a last
coordinate, 1 for samples and 0 for padding, makes counts and means parts of one matrix product.
Few and large operations: a GPU waits for the next one longer than it works on it.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.errors import InputError
from posterior_trees.tree import Tree, grow, layout, level_sizes

MAX_ITERATIONS = 300
MAX_REFILLS = 20
PATIENCE = {"cpu": 1, "cuda": 3}
"""Iterations between two looks at the results: on a GPU, a look waits for all that it was asked."""
CHUNK = 2**20
"""Numbers held at a time, of distances (samples × centres × restarts × images) or coordinates."""


def hierarchical_kmeans(
    samples: Float[Tensor, "b s *shape"], branching: int | Sequence[int], depth: int | None = None,
    restarts: int = 5, generator: torch.Generator | None = None,
) -> Tree:  # fmt: skip
    """Cluster the samples of every image into a tree.

    `branching` is one number for all `depth` levels or one number per level. A node with no more
    distinct samples than children gives one child to each of them; the other children are absent.
    The tree of image i depends on the seed of `generator`, on i and on its own `samples` only.
    Of `restarts` starts the best is kept.

    >>> samples = torch.tensor([[[0.0], [0.1], [5.0], [5.1]]])  # one image, four samples
    >>> hierarchical_kmeans(samples, branching=2, depth=1).leaves.flatten().sort().values
    tensor([0.0500, 5.0500])
    """
    if depth is None and isinstance(branching, int):
        raise InputError(f"branching is the one number {branching}; give its depth too")
    levels = layout(branching, depth=depth)
    _check(samples, levels, depth, restarts)
    parents = sum(level_sizes(levels)[:-1])
    draws = 1 + max(levels, default=1) * _candidates(max(levels, default=1))
    device = generator.device if generator else None
    shape = len(samples), parents, restarts, draws
    uniform = torch.rand(shape, generator=generator, device=device).to(samples.device)
    wide = torch.promote_types(samples.dtype, torch.float32)
    # As many images together as have their distances in `CHUNK` numbers.
    count, coordinates = samples.flatten(2).shape[1:]
    per_image = count * max(restarts * max(levels, default=1), min(count, coordinates))
    size = max(1, CHUNK // per_image)
    leaves = [
        _cluster(part.to(wide), levels, draws.to(wide))
        for part, draws in zip(samples.split(size), uniform.split(size), strict=True)
    ]
    images, log_probs = (torch.cat(part) for part in zip(*leaves, strict=True))
    return grow(images, log_probs, levels)


def kmeans(
    points: Float[Tensor, "p s d"], k: int, uniform: Float[Tensor, "p r draws"]
) -> Int[Tensor, "p s"]:
    """The cluster of every point of `p` separate problems, best of `r` restarts. The last
    coordinate of a point is 1; rows of zeros are padding and count for nothing. Points up to a
    distance of 1 apart are the same. `uniform` holds the random numbers of the seeds. Clusters
    without points can only be left over when a problem has fewer than `k` distinct points."""
    center = points.sum(dim=1, keepdim=True)
    center = center / center[..., -1:].clamp_min(1)
    center[..., -1] = 0
    centered = torch.addcmul(points, points[..., -1:], center, value=-1)
    return _lloyd(centered, _seed(centered, k, uniform))


def _check(samples: Tensor, levels: tuple[int, ...], depth: int | None, restarts: int) -> None:
    if depth is not None and len(levels) != depth:
        raise InputError(f"branching {levels} has {len(levels)} levels, but depth is {depth}")
    if 0 in samples.shape:
        raise InputError(f"samples are {tuple(samples.shape)}; an image needs at least one sample")
    if restarts < 1:
        raise InputError(f"restarts is {restarts}; K-means runs at least once")
    if not torch.stack(samples.aminmax()).isfinite().all():
        raise InputError("samples hold NaN or infinite values; drop those samples first")


def _cluster(samples: Tensor, levels: tuple[int, ...], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Images and log-probabilities of the leaves of one chunk."""
    count = samples.shape[1]
    # One sample more, all zeros, is the padding of small nodes; its own node comes last.
    points = F.pad(F.pad(_measure(_span(samples.flatten(2))), (0, 1), value=1), (0, 0, 0, 1))
    node = torch.zeros(points.shape[:2], dtype=torch.long, device=points.device)
    done = 0
    for k, nodes in zip(levels, level_sizes(levels), strict=False):
        node[:, -1] = nodes
        index = _members(node, nodes)
        inside = points.gather(1, index.flatten(1).unsqueeze(2).expand(-1, -1, points.shape[2]))
        inside = inside.reshape(-1, index.shape[2], points.shape[2])
        child = kmeans(inside, k, uniform[:, done : done + nodes].flatten(0, 1))
        first = torch.arange(0, nodes * k, k, device=node.device).reshape(-1, 1)
        node = node.scatter(1, index.flatten(1), (child.reshape(index.shape) + first).flatten(1))
        done += nodes
    return _means(samples, node[:, :count], math.prod(levels))


def _span(flat: Tensor) -> Tensor:
    """The points about their mean, in an orthonormal basis of their own span if that is smaller.
    CUDA decomposes one matrix after the other, but multiplies and factors many at once. In float64
    there is no precision to spare for that."""
    if flat.shape[2] > flat.shape[1] and flat.is_cuda and flat.dtype == torch.float32:
        return _factor(flat)
    points = flat - flat.mean(dim=1, keepdim=True)
    if flat.shape[2] <= flat.shape[1]:
        return points
    return torch.linalg.qr(points.mT, mode="r").R.mT


def _factor(flat: Tensor) -> Tensor:
    r"""The same up to rotation: rows of the Cholesky factor $L L^T = X X^T + \delta I$. They have
    the inner products of the centred points, up to the $\delta$ that a singular matrix needs: in
    float64 that is so little that it adds $1/32$ of a unit squared (see `_unit`) to every squared
    distance, and equal samples stay equal."""
    images, count, _ = flat.shape
    gram = flat.new_zeros((images, count, count), dtype=torch.float64)
    for part in flat.split(max(1, 8 * CHUNK // (images * count)), dim=2):
        part = part.double()
        part = part - part.mean(dim=1, keepdim=True)
        gram.baddbmm_(part, part.mT)
    diagonal = gram.diagonal(dim1=1, dim2=2)
    delta = diagonal.amax(dim=1, keepdim=True) * (_unit(flat.dtype) / 8) ** 2
    diagonal += delta.clamp_min(torch.finfo(gram.dtype).tiny)
    return torch.linalg.cholesky(gram).to(flat.dtype)


def _unit(dtype: torch.dtype) -> float:
    """Distance up to which two samples are equal, as a share of the one farthest from the mean:
    rounding moves equal ones apart by a few units in its last place."""
    return 100 * torch.finfo(dtype).eps


def _measure(points: Tensor) -> Tensor:
    """The points in units of the distance up to which they are equal."""
    largest = torch.linalg.vector_norm(points, dim=2, keepdim=True).amax(dim=1, keepdim=True)
    return points / (largest * _unit(points.dtype)).clamp_min(1e-30)


def _members(node: Tensor, nodes: int) -> Tensor:
    """Indices of the samples of every node, `(b, nodes, longest)`; of the spare one for padding."""
    counts = _counts(node, nodes)
    last = counts.cumsum(dim=1).unsqueeze(2)
    spare = node.shape[1] - 1
    longest = spare if nodes == 1 else int(counts.max())
    place = last - counts.unsqueeze(2) + torch.arange(longest, device=node.device)
    order = node.argsort(dim=1, stable=True)
    return order.gather(1, place.masked_fill(place >= last, spare).flatten(1)).reshape(place.shape)


def _counts(node: Tensor, nodes: int) -> Tensor:
    """How many samples every node has, `(b, nodes)`."""
    return (node.unsqueeze(1) == torch.arange(nodes, device=node.device).unsqueeze(1)).sum(dim=2)


def _means(samples: Tensor, node: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Mean and log-share of the samples of every leaf; a leaf without samples is absent."""
    counts = _counts(node, nodes).to(samples.dtype)
    flat = samples.flatten(2)
    offset = flat.mean(dim=1, keepdim=True)
    sums = flat.new_zeros(len(flat), nodes, flat.shape[2])
    sums.scatter_add_(1, node.unsqueeze(2).expand_as(flat), flat - offset)
    means = offset + sums / counts.clamp_min(1).unsqueeze(2)
    return means.unflatten(2, samples.shape[2:]), (counts / samples.shape[1]).log()


def _candidates(k: int) -> int:
    """Candidates that greedy k-means++ tries for every new centre, as scikit-learn does."""
    return 2 + int(math.log(k))


def _seed(points: Tensor, k: int, uniform: Tensor) -> Float[Tensor, "p r k d"]:
    """Greedy k-means++: each centre is the best of a few points drawn ∝ squared distance. When no
    point is left apart from the centres, the remaining ones are NaN."""
    present, tries = points[..., -1].unsqueeze(1), _candidates(k)
    count = present.sum(dim=2, keepdim=True)
    # Just below 1, so that no height reaches the total.
    uniform = uniform * (1 - 1e-6)
    chosen, totals = [(uniform[:, :, :1] * count).long()], [count.expand(-1, uniform.shape[1], -1)]
    closest = _squares(points, chosen[0]).squeeze(2) * present
    for draws in uniform[:, :, 1 : 1 + (k - 1) * tries].split(tries, dim=2):
        running = closest.cumsum(dim=2)
        totals.append(running[:, :, -1:])
        tried = torch.searchsorted(running, draws * totals[-1], right=True)
        tried = tried.clamp_max(points.shape[1] - 1)
        reached = torch.minimum(_squares(points, tried), closest.unsqueeze(2))
        best = reached.sum(dim=3).min(dim=2, keepdim=True).indices
        closest = reached.take_along_dim(best.unsqueeze(3), dim=2).squeeze(2)
        chosen.append(tried.gather(2, best))
    index = torch.cat(chosen, dim=2).flatten(1).unsqueeze(2).expand(-1, -1, points.shape[2])
    centers = points.gather(1, index).unflatten(1, (-1, k))
    return centers.masked_fill((torch.cat(totals, dim=2) == 0).unsqueeze(3), math.nan)


def _squares(points: Tensor, index: Tensor) -> Float[Tensor, "p r t s"]:
    """Squared distance of all points to those at an index `(p, r, t)`; 0 if they are the same."""
    picked = points.gather(1, index.flatten(1).unsqueeze(2).expand(-1, -1, points.shape[2]))
    # Differences, not products: equal points must be at distance 0.
    distance = torch.cdist(picked, points, compute_mode="donot_use_mm_for_euclid_dist")
    return F.hardshrink(distance, 1.0).square().unflatten(1, index.shape[1:])


def _lloyd(points: Tensor, centers: Tensor) -> Int[Tensor, "p s"]:
    """Lloyd's iteration from every start, and the clusters of the one with the least squares. A
    cluster that has lost all its points when the others have settled is filled again."""
    is_wanted = ~centers[..., 0].isnan()
    for _ in range(MAX_REFILLS):
        centers = _settle(points, centers)
        excess, cluster = _assign(points, centers)
        if not (centers[..., 0].isnan() & is_wanted).any():
            break
        centers = _refill(points, cluster, centers)
    total = (excess * points[..., -1].unsqueeze(1)).sum(dim=2)
    # Starts that end alike differ by rounding alone (totals are negative): take the first of them.
    least = total.amin(dim=1, keepdim=True) * (1 - 10 * torch.finfo(total.dtype).eps)
    best = (total <= least).byte().argmax(dim=1)
    return cluster.take_along_dim(best.reshape(-1, 1, 1), dim=1).squeeze(1).long()


def _settle(points: Tensor, centers: Tensor) -> Tensor:
    """Points go to their nearest centre, centres to the mean of their points, until none moves.
    What has settled stays as it is, so that one may look for it at any time; when half of the
    problems have, only the others go on."""
    patience = PATIENCE.get(points.device.type, 1)
    settled, active = centers.clone(), torch.arange(len(points), device=points.device)
    _, cluster = _assign(points, centers)
    numbers = torch.arange(centers.shape[2], dtype=cluster.dtype, device=points.device)
    for step in range(1, MAX_ITERATIONS + 1):
        before = cluster
        centers = _move(points, cluster, numbers)
        _, cluster = _assign(points, centers)
        if step % patience:
            continue
        moves = (cluster != before).flatten(1).any(dim=1)
        count = int(moves.sum())
        if count == 0:
            break
        if 2 * count <= len(active):
            settled[active] = centers
            keep = moves.float().topk(count).indices
            active, points, centers, cluster = (t[keep] for t in (active, points, centers, cluster))
    settled[active] = centers
    return settled


def _assign(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    r"""$\lVert c \rVert^2 - 2 x \cdot c$ of every point and its nearest centre, and which that is.
    It is the squared distance less $\lVert x \rVert^2$, which is the same for all centres. Ties go
    to the lowest, and nothing goes to a centre that is NaN."""
    flat = centers.flatten(1, 2)
    norms = flat.square().sum(dim=2, keepdim=True)
    excess = torch.baddbmm(norms, flat, points.mT, alpha=-2).unflatten(1, centers.shape[1:3])
    excess = excess.nan_to_num_(nan=math.inf)
    if excess.device.type != "cpu":
        nearest, cluster = excess.min(dim=2)
        return nearest, cluster
    # The same for the CPU, which is slow at minima across rows.
    nearest = excess[:, :, 0]
    cluster = torch.zeros(nearest.shape, dtype=torch.int16)
    for number in range(1, centers.shape[2]):
        cluster.masked_fill_(excess[:, :, number] < nearest, number)
        nearest = torch.minimum(excess[:, :, number], nearest)
    return nearest, cluster


def _move(points: Tensor, cluster: Tensor, numbers: Tensor) -> Float[Tensor, "p r k d"]:
    """Means of the clusters, NaN for empty ones: the last coordinate of a sum is its count."""
    member = (cluster.unsqueeze(2) == numbers.unsqueeze(1)).to(points.dtype)
    sums = (member.flatten(1, 2) @ points).unflatten(1, member.shape[1:3])
    return sums / sums[..., -1:]


def _refill(points: Tensor, cluster: Tensor, centers: Tensor) -> Tensor:
    """Centres after every empty cluster got the point farthest from its centre. The point comes
    from a cluster that keeps another one. If all points sit on their centres the cluster stays
    empty: there are no more distinct points than clusters."""
    cluster, numbers = cluster.long(), torch.arange(centers.shape[2], device=points.device)
    present = points[..., -1].unsqueeze(1)
    counts = ((cluster.unsqueeze(2) == numbers.unsqueeze(1)) * present.unsqueeze(2)).sum(dim=3)
    own = centers.take_along_dim(cluster.unsqueeze(3), dim=2)
    distance = torch.linalg.vector_norm(points.unsqueeze(1) - own, dim=3) * present
    for number in range(centers.shape[2]):
        crowded = counts.gather(2, cluster) > 1
        farthest, index = (distance * crowded).max(dim=2, keepdim=True)
        moves = (counts[:, :, number : number + 1] == 0) & (farthest > 1)
        source = cluster.gather(2, index)
        cluster = cluster.scatter(2, index, source.masked_fill(moves, number))
        distance = distance.scatter(2, index, farthest.masked_fill(moves, 0.0))
        counts = counts.scatter_add(2, source, -moves.to(counts.dtype))
        counts[:, :, number] += moves.squeeze(2)
    return _move(points, cluster, numbers)
