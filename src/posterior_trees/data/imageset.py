r"""Images at hand, resident in memory on any device.

`batch(indices)` gives $x$, and for paired sets the measurement $y$, as float32 in $[0, 1]$ on the
set's device. What is stored are integers, a quarter of the memory: 8-bit values are divided by 255
and 16-bit ones by 65535, once per batch, where the images are. `stream.py` has the same interface
for images that do not fit.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer, UInt8, UInt16
from torch import Tensor

from posterior_trees.errors import DataError, plural
from posterior_trees.imaging.adjust import signed, to_float, unsigned
from posterior_trees.measure import Measurement

Stored = UInt8[Tensor, "n _ h w"] | UInt16[Tensor, "n _ h w"]
Batch = tuple[Float[Tensor, "b _ h w"], Float[Tensor, "b _ h w"] | None]
Indices = Integer[Tensor, "b"] | Sequence[int]


class ImageSet:
    """Images that sit in memory as 8- or 16-bit integers: `x`, `y` or None, and `names`; `shape` is
    `(c, h, w)` of `x`."""

    pixel_size: float | None = None
    """The side of a pixel in µm, where its files know it."""

    def __init__(
        self, x: Stored, y: Stored | None = None, names: Sequence[str] | None = None
    ) -> None:
        self.names = list(names) if names is not None else [str(i) for i in range(len(x))]
        if len(self.names) != len(x) or (y is not None and len(y) != len(x)):
            raise DataError(
                f"{len(x)} images, {len(self.names)} names"
                + ("" if y is None else f" and {len(y)} measurements")
                + ": they must be as many"
            )
        self._x, self._y = signed(x), None if y is None else signed(y)
        self.shape, self.device = tuple(x.shape[1:]), x.device
        self.nbytes = x.nbytes + (0 if y is None else y.nbytes)

    @property
    def x(self) -> Stored:
        return unsigned(self._x)

    @property
    def y(self) -> Stored | None:
        return None if self._y is None else unsigned(self._y)

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        paired = "" if self._y is None else " in pairs"
        return f"ImageSet({plural(len(self), 'image')} of {self.shape}{paired}, {self.device})"

    def to(self, device: str | torch.device) -> "ImageSet":
        return self._map(lambda images: images.to(device), self.names)

    def subset(self, indices: Indices) -> "ImageSet":
        """A set of only these images, in this order."""
        index = as_index(indices)
        names = [self.names[i] for i in index.tolist()]
        return self._map(lambda images: images[index.to(images.device)], names)

    def batch(self, indices: Indices) -> Batch:
        index = as_index(indices).to(self.device, non_blocking=True)
        x = to_float(self._x[index])
        return x, None if self._y is None else to_float(self._y[index])

    def _map(self, function, names: list[str]) -> "ImageSet":
        y = None if self._y is None else unsigned(function(self._y))
        found = ImageSet(unsigned(function(self._x)), y, names)
        found.pixel_size = self.pixel_size
        return found


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` image numbers spread over a set: nobody picks the pretty ones."""
    count = min(count, total)
    return [i * total // count for i in range(count)]


def as_index(indices: Indices) -> Integer[Tensor, "b"]:
    """Numbers of images as a tensor; a mask of booleans is not one."""
    index = torch.as_tensor(indices)
    if index.dtype == torch.bool:
        raise DataError("indices are booleans; give numbers of images (`mask.nonzero()[:, 0]`)")
    return index.long()


def measured_batch(
    images: ImageSet, indices: Tensor, measurement: Measurement, seed: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Clean images of a set and their measurements: as recorded, or made by `measure_each`."""
    x, y = images.batch(indices)
    x = x.to(device)
    y = measure_each(measurement, x, indices, seed) if y is None else y
    return x, y.to(device)


def measure_each(
    measurement: Measurement, x: Float[Tensor, "b *shape"], indices: Tensor, seed: int
) -> Tensor:
    """Measure images so that the noise of image `i` depends on `(seed, i)` only."""
    if not measurement.is_random:
        return measurement(x)
    generator = torch.Generator()
    measured = []
    for image, index in zip(x, indices.tolist(), strict=True):
        generator.manual_seed((seed * 1_000_003 + index) % 2**63)
        measured.append(measurement(image[None], generator))
    return torch.cat(measured)
