"""Results that appear whole or not at all, one by one, whatever ends the work.

Each is made in a hidden folder on the same disk, the stage, and then renamed. One process at a time
holds the stage of a folder (`lock.py`), because they would write into the same tables; what one
that was killed has left on it is cleared away.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path

from posterior_trees.lock import hold

OWN = ("node_*.png", "count*", "picture.png", "tree.*")
"""Files of a result; others in its folder are somebody's."""
OLD = ".old"
"""Where beside it, on the stage, a result lies while another takes its place."""


@contextmanager
def stage(out: str | PathLike[str], share: str = "") -> Generator[Path, None, None]:
    """A hidden folder for what is to come into the folder `out`, which is made when that is put
    there: inside `out`, or where it will be. Raises `RunError` if somebody else has one, but for
    those who do another `share` of the work."""
    whole = Path(out).absolute()
    near = [place for place in (whole, *whole.parents) if place.exists()]
    if not near[0].is_dir() or not os.access(near[0], os.W_OK):
        raise OSError(f"cannot make the folder {out}: choose another --out")
    name = f"{share}.stage" if share else "stage"
    places = [at / ".".join(["", *whole.relative_to(at).parts, name]) for at in near]
    with ExitStack() as held:
        for place in [places[0], *(place for place in places[1:] if place.exists())]:
            held.enter_context(hold(place, Path(out)))
            held.callback(_clear, place, whole)
            _bring_back(place, whole)
        places[0].mkdir(exist_ok=True)
        yield places[0]


def put(part: Path, folder: Path) -> None:
    """Give `folder` the files of `part`, at once; of those that were there, other people's stay."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    old = part.parent / OLD / part.name
    if folder.exists():
        _keep_others(folder, part)
        old.parent.mkdir(exist_ok=True)
        os.rename(folder, old)
    os.rename(part, folder)
    shutil.rmtree(old, ignore_errors=True)


def _keep_others(folder: Path, part: Path) -> None:
    for entry in folder.iterdir():
        if any(entry.match(pattern) for pattern in OWN) or (part / entry.name).exists():
            continue
        if entry.is_dir():
            shutil.copytree(entry, part / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, part / entry.name, follow_symlinks=False)


def _bring_back(place: Path, out: Path) -> None:
    """A result that was being replaced comes back, where no other took its place."""
    for old in place.glob(f"*/{OLD}/*"):
        if not (out / old.name).exists():
            os.rename(old, out / old.name)


def _clear(place: Path, out: Path) -> None:
    _bring_back(place, out)
    shutil.rmtree(place, ignore_errors=True)
