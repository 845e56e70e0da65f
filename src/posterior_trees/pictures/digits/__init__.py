"""Photographs and scans of one handwritten digit."""
