"""What a model says of itself: a card in its header, written when it is trained.

    task      what its measurement does, in words
    takes     what its pictures show
    credit    whom to thank for them
    prepare   how to prepare a picture of one's own
    unfit     what it must not be used for
    samples   the pictures of the package that it may be shown with ("digits")
    importer  what makes its pictures of others ("digit", "eyes", "lines")

All but the task are those of the data that the recipe names (`data.registry`): a model of data that
nobody knows has none of them. Nothing is guessed from a network's shape: clothes of 28×28 pixels
are no digits.
"""

from types import GenericAlias
from typing import Any

from posterior_trees.assets import PAPER
from posterior_trees.data.registry import find_known
from posterior_trees.data.values import options_of
from posterior_trees.errors import plural
from posterior_trees.predictor import Predictor, TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.recipe.sections import Channel
from posterior_trees.schema import Maybe

SCORES = Maybe(GenericAlias(list, ({"depth": int, "mean": float},)))
ABOUT = {
    "card": dict[str, str],
    "version": str,
    "commit": str,
    "date": str,
    "terms": str,
    "start": str,
    "train_names": str,
    "kept_whole": str,
    "input_brightness": (float, float),
    "input_channel": str,
    "pixel_size": float,
    "region_pixels": (float, float, float),
    "calibration": dict,
    "frame": {"size": (int, int), "at": (float, float, float, float)},
    "speed": {"seconds": float, "threads": int, "size": (int, int)},
    "command": str,
    "test": {"n": int, "model": str, "psnr": SCORES, "psnr_hole": SCORES, "nll": SCORES},
}
"""What a model's `about` may hold, of which types; there may be more, which nobody reads."""
LINES = {"task": "Task", "takes": "Pictures", "prepare": "Your own picture", "scores": "Scores",
         "unfit": "Not for", "origin": "Origin", "speed": "Speed", "terms": "Terms",
         "data": "Data", "method": "Method"}  # fmt: skip
TITLES = {"psnr_hole": "PSNR of the hidden part", "psnr": "PSNR", "nll": "NLL"}


def facts_of(recipe: Recipe) -> dict[str, Any]:
    """What a model says of itself by its recipe: the card, and the frame of what is imported."""
    known = find_known(recipe.data.name)
    facts: dict[str, Any] = {"card": card_of(recipe)}
    if known and known.frame:
        size = list(recipe.data.size or (known.side, known.side))
        facts["frame"] = {"size": size, "at": list(known.frame)}
    side = recipe.data.inputs
    channel = side.channel if isinstance(side, Channel) else side
    return facts | ({"input_channel": channel} if channel and isinstance(channel, str) else {})


def card_of(recipe: Recipe) -> dict[str, str]:
    """The card of a model trained by this recipe."""
    card, known = {"task": describe_task(recipe)}, find_known(recipe.data.name)
    if known:
        names = ("takes", "prepare", "unfit", "credit", "samples", "importer")
        card |= {name: text for name in names if (text := getattr(known, name))}
    elif options := options_of(recipe.data):
        card["prepare"] = f"ptrees predict {options}: as its training images"
    return card


def describe_task(recipe: Recipe) -> str:
    spec = recipe.measurement
    if spec.kind == "inpaint" and len(spec.rows) == len(spec.columns) == len(spec.of) == 2:
        parts = []
        for name, (first, last), side in zip(("rows", "columns"), (spec.rows, spec.columns),
                                             spec.of, strict=True):  # fmt: skip
            if (first, last) != (0, side - 1):
                parts.append(f"{name} {first + 1} to {last + 1} of {side}")
        return f"{' and '.join(parts).capitalize()} are hidden"
    return {
        "colorize": "Colour is lost",
        "denoise": f"Noise of standard deviation {spec.sigma:g} is added",
        "downsample": f"Blocks of {spec.factor}×{spec.factor} pixels become one",
        "paired": f"{_called(recipe.data.inputs)} becomes {_called(recipe.data.targets)}"
        if recipe.data.inputs
        else "Edges become a picture",
    }.get(spec.kind, "")


def _called(side: str | Channel) -> str:
    return side if isinstance(side, str) else f"channel {side.channel}"


def says(predictor: Predictor, key: str) -> str:
    """What a model's card says of something; empty if nothing."""
    return predictor.about.get("card", {}).get(key, "")


