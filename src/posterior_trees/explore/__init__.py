"""Trees as web pages that a person can walk: saved, served, and shown in notebooks."""

from posterior_trees.explore.content import Measure, describe_trees
from posterior_trees.explore.export import page, repr_html, save_page, show
