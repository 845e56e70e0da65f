"""The Triton kernels are the plain network, forward and backward. On a computer without CUDA they
run in Triton's interpreter, in float32; with CUDA they are compiled."""

import contextlib
import shutil
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.profiler import profile

from posterior_trees import UNet
from posterior_trees.fast import accelerate, unet
from posterior_trees.fast import predictor as fast
from posterior_trees.fast.graph import Capture
from posterior_trees.fast.grouped import aligned_conv, parted
from posterior_trees.measure import Inpaint
from posterior_trees.networks.unet import deal
from posterior_trees.predictor import TreePredictor

pytest.importorskip(
    "triton", reason="Triton comes with CUDA builds of torch, or with the dev extra"
)
from posterior_trees.fast import leafwise, norm
from posterior_trees.fast.fused import FusedUNet
from posterior_trees.fast.kernels import check, conv, predict, small
from posterior_trees.fast.kernels import norm as kernels
from posterior_trees.fast.kernels.conv import leaf_conv, leaf_up
from posterior_trees.fast.kernels.plan import deal_out
from posterior_trees.fast.packing import pack, pack_up
from posterior_trees.fast.unet import FastUNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def exact():
    """CUDA's matrix unit must not round float32 where plain torch is the reference."""
    torch.manual_seed(0)
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def maps(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(memory_format=torch.channels_last)


def fused(x: Tensor, sums: Tensor | None, weight: Tensor, bias: Tensor, *how) -> tuple:
    """The operation, which is given weight and bias for every image."""
    return norm.fused(x, sums, *(row.expand(len(x), -1) for row in (weight, bias)), *how)


def wave(like: Tensor) -> Tensor:
    """A gradient that does not depend on how a tensor lies in memory."""
    numbers = torch.arange(like.numel(), device=like.device, dtype=torch.float64)
    return torch.sin(0.7 * numbers).reshape(like.shape).to(like.dtype)


def gradients(function, *inputs: Tensor) -> list[Tensor]:
    """What a function returns, and the gradients of a weighted sum of it."""
    inputs = tuple(tensor.detach().clone().requires_grad_() for tensor in inputs)
    out = function(*inputs)
    (out * wave(out)).sum().backward()
    return [out.detach(), *[tensor.grad for tensor in inputs]]


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **NEAR)


LEAVES = [  # leaves, channels of each before and after, height, width
    (9, 8, 8, 16, 24),
    (9, 4, 4, 8, 8),
    (4, 3, 5, 8, 16),
    (3, 80, 20, 8, 4),
    (2, 16, 32, 4, 4),
    (1, 3, 24, 16, 16),
]


