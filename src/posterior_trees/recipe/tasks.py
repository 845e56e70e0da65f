"""The paper's tasks, as `tasks.toml` has them."""

import tomllib
from importlib import resources
from typing import Any

TASKS: dict[str, dict[str, dict[str, Any]]] = tomllib.loads(
    (resources.files("posterior_trees.recipe") / "tasks.toml").read_text("utf-8")
)
"""Sections of a recipe, by the name of the task."""
