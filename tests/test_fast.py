"""The fast predictor is the plain one: same trees, the plain one untouched, no tree overwritten."""

import pytest
import torch
from torch import nn

from posterior_trees import UNet, calibrate, load
from posterior_trees.data import ImageSet
from posterior_trees.errors import GuaranteeError
from posterior_trees.fast import accelerate
from posterior_trees.fast.accelerate import is_narrow
from posterior_trees.fast.fold import FoldedUNet
from posterior_trees.fast.graph import LARGE
from posterior_trees.fast.predictor import RECORDINGS, FastPredictor, copies
from posterior_trees.fast.unet import FastUNet
from posterior_trees.measure import Inpaint
from posterior_trees.predictor import TreePredictor, wrap


def make_predictor(size: int = 32, **options) -> TreePredictor:
    torch.manual_seed(0)
    network = UNet(3, 3, 4, width=8, **options).eval()
    nn.init.normal_(network.head.layers[-1].weight)
    hole = torch.zeros(size, size, dtype=torch.bool)
    hole[4:20, 8:24] = True
    return TreePredictor(network, Inpaint(hole), branching=2, depth=2, channels=3, multiple=16)


@pytest.fixture
def uncompiled():
    """The compiler's own tests are not ours: functions run as they are written."""
    torch.compiler.set_stance("force_eager")
    yield
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("is_disjoint", [True, False])
def test_written_out_weights_predict_the_same(is_disjoint):
    network = make_predictor(is_disjoint=is_disjoint).network.double()
    y = torch.rand(2, 3, 32, 48, dtype=torch.float64)
    folded = FoldedUNet(network)
    for got, expected in zip(folded(y), network(y), strict=True):
        torch.testing.assert_close(got, expected)
    convolutions = [part for part in folded.modules() if isinstance(part, nn.Conv2d)]
    assert {part.groups for part in convolutions} == {1}
    assert sum(hasattr(part, "enlarged") for part in convolutions) == 4


def test_folding_copies():
    network = make_predictor().network
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for weight in FoldedUNet(network).parameters():
        assert not weight.requires_grad
        weight.zero_()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(weight.requires_grad for weight in network.parameters())


def test_a_compiled_predictor_grows_the_same_trees(uncompiled):
    plain = make_predictor()
    fast = plain.compile()
    y = plain.measure(torch.rand(3, 3, 32, 32))
    got, expected = fast(y), plain(y)
    assert isinstance(fast, FastPredictor)
    assert got.branching == expected.branching
    for a, b in zip(got.images + got.log_probs, expected.images + expected.log_probs, strict=True):
        torch.testing.assert_close(a, b)
    assert not got.root.requires_grad


def test_a_compiled_predictor_has_a_guarantee_of_its_own(uncompiled):
    plain, images = make_predictor(), ImageSet(torch.randint(256, (30, 3, 32, 32)).byte())
    fast, y = plain.eval().compile(), plain.measure(torch.rand(3, 3, 32, 32))
    plain.guarantee, fast.guarantee = calibrate(plain, images), calibrate(fast, images)
    assert fast(y).guarantee is fast.guarantee
    assert [c.paths for c in fast(y).cut(0.8)] == [c.paths for c in plain(y).cut(0.8)]
    with pytest.raises(GuaranteeError, match="so does compiling"):
        fast.guarantee = plain.guarantee
    with pytest.raises(GuaranteeError, match="or is compiled"):
        fast.typical(y)


def test_the_shipped_model_compiles_with_its_name_and_card(uncompiled):
    plain = load("digits", device="cpu")
    fast = plain.compile()
    assert (fast.name, fast.about) == (plain.name, plain.about)
    picture = torch.rand(28, 28)
    torch.testing.assert_close(fast.predict(picture).leaves, plain.predict(picture).leaves)


def test_compiling_leaves_the_plain_predictor_trainable(uncompiled):
    plain = make_predictor().train()
    plain.compile()
    assert plain.training
    assert all(weight.requires_grad for weight in plain.network.parameters())


@pytest.mark.parametrize(("before", "deterministic"), [(False, False), (True, False), (True, True)])
def test_convolutions_are_tuned_during_a_prediction_only(
    uncompiled, monkeypatch, before, deterministic
):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", before)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
    fast, seen = make_predictor().compile(), []
    look = lambda *_: seen.append(torch.backends.cudnn.benchmark)  # noqa: E731
    fast.network.register_forward_pre_hook(look)
    fast(torch.rand(1, 3, 32, 32))
    assert seen == [not deterministic]
    assert torch.backends.cudnn.benchmark is before
    with pytest.raises(ValueError, match="7 channels"):
        fast(torch.rand(1, 7, 32, 32))
    assert torch.backends.cudnn.benchmark is before


def test_other_backbones_compile_too(uncompiled):
    plain = wrap(nn.Conv2d(3, 8, 3, padding=1), features=8, channels=3, branching=2, depth=1).eval()
    y = torch.rand(2, 3, 9, 11)
    torch.testing.assert_close(plain.compile()(y).leaves, plain(y).leaves)


@pytest.mark.parametrize("sizes", [(5, LARGE), (3, 7), (LARGE + 1,)])
def test_large_and_small_tensors_are_copied_alike(sizes):
    tensors = [torch.rand(size) for size in sizes]
    clones = copies(tensors)
    for clone, tensor in zip(clones, tensors, strict=True):
        assert torch.equal(clone, tensor)
        assert clone.data_ptr() != tensor.data_ptr()


