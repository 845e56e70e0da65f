"""From a measurement to a tree."""

from posterior_trees.predictor.onepass import (
    TreePredictor,
    check_brightness,
    check_values,
    evaluating,
    wrap,
)

__all__ = ["TreePredictor", "check_brightness", "check_values", "evaluating", "wrap"]
