"""What the models of growing.sh are worth: numbers of one by `judge`, tables of a folder.

    python reproduction/scripts/growing_models.py judge MODEL FILE --data DIR [--limit 500]
    python reproduction/scripts/growing_models.py FOLDER

FILE holds values of every test picture. Errors are squared, means over all that y leaves open
("whole") or over one random box in it ("box"), of the nodes on the truth's path there; `by_gain`
and `by_level` are of trees that grew to 13 nodes, of the first `--limit` pictures. A one-pass tree
is asked for a box as well as it can be: the truth goes down it by what is in the box. Differences
are paired, picture by picture, with 95 % bootstrap intervals, of whole wells for cells.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterior_trees import Tree, load, store
from posterior_trees.data import find_groups, load_evaluation, measured_batch
from posterior_trees.metrics import summarize
from posterior_trees.models.checkpoint import load_recipe
from posterior_trees.predictor import GrowingPredictor, grow_each
from posterior_trees.predictor.region import open_part
from posterior_trees.seeding import step_generator
from posterior_trees.training.association.features import errors_inside, eyes_of
from posterior_trees.training.growing import DICE, Asked, draw_regions, follow

BATCH, NODES, PURPOSE = 64, 13, 17
PIXELS = eyes_of("pixels")
IN_BOX = {"digits": 0.85, "colour": 0.85, "cats": 0.85}
"""How much of the error that nine leaves of the whole picture's tree leave in a box those of the
box's tree may leave; elsewhere 0.95."""
Rows = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", type=Path, metavar="judge MODEL FILE | FOLDER", nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    if str(arguments.what[0]) == "judge":
        _, model, file = arguments.what
        judge(model, file, arguments.data, arguments.limit, arguments.device)
    else:
        print(tables(arguments.what[0]))


# ---- numbers of one model --------------------------------------------------------------------


@torch.no_grad()
def judge(model: Path, file: Path, data: Path | None, limit: int, device: str | None) -> None:
    recipe, predictor = load_recipe(model), load(model, device)
    images = load_evaluation(recipe.data, data, "test")
    rows: dict[str, list[Tensor]] = {}
    for indices in torch.arange(len(images)).split(BATCH):
        x, y = measured_batch(images, indices, predictor.measurement, recipe.seed, predictor.device)
        is_open = open_part(predictor.measurement, x)
        regions = {"whole": is_open, "box": boxes_of(indices, is_open)}
        found = paths_of(predictor, x, y, regions)
        if isinstance(predictor, GrowingPredictor) and indices[0] < limit:
            found |= growths_of(predictor, x, y, regions)
        for name, values in found.items():
            rows.setdefault(name, []).append(values.cpu())
    values = {name: torch.cat(parts) for name, parts in rows.items()}
    groups = find_groups(images.names, recipe.data.split)
    facts = {"names": images.names, "expansion_ms": time_expansion(predictor, y[:1])}
    store.write(file, values | ({} if groups is None else {"groups": groups}), facts)


def boxes_of(indices: Tensor, is_open: Tensor) -> Tensor:
    """A random box for each picture, the same for every model."""
    dice = [torch.rand(DICE, generator=step_generator(0, int(i), PURPOSE)) for i in indices]
    numbers = torch.stack(dice)
    numbers[:, 1] = 0.0  # a box, no blob and no stroke
    return draw_regions(numbers.to(is_open), is_open, share=1.0)


def paths_of(predictor: Any, x: Tensor, y: Tensor, regions: Rows) -> Rows:
    """Errors and NLL (b, depth + 1) of the nodes on the truth's paths, whole and in boxes; `seen`:
    in boxes, of the tree that the model grows of the whole picture."""
    tree = predictor(y)
    found = {name: reach(tree, x, region) for name, region in regions.items()}
    if isinstance(predictor, GrowingPredictor):
        found["seen"] = found["box"]
        found |= {n: go_down(predictor, Asked(x, y, region)) for n, region in regions.items()}
    return named(found)


def named(found: dict[str, tuple[Tensor, Tensor]]) -> Rows:
    errors = {f"{name}_error": error for name, (error, _) in found.items()}
    return errors | {f"{name}_nll": nll for name, (_, nll) in found.items()}


