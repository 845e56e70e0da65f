r"""How a network learns to split any node of trees of any depth: one node of each picture a step.

A level is drawn for each picture, and a region $M$. Without gradient the truth walks
down to a node just above that level, always to the child that is nearest inside $M$. Then the root
and the children of that node learn, in one pass of the network:

$$ L = \overline{(x_{\text{root}} - x)^2} + \sum_k w_k \tfrac12 \Big( \overline{(x_{nk} - x)^2} +
   \overline{(x_{nk} - x)^2}^{\,M} \Big) - \beta \ln p_{\text{winner}} , $$

$w$ being 1 for the winner and $\varepsilon$ for losers. Children so become means of what is in the
region, and show what else in the picture goes with it. What a step keeps for its way back does not
depend on the level. For $M$ everything and level 1 this is the loss of a one-pass tree of depth 1.

Choice: every batch has each level as often, up to one, and the deepest come first: walks that are
over make the rest of the batch smaller.

Some pictures are asked as a whole, others in a part: `loss.regions` is the share of the others. A
part is a box, a blob or a brush stroke of any size, around a point inside what $y$ leaves open, and
never leaves it. Its sizes are log-uniform, up to the side of a square as large as all that is open.
Numbers are drawn before (`DICE` of them for each picture, uniform), so that drawing the parts is a
function of tensors, in one recorded step.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posterior_trees.data import ImageSet, measured_batch
from posterior_trees.fast.compiling import plain_way_back
from posterior_trees.networks.head import Leaves
from posterior_trees.predictor import GrowingPredictor, evaluating
from posterior_trees.predictor.region import open_part
from posterior_trees.recipe import Recipe
from posterior_trees.seeding import step_generator
from posterior_trees.training.association.features import Eyes, Inside, errors_inside, eyes_of
from posterior_trees.training.learn import Learner
from posterior_trees.training.objective import objective
from posterior_trees.tree import Tree

PURPOSE = -1
"""Of a step's random numbers for levels and regions; see `Feed.generator`."""

DICE = 8
"""Numbers for a picture: whether a part, which kind, where, and five for its form."""
SMALLEST = 1 / 12
"""Of a part's sides, in those of the largest."""


class Asked(NamedTuple):
    """Pictures, what is measured of them, and where a tree is asked for."""

    x: Float[Tensor, "b c h w"]
    y: Float[Tensor, "b *measured"]
    region: Float[Tensor, "b 1 h w"]

    def first(self, count: int) -> "Asked":
        return Asked(*(part[:count] for part in self))

    def split(
        self, predictor: GrowingPredictor, node: Tensor, parent: Tensor, level: int
    ) -> Leaves:
        """The children, on a level, of nodes."""
        number = torch.full((len(node),), level, dtype=torch.long, device=node.device)
        return predictor.split(self.y, node, parent, self.region, number)


