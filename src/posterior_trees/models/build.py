"""From a recipe to its measurement and its untrained predictor."""

from typing import Any

import torch

from posterior_trees.data.registry import terms_of
from posterior_trees.errors import InputError, RecipeError
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Measurement, Paired
from posterior_trees.models.card import facts_of
from posterior_trees.networks.node import NodeNetwork
from posterior_trees.networks.residual import ResidualUNet
from posterior_trees.networks.unet import UNet
from posterior_trees.predictor import GrowingPredictor, TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.recipe.sections import NetworkSpec

Network = UNet | ResidualUNet | NodeNetwork


def build_measurement(recipe: Recipe) -> Measurement:
    spec, data = recipe.measurement, recipe.data
    if spec.kind == "inpaint":
        if not len(spec.rows) == len(spec.columns) == len(spec.of) == 2:
            raise RecipeError(
                "measurement.kind 'inpaint' needs rows = [first, last], columns = [first, last] "
                "and of = [height, width]"
            )
        edges = ("rows", spec.rows), ("columns", spec.columns)
        for (name, (first, last)), side in zip(edges, spec.of, strict=True):
            if not 0 <= first <= last < side:
                raise RecipeError(
                    f"measurement.{name} is [{first}, {last}]; of images with {side} {name} "
                    f"(measurement.of) they are the first and the last hidden, 0 to {side - 1}"
                )
        size = data.size or spec.of
        return Inpaint.box(spec.rows, spec.columns, size=size, of=spec.of, fill=spec.fill)
    if spec.kind == "colorize":
        return Colorize()
    if spec.kind == "denoise":
        return Denoise(spec.sigma)
    if spec.kind == "downsample":
        return Downsample(spec.factor)
    return Paired(data.channels, data.input_channels, spec.is_residual)


def build_predictor(recipe: Recipe, device: str | torch.device = "cpu") -> TreePredictor:
    """The recipe's network with fresh weights, around the recipe's measurement, on a device."""
    measurement = build_measurement(recipe)
    with torch.device(device):
        network = build_network(recipe, measurement.channels(recipe.data.channels))
    make = GrowingPredictor if isinstance(network, NodeNetwork) else TreePredictor
    return make(
        network, measurement.to(device), branching=recipe.tree.branching, depth=recipe.tree.depth,
        channels=recipe.data.channels, multiple=network.multiple, padding=recipe.network.padding,
        name=recipe.task, about={**facts_of(recipe), **terms(recipe)},
    )  # fmt: skip


def build_network(recipe: Recipe, in_channels: int) -> Network:
    """The recipe's network with fresh weights, for images of `in_channels` channels."""
    spec, channels, k = recipe.network, recipe.data.channels, recipe.tree.branching
    if spec.kind != "growing":
        return _build_trunk(spec, spec.kind, (in_channels, channels, k**recipe.tree.depth))
    in_channels += NodeNetwork.extra_channels(channels, spec.levels)
    trunk = _build_trunk(spec, spec.trunk, (in_channels, channels, k), is_regional=True)
    return NodeNetwork(trunk, spec.levels)


def _build_trunk(
    spec: NetworkSpec, kind: str, ends: tuple[int, int, int], is_regional: bool = False
) -> UNet | ResidualUNet:
    shared: dict[str, Any] = {
        "width": spec.width or spec.c_init * ends[-1], "dropout": spec.dropout,
        "head_norm": spec.head_norm, "head_dropout": spec.head_dropout, "is_regional": is_regional,
    }  # fmt: skip
    if kind == "unet":
        is_disjoint = spec.decoder == "disjoint"
        return UNet(
            *ends, steps=spec.steps, doublings=spec.doublings, is_disjoint=is_disjoint, **shared
        )
    return ResidualUNet(
        *ends, multipliers=spec.multipliers, blocks=spec.blocks, attention=spec.attention, **shared
    )


def terms(recipe: Recipe) -> dict[str, str]:
    """What may be done with weights that learned from the recipe's data, for a predictor's `about`;
    nothing about data of your own."""
    found = [known for name in (recipe.data.name, *recipe.data.extra) if (known := terms_of(name))]
    return {"terms": "; ".join(found)} if found else {}


def check_own(predictor: TreePredictor, recipe: Recipe) -> None:
    """Refuse a predictor that contradicts the recipe, which is saved with the run and says what to
    measure and which tree it is. What no recipe can say (another branching on each level, a
    measurement of one's own) contradicts none."""
    if not isinstance(predictor, TreePredictor):
        raise InputError(
            f"the predictor is a {type(predictor).__name__}; make a TreePredictor of it: "
            "wrap(network, features=…, channels=…, measurement=…)"
        )
    levels = predictor.network.levels if isinstance(predictor, GrowingPredictor) else 0
    wanted_levels = recipe.network.levels if recipe.network.kind == "growing" else 0
    if levels != wanted_levels:
        raise InputError(
            f"the predictor grows {levels} levels and the recipe {wanted_levels} (0: in one pass): "
            'set network.kind="growing" and network.levels as wrap\'s levels'
        )
    tree = (recipe.tree.branching,) * recipe.tree.depth
    if predictor.branching != tree and len(set(predictor.branching)) <= 1:
        raise InputError(
            f"the predictor has the layout {predictor.branching}, the recipe {tree}: give wrap the "
            "recipe's branching and depth, or the recipe the predictor's"
        )
    wanted = build_measurement(recipe)
    measurement = predictor.measurement
    is_known = type(measurement) in (Inpaint, Colorize, Denoise, Downsample)
    is_known = is_known or isinstance(measurement, Paired)
    if is_known and not measurement.same_as(wanted):
        raise InputError(
            f"the predictor's measurement ({type(measurement).__name__}) is not the "
            f"recipe's ({type(wanted).__name__}, by [measurement]), or hides something else: give "
            "wrap measurement=build_measurement(recipe), from posterior_trees.models.build"
        )
