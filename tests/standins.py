"""Tiny stand-ins of the sets that the recipes use: the right names, layouts and formats, but small.

Faces are discs with two dots and a bar on a coloured ground, shoes are blobs on white, and cells
bright ellipses (DNA) inside rings (actin); just enough for a recipe to take a few steps.
"""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

SIDE, FIELD = 32, (40, 56)
IMAGES = 20
WELLS = [f"{row}{column:02d}" for row in "AB" for column in range(1, 6)]


def make_standins(folder: Path) -> Path:
    """Write all sets into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_tar(folder / "faces256.tar", {f"{i:05d}.webp": _face(i) for i in range(IMAGES)})
    more = {f"{i:05d}.webp": _face(i + 500).resize((64, 64)) for i in range(IMAGES)}
    _write_tar(folder / "more_faces128.tar", more)
    _write_tar(folder / "cats256.tar", {f"{i:05d}.webp": _face(i + 99) for i in range(IMAGES)})
    _write_tar(folder / "shoes128.tar", {f"{i}.webp": _shoe(i) for i in range(IMAGES)})
    fields = {}
    for i, well in enumerate(WELLS):
        for site in (1, 2):
            actin, dna = _cells(10 * i + site)
            fields[f"actin_golgi/{well}_s{site}.png"] = actin
            fields[f"dna/{well}_s{site}.png"] = dna
    _write_tar(folder / "cells_actin_dna.tar", fields)
    _write_digits(folder / "mnist")
    return folder


def _face(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    ground, skin, hair = (tuple(int(v) for v in rng.integers(40, 255, 3)) for _ in range(3))
    image = Image.new("RGB", (SIDE, SIDE), ground)
    pen = ImageDraw.Draw(image)
    pen.ellipse((5, 2, 27, 31), fill=skin, outline=hair)
    for left in (10, 19):
        pen.ellipse((left, 12, left + 3, 15), fill=hair)
    pen.line((11, 24, 21, 24 - int(rng.integers(3))), fill=(150, 20, 20), width=2)
    return image


def _shoe(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (SIDE, SIDE), "white")
    colour = tuple(int(v) for v in rng.integers(0, 200, 3))
    corners = [(3, 24), (4, 10 + int(rng.integers(6))), (12, 12), (29, 20), (29, 25)]
    ImageDraw.Draw(image).polygon(corners, fill=colour)
    return image


def _cells(seed: int) -> tuple[Image.Image, Image.Image]:
    rng = np.random.default_rng(seed)
    actin, dna = (Image.new("L", FIELD[::-1], 35) for _ in range(2))
    for _ in range(8):
        x, y = (int(v) for v in rng.integers(4, (FIELD[1] - 4, FIELD[0] - 4)))
        ImageDraw.Draw(actin).ellipse((x - 6, y - 6, x + 6, y + 6), outline=150)
        ImageDraw.Draw(dna).ellipse((x - 3, y - 3, x + 3, y + 3), fill=int(rng.integers(110, 220)))
    return actin, dna


def _write_tar(file: Path, images: dict[str, Image.Image]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, image in images.items():
            content = io.BytesIO()
            image.save(
                content, name.rsplit(".", 1)[1], **({"quality": 86} if "webp" in name else {})
            )
            entry = tarfile.TarInfo(name)
            entry.size = content.tell()
            content.seek(0)
            tar.addfile(entry, content)


def _write_digits(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for part, count in (("train", 20), ("t10k", 4)):
        images = np.zeros((count, 28, 28), np.uint8)
        for i, image in enumerate(images):
            image[4:24, 3 + i : 6 + i] = 255
        header = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28)
        file = folder / f"{part}-images-idx3-ubyte.gz"
        file.write_bytes(gzip.compress(header + images.tobytes()))
