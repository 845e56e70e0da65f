r"""Time and memory of a call, measured so that two of them can be compared.

A time is the median over repeats with the quartiles as its spread: the mean of a busy machine says
more about the others on it. Calls that will be compared are timed *in turn*, one of each per round,
so that a slow minute hits all of them; on CUDA by events on the device, after everything queued
before is done. What runs first (allocation, plans, compilation) is left out as warm-up.
"""

import contextlib
import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from posterior_trees.errors import InputError

WARM_UP = 3
"""Calls before the clock starts."""


class Timing(NamedTuple):
    """Milliseconds of one call: median, quartiles, and over how many repeats."""

    median_ms: float
    low_ms: float
    high_ms: float
    repeats: int

    @classmethod
    def of(cls, milliseconds: list[float]) -> "Timing":
        low, median, high = np.percentile(milliseconds, (25, 50, 75)).tolist()
        return cls(median, low, high, len(milliseconds))


def time_together(
    calls: Mapping[str, Callable[[], object]],
    device: str | torch.device = "cpu",
    *,
    repeat: int = 20,
    warm_up: int = WARM_UP,
    seconds: float = float("inf"),
) -> dict[str, Timing]:
    """Time several calls in turn, `repeat` rounds of one each.

    Ends early, after three rounds at least, when `seconds` are over.
    """
    if repeat < 1:
        raise InputError(f"repeat is {repeat}; a time needs at least one measurement")
    device = torch.device(device)
    for call in calls.values():
        for _ in range(warm_up):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.monotonic()
    for number in range(repeat):
        if number >= 3 and time.monotonic() - start > seconds:
            break
        for name, call in calls.items():
            times[name].append(time_once(call, device))
    return {name: Timing.of(values) for name, values in times.items()}


def time_once(call: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of one call, all of its work on the device included."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return 1000 * (time.perf_counter() - start)


def wait(device: torch.device) -> None:
    """Until the device has done everything it was asked to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def peak_bytes(call: Callable[[], object], device: str | torch.device = "cpu") -> int | None:
    """The most memory in use during a call: of tensors on CUDA, of the whole process on the CPU.

    None where the system does not say (it is Linux that does).
    """
    device = torch.device(device)
    gc.collect()
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        wait(device)
        return torch.cuda.max_memory_allocated(device)
    is_told = device.type == "cpu" and _reset_peak()
    call()
    return resident_bytes("VmHWM") if is_told else None


def resident_bytes(field: str = "VmRSS") -> int | None:
    """Memory of this process that is not swapped out, now (`VmRSS`) or at its peak (`VmHWM`)."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return None


def _reset_peak() -> bool:
    """Hand freed memory back (glibc keeps some), and let the kernel forget this process's peak
    (Linux: proc(5), `clear_refs`)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
