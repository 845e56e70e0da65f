"""Measurements: projections, consistency, reproducible noise."""

import itertools

import pytest
import torch

from posterior_trees.data import measure_each
from posterior_trees.measure import (
    Colorize,
    Denoise,
    Downsample,
    Inpaint,
    Measurement,
    Paired,
)

LINEAR = [
    (Inpaint.box((2, 5), (1, 6), size=(8, 8)), (3, 8, 8)),
    (Inpaint(torch.tensor([True, False])), (2,)),
    (Colorize(), (3, 8, 8)),
    (Downsample(4), (2, 8, 8)),
]


def noise(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("measurement", "shape"), LINEAR)
def test_projection_is_idempotent_symmetric_and_invisible(measurement, shape):
    u, v = noise(4, *shape), noise(4, *shape).flip(0)
    project = measurement.project
    torch.testing.assert_close(project(project(v)), project(v))
    torch.testing.assert_close((u * project(v)).sum(), (project(u) * v).sum())  # self-adjoint
    torch.testing.assert_close(measurement(u + project(v)), measurement(u))  # A P = 0


@pytest.mark.parametrize(("measurement", "shape"), LINEAR)
def test_naive_image_agrees_with_the_measurement(measurement, shape):
    y = measurement(noise(4, *shape))
    torch.testing.assert_close(measurement(measurement.naive(y)), y)


@pytest.mark.parametrize(("measurement", "shape"), LINEAR)
def test_imposing_a_measurement_is_the_nearest_consistent_image(measurement, shape):
    x, other = noise(4, *shape), noise(4, *shape).roll(1)
    y = measurement(x)
    nearest = measurement.impose(other, y)
    torch.testing.assert_close(measurement(nearest), y)
    torch.testing.assert_close(measurement.impose(nearest, y), nearest)
    # the correction is orthogonal to everything the measurement leaves open
    assert ((nearest - other) * measurement.project(noise(4, *shape))).sum().abs() < 1e-10


@pytest.mark.parametrize(("measurement", "shape"), LINEAR)
def test_gain_and_open_share_are_those_of_the_map(measurement, shape):
    """A Aᵀ = c I: ⟨A x, y⟩ = c ⟨x, A⁺ y⟩; and the trace of P is what is left open."""
    x = noise(4, *shape)
    seen = measurement(x) - measurement(torch.zeros_like(x))  # without what fills a hole
    y = seen.flip(0)
    inverse = measurement.impose(torch.zeros_like(x), y)
    torch.testing.assert_close((seen * y).sum(), measurement.gain * (x * inverse).sum())
    size = x[0].numel()
    trace = measurement.project(torch.eye(size).reshape(size, *shape)).flatten(1).trace().item()
    assert torch.as_tensor(measurement.open_share).mean().item() == pytest.approx(trace / size)


@pytest.mark.parametrize(("measurement", "shape"), LINEAR)
def test_measurements_accept_leading_axes(measurement, shape):
    x = noise(2, 5, *shape)
    flat = measurement.project(x.flatten(0, 1)).unflatten(0, (2, 5))
    torch.testing.assert_close(measurement.project(x), flat)


@pytest.mark.parametrize("measurement", [LINEAR[0][0], Colorize()])
def test_observing_a_picture_of_the_measurement_changes_nothing(measurement):
    picture = noise(1, 3, 8, 8)
    y = measurement.observe(picture)
    torch.testing.assert_close(measurement.observe(y), y)


def test_box_masks_scale_with_the_image():
    """The eyes of 256×256 faces at half the size: the same part of the picture."""
    full = Inpaint.box((80, 149), (40, 214), size=(256, 256))
    half = Inpaint.box((80, 149), (40, 214), size=(128, 128), of=(256, 256))
    assert int(full.hole.sum()) == 70 * 175
    assert abs(half.hole.float().mean() - full.hole.float().mean()) < 0.01
    digits = Inpaint.box((0, 19), (0, 27), size=(28, 28))
    assert int(digits.hole.sum()) == 560
    assert digits(torch.zeros(1, 1, 28, 28))[0, 0, 0, 0] == 0.5