def test_what_does_not_fit_into_shared_memory_is_not_ours():
    """With 1024×128 numbers of a matrix a program would ask for 352 KiB; an H200 has 227.
    Convolutions are cuDNN's and may have any width."""
    assert is_narrow(UNet(3, 3, 27, width=27 * 4, steps=1))
    assert not is_narrow(UNet(3, 3, 27, width=27 * 20, steps=1))
    assert is_narrow(UNet(3, 3, 2, width=2 * 200, steps=1))


@pytest.mark.parametrize(("leaves", "is_disjoint"), [(4, True), (4, False), (1, True)])
def test_on_cuda_a_point_estimate_is_as_fused_as_a_tree(monkeypatch, leaves, is_disjoint):
    """Or their comparison would be one of two ways to run a network."""
    fused = pytest.importorskip("posterior_trees.fast.fused", exc_type=ImportError)
    network = UNet(3, 3, leaves, width=8, is_disjoint=is_disjoint)
    on_cuda(monkeypatch, has_kernels=True)
    made = nn.Identity()
    monkeypatch.setattr(fused, "FusedUNet", lambda network, dtype: made)
    assert accelerate.for_prediction(network, torch.bfloat16) is made


def on_cuda(monkeypatch, has_kernels: bool) -> None:
    monkeypatch.setattr(accelerate, "_is_on_cuda", lambda network: True)
    monkeypatch.setattr(accelerate, "has_kernels", lambda: has_kernels)


def test_on_cuda_our_u_net_has_a_twin_and_nothing_else_has(monkeypatch):
    """A network that somebody changed computes what it computes."""
    network, changed = make_predictor().network, make_predictor().network
    changed.decoder[0][1] = nn.Identity()
    assert accelerate.accelerate(network) is network, "on the CPU"
    on_cuda(monkeypatch, has_kernels=True)
    twin = accelerate.accelerate(network)
    assert isinstance(twin, FastUNet)
    assert twin.plain is network
    for other in (changed, nn.Conv2d(1, 1, 1)):
        assert accelerate.accelerate(other) is other


def test_an_accelerated_predictor_grows_the_same_trees(monkeypatch):
    plain = make_predictor()
    y = plain.measure(torch.rand(2, 3, 32, 32))
    assert accelerate.accelerated(plain) is plain
    on_cuda(monkeypatch, has_kernels=False)
    fast = accelerate.accelerated(plain)
    torch.testing.assert_close(fast(y).leaves, plain(y).leaves)
    assert isinstance(fast.network, FastUNet)
    assert not isinstance(plain.network, FastUNet)


@pytest.mark.parametrize(("has_kernels", "dtype"), [(True, torch.float32), (False, torch.bfloat16)])
def test_without_kernels_or_in_float32_a_network_is_folded(monkeypatch, has_kernels, dtype):
    on_cuda(monkeypatch, has_kernels)
    made = accelerate.for_prediction(make_predictor().network, dtype)
    assert isinstance(made, FoldedUNet)
    assert made.plain.encoder[0][0].weight.dtype == dtype
    assert {p.dtype for p in made.plain.head.parameters()} == {torch.float32}


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"is_disjoint": True}, {"is_disjoint": False}])
def test_on_cuda_any_decoder_is_near(options):
    plain = make_predictor(**options).to("cuda")
    y = plain.measure(torch.rand(2, 3, 32, 32, device="cuda"))
    got, expected = plain.compile()(y), plain(y)
    assert (got.leaves - expected.leaves).norm() / expected.leaves.norm() < 1e-2
    assert (got.probs[-1] - expected.probs[-1]).abs().max() < 2e-2


@pytest.mark.gpu
def test_on_cuda_trees_are_near_and_are_not_overwritten():
    plain = load("digits", device="cuda")
    fast = plain.compile()
    for batch in range(1, RECORDINGS + 2):
        y = plain.measure(torch.rand(batch, 1, 28, 28, device="cuda"))
        trees = [fast(y) for _ in range(7)]  # plain calls, the recording, replays
        kept = trees[-1].leaves.clone()
        expected = plain(y)
        for tree in trees:
            error = (tree.leaves - expected.leaves).norm() / expected.leaves.norm()
            assert error < 1e-2
            assert (tree.probs[-1] - expected.probs[-1]).abs().max() < 1e-2
        fast(torch.zeros_like(y))
        assert torch.equal(trees[-1].leaves, kept)
    assert len(fast._recordings) == RECORDINGS


def test_recordings_of_the_shapes_used_last_are_kept(uncompiled):
    """Each holds the memory of its activations: the one that was not used longest goes."""
    fast = make_predictor().compile()
    shapes = [(n, 3, 32, 32) for n in range(RECORDINGS + 1)]
    first = fast._recording(shapes[0])
    for shape in shapes[1:RECORDINGS]:
        fast._recording(shape)
    assert fast._recording(shapes[0]) is first
    fast._recording(shapes[RECORDINGS])
    assert len(fast._recordings) == RECORDINGS
    assert shapes[1] not in fast._recordings
    assert fast._recording(shapes[0]) is first
