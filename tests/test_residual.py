"""The residual U-Net: blocks that begin as the identity, pixels that all meet, the same trees in
every form it runs in."""

import pytest
import torch
from tiny import make_blobs, make_recipe
from torch import Tensor, nn

from posterior_trees.errors import RecipeError
from posterior_trees.measure import Inpaint
from posterior_trees.metrics import psnr
from posterior_trees.models.build import build_predictor
from posterior_trees.networks.residual import Attention, ChannelNorm, Ladder, ResidualUNet, Stage
from posterior_trees.predictor import TreePredictor
from posterior_trees.training.trainer import fit


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=seeded(seed))


def stirred(module: nn.Module) -> nn.Module:
    """With random weights everywhere: none is left at its start."""
    generator = seeded()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return module


def make_network(**options) -> ResidualUNet:
    options = {"width": 8, "multipliers": (1, 2), "blocks": 1, "attention": (1,), **options}
    return stirred(ResidualUNet(3, 3, 4, **options)).eval()


def make_predictor(size: int = 12, **options) -> TreePredictor:
    hole = torch.zeros(size, size, dtype=torch.bool)
    hole[2:7, 3:9] = True
    network = make_network(**options)
    return TreePredictor(
        network, Inpaint(hole), branching=2, depth=2, channels=3, multiple=network.multiple
    )


@pytest.mark.parametrize(("before", "attends"), [(6, False), (6, True), (4, True)])
def test_a_block_begins_as_its_skip(before: int, attends: bool) -> None:
    torch.manual_seed(0)
    block = Stage(before, 6, attends, time=0, dropout=0.0).double()
    x = noise(2, before, 5, 4)
    torch.testing.assert_close(block(x), block.skip(x), rtol=0, atol=0)
    assert not torch.equal(stirred(block)(x), block.skip(x))


def test_attention_does_not_know_where_a_pixel_is() -> None:
    """Pixels that change places take their answers along."""
    attention, x = stirred(Attention(8)).double(), noise(2, 8, 4, 6)
    order = torch.randperm(24, generator=seeded())

    def shuffled(maps: Tensor) -> Tensor:
        return maps.flatten(2)[:, :, order].reshape(maps.shape)

    torch.testing.assert_close(attention(shuffled(x)), shuffled(attention(x)))


@pytest.mark.parametrize("attention", [(), (0,)])
def test_only_with_attention_does_a_pixel_see_all_others(attention: tuple[int, ...]) -> None:
    ladder = stirred(Ladder(4, (1,), 1, attention)).double()
    ladder.middle = nn.ModuleList()  # it attends in any case
    for module in ladder.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.GroupNorm):  # a normalisation sees everything, too
                setattr(module, name, nn.Identity())
    x = noise(1, 4, 3, 40).requires_grad_()
    ladder.climb(x)[-1][0, 0, 1, 5].backward()
    seen = (x.grad.abs().sum(dim=(0, 1, 2)) > 0).sum().item()
    assert seen == (40 if attention else 12)  # three blocks of two 3×3: six pixels to the right


def test_the_head_sees_every_resolution_of_the_decoder() -> None:
    network = make_network(multipliers=(1, 2, 3), attention=(2,))
    assert network.multiple == 4
    maps = network.climb(noise(2, 8, 16, 24, dtype=torch.float32))
    assert [m.shape[1:] for m in maps] == [(24, 4, 6), (16, 8, 12), (8, 16, 24)]
    assert network.head.layers[0].in_features == 24 + 16 + 8


@pytest.mark.parametrize("size", [12, 13])
def test_nodes_agree_with_the_measurement_at_any_size(size: int) -> None:
    predictor = make_predictor(size)
    x = noise(2, 3, size, size, dtype=torch.float32)
    y = predictor.measure(x)
    tree = predictor(y)
    known = ~predictor.measurement.hole
    for images in tree.images:
        given = x.unsqueeze(1).expand_as(images)
        torch.testing.assert_close(images[..., known], given[..., known], rtol=0, atol=1e-6)
    assert not torch.equal(tree.leaves[:, 0], tree.leaves[:, 1])
    assert tree.probs[-1].std() > 0


