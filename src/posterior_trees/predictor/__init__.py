"""From a measurement to a tree."""

from posterior_trees.predictor.onepass import (
    TreePredictor,
    check_brightness,
    check_values,
    evaluating,
    wrap,
)
from posterior_trees.predictor.protocol import Predictor

__all__ = [
    "Predictor",
    "TreePredictor",
    "check_brightness",
    "check_values",
    "evaluating",
    "wrap",
]
