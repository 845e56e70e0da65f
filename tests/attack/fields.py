"""Microscopes' files, and trees in OME-Zarr, with other metadata and bytes: listed, described and
read, or refused in words."""

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tifffile

from posterior_trees.cli.inspect import describe
from posterior_trees.imaging import guarded
from posterior_trees.imaging.fields import list_fields
from posterior_trees.imaging.source import Plane, open_source
from posterior_trees.imaging.stored import open_tree
from posterior_trees.imaging.tree_zarr import write_tree
from posterior_trees.tree import Tree
from tests.attack import judge
from tests.attack.images import mutate
from tests.mutants import mutate_facts
from tests.paint import paint_field, write_imagej, write_ome_tiff, write_ome_zarr, write_plate
from tests.tiny import make_tree

PLANE = Plane(channel="1")
METADATA = {"zarr.json", ".zattrs", ".zarray", ".zgroup"}


class Target(NamedTuple):
    """What is attacked: the whole of it, and what reads it."""

    name: str
    read: Callable[[Path], Any]


def read_pictures(path: Path) -> None:
    for field in list_fields([path]):
        assert describe(field.path, PLANE)
        with open_source(field.path, **PLANE._asdict()) as source:
            source.read_stored(slice(0, 40), slice(8, 60))


def read_tree(path: Path) -> None:
    stored = open_tree(path)
    assert repr(stored)
    assert stored.node((0,))[2:9, 3:7].shape
    assert [part[2].sum() for part in stored.parts]
    assert Tree.load(path).probs


def make_targets(folder: Path) -> list[Target]:
    field = paint_field(64, 72)
    write_ome_zarr(folder / "a.ome.zarr", field)
    write_ome_zarr(folder / "b.ome.zarr", field, "0.4")
    write_plate(folder / "plate.zarr", ("A/1",), 1, size=(64, 72))
    write_plate(folder / "plate4.zarr", ("A/1",), 1, "0.4", size=(64, 72))
    write_ome_tiff(folder / "p.ome.tif", field, tile=(32, 32), compression="zlib", subifds=1)
    write_imagej(folder / "i.tif", field)
    write_ome_tiff(folder / "a.ome.tif", field)
    for name, place in (("i.tif", "images=2\n"), ("a.ome.tif", "</OME>")):
        with tifffile.TiffFile(folder / name) as tiff:
            text = tiff.pages[0].description.replace(place, place + " " * 99)
        options = {"metadata": None, "photometric": "minisblack", "description": text.encode()}
        tifffile.imwrite(folder / name, field, **options)
    tree = make_tree(1, 40)[0]
    for ngff in ("0.5", "0.4"):
        write_tree(folder / f"t{ngff}.tree.ome.zarr", tree, ngff=ngff)
    names = sorted(path.name for path in folder.iterdir())
    return [Target(name, read_tree if name[0] == "t" else read_pictures) for name in names]


def mutate_folder(folder: Path, luck: random.Random) -> str:
    """Other JSON in one place, other bytes, a cut file, or one less."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    described = [file for file in files if file.name in METADATA]
    kind = luck.choice(["facts", "facts", "facts", "bytes", "cut", "gone"])
    file = luck.choice(described if kind == "facts" or luck.random() < 0.5 else files)
    if kind == "facts":
        facts = json.loads(file.read_text())
        for _ in range(luck.randrange(1, 3) if facts else 0):
            facts = mutate_facts(facts, luck) or {"a": 1}
        file.write_text(json.dumps(facts))
    elif kind == "bytes":
        file.write_bytes(mutate(file.read_bytes() * (1 + 4 // file.stat().st_size), luck))
    elif kind == "cut":
        file.write_bytes(file.read_bytes()[: luck.randrange(file.stat().st_size)])
    else:
        file.unlink()
    return f"{kind} of {file.relative_to(folder)}"


def mutate_number(content: bytes, luck: random.Random) -> bytes:
    """Another number in the description, behind which there is room."""
    place = luck.choice(list(re.finditer(rb'(?<=[="])[\d.]+(?=["\n])', content)))
    odd = luck.choice([b"0", b"-1", b"3", b"100000", b"10000000000", b"nan", b"x", b"1e99", b""])
    more = len(odd) - (place.end() - place.start())
    changed = content[: place.start()] + odd + content[place.end() :]
    return changed.replace(b" " * 20, b" " * (20 - more), 1)


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    luck, failed = random.Random(seed), []
    guarded.WORKER = guarded.Worker(seconds=5)
    with tempfile.TemporaryDirectory() as name:
        wholes, place = Path(name) / "wholes", Path(name) / "place"
        wholes.mkdir()
        place.mkdir()
        targets = make_targets(wholes)
        for number in range(count):
            target = targets[number % len(targets)]
            whole, mutant = wholes / target.name, place / target.name
            if whole.is_dir():
                shutil.copytree(whole, mutant)
                what = mutate_folder(mutant, luck)
            else:
                has_room = b" " * 99 in (content := whole.read_bytes())
                what = "number" if has_room and luck.random() < 0.5 else "bytes"
                change = mutate_number if what == "number" else mutate
                mutant.write_bytes(change(content, luck))
            failed += judge(lambda t=target, m=mutant: t.read(m), f"{target.name} {number} {what}")
            shutil.rmtree(mutant) if mutant.is_dir() else mutant.unlink()
    return count, failed
