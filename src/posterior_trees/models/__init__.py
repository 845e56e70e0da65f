"""Models: built from recipes, stored with them, loaded by name."""
