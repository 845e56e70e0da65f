"""Two of the same command at once, into one folder: one does the work, or both, one after the other
or each for itself; what is there in the end is what one alone leaves, to the last bit.

A failure is a folder that differs, two that both refuse, a refusal that does not say who is first,
or a traceback.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from tests.attack.world import (
    Job,
    differences,
    end_of,
    fork,
    in_place,
    make_world,
    read_all,
    run,
)


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """Pairs tried, and what failed."""
    torch.set_num_threads(1)
    chance, failed, ends = random.Random(seed), list[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        jobs = make_world(folder / "world")
        jobs += [Job("demo", ("demo", "--out", "OUT")), Job("toy", ("toy", "--out", "OUT"))]
        wanted, seconds = {}, {}
        for job in jobs[:-1]:  # the toy takes minutes: only its refusal is looked at
            start = time.monotonic()
            out, terminal = folder / "whole" / job.name, folder / "whole.txt"
            assert run(in_place(job, out), terminal) == 0, terminal.read_text()
            wanted[job.name], seconds[job.name] = read_all(out), time.monotonic() - start
        for number in range(count):
            job, out = jobs[number % len(jobs)], folder / "both"
            apart = chance.random() * min(seconds.get(job.name, 2.0), 2.0)
            codes, texts = both(job, out, folder, apart)
            refused = [text for code, text in zip(codes, texts, strict=True) if code == 1]
            ends[f"{job.name}: {sorted(codes)}"] += 1
            wrong = [text for text in texts if "Traceback" in text]
            wrong += [t for t in refused if "is being written by" not in t]
            if len(refused) == 2:
                wrong.append("both refuse")
            if job.name in wanted:
                wrong += differences(read_all(out), wanted[job.name])
            failed += [f"{job.name}: {text[-800:]}" for text in wrong]
            shutil.rmtree(out)
    print(", ".join(f"{end} {times}" for end, times in sorted(ends.items())))
    return count, failed


def both(job: Job, out: Path, folder: Path, apart: float) -> tuple[list[int], list[str]]:
    """Exit codes and words of two, the second started so many seconds after the first."""
    terminals = [folder / "first.txt", folder / "second.txt"]
    for terminal in terminals:
        terminal.unlink(missing_ok=True)
    first = fork(in_place(job, out), terminals[0])
    time.sleep(apart)
    second = fork(in_place(job, out), terminals[1])
    if job.name == "toy":  # the one that works need not end
        ends = {}
        while not ends:
            time.sleep(0.05)
            ends = {
                pid: status for pid in (first, second) if (status := os.waitpid(pid, os.WNOHANG))[0]
            }
        for pid in {first, second} - ends.keys():
            os.kill(pid, signal.SIGKILL)
            ends[pid] = os.waitpid(pid, 0)
        codes = [os.waitstatus_to_exitcode(ends[pid][1]) for pid in (first, second)]
    else:
        codes = [end_of(first), end_of(second)]
    return codes, [terminal.read_text() for terminal in terminals]


if __name__ == "__main__":
    tried, failures = attack(seed=0, count=int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    print(f"{tried} pairs tried, {len(failures)} failed")
    print("\n".join(failures[:20]))
    sys.exit(bool(failures))
