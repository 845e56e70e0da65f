"""`python -m posterior_trees` is `ptrees`."""

from posterior_trees.cli import main

main()
