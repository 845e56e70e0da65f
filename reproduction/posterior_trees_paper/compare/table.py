"""The table of a comparison: one row per method, as JSON, Markdown and LaTeX."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from posterior_trees.baselines.process import travel_times
from posterior_trees.guarantee.conformal import quantile, weights
from posterior_trees.metrics import LEAST_PROBABILITY, clamp_nll, per_depth
from posterior_trees_paper.baselines.calibration import (
    ACCEPTED_CHI2,
    ACCEPTED_GAP,
    ACCEPTED_V,
    BINS,
    accept,
    chi_square,
    expected_v,
    spread_skill,
)

SCHEMA = 1
LEVEL = 0.9
FEW = 5
"""Samples for each leaf below which a tree of clusters says little."""
RECITED = 0.5
"""`nearest` below which samples look like training images; in results/comparison it is 0.88 and
more."""
OFF = 0.01
"""Root mean square by which samples may miss the measurement: rounding and JPEG are below."""
VALUES = ("psnr", "psnr_hole", "psnr_best", "nll", "entropy")
BIASED = ("ddnm", "ddrm", "repaint", "dps", "diffpir")
DIFFUSION = ("conditional", "denoising", *BIASED)
BIAS = (
    "DDNM, DDRM, RePaint, DPS and DiffPIR are not exact posterior samplers, even with a perfect "
    "denoiser; their bias where the truth is known is in results/baselines."
)


def make_row(
    name: str,
    values: dict[str, Tensor],
    facts: Sequence[dict[str, Any]],
    ours: dict[str, Tensor] | None,
    *,
    root: float,
    groups: Tensor | None = None,
    seen: int | None = None,
) -> dict[str, Any]:
    """All numbers of a method; `ours` are the per-image values to be compared with, `root` is the
    mean PSNR of the network that the roots of diffusion models are held against, `groups` are
    images that intervals take together, `seen` is the number of images it was trained on."""
    values, clamped = _shown_values(values)
    settings = facts[0]["settings"]
    peaks, seconds = [fact["peak_bytes"] for fact in facts], None
    if all(fact["seconds"] is not None for fact in facts):
        seconds = [fact["seconds"] / fact["size"] for fact in facts]
    row: dict[str, Any] = {
        "name": name, "kind": settings["kind"], "settings": _shown(settings),
        "made": facts[0].get("made"), "n": len(values["psnr"]), "trained_on": seen,
        "evaluations": facts[0]["evaluations"],
        # The median: the first group may compile or wait for the device.
        "seconds_per_image": statistics.median(seconds) if seconds else None,
        "seconds_of_groups": seconds, "peak_bytes": None if None in peaks else max(peaks),
    }  # fmt: skip
    for key in VALUES:
        row[key] = per_depth(values[key], groups) if key in values else None
    row["nll_clamped"] = clamped
    row["coverage"] = coverage(values["likelier"], groups) if "likelier" in values else None
    row["samples"] = facts[0].get("samples") or settings.get("samples")
    off = values.get("disagreement")
    row["disagreement"] = None if off is None else off.double().max().item()
    row["disagreeing"] = None if off is None else int((off > OFF).sum())
    row |= calibration(values, row["samples"] or 0)
    row["acceptance"] = None
    if row["kind"] in DIFFUSION:
        quality = values.get("psnr_hole", values["psnr"])
        gap = quality[:, 0].double().mean().item() - root
        found = row["spread_skill"], row["rank_chi2"], row["ranks"] or 0, gap
        row["acceptance"] = accept(*found, samples=row["samples"])
    if ours is not None:
        ours, _ = _shown_values(ours)
        row["versus_ours"] = {
            key: per_depth(values[key] - ours[key], groups) for key in VALUES if key in values
        }
    return row


def coverage(likelier: Tensor, groups: Tensor | None) -> dict[str, Any]:
    """Of the likeliest leaves that claim `LEVEL` the share of truths that they hold, and what they
    must claim to hold that of new images (None: so few images or groups allow no such promise)."""
    votes = weights(groups, len(likelier))
    held = (votes * (likelier <= LEVEL)).sum() / votes.sum()
    claim = quantile(likelier, LEVEL, groups)
    return {"level": LEVEL, "held": held.item(), "claim": claim if claim <= 1 else None}


def _shown_values(values: dict[str, Tensor]) -> tuple[dict[str, Tensor], int]:
    likelihoods, clamped = clamp_nll(values["nll"])
    return {**values, "nll": likelihoods}, clamped


def _shown(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as a table shows them: models and folders by name, not by their place on a disk."""
    names = {key: Path(settings[key]) for key in ("model", "run", "folder") if key in settings}
    files = {key: p.parent if p.name == "best.safetensors" else p for key, p in names.items()}
    return {**settings, **{key: path.name for key, path in files.items()}}


