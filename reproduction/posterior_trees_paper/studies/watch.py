"""What every leaf does after each epoch of a training, on fixed images that it does not train on.

RUN/leaves.jsonl           a line per epoch: for every leaf its mean squared error over all images
                           (in the hole, if there is one) and the share of images that reach it
RUN/snapshot_0005.safetensors  the trees of a few images after chosen epochs

The weights are the training's own at that moment, not their running average. A run that was killed
may write an epoch twice; the last line counts.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posterior_trees.data import ImageSet, evenly_spaced, measured_batch
from posterior_trees.evaluation.examples import predict_examples
from posterior_trees.predictor import Predictor, TreePredictor, evaluating
from posterior_trees.training.run import read_log
from posterior_trees.tree import Tree

IMAGES, BATCH, SHOWN = 1000, 250, 2


class LeafWatch:
    """Called with each epoch's log line; passes it on to `report`."""

    def __init__(
        self,
        predictor: TreePredictor,
        images: ImageSet,
        folder: Path,
        snapshots: tuple[int, ...] = (),
        report: Callable[[dict[str, Any]], object] = lambda line: None,
        seed: int = 0,
    ) -> None:
        self.predictor, self.folder, self.report, self.seed = predictor, folder, report, seed
        self.images = images.subset(evenly_spaced(len(images), IMAGES))
        self.shown, self.snapshots = (images, evenly_spaced(len(images), SHOWN)), snapshots

    def __call__(self, line: dict[str, Any]) -> None:
        with evaluating(self.predictor):
            numbers = {"epoch": line["epoch"], "epsilon": line["epsilon"], **self.measure()}
            with (self.folder / "leaves.jsonl").open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(numbers) + "\n")
            if line["epoch"] in self.snapshots:
                tree, _, _ = predict_examples(self.predictor, *self.shown, self.seed)
                tree.save(snapshot_file(self.folder, line["epoch"]))
        self.report(line)

    @torch.inference_mode()
    def measure(self) -> dict[str, list[float]]:
        """Mean squared error and share of every leaf, computed where the predictor is."""
        errors, winners = [], []
        for chosen in torch.arange(len(self.images)).split(BATCH):
            place = self.predictor.measurement, self.seed, self.predictor.device
            x, y = measured_batch(self.images, chosen, *place)
            tree = self.predictor(y)
            found = tree.errors(x)
            errors.append(found[-1].double())
            winners.append(tree.follow(tree.winners(found))[:, -1])
        error = torch.cat(errors).mean(dim=0) * free_share(self.predictor)
        shares = torch.cat(winners).bincount(minlength=len(error)) / len(self.images)
        return {
            "leaf_mse": [round(value, 6) for value in error.tolist()],
            "leaf_share": [round(value, 4) for value in shares.tolist()],
        }


def free_share(predictor: Predictor) -> float:
    """Factor from a mean over all pixels to one over the hole: what is known has no error."""
    hole = predictor.measurement.hole
    return 1.0 if hole is None else hole.numel() / int(hole.sum())


def read_watch(folder: Path) -> list[dict[str, Any]]:
    """The lines of `leaves.jsonl`, one per epoch, in order."""
    by_epoch = {line["epoch"]: line for line in read_log(folder / "leaves.jsonl")}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def snapshot_file(folder: Path, epoch: int) -> Path:
    return folder / f"snapshot_{epoch:04d}.safetensors"


def load_snapshot(folder: Path, epoch: int) -> Tree:
    return Tree.load(snapshot_file(folder, epoch))
