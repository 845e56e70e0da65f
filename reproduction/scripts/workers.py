"""How much faster several workers are than one, with a thread each, on a quiet computer:

    python reproduction/scripts/workers.py FOLDER --fields 240 --workers 1 2

FOLDER has pictures that the model takes, which are used again and again. The time is that of the
whole command, with the start of all processes; the bytes of both are compared.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measure(folder: Path, out: Path, model: str, workers: int) -> float:
    command = [sys.executable, "-m", "posterior_trees", "predict", model, str(folder), "--out",
               str(out), "--workers", str(workers), "--write", "labels,table", "--device", "cpu",
               "--progress", "none"]  # fmt: skip
    start = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="cells")
    parser.add_argument("--fields", type=int, default=240)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.2f} of {os.cpu_count()} cores (quiet: below 0.5)")
    pictures = sorted(path.resolve() for path in arguments.folder.iterdir() if path.is_file())
    with tempfile.TemporaryDirectory() as place:
        fields = Path(place) / "fields"
        fields.mkdir()
        for i in range(arguments.fields):
            source = pictures[i % len(pictures)]
            (fields / f"field{i:04d}{source.suffix}").symlink_to(source)
        first, tables = 0.0, set()
        for workers in arguments.workers:
            out = Path(place) / f"out{workers}"
            seconds = measure(fields, out, arguments.model, workers)
            first = first or seconds
            tables.add((out / "nuclei.csv").read_bytes())
            print(f"{workers} workers: {seconds:.1f} s, {arguments.fields / seconds:.2f} fields/s, "
                  f"{first / seconds:.2f} times the first")  # fmt: skip
    print("the tables are the same" if len(tables) == 1 else "the tables DIFFER")


if __name__ == "__main__":
    main()
