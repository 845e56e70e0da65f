r"""Which images train, which validate, which test: by a rule on names, never by chance.

Of $n$ sorted names the last $\lfloor n f_{\text{test}} \rceil$ are the test split, as many as
$\lfloor n f_{\text{validation}} \rceil$ before them the validation split, and the rest trains
(fractions above 0 take at least one). The same files give the same splits on every machine.
"""

import hashlib
import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import PurePosixPath

import torch
from jaxtyping import Int
from torch import Tensor

from posterior_trees.errors import DataError

SPLITS = ("train", "validation", "test")


def fingerprint(names: Sequence[str]) -> str:
    """Of the names of a split: a model keeps that of its training images."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def split_names(
    names: Sequence[str], split: str, *, by: str, validation: float, test: float
) -> list[str]:
    """The names of one split, sorted; `by` is "name", or "well" to keep wells whole."""
    check_split(split, validation, test)
    if by == "name":
        groups = [[name] for name in sorted(names)]
    elif by == "well":
        ordered = sorted(names, key=lambda name: (well(name), name))
        groups = [list(fields) for _, fields in groupby(ordered, key=well)]
    else:
        raise DataError(f"data.split is {by!r}; for image files it is 'name' or 'well'")
    chosen = groups[bounds(len(groups), split, validation, test)]
    if not chosen:
        raise DataError(empty(split, len(groups), "images" if by == "name" else "wells"))
    return [name for group in chosen for name in group]


def image_of(name: str) -> str:
    """The image that a window of it, `name@top,left`, was cut from."""
    return re.sub(r"(@\d+,\d+)+$", "", name)


def files_of(names: Sequence[str]) -> list[str]:
    """The images that these, or windows of them, are; each once, in order."""
    return list(dict.fromkeys(image_of(name) for name in names))


def find_groups(names: Sequence[str], by: str) -> Int[Tensor, "n"] | None:
    """For each name the number of what it belongs to and a split keeps whole: windows to their
    image, and `by` "well" fields to their well. None if each stands for itself."""
    images = [image_of(name) for name in names]
    wholes = [well(image) for image in images] if by == "well" else images
    numbers = {whole: number for number, whole in enumerate(dict.fromkeys(wholes))}
    if len(numbers) == len(names):
        return None
    return torch.tensor([numbers[whole] for whole in wholes])


def bounds(n: int, split: str, validation: float, test: float) -> slice:
    """The place of a split among `n` sorted things."""
    end = max(n - _share(n, test), 0)
    middle = max(end - _share(n, validation), 0)
    return {"train": slice(0, middle), "validation": slice(middle, end), "test": slice(end, n)}[
        split
    ]


def check_split(split: str, validation: float, test: float) -> None:
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; it is one of {', '.join(SPLITS)}")
    if not (0 <= validation <= 1 and 0 <= test <= 1 and validation + test < 1):
        raise DataError(
            f"data.validation is {validation} and data.test is {test}; both are fractions, "
            "and together they leave something below 1 to train on"
        )


def empty(split: str, n: int, things: str) -> str:
    """The message for a split with nothing in it."""
    fix = "add some, one for each split at least"
    if split != "train":
        fix = f"set data.{split} above 0 or add images"
    return f"the {split} split is empty: there are {n} {things}; {fix}"


def well(name: str) -> str:
    """The well of a field: its file name up to the first "_", with the folder before it."""
    path = PurePosixPath(name)
    return (path.parent / path.stem.split("_")[0]).as_posix()


def _share(n: int, fraction: float) -> int:
    return max(int(n * fraction + 0.5), 1) if fraction > 0 and n > 0 else 0
