"""A user's own picture: read, adjusted, predicted in tiles if it is large, its nuclei counted."""