@pytest.mark.parametrize(("leaves", "into", "out", "height", "width"), LEAVES)
def test_a_leaf_meets_only_its_own_weights(leaves, into, out, height, width):
    weight = torch.randn(leaves * out, into, 3, 3, device=DEVICE)
    x = maps(2, leaves * into, height, width)
    got, sums = leaf_conv(x, pack(weight, leaves), leaves * out, leaves)
    expected = F.conv2d(x, weight, padding=1, groups=leaves)
    torch.testing.assert_close(got, expected, **NEAR)
    for part, total in zip(sums.sum(dim=1).unbind(1), (expected, expected.square()), strict=True):
        torch.testing.assert_close(part, total.sum(dim=(2, 3)), rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize(("leaves", "below", "skip"), [(9, 16, 8), (4, 6, 3), (2, 32, 32)])
def test_enlarged_features_and_skip_maps_are_never_written(leaves, below, skip):
    weight = torch.randn(leaves * skip, below + skip, 3, 3, device=DEVICE) / 9
    features, maps_across = maps(2, leaves * below, 6, 8), maps(2, leaves * skip, 12, 16)
    of_features, of_skip = parted(weight, leaves)
    packed = pack_up(of_features, leaves), pack(of_skip, leaves)
    got, sums = leaf_up(features, packed[0], maps_across, packed[1], leaves)
    joined = deal(F.interpolate(features, scale_factor=2), maps_across, leaves)
    expected = F.conv2d(joined, weight, padding=1, groups=leaves)
    torch.testing.assert_close(got, expected, **NEAR)
    torch.testing.assert_close(
        sums.sum(dim=1)[:, 0], expected.sum(dim=(2, 3)), rtol=1e-4, atol=1e-2
    )


def test_packed_weights_and_parameters_may_lie_anyhow_too():
    """A compiler may lengthen the rows of what it made."""
    x, weight = maps(1, 2 * 16, 4, 4), torch.randn(2 * 16, 16, 3, 3, device=DEVICE)
    packed = pack(weight, 2)
    longer = F.pad(packed, (0, 3))[..., :-3]
    got, _ = leaf_conv(x, longer, 2 * 16, 2)
    torch.testing.assert_close(got, leaf_conv(x, packed, 2 * 16, 2)[0])
    gamma, beta = torch.randn(32, 2, device=DEVICE).unbind(1)
    expected = F.leaky_relu(F.group_norm(x, 4, gamma, beta), 0.2)
    torch.testing.assert_close(fused(x, None, gamma, beta, 4, 1e-5)[0], expected, **NEAR)


def test_gradients_of_a_convolution_by_leaf():
    inputs = maps(2, 9 * 16, 8, 12), torch.randn(9 * 8, 16, 3, 3, device=DEVICE)
    got = gradients(lambda x, w: leafwise.convolve(x, w, 9)[0], *inputs)
    assert_same(got, gradients(lambda x, w: F.conv2d(x, w, padding=1, groups=9), *inputs))


def test_gradients_of_enlarged_and_joined_maps():
    weight = torch.randn(9 * 8, 16 + 8, 3, 3, device=DEVICE)
    inputs = maps(2, 9 * 16, 6, 8), maps(2, 9 * 8, 12, 16), weight

    def plain(features, skip, w):
        joined = deal(F.interpolate(features, scale_factor=2), skip, 9)
        return F.conv2d(joined, w, padding=1, groups=9)

    got = gradients(lambda f, s, w: leafwise.convolve_up(f, s, w, 9)[0], *inputs)
    assert_same(got, gradients(plain, *inputs))


@pytest.fixture(params=["small groups", "groups cut into parts"])
def kind(request, monkeypatch):
    """Both ways to normalise, whatever the size."""
    monkeypatch.setattr(small, "HELD", 10**9 if request.param == "small groups" else 0)
    return request.param


@pytest.mark.parametrize(
    ("channels", "groups", "size"),
    [(72, 9, (12, 16)), (40, 8, (5, 7)), (36, 9, (12, 16)), (15, 5, (3, 1)), (1100, 4, (4, 4))],
)
def test_normalisation_and_its_gradients(kind, channels, groups, size):
    inputs = 3 * maps(2, channels, *size) + 1, *torch.randn(2, channels, device=DEVICE)

    def plain(x, weight, bias):
        return F.leaky_relu(F.group_norm(x, groups, weight, bias), 0.2)

    got = gradients(lambda x, w, b: fused(x, None, w, b, groups, 1e-5)[0], *inputs)
    exact = gradients(plain, *[tensor.double() for tensor in inputs])
    assert_same(got, [tensor.float() for tensor in exact])


def test_channels_of_zeros_need_no_parameters_and_stay_zeros(kind):
    """40 channels for 36 parameters, in ten groups of four: cuDNN likes multiples of eight. Here
    what follows the parameters in memory must not be read."""
    weight, bias = torch.randn(2, 36, device=DEVICE)
    inputs = 3 * maps(2, 36, 12, 16) + 1, torch.zeros(2, 4, 12, 16, device=DEVICE), weight, bias

    def widened(x, zeros, *parameters):
        followed = [F.pad(values, (0, 4), value=7.0)[:36] for values in parameters]
        return fused(torch.cat([x, zeros], dim=1), None, *followed, 10, 1e-5)[0]

    def apart(x, zeros, weight, bias):
        known = F.leaky_relu(F.group_norm(x, 9, weight, bias), 0.2)
        return torch.cat([known, 0 * zeros], dim=1)

    assert_same(gradients(widened, *inputs), gradients(apart, *inputs))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_normalisation_in_half_precision_is_near(kind, dtype):
    x, (weight, bias) = maps(2, 36, 6, 10), torch.randn(2, 36, device=DEVICE)
    expected = F.leaky_relu(F.group_norm(x.double(), 9, weight.double(), bias.double()), 0.2)
    got = fused(x.to(dtype), None, weight, bias, 9, 1e-5)[0]
    assert got.dtype == dtype
    assert (got.double() - expected).norm() / expected.norm() < 1e-2


@pytest.mark.parametrize(
    ("batch", "channels", "area"), [(1, 72, 65536), (70_000, 36, 25), (3, 1152, 256), (2, 5, 1)]
)
@pytest.mark.parametrize("how", [kernels.SUMS, kernels.APPLY])
def test_all_pixels_are_dealt_out_and_any_batch_can_be_launched(batch, channels, area, how):
    share = deal_out(batch, channels, area, how)
    assert share.grid[0] == share.parts * batch
    assert share.parts <= how.parts
    assert (share.parts - 1) * share.per_part < area <= share.parts * share.per_part
    assert (share.grid[1] - 1) * share.block < channels <= share.grid[1] * share.block
    assert share.grid[1] < 2**16  # of CUDA only the first side of a grid may be longer


def test_only_groups_that_a_program_holds_are_normalised_at_once(monkeypatch):
    assert small.fits(maps(1, 9 * 128, 16, 16), 9, 1)
    assert not small.fits(maps(1, 9 * 128, 16, 17), 9, 1)
    assert not small.fits(maps(1, 9 * 128, 16, 16), 9, 2)
    monkeypatch.setattr(kernels, "channel_sums", lambda _: pytest.fail("read the map for its sums"))
    fused(maps(1, 8, 4, 4), None, *torch.randn(2, 8, device=DEVICE), 2, 1e-5)


def test_the_compiler_sees_all_but_the_kernels():
    """Packing and the rest of the way back are traced, with the same values and gradients."""
    weight, parameters = torch.randn(32, 32, 3, 3, device=DEVICE), torch.randn(2, 32, device=DEVICE)
    inputs = maps(1, 32, 2, 4), maps(1, 32, 4, 8), weight, *parameters

    def block(features, skip, w, gamma, beta):
        return fused(*leafwise.convolve_up(features, skip, w, 2), gamma, beta, 4, 1e-5)[0]

    graph = make_fx(lambda *given: gradients(block, *given), tracing_mode="fake")(*inputs)
    calls = [str(node.target) for node in graph.graph.nodes]
    ours = [name.split(".")[1] for name in calls if name.startswith("posterior_trees")]
    name = "normalize_and_activate"
    assert ours == ["leaf_up", name, f"{name}_backward", "leaf_conv"]
    assert_same(graph(*inputs), gradients(block, *inputs))


def test_sums_that_a_convolution_left_save_the_pass(monkeypatch):
    monkeypatch.setattr(small, "HELD", 0)
    x, weight = maps(2, 9 * 16, 8, 12), torch.randn(9 * 8, 16, 3, 3, device=DEVICE)
    out, sums = leafwise.convolve(x, weight, 9)
    parameters = *torch.randn(2, 72, device=DEVICE), 9, 1e-5
    with_sums, without = fused(out, sums, *parameters), fused(out, None, *parameters)
    torch.testing.assert_close(with_sums[0], without[0], **NEAR)
    wrong = fused(out, 2 * sums, *parameters)
    assert (wrong[0] - without[0]).abs().max() > 0.1


def test_averages_and_halves_of_the_activated_map():
    x = 3 * maps(2, 72, 12, 16) + 1
    layer = nn.GroupNorm(9, 72).to(DEVICE).requires_grad_(False)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    moments = kernels.measure(kernels.channel_sums(x), 9, 12 * 16, layer.eps)
    how = kernels.Norm(moments, layer.weight, layer.bias)
    expected = F.leaky_relu(layer(x), 0.2)
    of_groups = x.unflatten(1, (9, -1)).flatten(2)
    variances = of_groups.var(dim=2, correction=0) + layer.eps
    assert_same(list(moments.unbind(2)), [of_groups.mean(dim=2), variances.rsqrt()])
    assert_same([kernels.normalize(x, how)], [expected])
    out, mean = kernels.normalize_and_average(x, how)
    assert_same([out, mean.sum(dim=1)], [expected, expected.mean(dim=(2, 3))])
    out, half = predict.normalize_and_halve(x, how)
    assert_same([out, half], [expected, F.avg_pool2d(expected, 2)])
    matrix, bias = torch.randn(27, 72, device=DEVICE), torch.randn(27, device=DEVICE)
    packed = predict.padded(matrix)
    bias_block = F.pad(bias, (0, packed.shape[1] - 27))
    leaves, mean = predict.to_leaves(x, how, packed, bias_block, 27)
    expected_leaves = F.conv2d(expected, matrix[:, :, None, None], bias)
    if DEVICE == "cpu":  # a matrix product of float32 is rounded on CUDA
        torch.testing.assert_close(leaves, expected_leaves, **NEAR)
    torch.testing.assert_close(mean.sum(dim=1), expected.mean(dim=(2, 3)), **NEAR)


@pytest.mark.parametrize(
    ("channels", "steps", "leaves", "width", "size", "held", "is_disjoint"),
    [
        (3, 3, 9, 36, (8, 16), 256, True),
        (3, 2, 4, 12, (8, 12), 0, True),
        (1, 3, 4, 8, (16, 16), 10**9, True),
        (3, 2, 4, 20, (8, 12), 0, False),
        (3, 2, 1, 36, (8, 8), 256, True),  # one output: its decoder is dense
    ],
)
def test_the_fused_network_predicts_the_same(
    monkeypatch, channels, steps, leaves, width, size, held, is_disjoint
):
    monkeypatch.setattr(small, "HELD", held)
    options = {"width": width, "steps": steps, "is_disjoint": is_disjoint, "dropout": 0.2}
    network = UNet(channels, channels, leaves, **options).to(DEVICE).eval()
    nn.init.normal_(network.head.layers[-1].weight)
    for layer in network.modules():
        if isinstance(layer, nn.GroupNorm):
            nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    y = torch.rand(2, channels, *size, device=DEVICE)
    with torch.inference_mode():
        got, expected = FusedUNet(network, torch.float32)(y), network(y)
    near = {"rtol": 1e-3, "atol": 1e-3} if DEVICE == "cpu" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(got.images, expected.images, **near)
    torch.testing.assert_close(got.log_probs, expected.log_probs, **near)


@pytest.mark.parametrize("channels", [1, 3, 8])
def test_a_fast_predictor_grows_the_plain_ones_trees(monkeypatch, channels):
    """From a hole whose sides the network cannot take, with zeros beside its channels."""
    monkeypatch.setattr(fast, "for_prediction", FusedUNet)
    monkeypatch.setattr(fast, "compiled", lambda function, **_: function)
    hole = torch.zeros(7, 9, dtype=torch.bool, device=DEVICE)
    hole[2:5, 3:8] = True
    network = UNet(channels, channels, 4, width=12, steps=2).to(DEVICE)
    options = {"branching": 2, "depth": 2, "channels": channels, "multiple": 4}
    plain = TreePredictor(network, Inpaint(hole), **options).eval()
    y = torch.rand(2, channels, 7, 9, device=DEVICE).masked_fill(hole, 0.0)
    with torch.inference_mode():
        got = fast.FastPredictor(plain, torch.float32, is_recorded=False)(y)
        expected = plain(y)
    near = {"rtol": 1e-3, "atol": 1e-3} if DEVICE == "cpu" else {"rtol": 0.05, "atol": 0.05}
    for a, b in zip(got.images, expected.images, strict=True):
        torch.testing.assert_close(a, b, **near)
    with pytest.raises(ValueError, match=f"takes {channels}"):
        fast.FastPredictor(plain, torch.float32, is_recorded=False)(y[:, :1].repeat(1, 2, 1, 1))
    with pytest.raises(ValueError, match=f"has 2 channels, this network takes {channels}"):
        FusedUNet(network, torch.float32)(torch.rand(1, 2, 8, 8, device=DEVICE))


def test_without_kernels_by_leaf_cudnn_convolves(monkeypatch):
    for name in ("leaf_conv", "leaf_up"):
        monkeypatch.setattr(conv, name, lambda *_: pytest.fail("forbidden"))
    network = UNet(1, 1, 2, width=32, steps=1).to(DEVICE).eval()
    y = torch.rand(1, 1, 4, 4, device=DEVICE)
    with torch.inference_mode():
        got, expected = FusedUNet(network, torch.float32, by_leaf=False)(y), network(y)
    near = {"rtol": 1e-3, "atol": 1e-3} if DEVICE == "cpu" else {"rtol": 0.05, "atol": 0.05}
    torch.testing.assert_close(got.images, expected.images, **near)


def test_a_shared_decoder_of_any_width_stays_cudnns(monkeypatch):
    for name in ("leaf_conv", "leaf_up"):
        monkeypatch.setattr(conv, name, lambda *_: pytest.fail("tiles hold no wide decoder"))
    network = UNet(1, 1, 2, width=20, steps=1, is_disjoint=False).to(DEVICE)
    with torch.inference_mode():
        leaves = FusedUNet(network, torch.float32)(torch.rand(1, 1, 4, 4, device=DEVICE))
    assert leaves.images.shape == (1, 2, 1, 4, 4)


@pytest.mark.parametrize("form", ["slice", "contiguous", "one channel"])
def test_maps_may_lie_anyhow_in_memory(form):
    x = maps(2, 40, 8, 12)
    x = {"slice": x[:, :36], "contiguous": x[:, :36].contiguous(), "one channel": x[:, :1]}[form]
    channels = x.shape[1]
    weight, bias = torch.randn(2, channels, device=DEVICE)
    expected = F.leaky_relu(F.group_norm(x, 1, weight, bias), 0.2)
    torch.testing.assert_close(fused(x, None, weight, bias, 1, 1e-5)[0], expected, **NEAR)
    sums = kernels.channel_sums(x).sum(dim=1)
    torch.testing.assert_close(sums[:, 0], x.sum(dim=(2, 3)), **NEAR)
    moments = kernels.measure(kernels.channel_sums(x), 1, 96, 1e-5)
    _, half = predict.normalize_and_halve(x, kernels.Norm(moments, weight, bias))
    torch.testing.assert_close(half, F.avg_pool2d(expected, 2), **NEAR)
    of_leaves = torch.randn(2 * channels, channels, 3, 3, device=DEVICE)
    got, _ = leaf_conv(x, pack(of_leaves, 1), 2 * channels, 1)
    torch.testing.assert_close(got, F.conv2d(x, of_leaves, padding=1), **NEAR)


def test_the_way_back_keeps_the_dtype_of_the_weights():
    x, (weight, bias) = maps(2, 16, 4, 4), torch.randn(2, 16, device=DEVICE).bfloat16()
    inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    fused(inputs[0], None, *inputs[1:], 4, 1e-5)[0].sum().backward()
    assert [tensor.grad.dtype for tensor in inputs] == [x.dtype, weight.dtype, weight.dtype]


def test_torch_knows_the_operations():
    """Schemas, fake tensors (for `torch.compile`) and registered gradients agree with them."""
    kinds = ("test_schema", "test_autograd_registration", "test_faketensor")
    x = maps(2, 9 * 16, 8, 12).requires_grad_()
    weight = maps(9 * 8, 16, 3, 3).requires_grad_()  # as networks on CUDA have theirs
    arguments = x, pack(weight.detach(), 9), weight, 9 * 8, 9
    torch.library.opcheck(leafwise.leaf_conv, arguments, test_utils=kinds)
    features = maps(2, 9 * 16, 4, 6).requires_grad_()
    across = maps(2, 9 * 8, 8, 12).requires_grad_()
    weight = maps(9 * 8, 24, 3, 3).requires_grad_()
    of_features, of_skip = parted(weight.detach(), 9)
    packed = pack_up(of_features, 9), pack(of_skip, 9)
    arguments = features, across, *packed, weight, 9
    torch.library.opcheck(leafwise.leaf_up, arguments, test_utils=kinds)
    parameters = torch.randn(2, 144, device=DEVICE)
    parameters = [p.repeat(2, 1).requires_grad_() for p in parameters]
    torch.library.opcheck(norm.fused, (x, None, *parameters, 9, 1e-5), test_utils=kinds)
    out, moments = norm.fused(x.detach(), None, *parameters, 9, 1e-5)
    arguments = out, x.detach(), moments, *[p.detach() for p in parameters]
    kinds = ("test_schema", "test_faketensor")
    torch.library.opcheck(norm.fused_backward, arguments, test_utils=kinds)


def test_what_all_normalisations_learn_is_summed_over_the_images_at_once():
    """With the gradients of plain torch, in one sum and not one for each of the four parameters."""
    layers = nn.ModuleList([nn.GroupNorm(2, 8), nn.GroupNorm(4, 12)]).to(DEVICE)
    inputs = [maps(3, width, 4, 4).requires_grad_() for width in (8, 12)]
    wanted = [*inputs, *(nn.init.normal_(parameter) for parameter in layers.parameters())]

    def learn(*inputs):
        rows = norm.rows_of(layers, 3)
        outs = [
            norm.fused(x, None, *row, layer.num_groups, layer.eps)[0]
            for x, row, layer in zip(inputs, rows, layers, strict=True)
        ]
        return torch.autograd.grad(sum((out * wave(out)).sum() for out in outs), wanted)

    outs = [F.leaky_relu(layer(x), 0.2) for x, layer in zip(inputs, layers, strict=True)]
    plain = torch.autograd.grad(sum((out * wave(out)).sum() for out in outs), wanted)
    with profile(record_shapes=True) as seen:
        found = learn(*inputs)
    assert_same(found, plain)
    sums = [e for e in seen.events() if e.name == "aten::sum" and e.input_shapes[0] == [3, 40]]
    assert len(sums) == 1  # 2 · 8 + 2 · 12 numbers of each image


def test_each_normalisation_of_a_network_gets_its_own_rows(monkeypatch):
    """Values and gradients of a U-Net whose normalisations read nothing but their rows."""
    network = UNet(1, 1, 4, width=8, dropout=0.0).double()
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    y = torch.randn(2, 1, 16, 16, dtype=torch.float64)

    def learn(form: nn.Module) -> list[Tensor]:
        images, log_probs = form(y)
        loss = (images * wave(images)).sum() + (log_probs * wave(log_probs)).sum()
        return [images, *torch.autograd.grad(loss, list(network.parameters()))]

    def by_rows(layer, maps, sums=None, rows=None):
        weight, bias = (row[0] for row in rows)
        return F.leaky_relu(F.group_norm(maps, layer.num_groups, weight, bias, layer.eps), 0.2)

    plain = learn(network)
    monkeypatch.setattr(unet, "is_half", lambda maps: True)
    monkeypatch.setattr(unet, "normalize_and_activate", by_rows)
    for found, expected in zip(learn(FastUNet(network, ["norm"])), plain, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("outputs", [8, 27])
def test_outputs_that_align_a_convolution_are_cut_off(outputs):
    x, weight = maps(1, 5, 4, 6), torch.randn(outputs, 5, 1, 1, device=DEVICE)
    bias = torch.randn(outputs, device=DEVICE)
    got = aligned_conv(x, weight, bias)
    torch.testing.assert_close(got, F.conv2d(x, weight, bias))
    assert aligned_conv(x, weight, None).shape == got.shape


@pytest.fixture
def wanted(monkeypatch):
    """The default: kernels where they can run, and there they have to."""
    if torch.cuda.get_device_capability() not in accelerate.ROOMY:
        pytest.skip("the GPU has too little shared memory for our kernels")
    monkeypatch.setattr(accelerate, "_works", None)
    monkeypatch.delenv("PTREES_KERNELS", raising=False)
    assert accelerate.kernels() == accelerate.KERNELS


@pytest.mark.gpu
@pytest.mark.parametrize("c_init", [4, 16])
def test_a_training_step_in_bfloat16_is_near_float32(wanted, c_init):
    """Gradients through all kernels at once, against plain float32 on the CPU."""
    network = UNet(3, 3, 9, width=9 * c_init)
    y, target = torch.rand(2, 3, 64, 64), torch.rand(2, 9, 3, 64, 64)

    def loss_and_gradients(device, dtype):
        network.to(device).zero_grad()
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            leaves = accelerate.accelerate(network)(y.to(device))
        loss = (leaves.images.float() - target.to(device)).square().mean()
        loss = loss - 0.01 * leaves.log_probs.float()[:, 0].mean()
        loss.backward()
        return loss.item(), {n: p.grad.cpu().clone() for n, p in network.named_parameters()}

    expected, wanted = loss_and_gradients("cpu", torch.float32)
    got, gradients = loss_and_gradients("cuda", torch.bfloat16)
    assert got == pytest.approx(expected, rel=1e-2)
    dots = sum((wanted[n] * gradients[n]).sum() for n in wanted)
    norms = [sum(g.square().sum() for g in gs.values()).sqrt() for gs in (wanted, gradients)]
    assert dots / (norms[0] * norms[1]) > 0.99
    assert norms[1] / norms[0] == pytest.approx(1, rel=0.05)


@pytest.fixture
def capable(monkeypatch):
    """A computer that has never been asked, with a GPU that our kernels fit on."""
    monkeypatch.setattr(accelerate, "_works", None)
    monkeypatch.delenv("PTREES_KERNELS", raising=False)
    monkeypatch.setattr(accelerate, "_capabilities", lambda: [(9, 0)])
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(check, "check_kernels", lambda device, dtype: None)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [([], False), ([(8, 0)], True), ([(9, 0), (7, 5)], False), ([(8, 9)], False)],
)
def test_without_capable_gpus_plain_torch_does_it(monkeypatch, capable, gpus, expected):
    monkeypatch.setattr(accelerate, "_capabilities", lambda: gpus)
    assert bool(accelerate.kernels()) is expected
    monkeypatch.setattr(accelerate, "_capabilities", lambda: [] if expected else [(9, 0)])
    assert bool(accelerate.kernels()) is expected  # found out once


@pytest.mark.parametrize("missing", ["the user's wish", "Triton", "a C compiler"])
def test_what_is_missing_is_missed_silently_and_nothing_is_tried(monkeypatch, capable, missing):
    monkeypatch.setattr(check, "check_kernels", lambda *_: pytest.fail("tried"))
    if missing == "Triton":
        monkeypatch.setattr(accelerate, "find_spec", lambda name: None)
    elif missing == "a C compiler":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    else:
        monkeypatch.setenv("PTREES_KERNELS", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not accelerate.kernels()


def test_kernels_that_fail_are_left_alone_with_a_warning(monkeypatch, capable):
    def refuse(device, dtype):
        raise RuntimeError("out of resource: shared memory\nand a long story")

    monkeypatch.setattr(check, "check_kernels", refuse)
    with pytest.warns(UserWarning, match=r"slower: out of resource: shared memory \(PTREES"):
        assert not accelerate.kernels()


def test_every_kind_of_kernel_proves_itself_whatever_the_mode():
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # of which Triton's
    state = torch.get_rng_state()  # interpreter cannot multiply the former
    with torch.inference_mode(), torch.autocast(DEVICE, torch.bfloat16):
        check.check_kernels(DEVICE, dtype)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("name", "problem", "says"),
    [
        ("group_norm", check._normalisation, "small normalisation"),
        ("gradients", check._normalisation, "way back through the small"),
        ("leaf_conv", check._convolution, "convolution by leaf"),
        ("leaf_up", check._enlargement, "enlarging convolution"),
        ("normalize_and_halve", check._prediction, "halving normalisation"),
        ("normalize_and_average", check._prediction, "averaging normalisation"),
        ("to_leaves", check._prediction, "last layer"),
    ],
)
def test_a_kernel_that_is_wrong_is_noticed(monkeypatch, name, problem, says):
    right = getattr(check, name)

    def wrong(*arguments):
        first, *rest = right(*arguments)
        return 1.03 * first, *rest

    monkeypatch.setattr(check, "PROBLEMS", (problem,))
    monkeypatch.setattr(check, name, wrong)
    with pytest.raises(RuntimeError, match=f"{says} .*is off by"):
        check.check_kernels(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32)


def test_an_answer_that_is_not_a_number_is_wrong():
    with pytest.raises(RuntimeError, match="the answer is off by nan of itself"):
        check._compare("the answer", torch.tensor([1.0, float("nan")]), torch.ones(2))


def test_kernels_are_chosen_by_name(monkeypatch, capable):
    monkeypatch.setenv("PTREES_KERNELS", "norm,fused")
    assert accelerate.kernels() == {"norm", "fused"}
    monkeypatch.setenv("PTREES_KERNELS", "norm,cudnn")
    with pytest.raises(ValueError, match="'norm,cudnn'; it is 0, 1 or some of fused, leaf, norm"):
        accelerate.kernels()


@pytest.mark.parametrize("is_disjoint", [True, False])
@pytest.mark.parametrize("kinds", [["norm", "leaf"], ["norm"], ["leaf"]])
def test_a_training_step_on_the_kernels_has_the_gradients_of_the_plain_network(
    monkeypatch, is_disjoint, kinds
):
    """In float32, which this test passes off as half; 16 channels a leaf fill a tile."""
    network = UNet(1, 1, 2, width=32, steps=1, is_disjoint=is_disjoint).to(DEVICE)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.1)
    y = torch.rand(2, 1, 4, 8, device=DEVICE)

    def learn(form: nn.Module) -> list[Tensor]:
        images, log_probs = form(y)
        loss = (images * wave(images)).sum() + (log_probs * wave(log_probs)).sum()
        return [images, *torch.autograd.grad(loss, list(network.parameters()))]

    plain, used = learn(network), []
    for module in (unet, leafwise):
        monkeypatch.setattr(module, "HALF", (torch.float32,))
    convolve_up = unet.convolve_up
    monkeypatch.setattr(unet, "convolve_up", lambda *g: used.append("leaf") or convolve_up(*g))
    for found, expected in zip(learn(FastUNet(network, kinds)), plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert bool(used) is ("leaf" in kinds and is_disjoint)


@pytest.mark.gpu
def test_thin_leaves_stay_dense_and_wide_ones_do_not(wanted):
    x = torch.zeros(1, 9 * 16, 8, 8, device="cuda", dtype=torch.bfloat16)
    wide, thin = (nn.Conv2d(9 * c, 9 * c, 3, groups=9).cuda() for c in (16, 8))
    assert leafwise.is_worth_it(wide.weight, 9, x)
    assert leafwise.is_worth_it(wide.weight, 9, x[:, :72], x[:, 72:])
    assert not leafwise.is_worth_it(wide.weight, 9, x, x)  # zeros were added to the channels
    assert not leafwise.is_worth_it(thin.weight, 9, x[:, :72])
    assert not leafwise.is_worth_it(wide.weight, 9, x.float())


@pytest.mark.gpu
def test_a_step_on_the_kernels_can_be_recorded(wanted):
    """Nothing on its way is copied from the CPU or waits for the GPU: CUDA would not record it."""
    plain = UNet(3, 3, 9, width=9 * 16).cuda().to(memory_format=torch.channels_last)
    network = accelerate.accelerate(plain)

    def step(y: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            loss = network(y).images.float().square().mean()
        loss.backward()
        network.zero_grad(set_to_none=True)
        return loss.detach()

    recorded, y = Capture(step), torch.rand(2, 3, 64, 64, device="cuda")
    losses = [recorded(y).item() for _ in range(7)]
    assert recorded.graph is not None
    assert losses == pytest.approx([losses[0]] * 7, rel=1e-3)


def test_kernels_are_launched_on_the_device_of_the_maps(monkeypatch):
    entered = []

    @contextlib.contextmanager
    def device_of(tensor):
        entered.append(tensor)
        yield

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    x = maps(1, 9 * 16, 4, 4)
    fused(x, None, *torch.randn(2, 9 * 16, device=DEVICE), 9, 1e-5)
    leafwise.convolve(x, torch.randn(9 * 16, 16, 3, 3, device=DEVICE), 9)
    assert [tensor.data_ptr() for tensor in entered] == [x.data_ptr()] * 2
