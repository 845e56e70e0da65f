"""Recipes: one TOML file says everything about an experiment."""

from posterior_trees.recipe.recipe import (
    Recipe,
    RecipeError,
    build_recipe,
    build_section,
    parse_recipe,
    parse_resolved,
    parse_table,
    read_recipe,
    write_recipe,
)

__all__ = [
    "Recipe",
    "RecipeError",
    "build_recipe",
    "build_section",
    "parse_recipe",
    "parse_resolved",
    "parse_table",
    "read_recipe",
    "write_recipe",
]
