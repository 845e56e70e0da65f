"""The table large | small of what small.sh made, and the small models for `models/`.

    python reproduction/scripts/small_models.py FOLDER [--adopt --data DIR]

FOLDER/NAME/ is what `ptrees study` wrote for the job NAME; NAME_large is the network of the recipe
on the same pictures, NAME_own learned without more_faces128, NAME_seed1 … has another seed.
Differences are paired, image by image, with 95 % bootstrap intervals. Choose by the column of
validation images (PSNR and NLL of the leaves, without the hole's factor), not by the test's.

`--adopt` scores the weights on the whole test pictures of DIR, times them on two threads (leave the
computer alone), and writes models/TASK.safetensors with both in its card, and
results/models/numbers.json.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from posterior_trees import load, store
from posterior_trees.data import load_evaluation
from posterior_trees.evaluation.score import report, score
from posterior_trees.metrics import summarize
from posterior_trees.models.card import facts_of
from posterior_trees.models.checkpoint import export_model, load_recipe
from posterior_trees.models.shelf import KNOWN

ROOT = Path(__file__).parents[2]
MEGABYTES, SECONDS, DECIBEL, NATS = 8.0, 0.3, 0.5, 0.02
"""What a small model may take, and may be behind the large one at every depth."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--adopt", action="store_true")
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    jobs = {entry.name: job for entry in sorted(arguments.folder.iterdir()) if (job := read(entry))}
    print("| model | MB | PSNR d = 0 / 1 / 2, dB | NLL d = 1 / 2 | rarest leaf "
          "| on validation images | training |")  # fmt: skip
    print("|---" * 7 + "|")
    for name, job in jobs.items():
        print(row(name, job))
    print("\n| compared | PSNR, dB | NLL |\n|---|---|---|")
    for name, job in jobs.items():
        for suffix in ("_large", "_own", "_seed1", "_seed2"):
            if other := jobs.get(name + suffix):
                print(f"| {name} − {name}{suffix} | {differ(job, other, 'psnr')} | "
                      f"{differ(job, other, 'nll')} |")  # fmt: skip
    print("\n" + "\n".join(f"- {words}" for words in find_misses(jobs)))
    if arguments.adopt:
        torch.set_num_threads(2)
        made = {name: adopt(job, arguments.data) for name, job in jobs.items() if is_small(name)}
        kept = {
            name: {k: job[k] for k in ("table", "study", "bytes")} for name, job in jobs.items()
        }
        store.write_json(
            store.make_folder_of(ROOT / "results" / "models" / "numbers.json"),
            {"whole_test_pictures": made, "on_the_machine_of_the_training": kept},
        )


def read(folder: Path) -> dict[str, Any] | None:
    """What a study left; None where nothing was judged yet."""
    studied = folder / "study.json"
    rows = json.loads(studied.read_text("utf-8")) if studied.is_file() else [{"state": "none"}]
    if rows[0]["state"] not in ("done", "stopped") or "epochs" not in rows[0]:
        return None
    stem = rows[0]["name"]
    lines = (folder / f"{stem}.jsonl").read_text("utf-8").splitlines()
    scores, facts = store.read(folder / f"{stem}_scores.safetensors")
    return {
        "task": stem, "study": rows[0], "scores": scores, "names": facts["names"],
        "last": json.loads(lines[-1]),
        "table": json.loads((folder / f"{stem}.json").read_text("utf-8")),
        "bytes": int((folder / "bytes").read_text()), "file": folder / f"{stem}.safetensors",
    }  # fmt: skip


