"""What a page says of the model that made it."""

from posterior_trees.assets import DIGITS, PAPER
from posterior_trees.pictures.digits.find import takes_digits
from posterior_trees.predictor import Predictor


def describe_model(predictor: Predictor) -> dict[str, str]:
    """Words for the footer: the model, where it comes from, and the method."""
    facts = predictor.about
    card = {"name": predictor.name or "Posterior tree"}
    if made := [f"{key} {facts[key]}" for key in ("version", "commit", "date") if facts.get(key)]:
        card["origin"] = "Trained with posterior-trees " + ", ".join(made)
    card["method"] = PAPER
    if takes_digits(predictor.measurement, predictor.channels):
        card["data"] = DIGITS
    if terms := facts.get("terms"):
        card["terms"] = f"Trained on {terms}; the weights have the terms of their data"
    return card


def title_of(predictor: Predictor) -> str:
    task = predictor.name.replace("_", " ")
    return f"Posterior trees: {task}" if task else "Posterior trees"