def test_noise_of_an_image_depends_on_seed_and_index_only():
    x, indices = torch.zeros(4, 1, 4, 4), torch.tensor([3, 1, 0, 2])
    whole = measure_each(Denoise(0.5), x, indices, seed=7)
    again = measure_each(Denoise(0.5), x[:1], torch.tensor([0]), seed=7)
    torch.testing.assert_close(whole[2:3], again)
    assert not torch.equal(whole[0], whole[1])
    assert not torch.equal(again, measure_each(Denoise(0.5), x[:1], torch.tensor([0]), seed=8))
    large = Denoise(0.5)(torch.zeros(1, 1, 200, 200), torch.Generator().manual_seed(0))
    assert large.std() == pytest.approx(0.5, rel=0.02)


def test_paired_input_is_the_start_of_the_residual_where_channels_allow():
    y = noise(2, 1, 4, 4)
    torch.testing.assert_close(Paired(3, 1).naive(y), y.expand(2, 3, 4, 4))
    assert Paired(3, 1, is_residual=False).naive(y).abs().max() == 0
    assert Paired(1, 2).naive(noise(2, 2, 4, 4)).shape == (2, 1, 4, 4)
    with pytest.raises(ValueError, match="come with the data"):
        Paired(3, 1)(noise(2, 3, 4, 4))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Inpaint(torch.zeros(4, 4, dtype=torch.bool)), "hides 0 of 16"),
        (lambda: Inpaint.box((0, 28), (0, 27), size=(28, 28)), "outside 0…27"),
        (lambda: LINEAR[0][0](torch.rand(1, 3, 9, 8)), "mask is 8×8 but the image is 9×8"),
        (lambda: Denoise(0.0), "must be positive"),
        (lambda: Downsample(1), "2 or more"),
        (lambda: Downsample(3)(torch.rand(1, 1, 8, 9)), "8×9 does not divide"),
        (lambda: Colorize().channels(1), "3 channels"),
    ],
)
def test_impossible_measurements_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_plain_measurement_is_the_identity():
    x = noise(2, 3, 4, 4)
    plain = Measurement()
    assert torch.equal(plain(x), x)
    assert torch.equal(plain.observe(x), x)
    assert (plain.hole, plain.size, plain.picture_channels(3)) == (None, (), (3,))


def test_measurements_are_the_same_if_they_hide_the_same():
    hole = LINEAR[0][0].hole
    kinds = [Inpaint(hole), Colorize(), Denoise(0.5), Downsample(2), Paired(1, 2), Measurement()]
    for one, other in itertools.product(kinds, kinds):
        assert one.same_as(other) == (one is other)
    assert Paired(1, 2).same_as(Paired(3, 1))
    assert Inpaint(hole).same_as(Inpaint(hole.clone()))
    others = (Inpaint(hole, fill=0), Inpaint(~hole), Denoise(0.4), Downsample(4))
    assert not any(one.same_as(other) for one in kinds for other in others)


def test_a_picture_shows_what_is_hidden_only_if_it_is_there():
    hole, picture = Inpaint(LINEAR[0][0].hole), torch.rand(1, 3, 8, 8)
    flat = torch.where(hole.hole, 0.3, picture)
    assert (hole.shows_hidden(picture), hole.shows_hidden(flat)) == (True, False)
    grey = picture[:, :1].expand(1, 3, 8, 8)
    assert (Colorize().shows_hidden(picture), Colorize().shows_hidden(grey)) == (True, False)


def test_another_hole_keeps_the_filling():
    other = Inpaint(LINEAR[0][0].hole, fill=0.25).with_hole(~LINEAR[0][0].hole)
    assert other(torch.ones(1, 1, 8, 8)).min() == 0.25
    assert torch.equal(other.hole, ~LINEAR[0][0].hole)
    with pytest.raises(ValueError, match="does not fill holes"):
        Colorize().with_hole(LINEAR[0][0].hole)


@pytest.mark.parametrize("factor", [2, 3])
def test_a_box_grows_with_the_picture(factor: int) -> None:
    small = Inpaint.box((3, 9), (2, 4), size=(16, 12)).hole
    size = 16 * factor, 12 * factor
    large = Inpaint.box((3, 9), (2, 4), size=size, of=(16, 12)).hole
    assert torch.equal(large, small.repeat_interleave(factor, 0).repeat_interleave(factor, 1))
