"""Tar files with other headers and IDX files with other bytes: all of the images, or a refusal."""

import gzip
import io
import random
import struct
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from posterior_trees.data import load_split
from posterior_trees.data.idx import read_idx
from posterior_trees.recipe.sections import DataSpec
from tests.attack import judge

PICTURES = 10


def make_tar(form: int) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for number in range(PICTURES):
            picture = io.BytesIO()
            pixels = np.random.default_rng(number).integers(0, 256, (9, 8), np.uint8)
            Image.fromarray(pixels).save(picture, "PNG")
            info = tarfile.TarInfo(f"{number}.png")
            info.size, info.mtime = picture.tell(), 0.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(info, io.BytesIO(picture.getvalue()))
    return stream.getvalue()


def mutate_tar(whole: bytes, luck: random.Random) -> bytes:
    """Another size, kind or name with a right checksum, a flipped bit, a cut, or blocks moved."""
    content = bytearray(whole)
    heads = [at for at in range(0, len(whole), 512) if whole[at + 257 : at + 262] == b"ustar"]
    at, kind = luck.choice(heads), luck.randrange(6)
    if kind <= 1:
        size = luck.choice([0, 1, 511, 512, 513, 1024, 1536, 3072, 5000, 10**6, 8**11 - 1])
        content[at + 124 : at + 136] = luck.choice([
            f"{size:011o}\0".encode(), b"\x80" + size.to_bytes(11, "big"),
            b"\xff" * 10 + b"\xfe\x00", b"x" * 12, b"\0" * 12,
            b"\x80" + (2 ** luck.randrange(80)).to_bytes(11, "big")])  # fmt: skip
    elif kind == 2:
        content[at + 156] = luck.choice(b"\x000123456789xgLKSVXZ")
    elif kind == 3:
        content[luck.randrange(len(content))] ^= 1 << luck.randrange(8)
    elif kind == 4:
        return bytes(content[: luck.randrange(len(content))])
    else:
        start = 512 * luck.randrange(len(content) // 512)
        block = content[start : start + 512]
        return bytes(content[:start] + block * luck.randrange(3) + content[start + 512 :])
    if kind != 3 and luck.random() < 0.8:
        content[at + 148 : at + 156] = b" " * 8
        content[at + 148 : at + 156] = f"{sum(content[at : at + 512]):06o}\0 ".encode()
    return bytes(content)


def mutate_idx(luck: random.Random) -> bytes:
    shape = [luck.choice([0, 1, 5, 28, 60000, 2**32 - 1, 2**16]) for _ in range(3)]
    values = bytes(luck.choice([0, 1, 140, 10**6]))
    head = bytes([0, 0, luck.choice([8, 8, 8, 9, 13]), luck.choice([3, 3, 3, 0, 1, 4, 255])])
    content = head + struct.pack(">3I", *shape) + values
    if luck.random() < 0.6:
        content = gzip.compress(content)
    if luck.random() < 0.4:
        content = content[: luck.randrange(len(content) + 1)]
    return content


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """A tar that loads has nine of its ten pictures at least: one may have become no picture."""
    luck, failed = random.Random(seed), []
    wholes = [make_tar(form) for form in (tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT)]
    spec = DataSpec(name="a", kind="images", channels=1, validation=0.0, test=0.0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(count):
            if number % 3 == 0:
                (folder / "idx").write_bytes(mutate_idx(luck))
                failed += judge(lambda: read_idx(folder / "idx"), f"IDX {number}")
                continue
            (folder / "a.tar").write_bytes(mutate_tar(luck.choice(wholes), luck))

            def read() -> None:
                images = load_split(spec, folder, "train")
                assert len(images) >= PICTURES - 1, f"{len(images)} of {PICTURES} pictures"

            failed += judge(read, f"tar {number}")
    return count, failed