def row(name: str, job: dict[str, Any]) -> str:
    table, study = job["table"], job["study"]
    quality = table["psnr_hole"] or table["psnr"]
    cells = [
        name,
        f"{job['bytes'] / 1e6:.1f}",
        " / ".join(f"{depth['mean']:.2f}" for depth in quality),
        " / ".join(f"{depth['mean']:.3f}" for depth in table["nll"][1:]),
        f"{min(leaf['frequency'] for leaf in table['leaves']):.1%}",
        f"{job['last']['val_psnr'][-1]:.2f} dB, {job['last']['val_nll'][-1]:.3f}",
        f"{study['epochs']} epochs, {study['training_seconds']:.0f} s, {study['commit']}",
    ]
    return f"| {' | '.join(cells)} |"


def gaps(job: dict[str, Any], other: dict[str, Any], key: str) -> list[Any]:
    """What a model has over another one at every depth; nothing if their images differ."""
    if job["names"] != other["names"]:
        return []
    key = f"{key}_hole" if f"{key}_hole" in job["scores"] else key
    return [summarize(gap) for gap in (job["scores"][key] - other["scores"][key]).T]


def differ(job: dict[str, Any], other: dict[str, Any], key: str) -> str:
    found = gaps(job, other, key)[key == "nll" :]
    return ", ".join(f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]" for gap in found)


def find_misses(jobs: dict[str, Any]) -> list[str]:
    """Which goals which model misses."""
    found = []
    for name, job in jobs.items():
        if name.endswith("_large"):
            continue
        if job["bytes"] > 1e6 * MEGABYTES:
            found.append(f"{name} has {job['bytes'] / 1e6:.1f} MB, the goal is {MEGABYTES:g}")
        worse = [
            str(number)
            for number, leaf in enumerate(job["table"]["leaves"])
            if leaf["frequency"] and leaf["psnr"] < leaf["root_psnr"]
        ]
        if worse:
            found.append(f"{name}: leaves {', '.join(worse)} are worse than the root")
        large = jobs.get(f"{name}_large")
        for depth, gap in enumerate(gaps(job, large, "psnr") if large else []):
            if gap.mean < -DECIBEL:
                found.append(f"{name}: {gap.mean:+.2f} dB at depth {depth}, beyond {DECIBEL}")
        for depth, gap in enumerate(gaps(job, large, "nll") if large else []):
            if gap.mean > NATS:
                found.append(f"{name}: NLL {gap.mean:+.3f} at depth {depth}, beyond {NATS}")
    return found or ["no goal is missed"]


def is_small(name: str) -> bool:
    return "_" not in name


def adopt(job: dict[str, Any], data: Path | None) -> dict[str, Any]:
    """Score a small model on whole test pictures, time it, and put it where it is found; those that
    ship with the package (their certificates, too) are put there by hand."""
    predictor, recipe = load(job["file"], "cpu"), load_recipe(job["file"])
    images = load_evaluation(recipe.data, data, "test")
    scores = score(predictor, images, batch_size=16, seed=recipe.seed)
    table = report(predictor, scores, model=recipe.task, task=recipe.task, split="test")
    seconds = time_one(predictor, images)
    size = list(images.shape[-2:])
    predictor.about |= facts_of(recipe)  # in the words of today
    predictor.about["speed"] = {"seconds": seconds, "threads": 2, "size": size}
    predictor.about["command"] = "bash reproduction/scripts/small.sh"
    if recipe.task in KNOWN:
        file = store.make_folder_of(ROOT / "models" / f"{recipe.task}.safetensors")
        export_model(file, predictor, recipe, scores=table)
        late = f", beyond {SECONDS:g} s" if seconds > SECONDS else ""
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, {1000 * seconds:.0f} ms{late}")
    return {**table, "seconds_on_two_threads": seconds}


def time_one(predictor: Any, images: Any) -> float:
    """Seconds of one prediction, the median of nine."""
    x, y = images.batch([0])
    y = predictor.measure(x) if y is None else y
    times = []
    with torch.inference_mode():
        for _ in range(10):
            start = time.perf_counter()
            predictor(y)
            times.append(time.perf_counter() - start)
    return sorted(times[1:])[4]


if __name__ == "__main__":
    main()
