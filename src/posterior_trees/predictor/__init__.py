"""From a measurement to a tree, at once or as far as it is asked to grow."""

from posterior_trees.predictor.growing import GrowingPredictor
from posterior_trees.predictor.growth import Growth, Siblings, grow_each
from posterior_trees.predictor.onepass import (
    Predictor,
    TreePredictor,
    check_brightness,
    check_values,
    evaluating,
)
from posterior_trees.predictor.wrap import wrap
