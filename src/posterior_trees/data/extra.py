"""More images for training only: sets beside the recipe's own, whose splits they do not touch.

`data.extra = ["more_faces128"]` adds all images of that set, cut and resized as the recipe's own
are. Their names say where they come from: `extra:more_faces128/0001.webp`.
"""

from collections.abc import Sequence
from io import BufferedReader, BytesIO
from pathlib import Path

from posterior_trees.data.archive import Archive, open_archive
from posterior_trees.data.registry import what_to_put
from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import Header
from posterior_trees.recipe.sections import DataSpec

EXTRA = "extra:"


def prefix_of(name: str) -> str:
    """What the names of an extra set begin with."""
    return f"{EXTRA}{name}/"


class Extended:
    """A set and its extras as one archive."""

    def __init__(self, own: Archive, spec: DataSpec, folder: Path) -> None:
        self.own, self.where, self.extras = own, own.where, {}
        for name in spec.extra:
            archive = open_archive(folder, name)
            if archive is None:
                raise DataError(f"data.extra: {what_to_put(name, folder, spec.kind)}")
            self.extras[prefix_of(name)] = archive
        sets = self.extras.items()
        self.added = [prefix + file for prefix, archive in sets for file in archive.names]
        self.names = own.names + self.added

    def open(self, name: str) -> BufferedReader | BytesIO:
        for prefix, archive in self.extras.items():
            if name.startswith(prefix):
                return archive.open(name.removeprefix(prefix))
        return self.own.open(name)


def check_extra(spec: DataSpec) -> None:
    """Errors that can be seen without looking at any image."""
    if spec.extra and spec.kind not in ("images", "edges"):
        raise DataError(
            f"data.extra is {list(spec.extra)}, but data.kind is {spec.kind!r}: only sets of "
            "single images ('images', 'edges') can be extended. Put the files into the set itself"
        )
    if spec.name in spec.extra or len(set(spec.extra)) < len(spec.extra):
        raise DataError(
            f"data.extra is {list(spec.extra)}: each set once, and not {spec.name!r}, whose test "
            "images must not train"
        )


def check_extra_images(spec: DataSpec, names: list[str], headers: Sequence[Header]) -> None:
    """Refuse extra images that would teach something else: blur, or missing colours."""
    if own_names(names) == names:
        return
    files = dict(zip(names, headers, strict=True))
    least = min(_zoom(spec, files[name]) for name in own_names(names))
    for name in spec.extra:
        theirs = [files[file] for file in names if file.startswith(prefix_of(name))]
        small = min(theirs, key=lambda header: _zoom(spec, header))
        if _zoom(spec, small) < min(least, 1):
            raise DataError(
                f"data.extra: {name} has images of {small.height}×{small.width}, which data.size = "
                f"{list(spec.size)} would enlarge and blur. Lower data.size, or leave {name} out"
            )
        channels = {header.channels for header in theirs}
        if channels != {spec.channels} and len(channels) == 1:
            kinds = {1: "grey", 3: "in colour"}
            raise DataError(
                f"data.extra: the images of {name} are {kinds[channels.pop()]}, and data.channels "
                f"is {spec.channels}. Leave {name} out, convert its files, or set data.channels"
            )


def own_names(names: Sequence[str]) -> list[str]:
    """Those of the set itself."""
    return [name for name in names if not name.startswith(EXTRA)]


def _zoom(spec: DataSpec, header: Header) -> float:
    """By how much an image shrinks on its way to `data.size`; below 1 it is enlarged."""
    if not spec.size:
        return 1.0
    return min(header.height / spec.size[0], header.width / spec.size[1])
