"""Trees of several methods for the same inputs, scored alike: methods, scores, tables."""
