"""Trees of several methods for the same inputs, scored alike: scores, tables, report."""
