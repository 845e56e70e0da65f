"""How much memory is free.

Choice: not psutil's answer, which knows no limit of a container: that half would stay, beside a
compiled package that every GPU machine would have to carry.
"""

import os
from contextlib import suppress
from pathlib import Path

from posterior_trees.errors import InputError

UNKNOWN = 4 * 2**30
"""Choice: what we take for free where the system does not say (Windows)."""


def free_bytes() -> int:
    """Memory that may still be taken: of the machine, or of the container that we run in."""
    return max(min(_machine(), _container()), 0)


def refuse_what_cannot_fit(needed: int, what: str, fix: str) -> None:
    """An error that names both numbers, before anything is read or built."""
    if needed > (free := free_bytes()):
        raise InputError(f"{what} needs {needed / 1e9:.3g} GB, {free / 1e9:.3g} GB are free: {fix}")


def _machine() -> int:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return UNKNOWN


def _container() -> int:
    """What is left below the limit of a Linux control group (version 2), if there is one."""
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        return limit - int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 2**62