def calibration(values: dict[str, Tensor], samples: int) -> dict[str, Any]:
    """Spread-skill, rank test and distance from the training images of a method with so many
    samples of an image."""
    keys = ("spread_skill", "expected_v", "rank_chi2", "ranks", "nearest")
    found: dict[str, Any] = dict.fromkeys(keys)
    if "variance" not in values:
        return found
    found["spread_skill"] = spread_skill(values["variance"], values["error"])
    found["expected_v"] = expected_v(samples)
    if "ranks" in values:
        found |= {"rank_chi2": chi_square(values["ranks"]), "ranks": values["ranks"].numel()}
    if "nearest" in values:
        near, truth = (values[key].double().mean().item() for key in ("nearest", "nearest_truth"))
        found["nearest"] = near / truth if truth else None  # the test images are training images
    return found


def to_markdown(table: dict[str, Any]) -> str:
    """The table for people: values, then differences from ours with their intervals."""
    rows = table["methods"]
    head, cells = _grid(rows, "±")
    lines = [f"# {table['title']}", "", _caption(table), "", *pipe(head, cells)]
    lines += [f"\n**Beware.** {doubt}" for doubt in doubts(table)]
    others = [row for row in rows if "versus_ours" in row]
    if others:
        lines += ["", f"## Paired differences from {rows[0]['name']}", ""]
        lines += ["Method minus ours, mean over images and its 95 % interval; time over ours.", ""]
        lines += pipe(*_differences(rows[0], others))
    if any(row["acceptance"] for row in rows):
        lines += ["", "## Are the diffusion models trained well enough?", ""]
        lines += [*pipe(*accepted(table)), "", _tests(table)]
    lines += [f"\n{_moves(row)}" for row in rows if row["kind"] == "repaint"]
    if any(row["kind"] in BIASED for row in rows):
        lines += ["", BIAS]
    return "\n".join(lines) + "\n"


def doubts(table: dict[str, Any]) -> list[str]:
    """What speaks against a row: too few samples, or samples of something else."""
    leaves, found = math.prod(table["branching"]), []
    for row in table["methods"]:
        if row.get("nll_clamped"):
            found.append(
                f"{row['name']} gave the branch of the truth less than {LEAST_PROBABILITY:g} in "
                f"{row['nll_clamped']} of {row['n']} images, and is scored as if it were that."
            )
        if 0 < (row.get("samples") or 0) < FEW * leaves:
            found.append(
                f"{row['name']} has {row['samples']} samples of an image for {leaves} leaves: "
                "nodes are then means of few samples, or absent, and the NLL says little (at "
                f"least {FEW * leaves} are advised; fewer than {BINS - 1} have no χ²)."
            )
        if row.get("nearest") is not None and row["nearest"] < RECITED:
            found.append(
                f"The samples of {row['name']} are {row['nearest']:.2f} times as far from the "
                "nearest training image as the test images are: does it recite what it was "
                "trained on?"
            )
        if row.get("disagreeing"):
            found.append(
                f"The samples of {row['name']} were off the measurement by up to "
                f"{row['disagreement']:.2f} (root mean square over what is seen, of 0 to 1), and "
                f"by more than {OFF:g} in {row['disagreeing']} of {row['n']} images "
                "(`disagreement` in per_image.json), before they were made to agree with it: are "
                "they of these images, and in [0, 1]? If your sampler only changes what is seen, "
                "paste that."
            )
    return found


