r"""What the studies ask of a trained model beyond PSNR and NLL, per test image.

* **Best leaf**: the leaf nearest to the truth among all, which the greedy path may miss; its PSNR
  (of the hole, if there is one) and $-\ln \alpha$.
* **Diversity**: root mean square distance between two different leaves, the mean over all pairs,
  and **nearest**, that of the closest pair: 0 if two leaves are the same. Where
  pixels are known leaves do not differ, so both are over the hole.
* **Explained**: $\sum_\ell \alpha_\ell \overline{(x_\ell - x_{\text{root}})^2}$, the variance
  between the leaves. If leaves and probabilities are right the root's squared error is this plus
  the leaves' own, on average.
* **Looks** until the leaf that the truth reaches, see below.
* **Digits**: which digit each leaf shows and the truth is, if a classifier is given.

How many pictures does a user look at before the right one?
The right picture is leaf $\ell$. **Scanning a list**: leaves are shown one after the other, the
most probable first, and the user stops at $\ell$:

$$ \text{scan}(\ell) = \text{rank of } \ell \text{ among all leaves by } \alpha . $$

**Walking the tree**: at each node the user looks at its children one after the other, the most
probable first, until the one that leads to $\ell$, and goes on from there:

$$ \text{walk}(\ell) = \sum_{n \text{ on the path to } \ell} \text{rank of } n
   \text{ among its siblings by } \alpha . $$

Ranks start at 1 and ties go to the lowest index. The root is on show from the start and is not
counted; an only remaining sibling is counted, because the aim is to see the picture, not to guess
where it is. In a tree of depth 1 both are the same. With equal probabilities nine leaves take 5
looks in a list and, three by three, $2 + 2 = 4$ in a tree. Absent nodes come last.
"""

from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.data import ImageSet
from posterior_trees.evaluation.score import judge_each
from posterior_trees.predictor import Predictor
from posterior_trees.tree import Tree
from posterior_trees_paper.studies.classifier import DigitReader
from posterior_trees_paper.studies.watch import free_share


@torch.inference_mode()
def examine(
    predictor: Predictor,
    images: ImageSet,
    *,
    batch_size: int = 256,
    seed: int = 0,
    reader: DigitReader | None = None,
) -> dict[str, Tensor]:
    """Values per image, on the CPU."""

    def judge(tree: Tree, x: Tensor) -> dict[str, Tensor]:
        values = compare(tree, x, free_share(predictor))
        values["probs"] = tree.probs[-1]
        if reader is not None:
            values["leaf_digits"], values["digit"] = reader.read(tree.leaves), reader.read(x)
        return values

    return judge_each(judge, predictor, images, batch_size=batch_size, seed=seed)


def compare(
    tree: Tree, x: Float[Tensor, "b *shape"], factor: float | int = 1.0
) -> dict[str, Tensor]:
    """Trees against the truth; `factor` turns means over all pixels into means over the hole."""
    errors = tree.errors(x)
    leaf = tree.follow(tree.winners(errors))[:, -1]
    best_error, best = errors[-1].masked_fill(tree.is_absent(tree.depth), torch.inf).min(dim=1)
    mean, nearest = diversity(tree)
    return {
        "leaf": leaf,
        "best": best,
        "best_psnr": -10 * (factor * best_error).log10(),
        "best_nll": -tree.log_probs[-1].gather(1, best.unsqueeze(1)).squeeze(1),
        "diversity": factor**0.5 * mean,
        "nearest": factor**0.5 * nearest,
        "explained": factor * explained(tree),
        "root_error": factor * errors[0][:, 0],
        "walk": walk(tree, leaf),
        "scan": scan(tree, leaf),
        "scan_best": scan(tree, best),
        "expected_walk": expected(tree, walk),
        "expected_scan": expected(tree, scan),
    }


def diversity(tree: Tree) -> tuple[Float[Tensor, "b"], Float[Tensor, "b"]]:
    """Root mean square distance between different leaves: mean over all pairs, and of the closest
    pair. A tree with one leaf has 0."""
    flat = tree.leaves.flatten(2)
    n = flat.shape[1]
    if n < 2:
        return flat.new_zeros(len(flat)), flat.new_zeros(len(flat))
    gaps = [(flat[:, i] - flat[:, j]).square().mean(dim=1) for i, j in combinations(range(n), 2)]
    distances = torch.stack(gaps, dim=1).sqrt()
    return distances.mean(dim=1), distances.amin(dim=1)


def explained(tree: Tree) -> Float[Tensor, "b"]:
    """Variance between the leaves, mean over pixels."""
    offsets = (tree.leaves - tree.root.unsqueeze(1)).square().flatten(2).mean(dim=2)
    return (tree.probs[-1] * offsets).sum(dim=1)


def scan(tree: Tree, leaf: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Looks until leaf number `leaf` in a list of all leaves, most probable first."""
    return _ranks(tree.log_probs[-1]).gather(1, leaf.unsqueeze(1)).squeeze(1)


def walk(tree: Tree, leaf: Int[Tensor, "b"]) -> Int[Tensor, "b"]:
    """Looks until leaf number `leaf` when walking down from the root."""
    looks, node = torch.zeros_like(leaf), leaf
    for level in range(tree.depth, 0, -1):
        k = tree.branching[level - 1]
        ranks = _ranks(tree.log_probs[level].unflatten(1, (-1, k))).flatten(1)
        looks = looks + ranks.gather(1, node.unsqueeze(1)).squeeze(1)
        node = node // k
    return looks


def expected(tree: Tree, looks) -> Float[Tensor, "b"]:
    r"""What the tree itself expects, $\sum_\ell \alpha_\ell \, \text{looks}(\ell)$, for `scan` or
    `walk`: right if its probabilities are."""
    every = torch.arange(tree.leaves.shape[1], device=tree.device)
    counts = torch.stack([looks(tree, leaf.expand(len(tree))) for leaf in every], dim=1)
    return (tree.probs[-1] * counts).sum(dim=1)


def _ranks(log_probs: Float[Tensor, "*b k"]) -> Int[Tensor, "*b k"]:
    order = log_probs.argsort(dim=-1, descending=True, stable=True)
    return order.argsort(dim=-1) + 1