def describe_model(predictor: Predictor) -> dict[str, str]:
    """Words for a page's footer: the model, its scores and origin, the method, and whom to thank.

    Scores are shown only if the model carries them: `about["test"]` is the table that
    `ptrees evaluate --split test --json` writes, or as much of it as is known.
    """
    facts = predictor.about
    made = [f"{key} {facts[key]}" for key in ("version", "commit", "date") if facts.get(key)]
    made += [f"by `{facts['command']}`"] if facts.get("command") else []
    words = {
        "name": predictor.name or "Posterior tree",
        **{key: says(predictor, key) for key in ("task", "takes", "prepare", "unfit")},
        "scores": _scores(facts.get("test") or {}),
        "origin": f"Trained with posterior-trees {', '.join(made)}" if made else "",
        "speed": _speed(facts.get("speed") or {}),
        "method": PAPER,
        "data": says(predictor, "credit"),
    }
    if terms := facts.get("terms"):
        words["terms"] = f"Trained on {terms}; the weights have the terms of their data"
    return {key: text for key, text in words.items() if text}


def write_card(predictor: TreePredictor) -> str:
    """The same as a page of Markdown, as a hub shows it beside a model."""
    words = describe_model(predictor)
    lines = [f"- **{title}**: {words[key]}" for key, title in LINES.items() if key in words]
    size = predictor.measurement.size
    takes = f"{size[0]}×{size[1]} pixels" if size else "pictures of any size"
    if frame := predictor.about.get("frame"):
        takes += f", best of {frame['size'][0]}×{frame['size'][1]}, as in training"
    count = sum(tensor.numel() for tensor in predictor.state_dict().values())
    return "\n".join([
        "---", "library_name: posterior-trees", "tags: [posterior-trees, uncertainty]", "---",
        f"# {words['name']}", "",
        "A tree of answers in one forward pass: the mean, its branches, and their probabilities.",
        "", *lines, f"- **Input**: {takes}, {plural(predictor.channels, 'channel')} out",
        f"- **Size**: {count / 1e6:.2f} million weights, {2e-6 * count:.1f} MB in bfloat16", "",
        *_table(predictor.about.get("test") or {}),
        "A node is an average, not a sample, and a tree knows only its training images: do not",
        "decide on people or patients by it.", "",
    ])  # fmt: skip


def title_of(predictor: Predictor) -> str:
    task = predictor.name.replace("_", " ")
    return f"Posterior trees: {task}" if task else "Posterior trees"


def _rows(table: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The scores that a model has, by title: those that say their depth and mean."""
    kinds = ((title, table.get(key) or ()) for key, title in TITLES.items())
    found = {
        title: [row for row in rows if {"depth", "mean"} <= row.keys()] for title, rows in kinds
    }
    return {title: rows for title, rows in found.items() if rows}


def _scores(table: dict[str, Any]) -> str:
    """The scores by depth: `PSNR of the hidden part 14.4 / 15.5 / 16.0 dB, …`."""
    parts = []
    for title, rows in _rows(table).items():
        if means := [row["mean"] for row in rows if title != "NLL" or row["depth"]]:
            unit, digits = ("", 2) if title == "NLL" else (" dB", 1)
            parts.append(f"{title} {' / '.join(f'{mean:.{digits}f}' for mean in means)}{unit}")
    if not parts:
        return ""
    count = f"{table['n']:,} test images" if "n" in table else "test images"
    return f"Measured on {count}, by depth: {', '.join(parts)}"


def _speed(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    height, width = facts["size"]
    cores = plural(facts["threads"], "thread")
    return f"{1000 * facts['seconds']:.0f} ms for {height}×{width} pixels on {cores} of a CPU"


def _table(table: dict[str, Any]) -> list[str]:
    """The scores with their intervals, a row for each depth, where the model has them."""
    if not (found := _rows(table)):
        return []
    kinds = {title: {row["depth"]: row for row in rows} for title, rows in found.items()}
    lines = [f"| depth | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    for depth in sorted({depth for rows in kinds.values() for depth in rows}):
        cells = [_cell(rows.get(depth, {})) for rows in kinds.values()]
        lines.append(f"| {depth} | {' | '.join(cells)} |")
    return [*lines, "", "Means over test images, with 95 % intervals.", ""]


def _cell(row: dict[str, Any]) -> str:
    if not row:
        return ""
    within = f" [{row['low']:.3f}, {row['high']:.3f}]" if {"low", "high"} <= row.keys() else ""
    return f"{row['mean']:.3f}{within}".replace("-0.000", "0.000")
