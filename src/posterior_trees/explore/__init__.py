"""Trees as web pages that a person can walk."""

from posterior_trees.explore.export import page, save_page

__all__ = ["page", "save_page"]
