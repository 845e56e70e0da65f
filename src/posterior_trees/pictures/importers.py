"""What makes a model's pictures of others: a digit of a photograph, a face cut around its eyes,
thin lines of a drawing. A model's card names its own."""

from collections.abc import Sequence

from posterior_trees.errors import InputError
from posterior_trees.imaging.decode import Stored
from posterior_trees.imaging.size import SCALES
from posterior_trees.pictures.digit import Digit, takes_digits
from posterior_trees.pictures.eyes import Eyes, side_of, takes_eyes
from posterior_trees.pictures.lines import Lines, is_no_map, takes_lines
from posterior_trees.predictor import Predictor

PLACES = "(on the page tick it; in Python lines=True)"

Importer = Digit | Eyes | Lines
"""Makes the picture that a model takes of the values of a file, which it gets as they are, and says
what is doubtful about it. `does` says what it does by itself, and `excludes` which options are then
left out."""


def choose_importer(
    digit: bool = False, align: Sequence[float | int] | None = None, lines: bool = False
) -> Importer | None:
    """The one that was asked for."""
    asked: list[Importer] = [Digit()] if digit else []
    asked += [Eyes(tuple(map(float, align)))] if align else []
    asked += [Lines()] if lines else []
    if len(asked) > 1:
        names = " and ".join(importer.option for importer in asked)
        raise InputError(f"{names} make different pictures of one: give one of them")
    return asked[0] if asked else None


def doubt_picture(
    stored: Stored, importer: Importer | None, is_resized: bool, predictor: Predictor,
    is_cut: bool = False,
) -> str:  # fmt: skip
    """Why a picture may be none of the model's, of a portrait unless the reader said that it
    `is_cut`; what an importer made has its own doubt."""
    if importer is not None:
        return ""
    task = f"the task {predictor.name!r}" if predictor.name else "this model"
    height, width = stored.shape[-2:]
    if takes_eyes(predictor) and (is_resized or (height, width) != side_of(predictor)):
        side, _ = side_of(predictor)
        where = (
            f"{task} knows pictures that are cut around both eyes, and nobody said where they are "
            "in this one: mark them (--align X1 Y1 X2 Y2, or on the page; in Python "
            "align=(x1, y1, x2, y2)) if it is not cut so"
        )
        scale = side / height
        size = (
            f"A portrait that is cut has to be as small as those that {task} learned from: {side} "
            f"pixels high, not {height}. Mark its eyes"
        ) + f", or --scale {scale:.4g}" * (scale >= SCALES[0])
        is_large = not is_resized and height != side
        return ". ".join([where] * (not is_cut) + [size] * is_large)
    if takes_lines(predictor):
        side = max(predictor.about["frame"]["size"])
        if max(height, width) > 1.5 * side:
            return (
                f"{task} knows lines one pixel thin in {side} pixels, and this picture has "
                f"{height}×{width}: let --lines {PLACES} make such lines"
            )
    if takes_lines(predictor) and is_no_map(stored):
        return (
            f"{task} knows thin black lines on white, and this picture has greys or much black: "
            f"let --lines {PLACES} find the lines of a drawing"
        )
    return ""


def describe_way(predictor: Predictor, proposed: Importer | None) -> dict:
    """What the page has to know of a model's own importer: null where it has none, for `digit` and
    `lines` whether they are proposed, for `align` where the eyes come to lie. Lines are proposed to
    everybody: what has lines as the model's already keeps them."""
    return {
        "digit": isinstance(proposed, Digit) if takes_digits(predictor) else None,
        "lines": proposed is None or isinstance(proposed, Lines)
        if takes_lines(predictor)
        else None,
        "align": predictor.about["frame"]["at"] if takes_eyes(predictor) else None,
    }
