r"""The metadata of OME-Zarr (NGFF 0.4 and 0.5): axes, scales, names of channels, labels, plates.

Shrinking by $f$ moves the centres of pixels: if the first pixel of the input lies at 0 and its
pixels are $s$ wide, then

$$ \text{scale} = s f, \qquad \text{translation} = s \, \frac{f - 1}{2}. $$
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from posterior_trees.imaging.stack import need

LABELS_LISTED = 10_000
"""Nuclei whose properties stand in the metadata; of more only the table has them."""
FORMATS = {"0.4": 2, "0.5": 3}
"""Versions of NGFF, and the Zarr they are written in."""


class Frame(NamedTuple):
    """Where pixels lie: `pixel` is the side of an input's pixel in µm, if it is known, `shrink` how
    many of them one pixel of the result is wide, and `corner` where the input's first one lies."""

    pixel: float | int | None = None
    shrink: float | int = 1.0
    corner: tuple[float, float] = (0.0, 0.0)

    def steps(self, *factors: float | int) -> list[dict[str, Any]]:
        """Scale and translation of an image whose pixels are as many of the result's high and
        wide; one number says both."""
        side = self.pixel or 1.0
        wide = [factor * self.shrink for factor in (factors * 2)[:2]]
        places = [c + side * (f - 1) / 2 for c, f in zip(self.corner, wide, strict=True)]
        return [
            {"type": "scale", "scale": [1.0, *[side * f for f in wide]]},
            {"type": "translation", "translation": [0.0, *places]},
        ]

    def axes(self, names: str = "cyx") -> list[dict[str, str]]:
        unit = {"unit": "micrometer"} if self.pixel else {}
        return [{"name": name, "type": "channel"} if name == "c" else
                {"name": name, "type": "space", **unit} for name in names]  # fmt: skip


def write_image(
    folder: Path, name: str, axes: list[dict[str, str]], levels: Sequence[list[dict[str, Any]]],
    facts: dict[str, Any], ngff: str, **more: Any,
) -> None:  # fmt: skip
    """The metadata of an image whose levels have these transformations; `facts` are others."""
    mine = [[{**s, s["type"]: s[s["type"]][-len(axes) :]} for s in steps] for steps in levels]
    datasets = [{"path": str(i), "coordinateTransformations": s} for i, s in enumerate(mine)]
    image: dict[str, Any] = {"name": name, "axes": axes, "datasets": datasets}
    image |= {} if ngff == "0.5" else {"version": ngff}
    write_group(folder, {"multiscales": [image]} | facts, ngff, **more)


def omero(labels: Sequence[str], value_of_one: float | int) -> dict[str, Any]:
    """White channels on one scale, of which only the first is shown."""
    window = {"min": 0, "max": value_of_one, "start": 0, "end": value_of_one}
    return {"omero": {"channels": [
        {"label": label, "color": "FFFFFF", "active": i == 0, "window": window}
        for i, label in enumerate(labels)
    ]}}  # fmt: skip


def colour_of(probability: float) -> list[int]:
    """Red, green, blue and opacity of a nucleus: green, and orange the less probable it is."""
    return [round(255 - 185 * probability), round(150 + 50 * probability),
            round(90 * probability), 255]  # fmt: skip


def image_label(properties: Sequence[Mapping[str, Any]], ngff: str) -> dict[str, Any]:
    """What each label's number means; the image lies two folders up."""
    listed = properties if len(properties) <= LABELS_LISTED else ()
    colors: list[dict[str, Any]] = [
        {"label-value": p["label-value"], "rgba": colour_of(p["probability"])} for p in listed
    ] or [{"label-value": 0, "rgba": [0, 0, 0, 0]}]
    facts: dict[str, Any] = {"source": {"image": "../../"}, "colors": colors}
    if listed:
        facts["properties"] = [dict(p) for p in listed]
    return {"image-label": facts if ngff == "0.5" else facts | {"version": ngff}}


def write_group(folder: Path, facts: dict[str, Any], ngff: str, **more: Any) -> None:
    """A group's metadata; `more` are attributes that are not OME's."""
    described = {"ome": {"version": ngff, **facts}} if ngff == "0.5" else facts
    attributes = {**(described if facts else {}), **more}
    need("zarr").open_group(folder, mode="a", zarr_format=FORMATS[ngff]).attrs.put(attributes)


def write_plate(folder: Path, name: str, fields: Sequence[Path], ngff: str) -> None:
    """The metadata of a plate whose `fields` lie in `folder`/row/column/number; written last."""
    places = sorted((f.relative_to(folder).parts for f in fields), key=lambda p: (
        p[0], p[1].zfill(9), p[2].zfill(9)))  # fmt: skip
    wells: dict[tuple[str, str], list[str]] = {}
    for row, column, site in places:
        wells.setdefault((row, column), []).append(site)
    rows = list(dict.fromkeys(row for row, _ in wells))
    columns = sorted({column for _, column in wells}, key=lambda c: c.zfill(9))
    version = {"version": ngff}
    for row in rows:
        write_group(folder / row, {}, ngff)
    for (row, column), sites in wells.items():
        images = [{"path": site} for site in sites]
        write_group(folder / row / column, {"well": {"images": images, **version}}, ngff)
    listed = [{"path": f"{row}/{column}", "rowIndex": rows.index(row),
               "columnIndex": columns.index(column)} for row, column in wells]  # fmt: skip
    plate = {"name": name, "rows": [{"name": row} for row in rows], "wells": listed,
             "columns": [{"name": column} for column in columns],
             "field_count": max(map(len, wells.values())), **version}  # fmt: skip
    write_group(folder, {"plate": plate}, ngff)
