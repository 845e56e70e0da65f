r"""Which images train, which validate, which test: by a rule on names, never by chance.

What is not independent stays together: a group is an image, or a well with all its fields. Each
group has a number $u \in [0, 1)$, a hash of its name (`data.split_order = "hash"`). It tests where
$u \ge 1 - f_{\text{test}}$, validates where $u$ is within $f_{\text{validation}}$ below that, and
trains otherwise: a file that is added moves no other group. Splits are exchangeable, and their
sizes vary as binomial numbers do.

In the order of sorted names ("sorted", the rule of older models) the last
$\lfloor n f_{\text{test}} \rceil$ of $n$ groups test, and $\lfloor n f_{\text{validation}} \rceil$
before them validate. Names that follow plates, days or people make such splits differ in kind.

Either way a fraction above 0 takes at least one group, and the same files give the same splits on
every machine.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

import torch
from jaxtyping import Int
from torch import Tensor

from posterior_trees.errors import DataError
from posterior_trees.seeding import unit_hash

SPLITS = ("train", "validation", "test")


def fingerprint(names: Sequence[str]) -> str:
    """Of the names of a split: a model keeps that of its training images."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def split_names(
    names: Sequence[str], split: str, *, by: str, order: str, validation: float, test: float
) -> list[str]:
    """The names of one split, sorted; `by` is "name", or "well" to keep wells whole, and `order`
    is "hash" or "sorted"."""
    check_split(split, validation, test)
    if by not in ("name", "well"):
        raise DataError(f"data.split is {by!r}; for image files it is 'name' or 'well'")
    groups: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: (group_of(name, by), name)):
        groups.setdefault(group_of(name, by), []).append(name)
    chosen = split_groups(list(groups), split, order=order, validation=validation, test=test)
    if not chosen:
        raise DataError(empty(split, len(groups), "images" if by == "name" else "wells"))
    return [name for group in chosen for name in groups[group]]


def split_groups(
    groups: Sequence[str], split: str, *, order: str, validation: float, test: float
) -> list[str]:
    """Those of the sorted groups, each once, that belong to a split."""
    if order == "sorted":
        return list(groups[bounds(len(groups), split, validation, test)])
    drawn = {group: unit_hash(group, "split") for group in groups}
    tests = _above(drawn, 1 - test, test)
    rest = {group: u for group, u in drawn.items() if group not in tests}
    validates = _above(rest, 1 - test - validation, validation)
    parts = {"train": rest.keys() - validates, "validation": validates, "test": tests}
    return [group for group in groups if group in parts[split]]


def _above(drawn: dict[str, float], least: float, fraction: float) -> set[str]:
    """The groups drawn from `least` on. Choice: where a fraction above 0 draws none, as happens to
    small sets, the highest one: what such a set gains moves others only towards training."""
    if not (fraction > 0 and drawn):
        return set()
    found = {group for group, u in drawn.items() if u >= least}
    return found or {max(drawn, key=drawn.__getitem__)}


def group_of(name: str, by: str) -> str:
    """What a split keeps whole: an image, or `by` "well" the well of a field."""
    return well(image_of(name)) if by == "well" else image_of(name)


def image_of(name: str) -> str:
    """The image that a window of it, `name@top,left`, was cut from."""
    return re.sub(r"(@\d+,\d+)+$", "", name)


def files_of(names: Sequence[str]) -> list[str]:
    """The images that these, or windows of them, are; each once, in order."""
    return list(dict.fromkeys(image_of(name) for name in names))


def find_groups(names: Sequence[str], by: str) -> Int[Tensor, "n"] | None:
    """For each name the number of what it belongs to and a split keeps whole: windows to their
    image, and `by` "well" fields to their well. None if each stands for itself."""
    wholes = [group_of(name, by) for name in names]
    numbers = {whole: number for number, whole in enumerate(dict.fromkeys(wholes))}
    if len(numbers) == len(names):
        return None
    return torch.tensor([numbers[whole] for whole in wholes])


def bounds(n: int, split: str, validation: float, test: float) -> slice:
    """The place of a split among `n` sorted things."""
    end = max(n - _share(n, test), 0)
    middle = max(end - _share(n, validation), 0)
    ends = {"train": (0, middle), "validation": (middle, end), "test": (end, n)}
    return slice(*ends[split])


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
