"""The table of options tried on the digits, from the last line of each run's log:
`options_table.py FOLDER` (ours: digits/options of results/logs.tar.xz)."""

import json
import sys
from pathlib import Path

print("| run | PSNR of the hole, d = 0 / 1 / 2 | NLL d = 1 / 2 | NLL − entropy | rarest leaf |")
print("|---|---|---|---|---|")
for file in sorted(Path(sys.argv[1]).glob("*.jsonl")):
    line = json.loads(file.read_text().splitlines()[-1])
    psnr = " / ".join(f"{v:.2f}" for v in line["val_psnr"])
    nll = " / ".join(f"{v:.3f}" for v in line["val_nll"][1:])
    pairs = list(zip(line["val_nll"], line["val_entropy"], strict=True))[1:]
    gap = " / ".join(f"{n - e:+.3f}" for n, e in pairs)
    print(f"| {file.stem} | {psnr} | {nll} | {gap} | {min(line['leaf_usage']):.1%} |")
