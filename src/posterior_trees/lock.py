"""One process at a time writes into a folder.

The lock is the system's: it goes when its holder ends, however that ends. FOLDER/.lock is what is
locked, and stays; FOLDER/.holder says who holds it, for the message of those who come second.
"""

import json
import os
import threading
import time
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path

from filelock import FileLock, Timeout

from posterior_trees.errors import RunError

LOCK, HOLDER = ".lock", ".holder"
_held: dict[Path, int] = {}
"""Folders that this process holds, each with its thread."""


@contextmanager
def hold(
    folder: str | PathLike[str], called: Path | None = None, patience: float | int = 0
) -> Generator[None, None, None]:
    """Keep others out of a folder, which is made if it is not there; raises `RunError` if somebody
    holds it, after so many seconds (the message calls it `called`). A thread may hold a folder that
    it holds already. Of processes that train together the first one holds it. A folder that was
    made here and stays empty goes again."""
    path = Path(folder).resolve()
    if not is_first_process() or _held.get(path) == threading.get_ident():
        yield
        return
    new = [place for place in (path, *path.parents) if not place.exists()]
    lock = FileLock(path / LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience)
    except Timeout:
        raise RunError(_describe(path, called or folder)) from None
    except (OSError, NotImplementedError) as error:  # some network drives have no locks
        if not path.is_dir() or not os.access(path, os.W_OK):
            verb = "write into" if path.is_dir() else "make"
            raise RunError(
                f"cannot {verb} the folder {folder} ({error}): choose another"
            ) from error
        doubt = f"{folder} cannot be locked ({error}): let nobody else write there"
        warnings.warn(doubt, stacklevel=3)
    _held[path] = threading.get_ident()
    try:
        with suppress(OSError):
            note = {"pid": os.getpid(), "since": time.time()}
            (path / HOLDER).write_text(json.dumps(note), encoding="utf-8")
        yield
    finally:
        del _held[path]
        with suppress(OSError):
            (path / HOLDER).unlink()
            if new and [entry.name for entry in path.iterdir()] == [LOCK]:
                (path / LOCK).unlink()
                for place in new:
                    place.rmdir()
        lock.release()


def is_first_process() -> bool:
    """Whether this is the one that writes and speaks, of those that train together."""
    return os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"


def _describe(folder: Path, called: str | PathLike[str]) -> str:
    who = "another process"
    with suppress(OSError, ValueError, LookupError, TypeError):
        note = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        began = time.strftime("%H:%M:%S on %Y-%m-%d", time.localtime(note["since"]))
        who = f"process {int(note['pid'])}, since {began}"
    return (
        f"{called} is being written by {who}: wait for its end, stop it, or choose another folder"
    )
