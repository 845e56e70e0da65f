"""What a page shows before anybody gives it a picture: the user's files, or the sample digits."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path

from posterior_trees.assets import DIGITS, PAPER, sample_digits
from posterior_trees.errors import DataError
from posterior_trees.explore.content import Measure, describe_trees
from posterior_trees.imaging.adjust import Adjustment
from posterior_trees.imaging.decode import read_header
from posterior_trees.imaging.size import describe_resize, scale_size, times
from posterior_trees.pictures.digits.find import check_takes_digits, takes_digits
from posterior_trees.serve.upload import (
    RESCALED,
    Answer,
    Limits,
    Predictor,
    answer,
    fitted_size,
    has_scale,
    predict_pixels,
)
from posterior_trees.tree import Tree

SAMPLES = 12
"""How many of the sample digits a served page begins with."""


def describe_start(
    predictor: Predictor,
    files: Sequence[Path],
    *,
    degrade: bool = True,
    adjustment: Adjustment | None = None,
    digit: bool = False,
    scale: float | int = 1.0,
    rivals: Sequence[tuple[str, Path]] = (),
    measures: Mapping[str, Measure] | None = None,
    warn: Callable[[str], object] = warnings.warn,
) -> list[dict]:
    """Examples of the given files, or of sample digits where the model takes digits; `warn` hears
    of files that do not fit the model or not the page. `digit` finds the digit in each file, and
    `scale` makes them larger or smaller."""
    if digit:
        check_takes_digits(predictor.measurement, predictor.channels, predictor.name)
    degrade = degrade and predictor.measurement.is_computable
    if files:
        names = [file.name for file in files]
        read = partial(_read, predictor, degrade, adjustment, digit, scale, warn)
        answers = [read(file) for file in files]
    else:
        is_model_of_digits = takes_digits(predictor.measurement, predictor.channels)
        digits = sample_digits(SAMPLES) if is_model_of_digits else ()
        names = [f"digit {i + 1}" for i in range(len(digits))]
        answers = [predict_pixels(predictor, digit[None]) for digit in digits]
    others = {name: _load_trees(file, len(answers)) for name, file in rivals}
    examples = []
    for i, (name, made) in enumerate(zip(names, answers, strict=True)):
        rival = {method: trees[i] for method, trees in others.items()}
        (example,) = describe_trees(
            made.tree, inputs=made.y, truths=made.x, names=[name], rivals=rival, measures=measures
        )
        examples.append(example | {"note": made.note, "resized": made.resized})
    return examples


def title_of(predictor: Predictor) -> str:
    return (
        f"Posterior trees: {predictor.name.replace('_', ' ')}"
        if predictor.name
        else "Posterior trees"
    )


def model_card(predictor: Predictor) -> dict[str, str]:
    """Words for the footer: the model, where it comes from, and the method."""
    card = {"name": predictor.name or "Posterior tree"}
    keys = [key for key in ("version", "commit", "date") if predictor.about.get(key)]
    if keys:
        card["origin"] = "Trained with posterior-trees " + ", ".join(
            f"{key} {predictor.about[key]}" for key in keys
        )
    card["method"] = PAPER
    if takes_digits(predictor.measurement, predictor.channels):
        card["data"] = DIGITS
    if terms := predictor.about.get("terms"):
        card["terms"] = f"Trained on {terms}; the weights have the terms of their data"
    return card


def _read(
    predictor: Predictor,
    degrade: bool,
    adjustment: Adjustment | None,
    digit: bool,
    scale: float | int,
    warn: Callable[[str], object],
    file: Path,
) -> Answer:
    """The answer to a file of the user's own, whose size in bytes is the user's business."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {file} ({error.strerror or error}). Check the name") from None
    limits = Limits()
    made = answer(predictor, content, str(file), degrade=degrade, adjustment=adjustment,
                  digit=digit, scale=scale, limits=limits)  # fmt: skip
    if not digit and (words := _explain_resize(predictor, content, str(file), limits, scale)):
        warn(words)
    if made.note:
        warn(f"{file}: {made.note}")
    return made


def _explain_resize(
    predictor: Predictor, content: bytes, name: str, limits: Limits, scale: float | int
) -> str:
    """What was done to a picture that nobody had asked for; empty if nothing was."""
    have = scale_size(read_header(BytesIO(content), name)[:2], scale, name)
    want = fitted_size(predictor, content, name, limits, scale)
    why = f"the explorer takes at most {limits.side} pixels a side"
    if mask := predictor.measurement.size:
        why = f"the model takes {times(mask)}"
    elif max(have) <= limits.side:
        why = "the model takes whole blocks of pixels"
    text = describe_resize(
        f"{name} at {scale:g} of its size" if scale != 1 else name, have, want, why
    )
    if not text or not has_scale(predictor):
        return text
    return f"{text}, {RESCALED}; `ptrees predict` takes it as it is"


def _load_trees(file: Path, count: int) -> Tree:
    if not file.is_file():
        raise DataError(f"{file} does not exist. Check the name")
    trees = Tree.load(file)
    if len(trees) != count:
        raise DataError(
            f"{file} holds {len(trees)} trees for {count} pictures: a comparison needs one for each"
        )
    return trees