def reach(tree: Tree, x: Tensor, region: Tensor) -> tuple[Tensor, Tensor]:
    """Errors and NLL on the paths of a finished tree, on which the region leads."""
    errors = [errors_inside(nodes, x, region, PIXELS) for nodes in tree.images]
    path = tree.follow(tree.winners(errors)).unsqueeze(2).unbind(dim=1)
    error = torch.cat([e.gather(1, i) for e, i in zip(errors, path, strict=True)], dim=1)
    logs = [level.gather(1, i) for level, i in zip(tree.log_probs, path, strict=True)]
    return error, -torch.cat([torch.zeros_like(logs[0]), *logs[1:]], dim=1)


def go_down(predictor: GrowingPredictor, asked: Asked) -> tuple[Tensor, Tensor]:
    """The same as far down as the model was trained for."""
    errors, nll = [], [torch.zeros_like(asked.x[:, 0, 0, 0])]
    levels = predictor.network.levels
    for number, (node, children, winner) in enumerate(follow(predictor, asked, levels, PIXELS), 1):
        errors.append(errors_inside(node[:, None], asked.x, asked.region, PIXELS))
        nll.append(nll[-1] - children.log_probs.gather(1, winner[:, None])[:, 0])
        if number == levels:
            far = errors_inside(children.images, asked.x, asked.region, PIXELS)
            errors.append(far.gather(1, winner[:, None]))
    return torch.cat(errors, dim=1), torch.stack(nll, dim=1)


def growths_of(predictor: GrowingPredictor, x: Tensor, y: Tensor, regions: Rows) -> Rows:
    """Error and NLL (b, 1) of the leaf that the truth reaches in a tree of 13 nodes."""
    found = {}
    for name, region in regions.items():
        for by in ("gain", "level"):
            growths = predictor.begin_each(y, region)
            grow_each(growths, nodes=NODES, by=by)
            ends = [reach(growth.tree(), x[i : i + 1], region[i : i + 1])
                    for i, growth in enumerate(growths)]  # fmt: skip
            error, nll = (torch.cat([e[:, -1:] for e in p]) for p in zip(*ends, strict=True))
            found[f"{name}_by_{by}"] = error, nll
    return named(found)


def time_expansion(predictor: Any, y: Tensor) -> float:
    """Milliseconds of a first expansion, the median of nine."""
    times = []
    for _ in range(10):
        growth, start = predictor.begin(y), time.perf_counter()
        growth.expand(())
        growth.nodes[(0,)][0].sum().item()  # waits for the device
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[1:])[4]


# ---- tables of a folder ----------------------------------------------------------------------


def tables(folder: Path) -> str:
    jobs = {entry.name: job for entry in sorted(folder.iterdir()) if (job := read(entry))}
    pairs = [(n, jobs[n], jobs[o]) for n in jobs if (o := partner(n)) in jobs and o != n]
    grown = {name: job for name, job in jobs.items() if "seen_error" in job["values"]}
    lines = ["PSNR of the nodes on the truth's path, dB, and NLL, by depth:\n",
             "| model | whole | NLL | in a box | NLL | error left, whole / box | training | ms |",
             "|---" * 8 + "|", *(row(name, job) for name, job in jobs.items()), "",
             "Minus the one-pass tree of the same width, d = 0, 1, 2; and what nine leaves of the "
             "box's tree leave of\nthe error in it that nine of the whole picture's leave:\n",
             "| model | PSNR, dB | NLL, d = 1, 2 | of its own whole tree | of the one-pass tree |",
             "|---" * 5 + "|", *(pair_row(*pair) for pair in pairs), "",
             f"Best first minus balanced, both of {NODES} nodes:\n",
             "| model | whole: PSNR | NLL | box: PSNR | NLL |", "|---" * 5 + "|",
             *(growth_row(name, job) for name, job in grown.items()), "",
             *(f"- {words}" for words in find_misses(grown, pairs))]  # fmt: skip
    return "\n".join(lines)


def read(folder: Path) -> dict[str, Any] | None:
    """What a job left; None where nothing was judged yet."""
    file = folder / "grown.safetensors"
    if not file.is_file():
        return None
    values, facts = store.read(file)
    (study,) = json.loads((folder / "study.json").read_text("utf-8"))
    return {"values": values, "facts": facts, "study": study, "groups": values.get("groups")}


def partner(name: str) -> str:
    """The one-pass tree that a job is compared with: `digits_tree`, `digits_tree_seed1`."""
    task, _, seed = name.partition("_seed")
    return f"{task}_tree_seed{seed}" if seed else f"{task}_tree"


def psnr(error: Tensor) -> Tensor:
    return -10 * error.double().clamp_min(1e-12).log10()