class GrowingLearner(Learner):
    """A learner of single nodes."""

    predictor: GrowingPredictor
    is_open: Tensor

    def _prepare(self, x: Float[Tensor, "b *shape"]) -> None:
        self.is_open = open_part(self.predictor.measurement, x[:1])
        self.eyes = eyes_of(self.recipe.loss.features)
        super()._prepare(x)

    def _draw(self, step: int, count: int) -> tuple[Tensor, ...]:
        """Levels and dice of this process's part of a batch."""
        rank, processes = self.fabric.global_rank, self.fabric.world_size
        generator = step_generator(self.recipe.seed, step, PURPOSE)
        level = draw_levels(count * processes, self.predictor.network.levels, generator)
        dice = torch.rand(count * processes, DICE, generator=generator)
        return tuple(part[rank::processes].to(self.fabric.device) for part in (level, dice))

    def _teach(  # ty: ignore[incompatible-method-override]
        self, x: Tensor, y: Tensor, weights: Tensor, epsilon: Tensor, level: Tensor, dice: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        is_open = self.is_open.expand(len(x), -1, -1, -1)
        asked = Asked(x, y, draw_regions(dice, is_open, self.recipe.loss.regions))
        with evaluating(self.network), self.fabric.autocast():
            node, parent = walk(self.predictor, asked, level, self.eyes)
        with plain_way_back():
            leaves = self.wrapped(*questions(self.predictor, asked, node, parent, level))
        return self._judge(leaves, x, y, weights, epsilon, node, asked.region)

    def _judge(  # ty: ignore[incompatible-method-override]
        self, leaves: Leaves, x, y, weights, epsilon, node, region
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tree = family(self.predictor, leaves, y, node)
        rules = (Inside(region, self.eyes), *self.rules)
        loss = objective(tree, x, epsilon, rules, errors=prices(tree, x, region))
        total = loss.total(self.beta, self._mean(loss.root.mean()))
        return (weights * total).mean(), self.health.sum(loss), loss.leaf, loss.taught


def draw_levels(count: int, levels: int, generator: torch.Generator) -> Int[Tensor, "count"]:
    """The levels whose nodes a batch learns, the deepest first: each is expected `count / levels`
    times, and comes so often up to one."""
    start = torch.rand((), generator=generator, dtype=torch.float64)
    place = (torch.arange(count) + start) * levels / count
    return (levels - place.long()).clamp(min=1)


@torch.no_grad()
def walk(
    predictor: GrowingPredictor, asked: Asked, level: Int[Tensor, "b"], eyes: Eyes
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b c h w"]]:
    """The nodes on the truths' paths just above levels as `draw_levels` orders them, and their
    parents."""
    node = parent = predictor.root(asked.y)
    levels = predictor.network.levels
    for above in range(1, levels):
        count = -(-len(level) * (levels - above) // levels)
        few = asked.first(count)
        children = few.split(predictor, node[:count], parent[:count], above)
        goes_on = (level[:count] > above)[:, None, None, None]
        below = torch.where(goes_on, nearest(children, few, eyes)[0], node[:count])
        parent = torch.cat([torch.where(goes_on, node[:count], parent[:count]), parent[count:]])
        node = torch.cat([below, node[count:]])
    return node, parent


@torch.no_grad()
def follow(
    predictor: GrowingPredictor, asked: Asked, levels: int, eyes: Eyes
) -> Iterator[tuple[Tensor, Leaves, Int[Tensor, "b"]]]:
    """Down the truths' paths: of each level the nodes above it, their children and the numbers of
    those that are nearest inside the region."""
    node = parent = predictor.root(asked.y)
    for level in range(1, levels + 1):
        children = asked.split(predictor, node, parent, level)
        below, winner = nearest(children, asked, eyes)
        yield node, children, winner
        parent, node = node, below


def nearest(
    children: Leaves, asked: Asked, eyes: Eyes
) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, "b"]]:
    """Of each picture the child that is nearest to the truth inside the region, and its number."""
    winner = errors_inside(children.images, asked.x, asked.region, eyes).argmin(dim=1)
    index = winner[:, None, None, None, None].expand(-1, -1, *children.images.shape[2:])
    return children.images.gather(1, index).squeeze(1), winner


def questions(
    predictor: GrowingPredictor, asked: Asked, node: Tensor, parent: Tensor, level: Tensor
) -> tuple[Tensor, ...]:
    """What is asked with gradient, as one batch: the roots, and then the children of the nodes."""
    naive = predictor.measurement.naive(asked.y)
    whole = open_part(predictor.measurement, naive)
    pairs = (asked.y, asked.y), (naive, node), (naive, parent), (whole, asked.region)
    return predictor.question(*map(torch.cat, (*pairs, (torch.zeros_like(level), level))))


def family(
    predictor: GrowingPredictor, leaves: Leaves, y: Tensor, node: Float[Tensor, "b c h w"]
) -> Tree:
    """The answers to `questions`: roots, and below each the children of its picture's node."""
    of_root, of_node = (Leaves(*half) for half in zip(*(t.chunk(2) for t in leaves), strict=True))
    root = predictor.root_of(of_root, predictor.measurement.naive(y)).unsqueeze(1)
    children = predictor.children_of(of_node, node)
    one = children.log_probs.new_zeros(len(node), 1)
    return Tree([root, children.images], [one, children.log_probs], children.log_probs.shape[1:])


def prices(
    tree: Tree, x: Float[Tensor, "b c h w"], region: Float[Tensor, "b 1 h w"]
) -> tuple[Float[Tensor, "b _"], ...]:
    """What nodes pay: the root its squared error, children half of it and half of that inside."""
    root, children = tree.errors(x)
    inside = errors_inside(tree.leaves, x, region, eyes_of("pixels"))
    return root, (children + inside) / 2


def practise(predictor: GrowingPredictor, x: Tensor, y: Tensor) -> Tree:
    """What a step learns of whole pictures."""
    asked = Asked(x, y, open_part(predictor.measurement, x))
    level = draw_levels(len(x), predictor.network.levels, torch.Generator().manual_seed(0))
    level = level.to(x.device)
    node, parent = walk(predictor, asked, level, eyes_of("pixels"))
    leaves = predictor.network(*questions(predictor, asked, node, parent, level))
    return family(predictor, leaves, y, node)


@torch.no_grad()
def choices(
    predictor: GrowingPredictor, images: ImageSet, recipe: Recipe
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n"]]:
    """Of all nodes on the paths of held-out images, in regions as in training: the children's
    log-probabilities, and which of them the truth reaches."""
    eyes, found = eyes_of(recipe.loss.features), []
    for indices in torch.arange(len(images)).split(recipe.training.evaluation_batch):
        x, y = measured_batch(images, indices, predictor.measurement, recipe.seed, predictor.device)
        dice = torch.stack([
            torch.rand(DICE, generator=step_generator(recipe.seed, int(i), PURPOSE))
            for i in indices
        ]).to(x)  # fmt: skip
        is_open = open_part(predictor.measurement, x)
        asked = Asked(x, y, draw_regions(dice, is_open, recipe.loss.regions))
        path = list(follow(predictor, asked, predictor.network.levels, eyes))
        log_probs = torch.stack([children.log_probs for _, children, _ in path], dim=1)
        winner = torch.stack([winner for *_, winner in path], dim=1)
        found.append((log_probs.flatten(0, 1).cpu(), winner.flatten().cpu()))
    log_probs, winner = (torch.cat(parts) for parts in zip(*found, strict=True))
    return log_probs, winner


def draw_regions(
    dice: Float[Tensor, "b 8"], is_open: Float[Tensor, "b 1 h w"], share: float | int
) -> Float[Tensor, "b 1 h w"]:
    """A mask for each picture with at least one open pixel; a `share` of them are parts."""
    chance, kind, place, *form = dice.T[..., None, None]
    rows, columns = _from_a_point(place, is_open[:, 0])
    extent = is_open.sum(dim=(2, 3)).sqrt()[..., None]
    box = (rows.abs() <= _size(extent, form[0]) / 2) & (columns.abs() <= _size(extent, form[1]) / 2)
    part = torch.where(kind < 1 / 3, box, _blob(rows, columns, extent, form))
    part = torch.where(kind < 2 / 3, part, _stroke(rows, columns, extent, form))
    return is_open * ((chance >= share) | part).unsqueeze(1)


def _from_a_point(
    place: Float[Tensor, "b 1 1"], is_open: Float[Tensor, "b h w"]
) -> tuple[Float[Tensor, "b h 1"], Float[Tensor, "b 1 w"]]:
    """Rows and columns, counted from one of the pixels that are open."""
    height, width = is_open.shape[-2:]
    count = is_open.flatten(1).cumsum(dim=1)
    index = torch.searchsorted(count, place[:, 0] * count[:, -1:], right=True)[..., None]
    row, column = index.div(width, rounding_mode="floor"), index % width
    down = torch.arange(height, device=place.device)[:, None]
    return (down - row).to(place), (torch.arange(width, device=place.device) - column).to(place)


def _size(extent: Float[Tensor, "b 1 1"], number: Float[Tensor, "b 1 1"]) -> Tensor:
    return extent * torch.exp(math.log(SMALLEST) * number)


def _blob(rows: Tensor, columns: Tensor, extent: Tensor, form: list[Tensor]) -> Tensor:
    """A disc whose rim waves."""
    angle = torch.atan2(rows, columns)
    waves = torch.sin(2 * angle + math.tau * form[1]) + torch.sin(3 * angle + math.tau * form[2])
    return (rows**2 + columns**2).sqrt() <= _size(extent, form[0]) / 2 * (1 + 0.3 * waves)


def _stroke(rows: Tensor, columns: Tensor, extent: Tensor, form: list[Tensor]) -> Tensor:
    """Three straight pieces, one after the other."""
    length, brush = _size(extent, form[0]) / 2, 0.5 + _size(extent, form[1]) / 8
    near = torch.zeros_like(rows + columns, dtype=torch.bool)
    for turn in form[2:]:
        down, across = torch.sin(math.tau * turn), torch.cos(math.tau * turn)
        along = (rows * down + columns * across).clamp(min=0).minimum(length)
        off = (rows - along * down) ** 2 + (columns - along * across) ** 2
        near = near | (off <= brush**2)
        rows, columns = rows - length * down, columns - length * across
    return near
