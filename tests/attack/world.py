"""A tiny world for attacks on commands: its files, commands in processes, and what they leave.

Processes are forked from one that has torch already: starting costs next to nothing, so that
hundreds can be killed. (The parent never computes gradients: torch forbids forks after that.)
"""

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from posterior_trees import cli, store

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny import RECIPE, make_blobs

EVERYTHING = (
    'data.augment=["flip", "affine"]', "network.dropout=0.1", "network.head_dropout=0.1",
    "network.head_norm=batch", "balancer.is_on=true", "balancer.start=1.5", "optimizer.clip=1.0",
    "optimizer.warmup_steps=3", "optimizer.patience=0", "optimizer.weight_decay=0.01",
    "training.average_half_life=0.5", "training.calibrate=true", "training.epochs=6",
    "training.save_seconds=0", "training.picture_every=3",
)  # fmt: skip
BASELINE = """
[baseline]
kind = "prior"
width = 8
multipliers = [1, 1]
attention = []
blocks = 1
log_every = 5
"""
VOLATILE = ("commit", "seconds", "seconds_per_image", "seconds_of_groups", "wall_seconds",
            "training_seconds", "peak_bytes")  # fmt: skip


class Job(NamedTuple):
    """A command that fills a folder, OUT among its words."""

    name: str
    words: tuple[str, ...]
    goes_on: bool = True


def make_world(folder: Path) -> list[Job]:
    """Data, recipes, pictures and models in a folder, and the commands to attack."""
    (folder / "blobs").mkdir(parents=True)
    for part, images in (("train", make_blobs(48)), ("t10k", make_blobs(8, seed=1))):
        header = struct.pack(">4B3I", 0, 0, 8, 3, len(images), 8, 8)
        file = folder / "blobs" / f"{part}-images-idx3-ubyte"
        file.write_bytes(header + images.x.numpy().tobytes())
    (folder / "blobs.toml").write_text(RECIPE)
    (folder / "prior.toml").write_text(RECIPE.replace("epochs = 3", "epochs = 4") + BASELINE)
    pictures = []
    for number, image in enumerate(make_blobs(4, seed=2).x.numpy()):
        pictures.append(str(folder / f"picture_{number}.png"))
        Image.fromarray(image[0]).save(pictures[-1])
    data = ("--data", str(folder))
    changes = tuple(word for change in EVERYTHING for word in ("--set", change))
    tree = ("train", str(folder / "blobs.toml"), *data, "--device", "cpu", "--out")
    prior = ("baseline", "train", str(folder / "prior.toml"), *data, "--device", "cpu", "--out")
    model, sampler = str(folder / "model"), str(folder / "sampler")
    for words in ((*tree, model), (*prior, sampler)):
        end = run(words, folder / "made.txt")
        assert end == 0, (folder / "made.txt").read_text()
    few = ("--limit", "4", "--samples", "3", "--option", "steps=3")
    return [
        Job("train", (*tree, "OUT", *changes)),
        Job("baseline train", (*prior, "OUT", "--set", "training.save_seconds=0")),
        Job("predict", ("predict", model, *pictures, "--out", "OUT"), False),
        Job("baseline sample", ("baseline", "sample", sampler, *data, *few, "--out", "OUT"), False),
        Job("compare", ("compare", model, *data, "--limit", "4", "--samples", "3", "--group", "2",
                        "--method", f"prior={sampler}:repaint:steps=3", "--out", "OUT")),
        Job("study", ("study", str(folder / "blobs.toml"), *data, "--device", "cpu",
                      "--runs", "OUT/runs", "--out", "OUT")),
    ]  # fmt: skip


def fork(words: tuple[str, ...], terminal: Path) -> int:
    """The number of a process that does a command and writes its words into a file."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        file = os.open(terminal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            cli.main(list(words))
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def end_of(pid: int) -> int:
    """The exit code of a process, negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run(words: tuple[str, ...], terminal: Path) -> int:
    return end_of(fork(words, terminal))


def in_place(job: Job, out: Path) -> tuple[str, ...]:
    return tuple(word.replace("OUT", str(out)) for word in job.words)


def read_all(folder: Path, is_over: bool = True) -> dict[str, Any]:
    """What every visible file of a folder says, but for times; damaged ones are errors. While a
    command is not over, a log's last line may be a part of one."""
    found: dict[str, Any] = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_dir() or any(part.startswith(".") for part in name.parts):
            continue
        if file.suffix == ".part" and not is_over:
            continue
        found[str(name)] = _read(file, is_over)
    return found


def _read(file: Path, is_over: bool) -> Any:
    if file.suffix == ".safetensors":
        return store.read(file)[0]
    if file.suffix == ".npy":
        return torch.from_numpy(np.load(file))
    if file.suffix in (".png", ".jpg"):
        with Image.open(file) as image:
            return torch.from_numpy(np.array(image))
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".json":
        return _lasting(json.loads(text))
    if file.suffix == ".jsonl":
        lines = text.splitlines() if is_over else text.splitlines()[:-1]
        return [_lasting(json.loads(line)) for line in lines]
    if file.suffix == ".csv":  # a table of pictures ends with the seconds of each
        return [line.rpartition(",")[0] for line in text.splitlines()]
    if file.suffix == ".html":
        assert text.rstrip().endswith("</html>"), f"{file} is not whole"
        return "a page"
    return "a table" if file.suffix in (".md", ".tex") else text


def _lasting(value: Any) -> Any:
    """Without times."""
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in VOLATILE}
    return [_lasting(entry) for entry in value] if isinstance(value, list) else value


def differences(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Files, and tensors in files, that are not what they should be, to the last bit."""
    wrong = [f"{name} is there or not" for name in sorted(found.keys() ^ wanted.keys())]
    for name in found.keys() & wanted.keys():
        one, other = found[name], wanted[name]
        if isinstance(one, dict) and any(isinstance(v, torch.Tensor) for v in one.values()):
            keys = one.keys() | other.keys()
            wrong += [f"{name}: {k}" for k in keys if not _equal(one.get(k), other.get(k))]
        elif not _equal(one, other):
            wrong.append(f"{name}: {str(one)[:200]} is not {str(other)[:200]}")
    return wrong


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
    return type(one) is type(other) and one == other
