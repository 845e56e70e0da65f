"""The comparison: trees of several methods for the same inputs, scored alike.

For every image we keep the values of `metrics.py`, and for samplers how well their samples
are calibrated and how far they are from the training images. Work is done in groups of images whose
results are kept in `OUT/parts`; the same command continues where it was stopped, and samples
themselves are never stored. What it leaves behind: tables, per-image values, and the trees side by
side.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees import store
from posterior_trees.data import evenly_spaced
from posterior_trees.errors import RunError
from posterior_trees.fast.graph import WARM_UP
from posterior_trees.figure import save_figure
from posterior_trees.guarantee import cuts
from posterior_trees.metrics import LEAST_ERROR, entropy, nll, psnr
from posterior_trees.models.checkpoint import provenance
from posterior_trees.predictor import Predictor
from posterior_trees.tree import Tree, grow
from posterior_trees_paper.baselines.calibration import (
    choose_directions,
    nearest_distance,
    ranks,
    spread_and_skill,
    usable_count,
)
from posterior_trees_paper.bench.clock import wait
from posterior_trees_paper.compare.fingerprint import of_images, of_tensors
from posterior_trees_paper.compare.methods import Answer, Inputs, Method
from posterior_trees_paper.compare.table import SCHEMA, make_row, to_latex, to_markdown
from posterior_trees_paper.compare.training import Training

SHOWN = 4
"""Images whose trees are kept for the figures."""
SET_UP = WARM_UP + 2
"""Calls of our network before the clock starts: on a GPU a compiled one is recorded by the last but
one. A sampler calls its network often enough."""


class Comparison:
    """Runs methods on the same inputs and keeps their per-image values in `folder/parts`.

    `identity` tells `predictor` from others: its trees say along which directions all samplers are
    judged. (Its trees themselves would not do: on a GPU they differ in their last bits.)
    """

    def __init__(
        self,
        folder: Path,
        inputs: Inputs,
        predictor: Predictor,
        *,
        group: int = 10,
        seed: int = 0,
        training: Training | None = None,
        identity: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.inputs, self.group, self.seed = folder, inputs, group, seed
        self.training, self.hole, self.made = training, inputs.hole, provenance()
        self.warmed: set[str] = set()
        count, device = len(inputs.indices), inputs.x.device
        self.shown = evenly_spaced(count, SHOWN)
        with torch.no_grad():
            trees = [predictor(y) for y in inputs.y.split(64)]
        spreads = torch.cat([(t.leaves - t.root.unsqueeze(1)).cpu() for t in trees])
        weights = torch.cat([t.probs[-1].sqrt().cpu() for t in trees])
        spreads *= weights.reshape(*weights.shape, 1, 1, 1)
        self.directions = choose_directions(spreads.shape[2:], count, spreads, seed=seed)
        self.settings = {
            "images": inputs.indices.tolist(), "branching": list(predictor.branching),
            "seed": seed, "group": group, "shown": self.shown,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "inputs": of_tensors([inputs.x, inputs.y]),
            **(identity or {}),
        }  # fmt: skip
        if inputs.groups is not None:
            self.settings["groups"] = len(inputs.groups.unique())
        if training is not None:
            self.settings["training"] = of_images(training.images)

    @property
    def parts(self) -> list[slice]:
        count = len(self.inputs.indices)
        return [slice(i, min(i + self.group, count)) for i in range(0, count, self.group)]

    def run(self, method: Method, part: slice) -> None:
        """Score one group of one method, unless that is done already."""
        if self.has(method, part):
            return
        file, device = self.file(method, part), self.inputs.x.device
        file.parent.mkdir(parents=True, exist_ok=True)
        is_cuda, before = device.type == "cuda", 0
        if is_cuda:  # weights of all methods and the images are in use already
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        if method.settings["kind"] == "tree" and method.name not in self.warmed:
            self.warmed.add(method.name)
            for _ in range(SET_UP):
                method.answer(self.inputs, part)
        wait(device)
        start = time.perf_counter()
        answer = method.answer(self.inputs, part)
        wait(device)
        seconds = time.perf_counter() - start
        facts: dict[str, Any] = {"settings": self._about(method), "size": part.stop - part.start}
        facts |= {"seconds": seconds if method.is_timed else None, "peak_bytes": None}
        facts |= {"evaluations": answer.evaluations, "made": self.made}
        if answer.samples is not None:
            facts["samples"] = answer.samples.shape[1]
        if method.is_timed and is_cuda:
            facts["peak_bytes"] = torch.cuda.max_memory_allocated(device) - before
        store.write(file, self._score(answer, part, method.training or self.training), facts)

    def file(self, method: Method, part: slice) -> Path:
        return self.folder / "parts" / method.name / f"{part.start:05d}.safetensors"

    def has(self, method: Method, part: slice) -> bool:
        """Whether a group is scored, by the same method on the same images, by their contents: what
        another comparison left in the folder does not count."""
        file = self.file(method, part)
        return file.is_file() and store.read_facts(file).get("settings") == self._about(method)

    def is_done(self, method: Method) -> bool:
        return all(self.has(method, part) for part in self.parts)

    def collect(self, method: Method) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """Per-image values of all groups, and the facts of each group."""
        stored = [store.read(self.file(method, part)) for part in self.parts]
        names = [n for n in stored[0][0] if not n.startswith("tree.")]
        values = {name: torch.cat([tensors[name] for tensors, _ in stored]) for name in names}
        return values, [facts for _, facts in stored]

    def shown_trees(self, method: Method) -> dict[int, Tree]:
        """The kept trees, by place among the inputs."""
        trees = {}
        for part in self.parts:
            tensors, facts = store.read(self.file(method, part))
            for place in self.shown:
                if f"tree.{place}.leaves" in tensors:
                    stored = (tensors[f"tree.{place}.{name}"] for name in ("leaves", "log_probs"))
                    trees[place] = grow(*stored, facts["settings"]["branching"])
        return trees

    def _about(self, method: Method) -> dict[str, Any]:
        return {**self.settings, **method.settings, "name": method.name}

    def _score(self, answer: Answer, part: slice, training: Training | None) -> dict[str, Tensor]:
        x, tree = self.inputs.x[part], answer.tree
        values = {"psnr": psnr(tree, x), "nll": nll(tree, x), "entropy": entropy(tree),
                  "psnr_best": best_psnr(tree, x, self.hole),
                  "likelier": cuts.score(tree, x, None)}  # fmt: skip
        if self.hole is not None:
            values["psnr_hole"] = psnr(tree, x, self.hole)
        if answer.samples is not None:
            values |= self._judge_samples(answer.samples, x, part, training)
        if answer.disagreement is not None:
            values["disagreement"] = answer.disagreement
        for place in self.shown:
            if part.start <= place < part.stop:
                mine = tree[place - part.start]
                values[f"tree.{place}.leaves"] = mine.leaves
                values[f"tree.{place}.log_probs"] = mine.log_probs[-1]
        return values

    def _judge_samples(
        self, samples: Tensor, x: Tensor, part: slice, training: Training | None
    ) -> dict[str, Tensor]:
        values = dict(zip(("variance", "error"), spread_and_skill(samples, x), strict=True))
        if usable_count(samples.shape[1]):
            generator = torch.Generator().manual_seed(self.seed + part.start)
            values["ranks"] = ranks(samples, x, self.directions[part].to(x), generator)
        if training is not None:
            options = training.images, self.hole, training.is_mirrored
            found = nearest_distance(samples.flatten(0, 1), *options)
            values["nearest"] = found.unflatten(0, samples.shape[:2]).mean(dim=1)
            values["nearest_truth"] = nearest_distance(x, *options)
        return values


def write_report(
    comparison: Comparison, methods: Sequence[Method], title: str, reference: dict[str, Any]
) -> tuple[dict[str, Any], list[Path]]:
    """Write `table.json`, `.md` and `.tex`, `per_image.json` and one figure per kept image; returns
    the table and the files.

    Methods that are not finished are left out and named in the title; the first one is ours.
    `reference` has the name and the mean root PSNR of the network that roots are held against.
    """
    finished = [method for method in methods if comparison.is_done(method)]
    missing = [method.name for method in methods if method not in finished]
    if not finished or finished[0] is not methods[0]:
        raise RunError("nothing is finished yet; run the same command again to continue")
    title += f" (unfinished: {', '.join(missing)})" if missing else ""
    rows, per_image, ours = [], {}, None
    for method in finished:
        values, facts = comparison.collect(method)
        about = {"groups": comparison.inputs.groups, "seen": method.seen}
        rows.append(make_row(method.name, values, facts, ours, root=reference["psnr"], **about))
        ours = values if ours is None else ours
        per_image[method.name] = {name: tensor.tolist() for name, tensor in values.items()}
    table = {"schema": SCHEMA, "title": title, "clip": False, **comparison.settings,
             "reference": reference, "methods": rows}  # fmt: skip
    texts = {
        "table.json": store.to_json(table),
        "table.md": to_markdown(table),
        "table.tex": to_latex(table),
        "per_image.json": store.to_json(per_image, indent=None),
    }
    for name, text in texts.items():
        store.write_bytes(comparison.folder / name, text.encode())
    files = [comparison.folder / name for name in texts]
    return table, files + _figures(comparison, finished)


def _figures(comparison: Comparison, methods: Sequence[Method]) -> list[Path]:
    """For every kept image, the trees of all methods under each other."""
    kept = [comparison.shown_trees(method) for method in methods]
    files = []
    inputs = comparison.inputs
    for place in comparison.shown:
        trees = join([trees[place] for trees in kept])
        x, y = (v[place : place + 1].cpu().expand(len(trees), -1, -1, -1)
                for v in (inputs.x, inputs.y))  # fmt: skip
        file = comparison.folder / f"trees_{int(inputs.indices[place]):05d}.png"
        options: dict[str, Any] = {"x": x, "y": y, "path": trees.descend(x)}
        save_figure(trees, file, names=[method.name for method in methods], **options, dpi=130)
        files.append(file)
    for stale in set(comparison.folder.glob("trees_*.png")) - set(files):  # of other images
        stale.unlink()
    return files


def join(trees: Sequence[Tree]) -> Tree:
    """Trees of one layout as one batch."""
    levels = range(trees[0].depth + 1)
    return Tree(
        [torch.cat([tree.images[level] for tree in trees]) for level in levels],
        [torch.cat([tree.log_probs[level] for tree in trees]) for level in levels],
        trees[0].branching,
    )


def best_psnr(tree: Tree, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """PSNR `(b, levels)` of the best of all nodes of each level, on the greedy path or not."""
    values = []
    for images, log_probs in zip(tree.images, tree.log_probs, strict=True):
        squares = (images - x.unsqueeze(1)).square()
        squares = squares if mask is None else squares[..., mask]
        errors = squares.flatten(2).mean(dim=2).masked_fill(log_probs.isneginf(), torch.inf)
        values.append(-10 * errors.amin(dim=1).clamp_min(LEAST_ERROR).log10())
    return torch.stack(values, dim=1)


def root_psnr(predictor: Predictor, inputs: Inputs) -> Tensor:
    """PSNR `(b,)` of a predictor's root, over the hole where there is one: with a tree of depth 0,
    that of a network trained for the posterior mean alone."""
    batches = zip(inputs.x.split(64), inputs.y.split(64), strict=True)
    with torch.no_grad():
        return torch.cat([psnr(predictor(y), x, inputs.hole)[:, 0] for x, y in batches])
