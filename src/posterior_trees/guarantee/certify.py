r"""From a predictor and images it never saw to a certificate.

A third of the groups, by a hash of their names, fits the scales; the others give scores. Or all
give scores, and images that had another use (they chose the epoch, say) fit the scales: those need
not be like new images for a promise to hold, only for it to be narrow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posterior_trees.data import ImageSet, evenly_spaced, fingerprint, measured_batch
from posterior_trees.data.splits import group_of
from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.bank import Bank, to_bytes
from posterior_trees.guarantee.boxes import Box, Grid
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.judging import Judged, Plan, Rows, judge, number_of
from posterior_trees.guarantee.measures import find_measure
from posterior_trees.guarantee.numbers import Measure
from posterior_trees.guarantee.prints import fingerprint_of
from posterior_trees.guarantee.typical import pooled_features
from posterior_trees.predictor import TreePredictor, evaluating
from posterior_trees.seeding import unit_hash
from posterior_trees.tree import Tree

FIT_SHARE = 1 / 3
Measures = Mapping[str, Measure] | Sequence[str] | None
"""Functions by name, or names that `measures.find_measure` knows."""


def calibrate(
    predictor: TreePredictor,
    images: ImageSet,
    groups: str | Sequence[str] | None = None,
    measures: Measures = None,
    box: tuple[int, int] | None = None,
    seed: int = 0,
    *,
    fit: ImageSet | None = None,
    nodes: int = 3,
    batch_size: int = 64,
    bank: int = 0,
    watch: Callable[[Any], Iterable[Any]] = iter,
) -> Guarantee:
    """The guarantee of a `predictor`, from `images` that it was not trained or chosen on; the
    predictor is unchanged, `predictor.guarantee = …` gives its trees the promises.

    `groups` says what is drawn and held out as a whole: "file" (windows of one image), "well",
    "image" (each on its own) or a name for each image; None is what the model's recipe kept whole,
    or "file". `measures` are functions
    of one image by name, or names (see `measures.py`), `box` is the size of the boxes that may be
    chosen after looking. Images `fit` may fit the scales; without them a third of `images` does,
    which then gives no scores. `bank` keeps so many images for functions nobody foresaw, answers
    are cut into at most so many `nodes`, `seed` draws the measurements, `batch_size` images are
    predicted at once and `watch` sees how far it is.

    >>> from posterior_trees.data import ImageSet
    >>> predictor = wrap(torch.nn.Conv2d(1, 4, 3, padding=1), features=4, channels=1, depth=1,
    ...     measurement=Denoise(0.5)).eval()
    >>> images = ImageSet(torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8))
    >>> predictor.guarantee = calibrate(predictor, images, groups="image")
    >>> predictor(images.batch([0])[0]).guarantee is not None
    True
    """
    options = {"fit": fit, "nodes": nodes, "batch_size": batch_size, "watch": watch}
    judged = judge_images(predictor, images, groups, measures, box, seed, **options)
    found = judged.conclude()
    if bank:
        kept = evenly_spaced(len(images), bank)
        own = [judged.labels[i] for i in kept]
        found.bank = fill_bank(predictor, images.subset(kept), own, seed, batch_size)
    return found


def judge_images(
    predictor: TreePredictor,
    images: ImageSet,
    groups: str | Sequence[str] | None = None,
    measures: Measures = None,
    box: tuple[int, int] | None = None,
    seed: int = 0,
    *,
    fit: ImageSet | None = None,
    nodes: int = 3,
    batch_size: int = 64,
    watch: Callable[[Any], Iterable[Any]] = iter,
) -> Judged:
    """The first half of `calibrate`, from which `conclude` makes the guarantee and `report` its
    diagnostics."""
    _check_unseen(predictor, images)
    if groups is None:
        groups = predictor.about.get("kept_whole", "file")
    labels = labels_of(images.names, groups)
    plan = make_plan(predictor, images.shape, measures, box, nodes)
    rows = _judge_all(predictor, images, plan, seed, batch_size, watch)
    about: dict[str, Any] = {
        "predictor": fingerprint_of(predictor),
        "data": fingerprint(images.names),
    }
    about |= {"branching": list(predictor.branching), "shape": list(images.shape)}
    about["kind"] = groups if isinstance(groups, str) else "own"
    if fit is None:
        fits = drawn(labels, seed)
    else:
        apart = _judge_all(predictor, fit, plan, seed, batch_size, watch)
        fits = torch.tensor([False] * len(labels) + [True] * len(fit))
        own = groups if isinstance(groups, str) else "file"
        labels = labels + [f"fit {label}" for label in labels_of(fit.names, own)]
        rows = {name: torch.cat([row, apart[name]]) for name, row in rows.items()}
        about["fit"] = fingerprint(fit.names)
    return Judged(rows, labels, fits, plan, about | {"seed": seed})


def calibrate_trees(trees: Tree, x: Float[Tensor, "b *shape"], *args: Any, **kw: Any) -> Guarantee:
    """The guarantee of trees that something else made, such as clustered samples (arguments as in
    `judge_trees`); `trees.guarantee = …` gives the promises to further trees made alike, and
    nothing can check that they are."""
    return judge_trees(trees, x, *args, **kw).conclude()


def judge_trees(
    trees: Tree,
    x: Float[Tensor, "b *shape"],
    groups: Sequence[str] | None = None,
    measures: Measures = None,
    box: tuple[int, int] | None = None,
    seed: int = 0,
    *,
    nodes: int = 3,
) -> Judged:
    """The same for trees that something else made, such as clustered samples."""
    labels = [f"{i:06d}" for i in range(len(trees))] if groups is None else list(groups)
    grid = _grid(trees.shape, None, box)
    plan = Plan(nodes, _named(measures), None, grid)
    rows = judge(trees, x, plan, labels)
    about: dict[str, Any] = {"predictor": None, "data": None, "seed": seed}
    about["kind"] = "own" if groups else "image"
    about |= {"branching": list(trees.branching), "shape": list(trees.shape)}
    return Judged(rows, labels, drawn(labels, seed), plan, about)


def make_plan(
    predictor: TreePredictor,
    shape: Sequence[int],
    measures: Measures,
    box: tuple[int, int] | None,
    nodes: int,
) -> Plan:
    hole = predictor.measurement.hole
    hole = None if hole is None else hole.detach().cpu()
    return Plan(nodes, _named(measures), hole, _grid(shape, hole, box))


def _named(measures: Measures) -> dict[str, Measure]:
    if isinstance(measures, Mapping):
        return dict(measures)
    return {name: find_measure(name) for name in measures or ()}


def _grid(shape: Sequence[int], hole: Tensor | None, box: tuple[int, int] | None) -> Grid | None:
    """Boxes inside the hole, or the image; of a quarter of its smaller side if no size is given."""
    if len(shape) != 3:
        return None
    inside = Box(0, 0, shape[1], shape[2])
    if hole is not None:
        rows, columns = (hole.any(dim=axis).nonzero()[:, 0].tolist() for axis in (1, 0))
        inside = Box(rows[0], columns[0], rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1)
    side = max(round(min(inside[2:]) / 12), 1) * 3
    return Grid.of(inside, box or (min(side, inside.height), min(side, inside.width)))


def labels_of(names: Sequence[str], groups: str | Sequence[str]) -> list[str]:
    """What each image belongs to."""
    if groups == "file":
        return [group_of(name, "name") for name in names]
    if groups == "well":
        return [group_of(name, "well") for name in names]
    if groups == "image":
        return list(names)
    if isinstance(groups, str):
        raise GuaranteeError(f"groups is {groups!r}: 'well', 'file', 'image', or a name for each")
    if len(groups) != len(names):
        raise GuaranteeError(f"{len(names)} images and {len(groups)} groups: they must be as many")
    return [str(group) for group in groups]


def drawn(labels: Sequence[str], seed: int) -> Bool[Tensor, "n"]:
    """Which images fit the scales: whole groups, by a hash of their names, so that another file
    moves no other group."""
    salt = f"guarantee {seed}"
    return torch.tensor([unit_hash(label, salt) < FIT_SHARE for label in labels])


@torch.inference_mode()
def _judge_all(predictor, images, plan, seed, batch_size, watch=iter) -> Rows:
    parts: dict[str, list[Tensor]] = {}
    with evaluating(predictor), pooled_features(predictor) as pooled:
        for indices in watch(torch.arange(len(images)).split(batch_size)):
            x, y = measured_batch(images, indices, predictor.measurement, seed, predictor.device)
            rows = judge(predictor(y), x, plan, [images.names[i] for i in indices.tolist()])
            if pooled:
                rows["pooled"] = pooled[0].float().cpu()
                pooled.clear()
            for name, row in rows.items():
                parts.setdefault(name, []).append(row)
    return {name: torch.cat(part) for name, part in parts.items()}


@torch.inference_mode()
def fill_bank(predictor, images, labels: list[str], seed: int, batch_size: int) -> Bank:
    parts = []
    with evaluating(predictor):
        for indices in torch.arange(len(images)).split(batch_size):
            x, y = measured_batch(images, indices, predictor.measurement, seed, predictor.device)
            tree = predictor(y)
            parts.append((to_bytes(tree.leaves), tree.probs[-1].cpu(), to_bytes(x)))
    leaves, probs, truths = (torch.cat(part) for part in zip(*parts, strict=True))
    groups = number_of(labels)
    prints = fingerprint_of(predictor)
    return Bank(leaves, probs, truths, groups, drawn(labels, seed), prints)


def _check_unseen(predictor: TreePredictor, images: ImageSet) -> None:
    if not len(images):
        raise GuaranteeError("there are 0 images to calibrate on; give some of the test split")
    known = predictor.about.get("train_names")
    if known is not None and fingerprint(images.names) == known:
        raise GuaranteeError(
            f"these {len(images)} images, by their names, are those that the model was trained on: "
            "it knows their answers, and promises made from them are false. Give others"
        )
