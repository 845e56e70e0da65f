"""How much of a sampler's score is its sampling, how much the number of samples.

`sample_count.py FEW MANY`: folders that `ptrees compare` wrote (those of results/comparison:
comparison/digits_first and comparison/digits_1000 of results/logs.tar.xz); the images of MANY are
among those of FEW. Prints what more samples change, image by image, with 95 % intervals.
"""

import json
import sys
from pathlib import Path

import torch

from posterior_trees.metrics import summarize

folders = [Path(word) for word in sys.argv[1:3]]
tables = [json.loads((folder / "table.json").read_text()) for folder in folders]
scores = [json.loads((folder / "per_image.json").read_text()) for folder in folders]
places = [tables[0]["images"].index(number) for number in tables[1]["images"]]
samples = [row["settings"].get("samples") for t in tables for row in t["methods"][1:2]]
print(f"The same {len(places)} images with {samples[0]} and with {samples[1]} samples each.\n")
print("| method | value | d=0 | d=1 | d=2 |\n|---|---|---|---|---|")
for name in scores[1]:
    for key, words in (("psnr_hole", "PSNR of the hole, dB"), ("nll", "NLL")):
        few, many = (torch.tensor(score[name][key]) for score in scores)
        cells = []
        for depth in range(few.shape[1]):
            old, new = few[places, depth], many[:, depth]
            change = summarize(new - old)
            interval = f"{change.mean:+.2f} [{change.low:+.2f}, {change.high:+.2f}]"
            cells.append(f"{old.mean():.2f} → {new.mean():.2f}, {interval}")
        cells = cells if key != "nll" else ["–", *cells[1:]]
        print(f"| {name} | {words} | " + " | ".join(cells) + " |")
