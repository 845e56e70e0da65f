"""The tables of the tasks, from results/<task>/numbers.json and the archive of logs.

One row per task, then its leaves, then the trees for eyes at 256×256 that test faces have judged.
Intervals are 95 % bootstrap intervals over the test images; "over plain" is the root's PSNR minus
that of a plain MSE network of the same width, image by image.
"""

import json
import math

from collect import RESULTS, read_archive

TASKS = ("faces_colorize", "cats_colorize", "faces_eyes", "faces_mouth", "shoes_from_edges",
         "cells_actin_to_dna")  # fmt: skip
EYES = {
    "tries/faces_eyes_shallow": "four halvings",
    "tries/faces_eyes_deeper": "six halvings from here on",
    "tries/faces_eyes_rate_0.01": "dropout from here on; rate 0.01",
    "tries/faces_eyes_relative": "rate 0.1, relative; conscience 0.3",
    "tries/faces_eyes_16_epochs": "rate 0.02",
    "tries/faces_eyes_16_epochs_conscience": "rate 0.04, conscience 0.3",
    "tries/faces_eyes_24_epochs": "rate 0.04, conscience 0.3, head dropout 0.5",
    "tries/faces_eyes_24_epochs_rate_0.06": "rate 0.06, conscience 0.3",
    "tries/faces_eyes_32_epochs": "rate 0.1, conscience 0.3, head dropout 0.5",
    "tries/faces_eyes_seeds": "rate 0.1, seeds 25, head dropout 0.5",
    "faces_eyes": "rate 0.15, 0.05, seeds 25, floor 0.7, head dropout 0.5",
}
LOGS = read_archive()
NUMBERS = {
    task: json.loads((RESULTS / task / "numbers.json").read_text(encoding="utf-8"))
    for task in TASKS
}


def read(name: str) -> dict:
    """The scores of a task, or of one of the trees for eyes."""
    if name in NUMBERS:
        return NUMBERS[name][name]
    return json.loads(LOGS[f"faces_eyes/{name}.json"])


def means(rows: list[dict], digits: int) -> str:
    return " / ".join(f"{row['mean']:.{digits}f}" for row in rows)


def interval(row: dict | None) -> str:
    return f"{row['mean']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]" if row else "–"


def best_fixed(leaves: list[dict]) -> float:
    """NLL of the best probabilities that are the same for all images: the leaves' frequencies."""
    shares = [leaf["frequency"] for leaf in leaves if leaf["frequency"]]
    return -sum(share * math.log(share) for share in shares)


def row(name: str, studied: dict[str, dict]) -> str:
    table, study = read(name), studied[name]
    quality = table["psnr_hole"] or table["psnr"]
    gaps = [n["mean"] - e["mean"] for n, e in zip(table["nll"], table["entropy"], strict=True)][1:]
    plain = studied.get(f"{name}_plain", {}).get("tree_root_over_plain")
    cells = [
        name + (" (hole)" if table["psnr_hole"] else ""),
        means(quality, 2),
        ", ".join(interval(step) for step in study["psnr_gain_per_level"]),
        means(table["nll"][1:], 3),
        f"{best_fixed(table['leaves']):.3f}",
        " / ".join(f"{gap:+.3f}" for gap in gaps),
        f"{min(leaf['frequency'] for leaf in table['leaves']):.1%}",
        interval(plain or study.get("tree_root_over_plain")),
        f"{study['epochs']} epochs, {study['training_seconds']:.0f} s",
        study["commit"][:7],
    ]
    return f"| {' | '.join(cells)} |"


def leaf_row(name: str) -> str:
    leaves = read(name)["leaves"]
    found = [
        f"{leaf['frequency']:.1%}, {leaf['psnr'] - leaf['root_psnr']:+.2f}"
        if leaf["frequency"]
        else "dead"
        for leaf in leaves
    ]
    return f"| {name} | {' | '.join(found)} |"


def eyes_row(name: str, label: str) -> str:
    """A training for eyes: on test faces, the NLL on its last training batches, and on validation
    faces where 500 of them calibrated it."""
    table = read(name)
    last = json.loads(LOGS[f"faces_eyes/{name}.jsonl"].splitlines()[-1])
    found = last.get("calibration", {})
    held_out = "–"
    if found.get("images") == 500:
        nll = " / ".join(f"{value:.3f}" for value in found["nll_after"][1:])
        held_out = f"{found['psnr_after'][0]:.2f}, {nll}"
    nll = (f"{r['mean']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in table["nll"][1:])
    cells = [
        f"{last['epoch']}: {label}",
        means(table["psnr_hole"], 2),
        " / ".join(nll),
        f"{best_fixed(table['leaves']):.3f}",
        f"{min(leaf['frequency'] for leaf in table['leaves']):.1%}",
        f"{last['nll']:.2f}",
        held_out,
    ]
    return f"| {' | '.join(cells)} |"


studies = {r["name"]: r for numbers in NUMBERS.values() for r in numbers["study"]}
done = [name for name in TASKS if name in studies and "epochs" in studies[name]]
print("| task | PSNR d = 0 / 1 / 2, dB | gain per level, dB | NLL d = 1 / 2 |", end=" ")
print("fixed, d = 2 | NLL − entropy | rarest leaf | root over plain, dB | training | commit |")
print("|---" * 10 + "|")
print("\n".join(row(name, studies) for name in done))
print("\nHow often the truth reaches a leaf, and how many dB the leaf is above the root there:\n")
print("| task | " + " | ".join(f"leaf {i}" for i in range(9)) + " |")
print("|---" * 10 + "|")
print("\n".join(leaf_row(name) for name in done))
print("\nThe trees trained for eyes at 256×256:\n")
print("| epochs: options | PSNR d = 0 / 1 / 2, dB | NLL d = 1 / 2 | fixed, d = 2 |", end=" ")
print("rarest leaf | in training | validation: root, NLL |")
print("|---" * 7 + "|")
print("\n".join(eyes_row(name, label) for name, label in EYES.items()))
