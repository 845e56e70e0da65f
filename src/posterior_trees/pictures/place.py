"""Results that appear whole or not at all, one by one, whatever ends the work.

Each is made in a hidden folder on the same disk, the stage, and then renamed. A process holds its
stage (`lock.py`), so that what one that was killed has left can be told and cleared away.
"""

import os
import shutil
import threading
from collections.abc import Generator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from posterior_trees.errors import RunError
from posterior_trees.lock import hold

OWN = ("node_*.png", "count*", "picture.png", "tree.*")
"""Files of a result; others in its folder are somebody's."""


@contextmanager
def stage(out: str | PathLike[str]) -> Generator[Path, None, None]:
    """A hidden folder for what is to come into the folder `out`, which is made when that is put
    there."""
    out = Path(out)
    near = [place for place in (out.absolute(), *out.absolute().parents) if place.exists()]
    beside = near[0]
    if not beside.is_dir() or not os.access(beside, os.W_OK):
        raise OSError(f"cannot make the folder {out}: choose another --out")
    for left in [left for folder in near for left in folder.glob(f".{out.name}.*.stage")]:
        _clear(left)
    place = beside / f".{out.name}.{os.getpid()}-{threading.get_ident()}.stage"
    try:
        with hold(place):
            place.mkdir(exist_ok=True)
            yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def put(part: Path, folder: Path) -> None:
    """Give `folder` the files of `part`, at once; of those that were there, other people's stay."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    old = part.with_name(part.name + ".old")
    while True:
        if folder.exists():
            _keep_others(folder, part)
            os.rename(folder, old)
        try:
            os.rename(part, folder)
            break
        except OSError:
            if not folder.exists():
                raise  # else another process was faster: ours is the later one
        finally:
            shutil.rmtree(old, ignore_errors=True)


def put_file(file: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    os.replace(file, folder / file.name)


def _keep_others(folder: Path, part: Path) -> None:
    for entry in folder.iterdir():
        if any(entry.match(pattern) for pattern in OWN) or (part / entry.name).exists():
            continue
        if entry.is_dir():
            shutil.copytree(entry, part / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, part / entry.name, follow_symlinks=False)


def _clear(left: Path) -> None:
    """Remove what a process that is no more has left; a folder it was replacing comes back."""
    try:
        with hold(left):
            for old in left.glob("*.old"):
                home = left.parent / old.name.removesuffix(".old")
                if not home.exists():
                    os.rename(old, home)
    except RunError:
        return  # somebody's who works at this moment
    shutil.rmtree(left, ignore_errors=True)