def accepted(table: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the acceptance tests: pass or fail of every diffusion method."""
    words = {True: "pass", False: "FAIL", None: "undecided"}
    head = ["method", "v", "χ²", "root", "accepted"]
    cells = []
    for row in table["methods"]:
        if row["acceptance"]:
            found = row["acceptance"]
            forms = {"v": "{:.2f}", "chi2": "{:.1f}", "root": "{:+.2f} dB"}
            tests = [(found[key], form) for key, form in forms.items()]
            line = [f"{_number(t['value'], form)} {words[t['passed']]}" for t, form in tests]
            cells.append([row["name"], *line, words[row["acceptance"]["passed"]]])
    return head, cells


def _tests(table: dict[str, Any]) -> str:
    return (
        f"Tests: v in {list(ACCEPTED_V)} for 100 samples, as exact samples' v for "
        f"other numbers; χ² < {ACCEPTED_CHI2:g} (at least 600 ranks); PSNR of the "
        f"mean of the samples at most {ACCEPTED_GAP:g} dB below {table['reference']['name']} "
        f"({table['reference']['psnr']:.2f} dB). Only the conditional model can be expected to "
        "pass them all."
    )


def _moves(row: dict[str, Any]) -> str:
    """RePaint goes up as well as down; only the steps down evaluate the network."""
    given = row["settings"]
    schedule = given.get("steps", 250), given.get("jump", 10), given.get("resamplings", 10)
    moves = (len(travel_times(*schedule)) - 1) * given["samples"]
    return (
        f"{row['name']}: {moves:,} moves for one tree, of which {row['evaluations']:,} evaluate "
        "the network."
    )


def to_latex(table: dict[str, Any]) -> str:
    """The same values as a booktabs table."""
    head, cells = _grid(table["methods"], r"$\pm$")
    plain = [[_escape(cell) for cell in row] for row in (head, *cells)]
    first, *rest = [" & ".join(row) + r" \\" for row in plain]
    about = rf"% {table['title']}: {_caption(table)}".replace("\n", " ")
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    lines = [about, begin, r"\toprule", first, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _grid(rows: list[dict[str, Any]], sign: str) -> tuple[list[str], list[list[str]]]:
    quality = "psnr_hole" if rows[0]["psnr_hole"] else "psnr"
    depths = range(len(rows[0]["psnr"]))
    shows_seen = any(row.get("trained_on") for row in rows)
    head = ["method", *["trained on"] * shows_seen, "NFE"]
    head += [f"{'hole ' if quality == 'psnr_hole' else ''}PSNR d={d}" for d in depths]
    head += [f"NLL d={d}" for d in depths[1:]] + [f"entropy d={d}" for d in depths[1:]]
    head += [f"held of {LEVEL:.0%}", "v", "χ²", "nearest", "s/image", "work MiB"]
    forms = {"spread_skill": "{:.2f}", "rank_chi2": "{:.1f}", "nearest": "{:.2f}",
             "seconds_per_image": "{:.3g}"}  # fmt: skip
    cells = []
    for row in rows:
        seen = [_number(row.get("trained_on"), "{:,}")] * shows_seen
        line = [label(row), *seen, _number(row["evaluations"], "{:,}")]
        line += [spread(row[quality][d], sign) for d in depths]
        line += [spread(row["nll"][d], sign) for d in depths[1:]]
        line += [f"{row['entropy'][d]['mean']:.2f}" for d in depths[1:]]
        mebibytes = None if row["peak_bytes"] is None else row["peak_bytes"] / 2**20
        line.append(shown_coverage(row.get("coverage")))
        line += [_number(row[key], form) for key, form in forms.items()]
        cells.append([*line, _number(mebibytes, "{:.0f}")])
    return head, cells


def _differences(
    ours: dict[str, Any], rows: list[dict[str, Any]]
) -> tuple[list[str], list[list[str]]]:
    quality = "psnr_hole" if "psnr_hole" in rows[0]["versus_ours"] else "psnr"
    depths = range(len(rows[0]["psnr"]))
    head = ["method", *[f"ΔPSNR d={d}" for d in depths], *[f"ΔNLL d={d}" for d in depths[1:]]]
    head.append("time")
    cells = []
    for row in rows:
        both, seconds = row["versus_ours"], row["seconds_per_image"]
        line = [_interval(both[quality][d]) for d in depths]
        line += [_interval(both["nll"][d]) for d in depths[1:]]
        times = None if seconds is None else seconds / ours["seconds_per_image"]
        cells.append([label(row), *line, _number(times, "{:,.1f} ×")])
    return head, cells


def label(row: dict[str, Any]) -> str:
    """A sampler that is not good enough stays in the table, and the table says so."""
    failed = row["acceptance"] and row["acceptance"]["passed"] is False
    return f"{row['name']} (failed)" if failed else row["name"]


def _caption(table: dict[str, Any]) -> str:
    groups = table.get("groups")
    units = f"Intervals are over {groups} groups of images that belong together. " if groups else ""
    fused = [row["name"] for row in table["methods"] if row["settings"].get("compiled")]
    usual = {f"{row['expected_v']:.2f}" for row in table["methods"] if row["expected_v"]}
    return (
        f"{len(table['images'])} test images, layout {'×'.join(map(str, table['branching']))}, on "
        f"{table['device']}. Mean ± standard deviation over images; NFE are the network "
        f"evaluations of one tree. `held of {LEVEL:.0%}` is the share of truths whose path is in "
        f"the likeliest leaves that claim {LEVEL:.0%}, and in brackets what these must claim to "
        f"hold {LEVEL:.0%} of new images: its guarantee. v is about "
        f"{' or '.join(sorted(usual)) or '1'} and χ² mostly below 21.7 for exact samples; "
        "`nearest` is their distance from the nearest training image over that of the test images, "
        "far below 1 if a model recites. Samples are made to agree with the measurement and "
        "clamped to [0, 1]; nodes are not clipped. Work is the GPU's memory beyond weights and "
        "images; `trained on` counts the images that a method has seen, and *failed* are diffusion "
        f"models that do not pass the tests below. {units}"
        f"Compiled networks: {', '.join(fused) or 'none'}."
    )


def pipe(head: list[str], cells: list[list[str]], words: int = 1) -> list[str]:
    """The lines of a Markdown table, in whose first columns are words and in the others numbers."""
    lines = [head, ["---"] * words + ["--:"] * (len(head) - words), *cells]
    return [f"| {' | '.join(line)} |" for line in lines]


def spread(value: dict[str, Any], sign: str = "±") -> str:
    return f"{value['mean']:.2f} {sign} {value['std']:.2f}"


def _interval(value: dict[str, Any]) -> str:
    interval = f" [{value['low']:+.3f}, {value['high']:+.3f}]"
    return f"{value['mean']:+.3f}" + ("" if math.isnan(value["low"]) else interval)


def _number(value: float | int | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def shown_coverage(found: dict[str, Any] | None) -> str:
    return "–" if found is None else f"{found['held']:.2f} ({_number(found['claim'], '{:.2f}')})"


def _escape(text: str) -> str:
    special: dict[str, str] = {"χ²": r"$\chi^2$", "–": "--", "_": r"\_", "%": r"\%", "&": r"\&"}
    for sign, replacement in special.items():
        text = text.replace(sign, replacement)
    return text
