"""Recipes: one TOML file says everything about an experiment."""

from posterior_trees.recipe.recipe import (
    TASKS,
    Recipe,
    build_recipe,
    build_section,
    names_network,
    parse_recipe,
    parse_resolved,
    parse_table,
    read_recipe,
    read_text,
    write_recipe,
)
