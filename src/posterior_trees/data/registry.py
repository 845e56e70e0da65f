"""The sets that the recipes use: what they are, where they go, how to obtain them, on what terms.

We pass on none of them but MNIST's address: most are for research only, and their owners want to
be asked. `docs/data.md` tells how each set was prepared.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

from posterior_trees.assets import DIGITS
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


KNOWN = (
    KnownSet(
        name="mnist",
        kind="idx",
        what="MNIST handwritten digits, 28×28 grey, 60,000 + 10,000",
        obtain="run `ptrees data --data DIR --download mnist`, DIR being the data folder",
        terms="no formal licence; commonly given as CC BY-SA 3.0",
        takes="handwritten digits",
        prepare="28×28, white on black; --digit finds the digit in a photograph",
        credit=DIGITS,
        samples="digits",
        importer="digit",
    ),
    KnownSet(
        name="faces256",
        kind="images",
        what="aligned celebrity faces, 256×256 RGB (CelebA-HQ or alike)",
        obtain="obtain CelebA-HQ and resize it to 256×256",
        terms="non-commercial research only",
        takes="one face from the front, cut around its eyes and mouth",
        prepare="mark both eyes, on the page or by --align; colour becomes grey by itself",
        unfit="telling who somebody is, or what somebody looked like: its answers are faces of "
        "celebrities",
        importer="eyes",
    ),
    KnownSet(
        name="more_faces128",
        kind="images",
        what="more such faces for training only (`data.extra`), 128×128 RGB",
        obtain="cut other CelebA faces to the frame of `faces256` and resize them to 128×128; "
        "leave out those that are in it",
        terms="non-commercial research only",
    ),
    KnownSet(
        name="cats256",
        kind="images",
        what="cats of AFHQ v2, 256×256 RGB",
        obtain="obtain AFHQ v2 and resize its cats to 256×256",
        terms="CC BY-NC 4.0",
        takes="the head of one cat from the front",
        prepare="mark both eyes, on the page or by --align; colour becomes grey by itself",
        unfit="finding out which colours a certain cat has",
        importer="eyes",
    ),
    KnownSet(
        name="shoes128",
        kind="images",
        what="shoe photos (UT Zappos50K, edges2shoes), 128×128 RGB",
        obtain="obtain the photos and resize them to 128×128",
        terms="academic, non-commercial use",
        takes="thin black lines of one shoe from its side, on white",
        prepare="a drawing, on the page or by --lines: thick or thin, dark on light or light on "
        "dark",
        unfit="judging a design: it knows shoes as a shop showed them",
        samples="shoes",
        importer="lines",
    ),
    KnownSet(
        name="cells_actin_dna",
        kind="pairs",
        what="BBBC022 cells, actin/Golgi and DNA stain, 260×348 grey, 2×2 binned",
        obtain="obtain BBBC022 and bin it",
        terms="CC0",
        takes="actin of U2OS cells at 20×, binned 2×2",
        prepare="--levels, --gamma and --scale bring it to the training's values (docs/cells.md)",
        unfit="diagnosis, or counting without your own check",
        samples="cells",
        channels=("actin_golgi", "dna"),
    ),
)


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
