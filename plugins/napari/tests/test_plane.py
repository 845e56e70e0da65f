"""What is seen of a layer, and where a result of it lies."""

from typing import Any

import numpy as np
import pytest
from napari.layers import Image
from napari_posterior_trees.plane import Seen, pixel_at, see
from small import paint

from posterior_trees.errors import InputError
from posterior_trees.imaging.size import block_means

UM = ("um", "um")


def seen_of(headless: Any, data: Any, **options: Any) -> Seen:
    return see(headless.add_image(data, name="actin", **options), headless.dims)


def centre(values: np.ndarray, seen: Seen, factors: tuple[float, float]) -> np.ndarray:
    """Where the bright pixels of a result of this plane lie in the world."""
    placed = Image(values, **seen.place(factors))
    index = np.argwhere(values == values.max()).mean(axis=0)
    return np.array(placed.data_to_world(index))


@pytest.mark.parametrize("options", [
    {}, {"scale": (0.65, 0.65), "units": UM, "translate": (10, -20)},
    {"scale": (2, 3), "rotate": 30, "shear": [0.2], "translate": (5, 6)},
    {"scale": (0.5, 0.5), "affine": [[0, 1, 4], [-1, 0, 5], [0, 0, 1]]},
])  # fmt: skip
def test_a_dot_stays_where_it_is(headless: Any, options: dict[str, Any]) -> None:
    """Results are shifted by half of what their pixels are larger, in whatever direction."""
    values = np.zeros((48, 36), dtype=np.uint8)
    values[24:30, 12:18] = 255
    layer = headless.add_image(values, **options)
    want = np.array(layer.data_to_world((26.5, 14.5)))
    seen = see(layer, headless.dims)
    for block in (1, 2, 3, 6):
        small = block_means(values[None], block)[0]
        np.testing.assert_allclose(centre(small, seen, (block, block)), want, atol=1e-9)
    large = values.repeat(2, axis=0).repeat(2, axis=1)
    np.testing.assert_allclose(centre(large, seen, (0.5, 0.5)), want, atol=1e-9)


def test_of_many_planes_the_one_is_seen_that_the_sliders_are_at(headless: Any) -> None:
    data = np.random.default_rng(0).integers(0, 99, (3, 4, 10, 12)).astype(np.uint8)
    layer = headless.add_image(data, name="stack", scale=(2, 5, 0.5, 0.5), translate=(1, 10, 3, 4))
    headless.dims.point = (1 + 2 * 2, 10 + 5 * 1, 0, 0)
    seen = see(layer, headless.dims)
    np.testing.assert_array_equal(seen.values, data[2, 1])
    assert seen.name == "stack [2, 1]"
    np.testing.assert_allclose(seen.place((1, 1))["translate"], [3, 4])
    np.testing.assert_allclose(seen.place((1, 1))["scale"], [0.5, 0.5])
    small = headless.add_image(data[:1, :1], name="one", scale=(2, 5, 0.5, 0.5))
    with pytest.raises(InputError, match="one has 1 planes along axis 0, and the slider is at 2"):
        see(small, headless.dims)
    headless.dims.order = (2, 3, 0, 1)
    with pytest.raises(InputError, match="not the last two of stack"):
        see(layer, headless.dims)


def test_a_pyramid_is_seen_at_full_resolution(headless: Any) -> None:
    field = paint(64, 64)
    seen = seen_of(headless, [field, field[::2, ::2]], multiscale=True)
    np.testing.assert_array_equal(seen.source().read(slice(None), slice(None)), field)


def test_the_side_of_a_pixel_is_known_in_micrometres_or_not_at_all(headless: Any) -> None:
    field = paint()
    assert seen_of(headless, field).pixel_size is None
    assert seen_of(headless, field, scale=(0.5, 0.5)).pixel_size is None
    for unit, scale in (("um", 0.65), ("nm", 650), ("mm", 0.00065)):
        seen = seen_of(headless, field, scale=(scale, scale), units=(unit, unit), translate=(0, 2))
        assert seen.pixel_size == pytest.approx(0.65)
        assert seen.frame().corner[1] == pytest.approx(2 * 0.65 / scale)
        headless.layers.clear()
    uneven = seen_of(headless, field, scale=(0.65, 0.7), units=UM)
    with pytest.raises(InputError, match=r"0\.65 × 0\.7 µm"):
        _ = uneven.pixel_size


def test_a_window_in_another_unit_points_at_the_same_pixel(headless: Any) -> None:
    headless.add_image(paint(), scale=(0.65, 0.65), units=UM)
    other = headless.add_image(paint(), scale=(0.00065, 0.00065), units=("mm", "mm"))
    place = pixel_at(other, (0.65 * 7, 0.65 * 9), headless.dims.units)
    np.testing.assert_allclose(place, [7, 9])
