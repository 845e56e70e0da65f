"""Recipes with other values, keys and sections: parsed, and built where it takes no memory."""

import random
from pathlib import Path

from posterior_trees.models.build import build_predictor
from posterior_trees.models.card import card_of
from posterior_trees.recipe import parse_recipe, parse_resolved, write_recipe
from tests.attack import judge
from tests.mutants import mutate_recipe

ROOT = Path(__file__).parents[2]
KEYS = ("network.width", "network.steps", "tree.depth", "tree.branching", "data.size", "seed",
        "measurement.of", "measurement.rows", "network.multipliers", "network.kind", "x.y", "tree",
        "loss.surprise", "loss.focus", "data.extra", "training.batch_size",
        "optimizer.lr")  # fmt: skip
VALUES = ("0", "-1", "1e9", "1000000000", "nan", "[]", "[0,0]", "[9,9,9]", "true", "x", "",
          "residual", "{}", "[[1]]", "[\"a\"]", "9" * 20, "64", "[0.1, inf]")  # fmt: skip


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    luck, failed = random.Random(seed), []
    texts = [file.read_text("utf-8") for file in sorted((ROOT / "recipes").glob("*.toml"))]
    texts += [write_recipe(parse_recipe(text)) for text in texts]
    for number in range(count):
        text = luck.choice(texts)
        for _ in range(luck.randrange(1, 3)):
            text = mutate_recipe(text or "seed = 0", luck)
        changes = tuple(f"{luck.choice(KEYS)}={luck.choice(VALUES)}"
                        for _ in range(luck.randrange(3)))  # fmt: skip

        def build(text: str = text, changes: tuple[str, ...] = changes) -> None:
            recipe = parse_recipe(text, changes)
            assert parse_resolved(write_recipe(recipe), "again") == recipe
            card_of(recipe)
            build_predictor(recipe, "meta")

        failed += judge(build, f"recipe {number} {changes}")
    return count, failed
