r"""Augmentation: random copies of a batch that could as well have been photographed.

Each image of the batch gets its own transformation, and an image pair $(x, y)$ gets one for both,
so that pairs stay registered. All of it runs in batches on the images' own device:

- `crop`: a random window of `patch` × `patch` pixels (whenever `patch` > 0);
- `affine`: rotate by $\theta$, scale by $s$, shift by $t$ pixels. The value of output pixel $p$,
  counted from the centre, is read between the pixels around
  $q = \tfrac{1}{s} R_\theta^\top (p - t)$ of the input; outside the image it is 0;
- `flip`: left and right exchanged, for half of the images;
- `symmetries`: one of the eight flips and rotations of the square;
- `brightness`: all values times one factor, log-uniform around 1, as a longer or shorter exposure
  of both images of a pair; what becomes brighter than white is white.

Randomness is an argument: the same generator state gives the same batch. Random numbers are drawn
on the generator's device and then moved to the images.
"""

import difflib
import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from posterior_trees.errors import DataError

AUGMENTATIONS = ("crop", "affine", "flip", "symmetries", "brightness")

DEGREES, SCALE, SHIFT_PIXELS = 8.0, 0.08, 1.5
"""How far `affine` goes either way. Choice: more makes digits that nobody would write."""

EXPOSURE = 1.25
"""The largest factor of `brightness`; the smallest is its inverse."""


def augment(
    x: Float[Tensor, "b c h w"],
    y: Float[Tensor, "b _ h w"] | None = None,
    names: Iterable[str] = (),
    patch: int = 0,
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "b c _ _"], Float[Tensor, "b _ _ _"] | None]:
    """Transform every image of a batch at random, `x` and `y` alike; images are in [0, 1].

    Whatever order `names` has, the window is cut first and flips come last.
    """
    names = check_augmentations(names, patch)
    images = x if y is None else torch.cat([x, y.to(x.dtype)], dim=1)
    if patch:
        images = _crop(images, patch, generator)
    if "affine" in names:
        random = 2 * _uniform(images, 4, generator) - 1
        angle, scale = random[:, 0] * math.radians(DEGREES), 1 + random[:, 1] * SCALE
        images = transform(images, angle, scale, random[:, 2:] * SHIFT_PIXELS)
    if "flip" in names:
        images = _sometimes(images.flip(3), images, generator)
    if "symmetries" in names:
        images = _symmetries(images, generator)
    if "brightness" in names:
        factor = EXPOSURE ** (2 * _uniform(images, 1, generator) - 1)
        images = (images * factor[:, :, None, None]).clamp(0, 1)
    if y is None:
        return images, None
    return images[:, : x.shape[1]], images[:, x.shape[1] :]


def check_augmentations(names: Iterable[str], patch: int = 0) -> tuple[str, ...]:
    """The names as a tuple; an unknown one is an error that suggests the nearest."""
    names = tuple(names)
    for name in names:
        if name not in AUGMENTATIONS:
            near = difflib.get_close_matches(name, AUGMENTATIONS, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(AUGMENTATIONS)}"
            raise DataError(f"unknown augmentation {name!r}; {hint}")
    if "crop" in names and not patch:
        raise DataError("augmentation 'crop' needs the size of the window: set data.patch, say 128")
    return names


def check_patch(patch: int, h: int, w: int) -> None:
    if not 0 < patch <= min(h, w):
        raise DataError(f"data.patch is {patch}, the images are {h}×{w}; use at most {min(h, w)}")


def _crop(
    images: Float[Tensor, "b c h w"], patch: int, generator: torch.Generator | None
) -> Float[Tensor, "b c {patch} {patch}"]:
    h, w = images.shape[2:]
    check_patch(patch, h, w)
    free = torch.tensor([h - patch, w - patch], device=images.device)
    corner = (_uniform(images, 2, generator) * (free + 1)).long().minimum(free)
    window = torch.arange(patch, device=images.device)
    rows, columns = (corner[:, i, None] + window for i in (0, 1))
    return windows(images, rows, columns)


def windows(
    images: Float[Tensor, "b c _ _"], rows: Int[Tensor, "b h"], columns: Int[Tensor, "b w"]
) -> Float[Tensor, "b c h w"]:
    """From every image its own rows and columns."""
    number = torch.arange(len(images), device=images.device)
    picked = images[number[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.permute(0, 3, 1, 2).contiguous()


def transform(
    images: Float[Tensor, "b c h w"],
    angle: Float[Tensor, "b"],
    scale: Float[Tensor, "b"],
    shift: Float[Tensor, "b 2"],
) -> Float[Tensor, "b c h w"]:
    """Rotate (radians, from the x axis to the y axis), scale and shift ((x, y) in pixels) about
    the centre: bilinear, zeros outside, one `grid_sample` for the whole batch."""
    h, w = images.shape[2:]
    cos, sin = angle.cos() / scale, angle.sin() / scale
    inverse = torch.stack([torch.stack([cos, sin], 1), torch.stack([-sin, cos], 1)], 1)
    offset = -(inverse @ shift.unsqueeze(2))
    # grid_sample counts in half-widths and half-heights, q = A p + o in pixels.
    half = images.new_tensor([w / 2, h / 2])
    theta = torch.cat([inverse * half / half[:, None], offset / half[:, None]], dim=2)
    grid = affine_grid(theta, list(images.shape), align_corners=False)
    moved = grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return moved.clamp(0, 1)


def _symmetries(
    images: Float[Tensor, "b c h w"], generator: torch.Generator | None
) -> Float[Tensor, "b c h w"]:
    h, w = images.shape[2:]
    if h != w:
        raise DataError(
            f"augmentation 'symmetries' turns images by 90°, but they are {h}×{w}: "
            "use 'flip', or set data.patch or a square data.size"
        )
    images = _sometimes(images.transpose(2, 3), images, generator)
    images = _sometimes(images.flip(2), images, generator)
    return _sometimes(images.flip(3), images, generator)


def _uniform(like: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`(b, count)` numbers in [0, 1), drawn where the generator lives."""
    device = "cpu" if generator is None else generator.device
    numbers = torch.rand(len(like), count, generator=generator, device=device)
    return numbers.to(like.device, like.dtype, non_blocking=True)


def _sometimes(changed: Tensor, images: Tensor, generator: torch.Generator | None) -> Tensor:
    """Half of the images changed."""
    return torch.where(_uniform(images, 1, generator)[..., None, None] < 0.5, changed, images)
