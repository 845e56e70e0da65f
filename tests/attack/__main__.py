"""`python -m tests.attack [PART…] [--count N] [--seed S]`: all parts, or those that are named."""

import argparse
import importlib
import pkgutil
import sys
import time
from pathlib import Path

PARTS = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)])
               if not m.name.startswith("_"))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--count", type=int, default=3000, help="inputs of each part [3000]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    tried, failed = 0, []
    for part in arguments.parts or PARTS:
        started = time.monotonic()
        module = importlib.import_module(f"tests.attack.{part}")
        count, failures = module.attack(arguments.seed, arguments.count)
        seconds = time.monotonic() - started
        print(f"{part}: {count} tried, {len(failures)} failed, {seconds:.0f} s", flush=True)
        print("".join(f"  {failure}\n" for failure in failures[:20]), end="", flush=True)
        tried, failed = tried + count, failed + failures
    print(f"{tried} tried, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