def shown_of(job: dict[str, Any], key: str) -> Tensor:
    """Errors as PSNR, NLL as they are."""
    values = job["values"][key]
    return psnr(values) if key.endswith("error") else values


def row(name: str, job: dict[str, Any]) -> str:
    values, study = job["values"], job["study"]
    cells = [name]
    for region in ("whole", "box"):
        cells.append(dashed(psnr(values[f"{region}_error"]).mean(dim=0), 2))
        cells.append(dashed(values[f"{region}_nll"].mean(dim=0)[1:], 3))
    left = [values[f"{region}_error"].mean(dim=0) for region in ("whole", "box")]
    cells.append(" / ".join(f"{error[-1] / error[0]:.2f}" for error in left))
    cells.append(f"{study['epochs']} epochs, {study['training_seconds']:.0f} s, {study['commit']}")
    return f"| {' | '.join(cells)} | {job['facts']['expansion_ms']:.1f} |"


def dashed(means: Tensor, digits: int) -> str:
    return " ".join(f"{mean:.{digits}f}" for mean in means.tolist())


def pair_row(name: str, job: dict[str, Any], other: dict[str, Any]) -> str:
    cells = [
        ", ".join(signed(gap) for gap in gaps(job, other, "whole_error")),
        ", ".join(signed(gap) for gap in gaps(job, other, "whole_nll")[1:]),
        shown(left_in_box(job, job, "seen_error")),
        shown(left_in_box(job, other, "box_error")),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def growth_row(name: str, job: dict[str, Any]) -> str:
    cells = []
    for region, key in product(("whole", "box"), ("error", "nll")):
        first, level = (shown_of(job, f"{region}_by_{by}_{key}") for by in ("gain", "level"))
        groups = None if job["groups"] is None else job["groups"][: len(first)]
        cells.append(signed(summarize((first - level)[:, 0], groups=groups)))
    return f"| {name} | {' | '.join(cells)} |"


def gaps(job: dict[str, Any], other: dict[str, Any], key: str) -> list[Any]:
    """By depth, as deep as both are; nothing if their pictures differ."""
    if job["facts"]["names"] != other["facts"]["names"]:
        return []
    both = [shown_of(one, key) for one in (job, other)]
    depth = min(part.shape[1] for part in both)
    difference = both[0][:, :depth] - both[1][:, :depth]
    return [summarize(gap, groups=job["groups"]) for gap in difference.T]


def left_in_box(job: dict[str, Any], other: dict[str, Any], key: str) -> tuple[float, ...]:
    """Error in boxes of the box's tree in that of the other one's, at equal depth, and its 95 %
    bootstrap interval."""
    theirs = other["values"][key].double()
    depth = theirs.shape[1] - 1
    pairs = torch.stack([job["values"]["box_error"][:, depth].double(), theirs[:, depth]])
    groups = torch.arange(len(theirs)) if job["groups"] is None else job["groups"]
    place = groups.unique(return_inverse=True)[1]
    sums = torch.zeros(2, int(place.max()) + 1, dtype=pairs.dtype).index_add_(1, place, pairs)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(sums.shape[1], (1000, sums.shape[1]), generator=generator)
    ratios = sums[0][drawn].sum(dim=1) / sums[1][drawn].sum(dim=1)
    low, high = ratios.quantile(torch.tensor([0.025, 0.975], dtype=ratios.dtype)).tolist()
    mine, whole = sums.sum(dim=1).tolist()
    return mine / whole, low, high


def signed(gap: Any) -> str:
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def shown(ratio: tuple[float, ...]) -> str:
    return f"{ratio[0]:.3f} [{ratio[1]:.3f}, {ratio[2]:.3f}]"


def find_misses(grown: dict[str, Any], pairs: list[Any]) -> list[str]:
    """Which goals which model misses, beyond its interval."""
    found = []
    for name, job in grown.items():
        goal = IN_BOX.get(name.partition("_")[0], 0.95)
        if (ratio := left_in_box(job, job, "seen_error"))[0] > goal:
            found.append(f"{name}: nine leaves leave {shown(ratio)} in a box, the goal is {goal}")
    for name, job, other in pairs:
        for depth, gap in enumerate(gaps(job, other, "whole_error")):
            if gap.high < 0:
                found.append(f"{name}: {signed(gap)} dB at depth {depth}")
        for depth, gap in enumerate(gaps(job, other, "whole_nll")):
            if depth and gap.low > 0:
                found.append(f"{name}: NLL {signed(gap)} at depth {depth}")
    return found or ["no goal is missed"]


if __name__ == "__main__":
    main()
