r"""Photo → edge map, as a draughtsman would: thin dark lines on white, and little texture.

The edge maps of pix2pix's `edges2shoes` come from a neural edge detector (HED) with non-maximum
suppression, thresholds and the removal of short fragments. Ours need no network:

1. values $v \mapsto \tfrac2\pi \arcsin\sqrt v$, which shows contrast near black and near white,
   then a Gaussian of $\sigma$;
2. strength $m$ and direction of the colour gradient: the larger eigenvalue $m^2$ of
   $\sum_c \nabla v_c \nabla v_c^\top$, and its eigenvector (Di Zenzo, 1986);
3. $r = m - \tfrac12 G_{4\sigma} m$: what has many edges around it is texture and loses (surround
   inhibition, Grigorescu, Petkov & Westenberg, 2003);
4. only maxima of $m$ along the gradient stay (Canny, 1986): lines one pixel thin;
5. lines of $r >$ `LOW` somewhere above `HIGH`, of at least `SHORTEST` pixels, are drawn.

Lengths are for images of 128 pixels and grow with the image; thresholds shrink with it.
`store_edges` keeps the maps beside the photos, in `DIR/NAME_edges1.tar`: then they are not drawn
again, and are the same pixels on every machine. Other thresholds would be another number than 1.
Choice: the paper uses the edge maps of pix2pix, which do not come with the photos.
"""

import io
import math
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from posterior_trees.data.archive import open_archive
from posterior_trees.data.registry import what_to_put
from posterior_trees.data.stream import Pair
from posterior_trees.errors import DataError
from posterior_trees.imaging.decode import Pixels, decode
from posterior_trees.imaging.regions import label, sizes
from posterior_trees.store import whole

VERSION = 1
"""Of everything below that decides which pixels are edges."""

SIGMA, SURROUND = 1.0, 0.5
LOW, HIGH = 0.02, 0.05
SHORTEST = 10


def draw_edges(photo: Pixels) -> UInt8[np.ndarray, "1 h w"]:
    """The edge map of an 8- or 16-bit image: 0 on edges, 255 elsewhere."""
    values = torch.from_numpy(photo.astype(np.float32) / np.iinfo(photo.dtype).max)
    with torch.inference_mode():
        return np.where(find_edges(values).numpy()[None], 0, 255).astype(np.uint8)


def find_edges(x: Float[Tensor, "c h w"]) -> Bool[Tensor, "h w"]:
    """Which pixels of an image in [0, 1] are edges."""
    zoom = max(max(x.shape[1:]) / 128, 1.0)
    smooth = _blur(x.clamp(0, 1).sqrt().asin() * (2 / math.pi), SIGMA * zoom)
    strength, direction = _gradient(smooth)
    strength = strength * zoom
    rest = strength - SURROUND * _blur(strength[None], 4 * SIGMA * zoom)[0]
    thin = _is_peak(strength, direction)
    lines = label(thin & (rest > LOW))
    is_strong = torch.zeros(int(lines.max()) + 1, dtype=torch.bool)
    is_strong[lines[thin & (rest > HIGH)]] = True
    is_kept = is_strong[1:] & (sizes(lines) >= SHORTEST * zoom)
    return torch.cat([torch.tensor([False]), is_kept])[lines]


def _blur(images: Float[Tensor, "c h w"], sigma: float) -> Float[Tensor, "c h w"]:
    reach = math.ceil(3 * sigma)
    weights = torch.arange(-reach, reach + 1).div(sigma).square().mul(-0.5).exp()
    row = (weights / weights.sum()).to(images.dtype)[None, None, None]
    layers = F.pad(images[:, None], [reach] * 4, mode="replicate")
    return F.conv2d(F.conv2d(layers, row), row.mT)[:, 0]


def _gradient(images: Float[Tensor, "c h w"]) -> tuple[Tensor, Tensor]:
    """Strength and angle (from the x axis towards the y axis) of the colour gradient."""
    wide = F.pad(images[None], [1] * 4, mode="replicate")[0]
    dx = (wide[:, 1:-1, 2:] - wide[:, 1:-1, :-2]) / 2
    dy = (wide[:, 2:, 1:-1] - wide[:, :-2, 1:-1]) / 2
    xx, xy, yy = (dx * dx).sum(0), (dx * dy).sum(0), (dy * dy).sum(0)
    squared = (xx + yy) / 2 + ((xx - yy).square() / 4 + xy.square()).sqrt()
    return squared.sqrt(), torch.atan2(2 * xy, xx - yy) / 2


def _is_peak(
    strength: Float[Tensor, "h w"], direction: Float[Tensor, "h w"]
) -> Bool[Tensor, "h w"]:
    """Is a pixel the strongest of three along its gradient? Neighbours are read between pixels."""
    h, w = strength.shape
    rows = torch.arange(h, dtype=strength.dtype)[:, None]
    columns = torch.arange(w, dtype=strength.dtype)
    neighbours = []
    for sign in (1, -1):
        x, y = columns + sign * direction.cos(), rows + sign * direction.sin()
        grid = torch.stack([(2 * x + 1) / w - 1, (2 * y + 1) / h - 1], dim=-1)
        neighbours.append(
            F.grid_sample(
                strength[None, None], grid[None], padding_mode="border", align_corners=False
            )[0, 0]
        )
    return (strength >= neighbours[0]) & (strength > neighbours[1])


def with_edges(
    read: Callable[[str], Pair], folder: Path, sets: Mapping[str, str]
) -> Callable[[str], Pair]:
    """A reader that adds to each photo its edge map: the stored one if there is one of the photo's
    size, else a fresh one. `sets` are those the photos come from, by the prefix of their names."""
    known = {}
    for prefix, name in sets.items():
        if stored := open_archive(folder, store_name(name)):
            known |= {prefix + file: (stored, file) for file in stored.names}

    def read_both(file: str) -> Pair:
        x, _ = read(file)
        if map_name(file) in known:
            stored, name = known[map_name(file)]
            with stored.open(name) as opened:
                y = decode(opened, f"{stored.where}: {name}", 1)
            if y.shape[1:] == x.shape[1:]:
                return x, y
        return x, draw_edges(x)

    return read_both


def store_edges(
    folder: Path, name: str, watch: Callable[[list[str]], Iterable[str]] = iter
) -> Path:
    """Draw the edge maps of all photos of a set and keep them in `folder/NAME_edges1.tar`."""
    photos = open_archive(folder, name)
    if photos is None:
        raise DataError(what_to_put(name, folder, "images"))
    target = folder / f"{store_name(name)}.tar"
    with whole(target) as part, tarfile.open(part, "w") as tar:
        for file in watch(photos.names):
            with photos.open(file) as opened:
                lines = draw_edges(decode(opened, f"{photos.where}: {file}", 3))[0]
            _add(tar, map_name(file), lines)
    return target


def store_name(name: str) -> str:
    return f"{name}_edges{VERSION}"


def map_name(file: str) -> str:
    """The edge map of `a/b.webp` is `a/b.webp.png`: photos may differ in their ending alone."""
    return f"{PurePosixPath(file)}.png"


def _add(tar: tarfile.TarFile, name: str, lines: UInt8[np.ndarray, "h w"]) -> None:
    content = io.BytesIO()
    Image.fromarray(lines).convert("1", dither=Image.Dither.NONE).save(content, "png")
    entry = tarfile.TarInfo(name)
    entry.size = content.tell()
    content.seek(0)
    tar.addfile(entry, content)
