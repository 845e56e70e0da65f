"""From a recipe to its measurement and its untrained predictor."""

from posterior_trees.data.registry import terms_of
from posterior_trees.measure import Colorize, Denoise, Downsample, Inpaint, Measurement, Paired
from posterior_trees.networks.unet import UNet
from posterior_trees.predictor import TreePredictor
from posterior_trees.recipe import Recipe, RecipeError


def build_measurement(recipe: Recipe) -> Measurement:
    spec, data = recipe.measurement, recipe.data
    if spec.kind == "inpaint":
        if not len(spec.rows) == len(spec.columns) == len(spec.of) == 2:
            raise RecipeError(
                "measurement.kind 'inpaint' needs rows = [first, last], columns = [first, last] "
                "and of = [height, width]"
            )
        size = data.size or spec.of
        return Inpaint.box(
            (spec.rows[0], spec.rows[1]),
            (spec.columns[0], spec.columns[1]),
            size=(size[0], size[1]),
            of=(spec.of[0], spec.of[1]),
            fill=spec.fill,
        )
    if spec.kind == "colorize":
        return Colorize()
    if spec.kind == "denoise":
        return Denoise(spec.sigma)
    if spec.kind == "downsample":
        return Downsample(spec.factor)
    return Paired(data.channels, data.input_channels, spec.is_residual)


def build_predictor(recipe: Recipe, about: dict | None = None) -> TreePredictor:
    """The recipe's network with fresh weights, around the recipe's measurement."""
    spec, tree = recipe.network, recipe.tree
    measurement = build_measurement(recipe)
    num_leaves = tree.branching**tree.depth
    network = UNet(
        measurement.channels(recipe.data.channels),
        recipe.data.channels,
        num_leaves,
        width=spec.width or spec.c_init * num_leaves,
        steps=spec.steps,
        doublings=spec.doublings,
        is_disjoint=spec.decoder == "disjoint",
        head_layers=spec.head_layers,
        head_norm=spec.head_norm,
        is_head_detached=spec.is_head_detached,
        dropout=spec.dropout,
        head_dropout=spec.head_dropout,
    )
    return TreePredictor(
        network,
        measurement,
        branching=tree.branching,
        depth=tree.depth,
        channels=recipe.data.channels,
        multiple=network.multiple,
        padding=spec.padding,
        name=recipe.task,
        about={**(about or {}), **terms(recipe)},
    )


def terms(recipe: Recipe) -> dict[str, str]:
    """What may be done with weights that learned from the recipe's data, for a predictor's `about`;
    nothing about data of your own."""
    found = terms_of(recipe.data.name)
    return {"terms": found} if found else {}
