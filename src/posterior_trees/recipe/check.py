"""What no run could use, beyond the limits of single keys: values that exclude each other."""

import re
from typing import TYPE_CHECKING

from posterior_trees.errors import RecipeError
from posterior_trees.recipe.section import convert, types_of
from posterior_trees.recipe.sections import FEATURES, MOST_LEAVES, LossSpec

if TYPE_CHECKING:
    from posterior_trees.recipe.recipe import Recipe


def check(recipe: "Recipe") -> None:
    """Refuse values no run could use, beyond the limits of single keys."""
    for key in ("task", "seed"):
        convert(getattr(recipe, key), types_of(type(recipe))[key], key)
    if len(recipe.data.size) not in (0, 2):
        size = list(recipe.data.size)
        raise RecipeError(f"data.size is {size}; write [height, width], or [] for as stored")
    if not recipe.measurement.kind:
        known = "inpaint, colorize, denoise, downsample or paired"
        raise RecipeError(f"measurement.kind is not given; choose one of {known}")
    leaves = recipe.tree.branching**recipe.tree.depth
    if leaves > MOST_LEAVES:
        raise RecipeError(
            f"tree.branching is {recipe.tree.branching} and tree.depth {recipe.tree.depth}: "
            f"{leaves} leaves, at most {MOST_LEAVES} are built"
        )
    is_growing = recipe.network.kind == "growing"
    _check_loss(recipe.loss, 1 if is_growing else recipe.tree.depth)
    if is_growing:
        _check_growing(recipe)
    _check_together(recipe)


def _check_loss(loss: LossSpec, depth: int) -> None:
    focus, features, rate = loss.focus, loss.features, loss.surprise
    top, bottom, left, right = focus if len(focus) == 4 else (0.0, 0.0, 0.0, 0.0)
    if focus and not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
        raise RecipeError(
            f"loss.focus is {list(focus)}; write [top, bottom, left, right] as shares of "
            "height and width, such as [0.5, 1.0, 0.25, 0.75], or [] for the whole picture"
        )
    if features not in FEATURES and loss.guided_epochs:
        raise RecipeError(
            f"loss.features is {features!r} and loss.guided_epochs {loss.guided_epochs:g}: its "
            "clusters are of what the root misses, and features of your own know no differences. "
            f"Use one of {', '.join(map(repr, FEATURES))}, or loss.guided_epochs=0"
        )
    if features not in FEATURES and not re.fullmatch(r"\w+(\.\w+)*:\w+", features):
        raise RecipeError(
            f"loss.features is {features!r}; choose one of {', '.join(map(repr, FEATURES))}, or "
            "write module:function"
        )
    fits = len(rate) in (1, depth) or (rate and not depth)
    if not fits or not all(r >= 0 for r in rate):
        raise RecipeError(
            f"loss.surprise is {list(rate)}; write one number of at least 0, or {depth} of them, "
            "one for each level of the tree"
        )


def _check_growing(recipe: "Recipe") -> None:
    """Refuse what counts or guides the leaves of one tree: a growing network learns single nodes,
    each for a region of its own."""
    loss = recipe.loss
    asked = {
        "balancer.is_on=false": recipe.balancer.is_on,
        "loss.guided_epochs=0": loss.guided_epochs,
        "loss.conscience=0": loss.conscience,
        "loss.focus=[]": loss.focus,
    }
    if wrong := [wish for wish, is_asked in asked.items() if is_asked]:
        raise RecipeError(
            'network.kind is "growing": it learns single nodes, each for a region of its own, and '
            "there is no one tree whose leaves could be counted or guided, no one part to look at. "
            f"Set {', '.join(wrong)}"
        )


def _check_together(recipe: "Recipe") -> None:
    """Refuse values that are fine by themselves and exclude each other."""
    if recipe.balancer.is_on and recipe.data.repeat > 1:
        raise RecipeError(
            f"data.repeat is {recipe.data.repeat} and the balancer is on: it counts which leaf "
            "each image reaches, so an epoch must take each image once"
        )
    if recipe.training.calibrate and not recipe.data.validation > 0:
        raise RecipeError(
            f"training.calibrate is true and data.validation is {recipe.data.validation}: "
            "probabilities are calibrated on held-out images. Set data.validation=0.05 or so, or "
            "training.calibrate=false"
        )
    if recipe.training.calibrate and not recipe.tree.depth:
        raise RecipeError(
            "training.calibrate is true and tree.depth is 0: a root alone has no probabilities to "
            "calibrate. Set tree.depth to at least 1, or training.calibrate=false"
        )
    if recipe.optimizer.clip and recipe.training.precision == "16-mixed":
        raise RecipeError(
            f"optimizer.clip is {recipe.optimizer.clip} and training.precision is 16-mixed, where "
            "gradients are scaled until the optimiser has them, and cannot be clipped. Use "
            "training.precision=bf16-mixed or 32-true, or optimizer.clip=0"
        )
    is_disjoint = recipe.tree.depth > 0 and recipe.network.decoder == "disjoint"
    network = recipe.network
    key = "trunk" if network.kind == "growing" else "kind"
    if getattr(network, key) == "residual" and is_disjoint:
        raise RecipeError(
            f'network.{key} "residual" has one decoder for all leaves: set '
            f'network.decoder="shared", or network.{key}="unet"'
        )
    if recipe.measurement.kind == "paired" and recipe.data.kind not in ("pairs", "edges"):
        raise RecipeError('measurement.kind "paired" needs data.kind "pairs" or "edges"')
