r"""The ball: within which distance of some leaf the truth lies.

$$ \exists\, \text{leaf } l:\ \mathrm{RMSE}(x, x_l) \le q \,\hat\sigma(T), \qquad
   S = \min_l \mathrm{RMSE}(x, x_l) \,/\, \hat\sigma(T), $$

over the hidden pixels where a measurement hides some, over all of them else. $\hat\sigma$ says
from the tree alone how far off the truth may be, so that easy and hard pictures are covered alike:
$\ln \hat\sigma$ is a ridge regression of $\ln \min_l \mathrm{RMSE}$ on six numbers of a tree,
fitted on other images than the scored ones.

Choice: what is seen is left out of these numbers, because a tree does not carry it; the logarithm
of the leaves' mean $l(1-l)$ makes up for it (radius on digits 0.2135 with, 0.2144 as specified).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from posterior_trees.tree import Tree

RIDGE = 1.0
TINY = 1e-9

Hole = Bool[Tensor, "*space"] | None


def nearest_error(tree: Tree, x: Float[Tensor, "b *shape"], hole: Hole) -> Float[Tensor, "b"]:
    """RMSE of the leaf that is nearest to the truth."""
    squares = _open(tree.leaves - x.unsqueeze(1), hole).square().mean(dim=2)
    absent = tree.is_absent(tree.depth)
    return squares.masked_fill(absent, torch.inf).amin(dim=1).sqrt().double().cpu()


def features(tree: Tree, hole: Hole) -> Float[Tensor, "b 6"]:
    """How wide the leaves lie, how sure the tree is, and how bright and how undecided its pixels
    are."""
    probs = tree.probs[-1].double()
    leaves, root = _open(tree.leaves, hole), _open(tree.images[0], hole)
    between = (probs * (leaves - root).square().mean(dim=2)).sum(dim=1)
    grey = (leaves * (1 - leaves)).mean(dim=2).mean(dim=1).clamp_min(TINY)
    entropy = torch.special.entr(probs).sum(dim=1)
    columns = [between.clamp_min(TINY).log(), entropy, probs.amax(dim=1), root.mean(dim=(1, 2))]
    return torch.stack([*columns, grey, grey.log()], dim=1).double().cpu()


def fit_scale(
    numbers: Float[Tensor, "n f"], errors: Float[Tensor, "n"]
) -> Float[Tensor, "rows f1"]:
    """The ridge regression of ln error: centres, spreads and weights of the features, each with
    one column more, for the constant."""
    centre, spread = numbers.mean(dim=0), numbers.std(dim=0, correction=0).clamp_min(TINY)
    z, target = (numbers - centre) / spread, errors.clamp_min(TINY).log()
    gram = z.T @ z + RIDGE * torch.eye(z.shape[1], dtype=z.dtype)
    weights = torch.linalg.solve(gram, z.T @ (target - target.mean()))
    last = torch.cat([weights, target.mean()[None]])
    return torch.stack([F.pad(centre, (0, 1)), F.pad(spread, (0, 1), value=1.0), last])


def scale(numbers: Float[Tensor, "n f"], fitted: Float[Tensor, "3 f1"]) -> Float[Tensor, "n"]:
    """The $\\hat\\sigma$ of every tree."""
    centre, spread, weights = fitted.double()
    z = (numbers - centre[:-1]) / spread[:-1]
    return (z @ weights[:-1] + weights[-1]).exp()


def _open(images: Float[Tensor, "b n *shape"], hole: Hole) -> Float[Tensor, "b n pixels"]:
    if hole is None:
        return images.flatten(2)
    return images[..., hole.to(images.device)].flatten(2)
