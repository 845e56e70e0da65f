"""The sets that the recipes use: what they are, where they go, how to obtain them, on what terms.

We pass on none of them but MNIST's address: most are for research only, and their owners want to
be asked. `docs/data.md` tells how each set was prepared.
"""

import itertools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

from posterior_trees.data.archive import is_image


@dataclass(frozen=True)
class KnownSet:
    """One set by name; `channels` are the folders of a paired one."""

    name: str
    kind: str
    what: str
    obtain: str
    terms: str
    channels: tuple[str, ...] = ()
    takes: str = ""
    prepare: str = ""
    unfit: str = ""
    credit: str = ""
    samples: str = ""
    importer: str = ""
    """What a model of it says of itself: see `models/card.py`."""
    side: int = 0
    frame: tuple[float, ...] = ()
    """Pixels of its pictures, and what its importer has to know: where both eyes lie (x and y), or
    what the drawing fills (left, top, right, bottom), as shares of them."""


FILE = resources.files("posterior_trees.data") / "known.toml"
KNOWN = msgspec.toml.decode(FILE.read_bytes(), type=dict[str, tuple[KnownSet, ...]])["sets"]


def find_known(name: str) -> KnownSet | None:
    return next((known for known in KNOWN if known.name == name), None)


def terms_of(name: str) -> str:
    """What a set is, and its terms; "" of one that we do not know."""
    known = find_known(name)
    return f"{known.name}, {known.what}: {known.terms}" if known else ""


def layout(name: str, folder: Path, kind: str, channels: tuple[str, ...] = ()) -> str:
    """Where the files of a set go."""
    place = folder / name
    if kind == "idx":
        return f"{place}/train-images-idx3-ubyte.gz and t10k-images-idx3-ubyte.gz"
    if kind == "pairs":
        folders = " and ".join(f"{channel}/" for channel in channels)
        return f"{folders} with images of the same names in {place}/ or {place}.tar"
    return f"images in {place}/ or {place}.tar"


def holds_images(folder: Path, channels: tuple[str, ...]) -> str:
    """The name of an image, an IDX file or a channel's folder right in this folder; "" of none."""
    names = sorted(entry.name for entry in itertools.islice(folder.iterdir(), 1000))
    found = (name for name in names if is_image(name) or "idx3-ubyte" in name or name in channels)
    return next(found, "")


def what_to_put(name: str, folder: Path, kind: str, channels: tuple[str, ...] = ()) -> str:
    """The message for a set that is not there."""
    if not folder.is_dir():
        lead = f"the data folder {folder} does not exist (give it by --data DIR or PTREES_DATA)"
    else:
        lead = f"the set {name!r} is not in {folder}"
        if own := holds_images(folder, channels):
            place = folder.resolve()
            fix = "" if place.name == name else f", with data.name = {place.name!r}"
            return (
                f"{lead}, which has images itself ({own}, …): --data names the folder around the "
                f"sets. Give --data {folder.parent if folder.parts else '..'}{fix}"
            )
    known = find_known(name)
    source = f" ({known.what}: {known.obtain}; terms: {known.terms})" if known else ""
    return (
        f"{lead}. Put {layout(name, folder, kind, channels)}{source}. "
        f"`ptrees data --data {folder}` lists what is found; docs/data.md says more"
    )
