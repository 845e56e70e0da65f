"""Kills of commands at random moments: what they leave is whole, and given again they end as if
they had never been killed, every tensor equal to the last bit.

A failure is a file that cannot be read after a kill, a command that does not end well when it is
given again, or a result that differs from that of an undisturbed one.
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
    """Kills tried, and what failed."""
    torch.set_num_threads(1)
    chance, killed, failed = random.Random(seed), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        jobs = make_world(folder / "world")
        wanted, seconds = {}, {}
        for job in jobs:
            start = time.monotonic()
            out, terminal = folder / "whole" / job.name, folder / "whole.txt"
            assert run(in_place(job, out), terminal) == 0, terminal.read_text()
            seconds[job.name] = time.monotonic() - start
            wanted[job.name] = read_all(out)
        while killed.total() < count:
            job = chance.choice(jobs)
            out = folder / "parts" / str(killed.total())
            end = seconds[job.name] * (0.4 if job.goes_on else 1.1)
            number, wrong = kill_and_repeat(job, out, folder / "parts.txt", end, chance)
            killed[job.name] += number
            print(f"{killed.total()} kills, {len(failed)} failed", flush=True)
            failed += wrong or [
                f"{job.name}: {text}" for text in differences(read_all(out), wanted[job.name])
            ]
            shutil.rmtree(out, ignore_errors=True)
            (folder / "parts.txt").unlink()
    print(", ".join(f"{name} {number}" for name, number in sorted(killed.items())))
    return killed.total(), failed


def kill_and_repeat(
    job: Job, out: Path, terminal: Path, seconds: float, chance: random.Random
) -> tuple[int, list[str]]:
    """Kills of one command, and what was wrong after each of them and at its end. One that goes on
    where it was killed is killed sooner, and comes to all its moments."""
    killed, wrong = 0, []
    for _ in range(chance.randrange(4, 13)):
        pid = fork(in_place(job, out), terminal)
        time.sleep(seconds * chance.random())
        os.kill(pid, signal.SIGKILL)
        killed += end_of(pid) == -signal.SIGKILL
        try:
            read_all(out, is_over=False)
        except Exception as error:
            wrong.append(f"{job.name}: after a kill {type(error).__name__}: {error}")
        if job.name == "predict" and out.is_dir() and not any(out.rglob("tree.json")):
            wrong.append("predict: it left a folder without a result")
    if (code := run(in_place(job, out), terminal)) != 0:
        wrong.append(f"{job.name}: given again it ended with {code}: {terminal.read_text()[-800:]}")
    return killed, wrong


if __name__ == "__main__":
    tried, failures = attack(seed=0, count=int(sys.argv[1]) if len(sys.argv) > 1 else 250)
    print(f"{tried} kills tried, {len(failures)} failed")
    print("\n".join(failures[:20]))
    sys.exit(bool(failures))