@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_a_norm_by_channels_is_group_norm(shift: float) -> None:
    norm, generator = ChannelNorm(16, 48).double(), seeded()
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter, generator=generator)
    x = torch.randn(3, 48, 6, 5, dtype=torch.float64, generator=generator) + shift
    direction = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    slopes = []
    for how in (norm, norm.by_channels):
        open_x = x.clone().requires_grad_()
        y = how(open_x)
        inputs = [open_x, *norm.parameters()]
        slopes.append([y, *torch.autograd.grad((y * direction).sum(), inputs)])
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_norm_by_channels_is_near_in_single_precision() -> None:
    """The mean of squares less the square of the mean loses digits where maps are far from zero."""
    norm, generator = ChannelNorm(16, 48), seeded()
    for shift, tolerance in ((0.0, 1e-5), (30.0, 2e-3)):
        x = torch.randn(3, 48, 16, 16, dtype=torch.float64, generator=generator) + shift
        exact = torch.nn.functional.group_norm(x, 16)
        torch.testing.assert_close(
            norm.by_channels(x.float()).double(), exact, rtol=0, atol=tolerance
        )


def test_in_half_precision_by_channels_it_is_the_same_network(monkeypatch) -> None:
    """As `predictor.compile()` runs it on a GPU: weights and maps in bfloat16."""
    network = make_network(width=16)
    y = noise(2, 3, 8, 12, dtype=torch.float32)
    expected = network(y)
    monkeypatch.setattr(ChannelNorm, "forward", ChannelNorm.by_channels)
    network.to(torch.bfloat16).head.float()
    found = network(y.bfloat16())
    assert found.images.dtype == torch.bfloat16
    error = (found.images.float() - expected.images).norm() / expected.images.norm()
    assert 0 < error < 0.03
    torch.testing.assert_close(found.log_probs.exp(), expected.log_probs.exp(), rtol=0, atol=0.03)


def test_made_for_prediction_it_grows_the_same_trees() -> None:
    plain = make_predictor()
    torch.compiler.set_stance("force_eager")  # what the compiler does to it is for the next test
    try:
        y = plain.measure(torch.rand(2, 3, 12, 12, generator=seeded()))
        found, expected = plain.compile()(y), plain(y)
    finally:
        torch.compiler.set_stance("default")
    torch.testing.assert_close(found.leaves, expected.leaves)
    torch.testing.assert_close(found.log_probs[-1], expected.log_probs[-1])


@pytest.mark.gpu
def test_compiled_on_a_gpu_it_grows_the_same_trees_but_for_rounding() -> None:
    plain = make_predictor(64, width=40, multipliers=(1, 2, 3, 4), attention=(2, 3)).cuda()
    y = plain.measure(torch.rand(10, 3, 64, 64, generator=seeded()).cuda())
    fast = plain.compile()
    with torch.no_grad():
        expected = plain(y)
    for _ in range(7):  # the last calls replay a recording
        found = fast(y)
    hole = plain.measurement.hole
    difference = (found.leaves - expected.leaves)[..., hole]
    assert 0 < difference.norm() / expected.leaves[..., hole].norm() < 0.03
    assert (found.probs[-1] - expected.probs[-1]).abs().max() < 0.03


RESIDUAL = ("network.kind=residual", "network.multipliers=[1,2]", "network.attention=[1]")


def test_a_recipe_can_ask_for_it() -> None:
    changes = (*RESIDUAL, "network.decoder=shared", "network.width=8", "network.blocks=1")
    network = build_predictor(make_recipe(*changes)).network
    assert isinstance(network, ResidualUNet)
    assert [type(part).__name__ for part in network.down] == ["Stage", "Shrink", "Stage"]
    assert network.down[-1].attention is not None
    assert network.down[0].attention is None
    assert network.first.out_channels == 8


def test_it_has_no_disjoint_decoders() -> None:
    with pytest.raises(RecipeError, match=r'set network\.decoder="shared"'):
        make_recipe(*RESIDUAL)
    build_predictor(make_recipe(*RESIDUAL, "tree.depth=0"))  # one leaf has one decoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multipliers": ()}, r"the multipliers are \[\]; give one"),
        ({"multipliers": (1, 0)}, r"the multipliers are \[1, 0\]; give one of at least 1"),
        ({"attention": (2,)}, "attention at level 2: the 2 multipliers make levels 0 to 1"),
        ({"attention": (-1,)}, "attention at level -1"),
    ],
)
def test_levels_that_are_not_there_are_named(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_network(**options)


def test_it_learns_two_answers(tmp_path) -> None:
    """A blob on the left or on the right: the root is in doubt, the leaf of the truth is not."""
    changes = ("network.decoder=shared", "network.width=8", "network.blocks=1", "training.epochs=4")
    images = make_blobs(256), make_blobs(64, seed=1)
    predictor = fit(make_recipe(*RESIDUAL, *changes), tmp_path, images=images, accelerator="cpu")
    x, _ = images[1].batch(torch.arange(64))
    with torch.no_grad():
        tree = predictor(predictor.measure(x))
    root, leaf = psnr(tree, x).mean(dim=0).tolist()
    assert leaf > root + 3
