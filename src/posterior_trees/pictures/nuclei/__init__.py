"""Nuclei in predicted fields: found, counted, reported."""
