"""Whom the truth teaches, in training, where that is not just the nearest child: one rule a file.

The paper's association is by squared error alone. What departs from it, each off by default, is a
rule: it adjusts the errors by which children are compared. Each is a small part of one compiled
step, and reads what changes from step to step from a tensor.
"""
