"""The predictor: every node of every tree agrees with the measurement, whatever the weights."""

import math
import subprocess
import sys
import time

import pytest
import torch
from posterior_trees_paper.toy.network import TreeMLP
from torch import Tensor, nn

from posterior_trees import Colorize, Downsample, Inpaint, Paired, TreePredictor, UNet
from posterior_trees.measure import Denoise, Measurement
from posterior_trees.predictor import check_values, wrap


def noise(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, dtype=dtype, generator=generator)


def make_predictor(
    measurement: Measurement, channels: int = 3, branching=(2, 3), seed: int = 0
) -> TreePredictor:
    """A predictor with random weights, in the probability head too."""
    torch.manual_seed(seed)
    leaves = 1
    for k in branching:
        leaves *= k
    network = UNet(measurement.channels(channels), channels, leaves, width=2 * leaves)
    nn.init.normal_(network.head.layers[-1].weight)
    return TreePredictor(
        network, measurement, branching=branching, channels=channels, multiple=UNet.multiple
    )


HOLE = Inpaint.box((3, 14), (2, 18), size=(20, 24))
LINEAR = [HOLE, Colorize(), Downsample(4)]


@pytest.mark.parametrize("measurement", LINEAR, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)], ids=str
)
def test_every_node_agrees_with_the_measurement(measurement, dtype, tolerance):
    """A x̂ = y at every node: x̂ = naive(y) + P(network), and nodes are averages of leaves."""
    predictor = make_predictor(measurement).to(dtype)
    x = noise(2, 3, 20, 24, dtype=dtype)
    y = predictor.measure(x)
    tree = predictor(y)
    for level, images in enumerate(tree.images):
        assert images.dtype == dtype
        for node in images.unbind(1):
            difference = (measurement(node) - y).abs().max()
            assert difference < tolerance, f"level {level}"
    spread = tree.leaves.std(dim=1).mean()
    assert spread > 0.01  # and the leaves do differ where they may


@pytest.mark.parametrize("branching", [(2, 3), (3, 3), ()])
def test_known_pixels_are_exact_with_bf16_weights(branching):
    predictor = make_predictor(HOLE, branching=branching).to(torch.bfloat16)
    x = noise(2, 3, 20, 24)
    tree = predictor(predictor.measure(x))
    known = ~HOLE.hole
    leaves = tree.leaves[..., known]
    assert leaves.dtype == torch.float32
    torch.testing.assert_close(leaves, x[:, None][..., known].expand_as(leaves), rtol=0, atol=0)
    for images in tree.images:
        seen = images[..., known]
        torch.testing.assert_close(seen, x[:, None][..., known].expand_as(seen), rtol=0, atol=1e-6)


@pytest.mark.parametrize("measurement", [Colorize(), Downsample(4)], ids=lambda m: type(m).__name__)
def test_nodes_agree_to_float32_with_bf16_weights(measurement):
    predictor = make_predictor(measurement).to(torch.bfloat16)
    y = predictor.measure(noise(2, 3, 20, 24))
    for images in predictor(y).images:
        for node in images.unbind(1):
            assert (measurement(node) - y).abs().max() < 1e-6


