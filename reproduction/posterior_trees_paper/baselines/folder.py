"""Anybody's samples as a method: a folder with the samples of every test image.

FOLDER/<image>/0000.png, 0001.png, …   one picture per sample, or
FOLDER/<image>.npy                     an array (s, h, w), (s, h, w, c) or (s, c, h, w)

`<image>` is the number of the image in its split, with or without leading zeros, or its name: for
all images the same, because names may look like numbers of other images (`find_samples`).
Pictures are read as training images are (`data.decode`). Arrays have 8 or 16 bits without a sign,
and are divided by their largest possible value, or floating-point numbers in [0, 1].
`ptrees baseline sample` writes the second form.

Which images? `choose_images` decides for it and for `ptrees compare`, whose `--inputs` writes them
(`docs/compare.md`); a comparison whose folder lacks some begins with a message that says so.
"""

from collections import Counter
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from posterior_trees.errors import DataError, InputError
from posterior_trees.imaging.decode import decode
from posterior_trees.store import whole

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")


class SampleError(InputError):
    """Samples that cannot be used, with the reason and what to put where."""


def read_samples(place: Path, shape: tuple[int, ...], limit: int) -> Float[Tensor, "s c h w"]:
    """Up to `limit` samples of one image, in [0, 1], from where `find_samples` found them."""
    if place.is_file():
        try:
            array = np.load(place, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise SampleError(f"{place} is not a readable .npy array: {error}") from error
        samples = _as_images(array[:limit], place, shape)
    else:
        samples = torch.stack([_read_picture(file, shape) for file in _pictures(place, limit)])
    if not samples.isfinite().all() or samples.min() < -0.5 or samples.max() > 1.5:
        raise SampleError(
            f"{place} has values from {samples.min():.3g} to {samples.max():.3g}; "
            "samples are images in [0, 1]: divide by what is white, or save uint8 or uint16, and "
            "leave out samples with NaN"
        )
    return samples


def write_samples(
    folder: str | PathLike[str], numbers: Integer[Tensor, "b"], samples: Float[Tensor, "b s c h w"]
) -> None:
    """Write samples in 8 bits, one `.npy` per image."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pixels = samples.clamp(0, 1).mul(255).round().byte().permute(0, 1, 3, 4, 2).cpu().numpy()
    for number, mine in zip(numbers.tolist(), pixels, strict=True):
        with whole(folder / f"{number:05d}.npy") as part:
            np.save(part, mine, allow_pickle=False)


def choose_images(total: int, count: int, seed: int = 0) -> Int[Tensor, "{count}"]:
    """The numbers of `count` of a split's `total` images, seeded: fewer are among those of more."""
    if not 1 <= count <= total:
        raise InputError(f"--limit is {count}; the split has {total}: give 1 to {total}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randperm(total, generator=generator)[:count].sort().values


def find_samples(folder: Path, numbers: Sequence[int], names: Sequence[str]) -> list[Path]:
    """Where the samples of each of these images are, all by number or all by name."""
    if not folder.is_dir():
        raise SampleError(f"there is no folder of samples {folder}")
    by_number = [_look(folder, f"{n:05d}", f"{n:04d}", str(n)) for n in numbers]
    by_name = [_look(folder, n, n.replace("/", "_"), Path(n).stem) for n in names]
    if all(by_number) and all(by_name) and by_number != by_name:
        pairs = zip(numbers, by_number, by_name, strict=True)
        n, first, second = next((n, a[0], b[0]) for n, a, b in pairs if a != b)
        raise SampleError(
            f"{folder} has all images by number and by name: of image {n} both {first} and "
            f"{second}. Keep one of the two ways in it, and only samples of the compared images"
        )
    places = by_name if all(by_name) and not all(by_number) else by_number
    if missing := [n for n, found in zip(numbers, places, strict=True) if not found]:
        raise SampleError(_lacks(folder, missing, len(numbers)))
    if several := [found for found in places if len(found) > 1]:
        first, second, *_ = several[0]
        raise SampleError(f"{first} and {second} are samples of the same image; keep one")
    found = [place for (place,) in places]
    place, count = Counter(found).most_common(1)[0]
    if count > 1:
        raise SampleError(
            f"{place} would hold the samples of {count} images, of the same name in different "
            f"folders or windows of one: name all by number, the first "
            f"{numbers[found.index(place)]:05d}"
        )
    return found


def _lacks(folder: Path, missing: Sequence[int], total: int) -> str:
    first = missing[0]
    return (
        f"{folder} has no samples of {len(missing)} of the {total} images that --limit {total} "
        f"and this --seed choose (numbers in the split, from 0): {', '.join(map(str, missing))}. "
        f"Put those of image {first} into {folder / f'{first:05d}'}/0000.png, … or "
        f"{first:05d}.npy, and so on; the same command with --inputs DIR in place of --out and "
        "--method writes what to sample from"
    )


def sample_files(place: Path, limit: int) -> list[Path]:
    """The files that `read_samples` reads."""
    return [place] if place.is_file() else _pictures(place, limit)


def _look(folder: Path, *stems: str) -> list[Path]:
    """The arrays and folders of these names."""
    ends = [f"{stem}{end}" for stem in dict.fromkeys(stems) if stem for end in (".npy", "")]
    return [folder / end for end in ends if (folder / end).exists()]


def _pictures(place: Path, limit: int) -> list[Path]:
    files = sorted(f for f in place.iterdir() if f.suffix.lower() in PICTURES)[:limit]
    if not files:
        raise SampleError(f"{place} holds no pictures; put 0000.png, 0001.png, … there")
    return files


def _as_images(array: np.ndarray, place: Path, shape: tuple[int, ...]) -> Tensor:
    c, h, w = shape
    if array.dtype.kind != "f" and not (array.dtype.kind == "u" and array.dtype.itemsize <= 2):
        raise SampleError(
            f"{place} has {array.dtype} numbers, which do not say what is white; save uint8, "
            "uint16 or floating-point numbers in [0, 1]"
        )
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1:] == (h, w, c):
        array = array.transpose(0, 3, 1, 2)
    if array.ndim != 4 or array.shape[1:] != (c, h, w):
        raise SampleError(
            f"{place} has shape {array.shape}; samples of this task are (s, {h}, {w}, {c})"
        )
    scale = 1 if array.dtype.kind == "f" else np.iinfo(array.dtype).max
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) / scale


def _read_picture(file: Path, shape: tuple[int, ...]) -> Tensor:
    try:
        with file.open("rb") as opened:
            pixels = decode(opened, str(file), shape[0])
    except DataError as error:
        raise SampleError(str(error)) from error
    return _as_images(pixels[None], file, shape)[0]
