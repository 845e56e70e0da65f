"""Promises that hold: what a tree says about the truth, with a finite-sample guarantee."""
