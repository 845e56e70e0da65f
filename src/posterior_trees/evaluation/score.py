"""Score a model on a split: the numbers of the paper's Table 1, per depth and per leaf."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from posterior_trees.data import ImageSet, measured_batch
from posterior_trees.fast.accelerate import accelerated
from posterior_trees.metrics import (
    clamp_nll,
    displacement,
    entropy,
    information,
    nll,
    per_depth,
    psnr,
)
from posterior_trees.predictor import Predictor, TreePredictor
from posterior_trees.recipe import Recipe
from posterior_trees.tree import Tree

SCHEMA = 1


@torch.inference_mode()
def score(
    predictor: Predictor, images: ImageSet, *, batch_size: int = 256, seed: int = 0, watch=iter
) -> dict[str, Tensor]:
    """Per-image values on the CPU: `psnr`, `psnr_hole`, `nll`, `entropy` (n, depth+1), the winning
    `leaf` (n,), the predicted `probs` of the leaves (n, leaves) and for pairs the `offset` (n, 2)
    of the truth from the root in pixels. `watch` wraps the batches."""
    hole = predictor.measurement.hole

    def judge(tree: Tree, x: Tensor) -> dict[str, Tensor]:
        values = {
            "psnr": psnr(tree, x),
            "nll": nll(tree, x),
            "entropy": entropy(tree),
            "leaf": tree.descend(x)[:, -1],
            "probs": tree.probs[-1],
        }
        if hole is not None:
            values["psnr_hole"] = psnr(tree, x, hole)
        if not predictor.measurement.is_computable:
            values["offset"] = displacement(tree.root, x)
        return values

    return judge_each(judge, predictor, images, batch_size=batch_size, seed=seed, watch=watch)


def judge_each(
    judge: Callable[[Tree, Tensor], dict[str, Tensor]],
    predictor: Predictor,
    images: ImageSet,
    *,
    batch_size: int,
    seed: int,
    watch: Callable[[Any], Iterable[Any]] = iter,
) -> dict[str, Tensor]:
    """What `judge(tree, x)` says of the trees of all images, on the CPU, batch after batch."""
    rows: dict[str, list[Tensor]] = {}
    predictor = accelerated(predictor)
    for indices in watch(torch.arange(len(images)).split(batch_size)):
        place = predictor.measurement, seed, predictor.device
        x, y = measured_batch(images, indices, *place)
        for name, value in judge(predictor(y), x).items():
            rows.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts) for name, parts in rows.items()}


def report(
    predictor: Predictor,
    scores: dict[str, Tensor],
    *,
    model: str,
    task: str,
    split: str,
    groups: Tensor | None = None,
) -> dict[str, Any]:
    """The documented JSON of `ptrees evaluate`, without the timing; `groups` of images that are
    not independent (`data.find_groups`) are drawn together for the intervals. `"groups"` is then
    their number, and `"nll_clamped"`, if there are any, that of images in which the branch of the
    truth had less than a millionth, and counts as that."""
    hole = predictor.measurement.hole
    likelihoods, clamped = clamp_nll(scores["nll"])
    shown = {**scores, "nll": likelihoods}
    summaries = {
        name: per_depth(shown[name], groups) if name in shown else None
        for name in ("psnr", "psnr_hole", "nll", "entropy")
    }
    return {
        "schema": SCHEMA,
        "model": model,
        "task": task,
        "split": split,
        "n": len(scores["leaf"]),
        "branching": list(predictor.branching),
        "clip": False,
        **({} if groups is None else {"groups": len(groups.unique())}),
        **summaries,
        **({"nll_clamped": clamped} if clamped else {}),
        "hole_pixels": None if hole is None else int(hole.sum()),
        "leaves": leaf_table(scores),
        **({"offset": scores["offset"].mean(dim=0).tolist()} if "offset" in scores else {}),
    }


def leaf_table(scores: dict[str, Tensor]) -> list[dict[str, float | None]]:
    """Each leaf: how often the truth reaches it, its mean predicted probability, and its PSNR and
    the root's over the images that reach it."""
    rows = []
    for leaf in range(scores["probs"].shape[1]):
        reached = scores["psnr"][scores["leaf"] == leaf]
        rows.append(
            {
                "frequency": len(reached) / len(scores["leaf"]),
                "probability": scores["probs"][:, leaf].mean().item(),
                "psnr": reached[:, -1].mean().item() if len(reached) else None,
                "root_psnr": reached[:, 0].mean().item() if len(reached) else None,
            }
        )
    return rows


@torch.inference_mode()
def seconds_per_image(predictor: Predictor, images: ImageSet, batch_size: int = 64) -> float:
    """Time of one tree in a batch, the best of a few after a warm-up."""
    predictor = accelerated(predictor)
    first = torch.arange(min(batch_size, len(images)))
    _, y = measured_batch(images, first, predictor.measurement, 0, predictor.device)
    times = []
    for _ in range(4):
        start = time.perf_counter()
        predictor(y).root.sum().item()
        times.append(time.perf_counter() - start)
    return min(times[1:]) / len(y)


def validate(predictor: TreePredictor, images: ImageSet, recipe: Recipe) -> dict[str, Any]:
    """The loss at ε = 0, PSNR and NLL per depth on held-out images."""
    predictor.eval()
    scores = score(predictor, images, batch_size=recipe.training.evaluation_batch, seed=recipe.seed)
    errors = (10 ** (-scores["psnr"].double() / 10)).mean(dim=0)
    surprise = errors[0] * scores["nll"][:, -1].double().mean()
    loss = errors.sum() + recipe.loss.cross_entropy_weight * surprise
    quality = scores.get("psnr_hole", scores["psnr"])
    return {
        "val_loss": loss.item(),
        "val_psnr": quality.mean(dim=0).tolist(),
        "val_nll": scores["nll"].mean(dim=0).tolist(),
        "val_entropy": scores["entropy"].mean(dim=0).tolist(),
        "val_information": information(scores["probs"]),
    }
