"""The command `ptrees inspect`: what is in pictures and plates, without reading their pixels; heavy
imports inside."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterior_trees.cli.picture import add_plane, make_plane
from posterior_trees.errors import DataError

if TYPE_CHECKING:
    from posterior_trees.imaging.source import Plane


def add(commands: Any) -> None:
    inspect = commands.add_parser("inspect", help="what is in a picture, a stack or a plate")
    inspect.add_argument("inputs", nargs="+", type=Path, metavar="INPUT",
                         help="files, folders of pictures, OME-Zarr images or plates")  # fmt: skip
    add_plane(inspect)
    inspect.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> None:
    from posterior_trees.imaging.fields import WELL_PATTERN, list_fields

    plane = make_plane(arguments)
    pattern = arguments.well_pattern or WELL_PATTERN
    same: dict[str, list[str]] = {}
    unread: list[DataError] = []
    for field in list_fields(arguments.inputs, arguments.filter, pattern):
        place = " ".join(filter(None, (field.plate, field.well, field.site)))
        said = f"{field.path}{f' ({place})' if place else ''}"
        try:
            same.setdefault(describe(field.path, plane), []).append(said)
        except DataError as error:
            unread.append(error)
    for description, names in same.items():
        print(names[0] + (f" and {len(names) - 1} more like it" if len(names) > 1 else ""))
        print(description)
    if unread:
        raise DataError("\n  ".join(map(str, unread)))


def describe(path: Path, plane: "Plane") -> str:
    """What a file holds, and which plane of it `ptrees predict` would take."""
    from posterior_trees.imaging.source import choose_plane, name_channels, open_any, with_axes

    stack = with_axes(open_any(path, plane), plane.axes)
    lines = {
        "format": stack.kind + (f", {stack.levels} levels" if stack.levels > 1 else "")
        + (f", {stack.series} series (--series)" if stack.series > 1 else ""),
        "axes": f"{stack.axes}, {'×'.join(map(str, stack.shape))}, {stack.dtype}",
    }  # fmt: skip
    if any(names := name_channels(stack)):
        lines["channels"] = ", ".join(f"{i} {name}" for i, name in enumerate(names))
    size = stack.pixel_size
    lines["pixel"] = f"{size[0]:g} × {size[1]:g} µm" if size else "size unknown"
    try:
        with choose_plane(stack, plane) as source:
            name = source.channels[source.channel]
            chosen = f"channel {source.channel} {name}".rstrip() if len(names) > 1 else "all of it"
            lines["predict"] = f"{chosen}, {source.shape[0]}×{source.shape[1]} (height×width)"
    except DataError as error:
        lines["predict"] = str(error).removeprefix(f"{stack.name} ")
    finally:
        stack.close()
    return "\n".join(f"  {key:9}{text}" for key, text in lines.items())
