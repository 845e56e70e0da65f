"""The attack: hostile inputs by the thousand, run by hand with `python -m tests.attack`.

Each part is a module with `attack(seed, count)`, which gives how many inputs it tried and what
failed.
"""

import contextlib
import resource
import signal
import time
from collections.abc import Callable, Generator

from posterior_trees.errors import PosteriorTreesError

SECONDS, BYTES = 20, 3e9
"""What one input may take; memory beyond what was taken before."""


class LateError(BaseException):
    """An input took longer."""


def judge(read: Callable[[], object], what: str) -> list[str]:
    """What is wrong with the way an input was taken: nothing if it was read, or refused in words,
    in time."""
    started, most = time.monotonic(), peak_bytes()
    try:
        with _limited():
            read()
    except (PosteriorTreesError, OSError):
        pass
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return [f"{what}: {type(error).__name__}: {error}"[:300]]
    seconds = time.monotonic() - started
    if (taken := peak_bytes() - most) > BYTES:
        return [f"{what}: took {taken / 1e9:.1f} GB"]
    return [f"{what}: took {seconds:.0f} s"] if seconds > SECONDS + 5 else []


def peak_bytes() -> int:
    """The most memory this process has ever had."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@contextlib.contextmanager
def _limited() -> Generator[None, None, None]:
    def stop(*_: object) -> None:
        raise LateError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS + 5)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
