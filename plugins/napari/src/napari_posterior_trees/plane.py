r"""What is seen of a layer: one plane, and where its pixels lie.

Pixel $(i, j)$ of a layer lies at $c + A\,(i, j)^\top$ in the world, whatever its scale, rotation
and affine are. A result whose pixels are $f$ of these high and wide lies at

$$ c + A \frac{f - 1}{2} + f A\,(i, j)^\top, $$

because shrinking moves the centres of pixels.
"""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from PIL import Image

from posterior_trees.errors import InputError
from posterior_trees.imaging.ngff import Frame
from posterior_trees.imaging.source import UNEVEN, Source
from posterior_trees.imaging.stack import Stack

MICROMETRE = "micrometer"


class Seen(NamedTuple):
    """One plane of a layer, `(h, w)` or `(h, w, c)`, not computed yet if the layer's data are
    lazy."""

    name: str
    values: Any
    step: Float[np.ndarray, "2 2"]
    corner: Float[np.ndarray, "2"]
    units: tuple[Any, ...]
    axis_labels: tuple[str, ...]

    @property
    def size(self) -> tuple[int, int]:
        return tuple(self.values.shape[:2])

    @property
    def pixel_size(self) -> float | int | None:
        """The side of a pixel in µm; None of a layer that counts in pixels."""
        sides = np.linalg.norm(self.step, axis=0)
        if any(str(unit) == "pixel" for unit in self.units):
            return None
        y, x = ((side * unit).to(MICROMETRE).magnitude
                for side, unit in zip(sides, self.units, strict=True))  # fmt: skip
        if abs(y - x) > UNEVEN * min(y, x):
            raise InputError(
                f"{self.name} has pixels of {y:g} × {x:g} µm (height × width); they must be "
                "square: resample it, or correct the layer's scale"
            )
        return float(y)

    def place(self, factors: Sequence[float | int]) -> dict[str, Any]:
        """Where a layer lies whose pixels are `factors` of these high and wide."""
        f = np.asarray(factors, dtype=float)
        step, corner = self.step * f, self.corner + self.step @ ((f - 1) / 2)
        named = {"units": self.units, "axis_labels": self.axis_labels}
        if np.allclose(step, np.diag(np.diag(step))) and (np.diag(step) > 0).all():
            return {"scale": np.diag(step), "translate": corner, **named}
        affine = np.eye(3)
        affine[:2, :2], affine[:2, 2] = step, corner
        return {"affine": affine, **named}

    def frame(self, shrink: float | int = 1.0) -> Frame:
        """Where a stored tree says that it lies: in µm, if they are known."""
        micron = self.pixel_size
        per_unit = micron / np.linalg.norm(self.step[:, 0]) if micron else 1.0
        down, across = (float(per_unit * place) for place in self.corner)
        return Frame(micron, shrink, (down, across))

    def source(self) -> Source | bytes:
        """The pixels as a picture that can be read, in parts too; colour as a file of it."""
        if self.values.ndim == 3:
            values = np.asarray(self.values)
            bright = values if values.dtype == np.uint8 else np.rint(255 * values.clip(0, 1))
            file = io.BytesIO()
            Image.fromarray(bright.astype(np.uint8)).save(file, "PNG")
            return file.getvalue()
        kept = np.dtype(np.uint8 if self.values.dtype == bool else self.values.dtype)

        def read(index: tuple[int | slice, ...]) -> np.ndarray:
            return np.asarray(self.values[index]).astype(kept)

        stack = Stack(self.name, "layer", "YX", self.size, kept, read, lambda: None, {})
        return Source(stack, (slice(None),) * 2, self.pixel_size)


def see(layer: Any, dims: Any) -> Seen:
    """The plane of a layer that the sliders are at."""
    data = layer.data[0] if layer.multiscale else layer.data
    shown = dims.displayed[-2:]
    if tuple(shown) != (dims.ndim - 2, dims.ndim - 1):
        raise InputError(f"the axes on the screen are not the last two of {layer.name}: turn back")
    index = [round(place) for place in pixel_at(layer, dims.point, dims.units)[:-2]]
    lengths = data.shape[: len(index)]
    for axis, (number, length) in enumerate(zip(index, lengths, strict=True)):
        if not 0 <= number < length:
            raise InputError(
                f"{layer.name} has {length} planes along axis {axis}, and the slider is at "
                f"{number}: move it there"
            )
    corner, down, across = (
        np.array(layer.data_to_world([*index, *pixel])[-2:]) for pixel in ((0, 0), (1, 0), (0, 1))
    )
    place = f" [{', '.join(map(str, index))}]" if index else ""
    return Seen(
        layer.name + place, data[tuple(index)] if index else data,
        np.stack([down - corner, across - corner], axis=1), corner, tuple(layer.units[-2:]),
        tuple(layer.axis_labels[-2:]),
    )  # fmt: skip


def pixel_at(
    layer: Any, position: Sequence[float | int], units: Sequence[Any] | None
) -> np.ndarray:
    """The pixel of a layer at a place of the window, which may count in another unit."""
    place = np.array(position[-layer.ndim :], dtype=float)
    pairs = zip((units or ())[-layer.ndim :], layer.units, strict=False)
    for axis, (have, want) in enumerate(pairs):
        if have != want and have.is_compatible_with(want):
            place[axis] *= (1 * have).to(want).magnitude
    return np.asarray(layer.world_to_data(place))
