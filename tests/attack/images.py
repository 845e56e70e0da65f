"""Pictures of every format with other bytes, and bombs: read for a model and for a training set."""

import io
import random

import numpy as np
from PIL import Image

from posterior_trees import load
from posterior_trees.imaging import guarded
from posterior_trees.imaging.decode import decode_raw
from posterior_trees.imaging.guarded import is_harmless
from posterior_trees.pictures.reading import Reading, read
from posterior_trees.serve.ask import Limits, check_pixels
from tests.attack import judge
from tests.bombs import hidden_text, large, many_frames, many_pages, many_scans, shared_tags

FORMS = (("PNG", "L", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("PNG", "I;16", {}),
         ("JPEG", "RGB", {"exif": True}), ("JPEG", "L", {"progressive": True}),
         ("GIF", "P", {}), ("BMP", "RGB", {}), ("BMP", "1", {}), ("PPM", "RGB", {}),
         ("TIFF", "L", {}), ("TIFF", "RGB", {"compression": "tiff_lzw"}),
         ("TIFF", "L", {"compression": "tiff_deflate"}), ("TIFF", "F", {}),
         ("TIFF", "1", {"compression": "group4"}), ("WEBP", "RGB", {}))  # fmt: skip


def make(form: str, mode: str, options: dict) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (31, 33, 4), np.uint8)
    image = Image.fromarray(pixels).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 257)
    if "exif" in options:
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif}
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def mutate(content: bytes, luck: random.Random) -> bytes:
    """Flipped bits, other numbers, most of them near the head, a cut, or a part twice."""
    changed, kind = bytearray(content), luck.randrange(5)
    reach = luck.choice([60, 300, len(content)])
    if kind <= 1:
        for _ in range(luck.randrange(1, 8)):
            changed[luck.randrange(min(reach, len(changed)))] ^= 1 << luck.randrange(8)
    elif kind == 2:
        at = luck.randrange(min(reach, len(changed) - 4))
        changed[at : at + 4] = luck.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff",
                                            b"\xff\xff\xff\x7f", b"\0\x01\0\0"])  # fmt: skip
    elif kind == 3:
        return content[: luck.randrange(len(content))]
    else:
        start, end = sorted(luck.randrange(len(content)) for _ in range(2))
        changed[start:start] = content[start:end] * luck.randrange(1, 4)
    return bytes(changed)


def bombs() -> list[bytes]:
    return [many_pages(190_000), many_frames(800_000), shared_tags(300, 19), many_scans(3000, 1500),
            hidden_text(b"zTXt", 300), hidden_text(b"iTXt", 15), hidden_text(b"eXIf", 15),
            large(100_000, 100_000), large(30_000, 1), large(9000, 9000)]  # fmt: skip


def attack(seed: int, count: int) -> tuple[int, list[str]]:
    """As uploads are read; every other one also as an image of a training set."""
    luck, failed, model = random.Random(seed), [], load("digits", device="cpu")
    guarded.WORKER = guarded.Worker(seconds=2)
    wholes = [make(*form) for form in FORMS]
    inputs = [mutate(luck.choice(wholes), luck) for _ in range(count)]
    first = bombs()
    for number, content in enumerate([*first, *inputs]):

        def ask(content: bytes = content) -> None:
            check_pixels(content, "a", Limits())
            read(content, model, Reading(resize=True), "a")

        failed += judge(ask, f"picture {number}")
        if number % 2 and is_harmless(content) and number >= len(first):
            failed += judge(lambda c=content: decode_raw(io.BytesIO(c), "a", 1), f"set {number}")
    return count + len(first), failed
