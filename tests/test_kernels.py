"""The Triton kernels predict as the plain network. On a computer without CUDA they run in Triton's
interpreter, in float32; with CUDA they are compiled."""

import contextlib
import shutil
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import UNet
from posterior_trees.fast import accelerate
from posterior_trees.fast import predictor as fast
from posterior_trees.fast.graph import Capture
from posterior_trees.fast.grouped import aligned_conv
from posterior_trees.measure import Inpaint
from posterior_trees.predictor import TreePredictor

pytest.importorskip(
    "triton", reason="Triton comes with CUDA builds of torch, or with the dev extra"
)
from posterior_trees.fast.fused import FusedUNet
from posterior_trees.fast.kernels import check, predict
from posterior_trees.fast.kernels import norm as kernels
from posterior_trees.fast.kernels.plan import deal_out

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


def assert_same(got: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, **NEAR)


@pytest.fixture(params=["small groups", "groups cut into parts"])
def kind(request, monkeypatch):
    """Both ways to normalise, whatever the size."""
    monkeypatch.setattr(kernels, "HELD", 10**9 if request.param == "small groups" else 0)
    return request.param


@pytest.mark.parametrize(
    ("channels", "groups", "size"),
    [(72, 9, (12, 16)), (40, 8, (5, 7)), (36, 9, (12, 16)), (15, 5, (3, 1)), (1100, 4, (4, 4))],
)
def test_normalisation_is_that_of_plain_torch(kind, channels, groups, size):
    x, (weight, bias) = 3 * maps(2, channels, *size) + 1, torch.randn(2, channels, device=DEVICE)
    exact = F.group_norm(x.double(), groups, weight.double(), bias.double())
    got = kernels.group_norm(x, weight, bias, groups, 1e-5)
    torch.testing.assert_close(got, F.leaky_relu(exact, 0.2).float(), **NEAR)


def test_only_groups_that_a_program_holds_are_normalised_at_once(monkeypatch):
    measured = []
    plain = kernels.measure
    monkeypatch.setattr(kernels, "measure", lambda *given: measured.append(1) or plain(*given))
    parameters = torch.randn(2, 9 * 128, device=DEVICE)
    for height, expected in ((16, 0), (17, 1)):
        kernels.group_norm(maps(1, 9 * 128, 16, height), *parameters, 9, 1e-5)
        assert len(measured) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_normalisation_in_half_precision_is_near(kind, dtype):
    x, (weight, bias) = maps(2, 36, 6, 10), torch.randn(2, 36, device=DEVICE)
    expected = F.leaky_relu(F.group_norm(x.double(), 9, weight.double(), bias.double()), 0.2)
    got = kernels.group_norm(x.to(dtype), weight, bias, 9, 1e-5)
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


def test_averages_and_halves_of_the_activated_map():
    x = 3 * maps(2, 72, 12, 16) + 1
    layer = nn.GroupNorm(9, 72).to(DEVICE).requires_grad_(False)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    moments = kernels.measure(x, 9, layer.eps)
    how = kernels.Norm(moments, layer.weight, layer.bias)
    expected = F.leaky_relu(layer(x), 0.2)
    of_groups = x.unflatten(1, (9, -1)).flatten(2)
    variances = of_groups.var(dim=2, correction=0) + layer.eps
    assert_same(list(moments.unbind(2)), [of_groups.mean(dim=2), variances.rsqrt()])
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
    monkeypatch.setattr(kernels, "HELD", held)
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


@pytest.mark.parametrize("form", ["slice", "contiguous", "one channel"])
def test_maps_may_lie_anyhow_in_memory(form):
    x = maps(2, 40, 8, 12)
    x = {"slice": x[:, :36], "contiguous": x[:, :36].contiguous(), "one channel": x[:, :1]}[form]
    channels = x.shape[1]
    weight, bias = torch.randn(2, channels, device=DEVICE)
    expected = F.leaky_relu(F.group_norm(x, 1, weight, bias), 0.2)
    torch.testing.assert_close(kernels.group_norm(x, weight, bias, 1, 1e-5), expected, **NEAR)
    moments = kernels.measure(x, 1, 1e-5)
    torch.testing.assert_close(moments[:, 0, 0], x.mean(dim=(1, 2, 3)), **NEAR)
    _, half = predict.normalize_and_halve(x, kernels.Norm(moments, weight, bias))
    torch.testing.assert_close(half, F.avg_pool2d(expected, 2), **NEAR)


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
    assert accelerate.has_kernels()


@pytest.mark.gpu
@pytest.mark.parametrize("c_init", [4, 16])
def test_a_training_step_in_bfloat16_is_near_float32(wanted, c_init):
    """Gradients of the twin of the network, against plain float32 on the CPU."""
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
    assert accelerate.has_kernels() is expected
    monkeypatch.setattr(accelerate, "_capabilities", lambda: [] if expected else [(9, 0)])
    assert accelerate.has_kernels() is expected  # found out once


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
        assert not accelerate.has_kernels()


def test_the_wish_for_kernels_is_yes_or_no(monkeypatch, capable):
    monkeypatch.setenv("PTREES_KERNELS", "norm")
    with pytest.raises(ValueError, match=r"'norm'; it is 0 \(never\) or 1"):
        accelerate.has_kernels()


def test_kernels_that_fail_are_left_alone_with_a_warning(monkeypatch, capable):
    def refuse(device, dtype):
        raise RuntimeError("out of resource: shared memory\nand a long story")

    monkeypatch.setattr(check, "check_kernels", refuse)
    with pytest.warns(UserWarning, match=r"slower: out of resource: shared memory \(PTREES"):
        assert not accelerate.has_kernels()


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
        ("normalize_and_halve", check._prediction, "halving normalisation"),
        ("normalize_and_average", check._prediction, "averaging normalisation"),
        ("to_leaves", check._prediction, "last layer"),
    ],
)
def test_a_kernel_that_is_wrong_is_noticed(monkeypatch, name, problem, says):
    right = getattr(check, name)

    def wrong(*arguments):
        made = right(*arguments)
        return 1.03 * made if isinstance(made, Tensor) else (1.03 * made[0], *made[1:])

    monkeypatch.setattr(check, "PROBLEMS", (problem,))
    monkeypatch.setattr(check, name, wrong)
    with pytest.raises(RuntimeError, match=f"{says} .*is off by"):
        check.check_kernels(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32)


def test_an_answer_that_is_not_a_number_is_wrong():
    with pytest.raises(RuntimeError, match="the answer is off by nan of itself"):
        check._compare("the answer", torch.tensor([1.0, float("nan")]), torch.ones(2))


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
    network = FusedUNet(UNet(1, 1, 2, width=4, steps=1).to(DEVICE), torch.float32)
    prepared = network.prepared(torch.rand(1, 1, 4, 4, device=DEVICE))
    network.maps(prepared)
    assert entered == [prepared]