def test_nodes_agree_under_autocast():
    predictor = make_predictor(Colorize())
    y = predictor.measure(noise(2, 3, 16, 16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        tree = predictor(y)
    assert tree.root.dtype == torch.float32
    assert all((Colorize()(n) - y).abs().max() < 1e-6 for n in tree.leaves.unbind(1))


def test_without_a_projection_the_network_learns_the_residual():
    """Paired channels and noise: x̂ = naive(y) + network, so a zero network returns its input."""
    for measurement, channels in ((Denoise(0.1), 3), (Paired(3, 1), 1), (Paired(3, 3), 3)):
        predictor = make_predictor(measurement)
        nn.init.zeros_(predictor.network.to_image.weight)
        nn.init.zeros_(predictor.network.to_image.bias)
        y = noise(2, channels, 16, 16)
        torch.testing.assert_close(predictor(y).root, y.expand(2, 3, 16, 16))


def test_pairs_may_be_predicted_without_a_residual():
    predictor = make_predictor(Paired(3, 1, is_residual=False))
    nn.init.zeros_(predictor.network.to_image.weight)
    nn.init.zeros_(predictor.network.to_image.bias)
    assert predictor(noise(2, 1, 16, 16)).root.abs().max() == 0


@pytest.mark.parametrize("content", [0.0, 7.0, math.nan])
def test_what_a_hole_holds_changes_nothing(content):
    """`y` need not be filled as in training: what is hidden is not measured."""
    predictor = make_predictor(HOLE).eval()
    y = predictor.measure(noise(2, 3, *HOLE.hole.shape))
    other = torch.where(HOLE.hole, content, y)
    for one, two in zip(predictor(y).images, predictor(other).images, strict=True):
        assert torch.equal(one, two)


def test_wrong_channel_count_names_both():
    predictor = make_predictor(Colorize())
    with pytest.raises(ValueError, match=r"has 3 channels, this model takes 1"):
        predictor(noise(2, 3, 16, 16))


def test_integers_are_not_taken_for_brightness():
    """Outside the tests nothing checks types: 255 would be 255 times white."""
    program = """
import torch
from posterior_trees import Colorize, Denoise, Inpaint, TreePredictor, UNet
for measurement in (Denoise(0.1), Inpaint.box((0, 7), (0, 15), (16, 16)), Colorize()):
    channels = 3 if isinstance(measurement, Colorize) else 1
    network = UNet(1, channels, 2, width=2)
    plain = TreePredictor(network, measurement, branching=2, depth=1, channels=channels)
    for predictor in (plain, plain.compile()):
        try:
            predictor(torch.full((1, 1, 16, 16), 255, dtype=torch.uint8))
        except ValueError as error:
            print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    words = "y is torch.uint8; it must be floating-point numbers in [0, 1]: y / 255"
    assert done.stdout.count(words) == 6, done.stderr


def test_missing_batch_axis_is_named():
    with pytest.raises(ValueError, match=r"y is \(1, 16, 16\).*y\[None\]"):
        make_predictor(Colorize())(noise(1, 16, 16))


def test_wrong_size_names_mask_and_image():
    with pytest.raises(ValueError, match=r"mask is 20×24 but the image is 16×16"):
        make_predictor(HOLE)(noise(2, 3, 16, 16))


def test_measure_is_the_models_own_degradation():
    predictor, x = make_predictor(HOLE), noise(2, 3, 20, 24)
    y = predictor.measure(x)
    assert (y[..., HOLE.hole] == 0.5).all()
    first, second = (
        make_predictor(Denoise(0.2)).measure(x, torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, x)


def test_measuring_a_pair_is_refused():
    with pytest.raises(ValueError, match="trained on pairs"):
        make_predictor(Paired(3, 1)).measure(noise(2, 3, 16, 16))


def test_layout_properties():
    predictor = make_predictor(HOLE, branching=(2, 3))
    assert (predictor.depth, predictor.num_leaves, predictor.branching) == (2, 6, (2, 3))
    assert predictor.device == torch.device("cpu")
    assert predictor.to(torch.float64).dtype == torch.float64


def test_points_have_trees_too():
    """A world of points: nothing to pad, nothing to crop."""
    network = TreeMLP(4, dim=2, width=8)
    predictor = TreePredictor(network, Denoise(2.0), branching=2, depth=2, channels=2)
    tree = predictor(noise(5, 2))
    assert tree.shape == (2,)
    assert len(tree) == 5


def test_gradients_reach_every_weight_through_the_tree():
    predictor = make_predictor(Colorize()).double()
    x = noise(2, 3, 16, 16, dtype=torch.float64)
    tree = predictor(predictor.measure(x))
    sum((images - x[:, None]).square().mean() for images in tree.images).backward()
    silent = [n for n, p in predictor.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_float32_measurement_of_a_float64_network_keeps_its_precision():
    predictor = wrap(nn.Conv2d(1, 2, 1), features=2, channels=1, branching=2, depth=1).double()
    assert predictor(noise(1, 1, 4, 4)).root.dtype == torch.float64


@pytest.mark.parametrize("change", [math.nan, 255.0, -200.0, math.inf])
@pytest.mark.parametrize("is_fast", [False, True])
def test_nan_and_values_far_outside_are_refused(change, is_fast):
    predictor = make_predictor(Colorize())
    y = predictor.measure(noise(2, 3, 16, 16))
    asked = predictor.eval().compile() if is_fast else predictor
    message = "are NaN" if math.isnan(change) else r"far outside \[0, 1\] \(at most 8 beyond\)"
    with pytest.raises(ValueError, match=message):
        asked(y * change)


def test_noise_and_points_and_slight_overshoot_are_taken():
    predictor = make_predictor(Denoise(3.0))
    predictor(30 * noise(1, 3, 16, 16) - 15)
    make_predictor(Colorize())(4 * noise(1, 1, 16, 16) - 2)
    mlp = TreeMLP(3, dim=2, width=8)
    TreePredictor(mlp, Denoise(1.0), branching=3, depth=1, channels=1)(100 * noise(4, 2))


def test_a_look_at_the_values_is_no_break_in_what_is_compiled():
    """Reading a number ends the graph of torch.compile; `fullgraph` would not have it."""
    program = (
        "import torch\n"
        "from posterior_trees.predictor import check_values\n"
        "look = torch.compile(lambda y: (check_values(y), 2 * y)[1], fullgraph=True, "
        "backend='eager')\n"
        "print(look(torch.full((1, 1), 3.0)).item())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "6.0\n", done.stderr


def test_a_look_at_the_values_costs_next_to_nothing():
    y, times = noise(1, 1, 256, 256), []
    for _ in range(50):
        start = time.perf_counter()
        check_values(y)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3
