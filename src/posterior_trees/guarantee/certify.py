r"""From a predictor and images it never saw to a certificate.

A third of the groups, by a hash of their names, fits the scales; the others give scores. Or all
give scores, and images that had another use (they chose the epoch, say) fit the scales: those need
not be like new images for a promise to hold, only for it to be narrow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posterior_trees.data import ImageSet, evenly_spaced, fingerprint, measured_batch
from posterior_trees.data.splits import files_of, group_of
from posterior_trees.errors import GuaranteeError
from posterior_trees.guarantee.bank import Bank, to_bytes
from posterior_trees.guarantee.boxes import Box, Grid
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.judging import Judged, Plan, Rows, check_enough, judge, number_of
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
    level: float | None = None,
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
    or "file". `measures` are functions of one image by name, or names (see `measures.py`), `box` is
    the size of the boxes that may be chosen after looking, `level` what pages promise (90 %); one
    that so few images cannot is refused at once. Images `fit` may fit the scales; without them a
    third of `images` does, which then gives no scores. `bank` keeps so many images for functions
    nobody foresaw, answers are cut into at most so many `nodes`, `seed` draws the measurements,
    `batch_size` images are predicted at once and `watch` sees how far it is.

    >>> from posterior_trees.data import ImageSet
    >>> predictor = wrap(torch.nn.Conv2d(1, 4, 3, padding=1), features=4, channels=1, depth=1,
    ...     measurement=Denoise(0.5)).eval()
    >>> images = ImageSet(torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8))
    >>> predictor.guarantee = calibrate(predictor, images, groups="image")
    >>> predictor(images.batch([0])[0]).guarantee is not None
    True
    """
    _check_unseen(predictor, images)
    if groups is None:
        groups = predictor.about.get("kept_whole", "file")
    hole = predictor.measurement.hole
    hole = None if hole is None else hole.detach().cpu()
    plan = Plan(nodes, _named(measures), hole, _grid(images.shape, hole, box))
    labels = labels_of(images.names, groups)
    about = _about(groups, seed, predictor.branching, images.shape, level)
    about |= {"predictor": fingerprint_of(predictor), "data": fingerprint(images.names)}
    fits = drawn(labels, seed)
    if fit is not None:
        own = labels_of(fit.names, groups if isinstance(groups, str) else "file")
        labels = labels + [f"fit {label}" for label in own]
        fits = torch.arange(len(labels)) >= len(images)
        about["fit"] = fingerprint(fit.names)
    check_enough(labels, fits, level, about["kind"])
    sets = [some for some in (images, fit) if some is not None]
    parts = [p for some in sets for p in _judged(predictor, some, plan, seed, batch_size, watch)]
    rows = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    found = Judged(rows, labels, fits, plan, about).conclude()
    if bank:
        kept = evenly_spaced(len(images), bank)
        own = [labels[i] for i in kept]
        found.bank = _fill_bank(predictor, images.subset(kept), own, seed, batch_size)
    return found


def calibrate_trees(
    trees: Tree,
    x: Float[Tensor, "b *shape"],
    groups: Sequence[str] | None = None,
    measures: Measures = None,
    box: tuple[int, int] | None = None,
    seed: int = 0,
    *,
    level: float | None = None,
    nodes: int = 3,
) -> Guarantee:
    """The guarantee of trees that something else made, such as clustered samples; `trees.guarantee
    = …` gives the promises to further trees made alike, and nothing can check that they are."""
    labels = [f"{i:06d}" for i in range(len(trees))] if groups is None else list(groups)
    plan = Plan(nodes, _named(measures), None, _grid(trees.shape, None, box))
    about = _about(groups or "image", seed, trees.branching, trees.shape, level)
    fits = drawn(labels, seed)
    check_enough(labels, fits, level, about["kind"])
    rows = judge(trees, x, plan, labels)
    return Judged(rows, labels, fits, plan, about).conclude()


def _about(groups, seed: int, branching, shape, level: float | None) -> dict[str, Any]:
    """What a certificate says of itself; the fingerprint is of the predictor, if there is one."""
    kind = groups if isinstance(groups, str) else "own"
    layout = {"branching": list(branching), "shape": list(shape)}
    about = {"predictor": None, "data": None, "seed": seed, "kind": kind, **layout}
    return about if level is None else about | {"level": level}


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
    if groups == "image":
        return list(names)
    if isinstance(groups, str):
        if groups in ("file", "well"):
            return [group_of(name, groups) for name in names]
        raise GuaranteeError(f"groups is {groups!r}: 'well', 'file', 'image', or a name for each")
    if len(groups) != len(names):
        raise GuaranteeError(f"{len(names)} images and {len(groups)} groups: they must be as many")
    return [str(group) for group in groups]


def drawn(labels: Sequence[str], seed: int) -> Bool[Tensor, "n"]:
    """Which images fit the scales: whole groups, by a hash of their names, so that another file
    moves no other group."""
    salt = f"guarantee {seed}"
    return torch.tensor([unit_hash(label, salt) < FIT_SHARE for label in labels])


def _judged(predictor, images, plan, seed, batch_size, watch) -> Iterator[Rows]:
    with pooled_features(predictor) as pooled:
        for names, x, tree in _predict_all(predictor, images, seed, batch_size, watch):
            rows = judge(tree, x, plan, names)
            if pooled:
                rows["pooled"] = pooled[0].float().cpu()
                pooled.clear()
            yield rows


def _fill_bank(predictor, images, labels: list[str], seed: int, batch_size: int) -> Bank:
    parts = [
        (to_bytes(tree.leaves), tree.probs[-1].cpu(), to_bytes(x))
        for _, x, tree in _predict_all(predictor, images, seed, batch_size)
    ]
    leaves, probs, truths = (torch.cat(part) for part in zip(*parts, strict=True))
    prints = fingerprint_of(predictor)
    return Bank(leaves, probs, truths, number_of(labels), drawn(labels, seed), prints)


@torch.inference_mode()
def _predict_all(
    predictor, images, seed: int, batch_size: int, watch=iter
) -> Iterator[tuple[list[str], Tensor, Tree]]:
    """Names, truths and trees, batch by batch."""
    with evaluating(predictor):
        for indices in watch(torch.arange(len(images)).split(batch_size)):
            x, y = measured_batch(images, indices, predictor.measurement, seed, predictor.device)
            yield [images.names[i] for i in indices.tolist()], x, predictor(y)


def _check_unseen(predictor: TreePredictor, images: ImageSet) -> None:
    if not len(images):
        raise GuaranteeError("there are 0 images to calibrate on; give some of the test split")
    known = predictor.about.get("train_names")
    if known is not None and fingerprint(files_of(images.names)) == known:
        raise GuaranteeError(
            f"these {len(images)} images, by their names, are those that the model was trained on: "
            "it knows their answers, and promises made from them are false. Give others"
        )
