"""The digits' table from the scores of several seeds: `table.py FOLDER` reads seed*.json there."""

import json
import statistics
import sys
from pathlib import Path

folder = Path(sys.argv[1])
seeds = [json.loads(file.read_text()) for file in sorted(folder.glob("seed*.json"))]


def spread(values: list[float], digits: int) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f}±{deviation:.{digits}f}"


n, depths = seeds[0]["n"], range(len(seeds[0]["psnr"]))
print(f"Mean ± deviation over {len(seeds)} seeds, {n:,} test digits:\n")
print("| depth | PSNR of the hole, dB | PSNR of the whole, dB | NLL | entropy | NLL − entropy |")
print("|---|---|---|---|---|---|")
for depth in depths:
    read = {
        k: [s[k][depth]["mean"] for s in seeds] for k in ("psnr_hole", "psnr", "nll", "entropy")
    }
    gap = [a - b for a, b in zip(read["nll"], read["entropy"], strict=True)]
    cells = [spread(read["psnr_hole"], 2), spread(read["psnr"], 2)]
    cells += [spread(v, 3) for v in (read["nll"], read["entropy"], gap)] if depth else ["–"] * 3
    print(f"| {depth} | " + " | ".join(cells) + " |")
leaves = [leaf for s in seeds for leaf in s["leaves"]]
rarest = min(leaf["frequency"] for leaf in leaves)
worst = min(leaf["psnr"] - leaf["root_psnr"] for leaf in leaves if leaf["frequency"])
print(f"\nThe rarest leaf is reached by {rarest:.1%} of the digits. On the digits that reach it,")
print(f"every leaf beats the root by {worst:.2f} dB or more.")
