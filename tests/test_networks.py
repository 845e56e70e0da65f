"""Networks: sizes as in the paper, decoders truly disjoint, probabilities that normalise."""

import hashlib
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from posterior_trees import UNet, wrap
from posterior_trees.fast import unet as fast
from posterior_trees.fast.fold import FoldedUNet
from posterior_trees.fast.grouped import block_diagonal, enlarging
from posterior_trees.fast.unet import FastUNet
from posterior_trees.measure import Denoise, Inpaint
from posterior_trees.networks import Backbone, ProbabilityHead
from posterior_trees.networks.padding import crop, pad
from posterior_trees.networks.unet import UpBlock, deal, norm_groups
from posterior_trees.predictor import TreePredictor


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=dtype, generator=seeded(seed))


def make_unet(in_channels: int = 1, channels: int = 1, num_leaves: int = 4, **options) -> UNet:
    torch.manual_seed(0)
    options = {"width": 2 * num_leaves, **options}
    return UNet(in_channels, channels, num_leaves, **options)


def make_predictor(network: nn.Module, branching, channels: int = 1, **options) -> TreePredictor:
    options = {"measurement": Denoise(0.1), "multiple": UNet.multiple, **options}
    measurement = options.pop("measurement")
    return TreePredictor(network, measurement, branching=branching, channels=channels, **options)


def count(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("in_channels", "channels", "c_init", "millions"), [(1, 1, 4, 6.56), (3, 3, 8, 25.9)]
)
def test_sizes_are_the_papers(in_channels, channels, c_init, millions):
    with torch.device("meta"):
        network = UNet(in_channels, channels, 9, width=9 * c_init, is_disjoint=True)
    digits = 2 if c_init == 4 else 1
    assert round(count(network) / 1e6, digits) == millions


@pytest.mark.parametrize(
    ("is_disjoint", "made", "numbers"),
    [
        (True, "33790db30fdfe2dd", [50.67883618363158, 24.969917065354966,
                                    40.35547207839293, 59.25955914855056, 1445.4065530924174]),
        (False, "34d0d49e96fa881a", [39.142848624157494, 23.174816424124398,
                                     37.930730217397006, 59.809421533471486, 1469.28969829838]),
    ],
    ids=["disjoint", "shared"],
)  # fmt: skip
def test_names_weights_and_steps_are_those_of_the_network_that_trained_our_models(
    is_disjoint, made, numbers
):
    """First weights to the bit, and two steps of training, as at commit a1bd969."""
    torch.manual_seed(0)
    network = UNet(2, 3, 4, width=12, steps=3, is_disjoint=is_disjoint, dropout=0.25)
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode() + value.numpy().tobytes())
    assert digest.hexdigest().startswith(made)
    network.double()
    torch.manual_seed(1)
    nn.init.normal_(network.head.layers[-1].weight)
    y, found = torch.rand(2, 2, 16, 24, dtype=torch.float64), []
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(2):
        images, log_probs = network(y)
        (images.square().mean() - 0.1 * log_probs[:, 0].mean()).backward()
        optimizer.step(), optimizer.zero_grad()
        found += [images.norm().item(), log_probs.norm().item()]
    found.append(sum(p.detach().square().sum() for p in network.parameters()).item())
    assert found == pytest.approx(numbers, rel=1e-9)


def test_encoder_widths_and_head_features_are_the_papers():
    """Channels c_init · K^d · (1, 2, 4, 8, 16), and the head sees d_f = 15 · c_init · K^d maps."""
    with torch.device("meta"):
        network = UNet(1, 1, 9, width=36)
    assert [block[0].out_channels for block in network.encoder] == [36, 72, 144, 288, 576]
    assert [block[0].out_channels for block in network.decoder] == [288, 144, 72, 36]
    widths = [m.in_features for m in network.head.layers if isinstance(m, nn.Linear)]
    assert widths == [15 * 36, 256, 64]
    for block in [*network.encoder, *network.decoder]:
        assert [type(m) for m in block] == [nn.Conv2d, nn.GroupNorm, nn.LeakyReLU] * 2
        assert {m.negative_slope for m in block if isinstance(m, nn.LeakyReLU)} == {0.2}


def decoder_gradients(network: UNet, leaf: int) -> dict[str, Tensor]:
    """How much of leaf `leaf`'s gradient each decoder's share of every decoder weight gets."""
    network.zero_grad()
    images = network(noise(2, network.in_channels, 16, 16)).images
    (images[:, leaf] * noise(*images[:, leaf].shape, seed=5)).sum().backward()
    return {
        name: p.grad.reshape(network.num_leaves, -1).abs().amax(dim=1)
        for name, p in network.named_parameters()
        if name.startswith(("decoder.", "to_image."))
    }


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("num_leaves", [4, 9])
def test_disjoint_decoders_share_no_weight(num_leaves, channels):
    """∂ leaf i / ∂ decoder j = 0 exactly, j ≠ i: convolutions, norms and output layer."""
    network = make_unet(1, channels, num_leaves).double()
    for leaf in range(num_leaves):
        gradients = decoder_gradients(network, leaf)
        kinds = {name.split(".")[-1] for name in gradients}
        assert len(gradients) == 4 * (2 + 4) + 2
        assert kinds == {"weight", "bias"}
        for name, share in gradients.items():
            assert share[leaf] > 0, name
            assert share.count_nonzero() == 1, name


def test_shared_decoders_share_weights():
    network = make_unet(num_leaves=4, is_disjoint=False).double()
    gradients = decoder_gradients(network, leaf=1)
    shared = {name: g for name, g in gradients.items() if not name.startswith("to_image")}
    assert all((share > 0).all() for share in shared.values())
    assert count(network) > count(make_unet(num_leaves=4))


@pytest.mark.parametrize("num_leaves", [1, 2, 4, 8, 9, 27])
@pytest.mark.parametrize("c_init", [1, 2, 3, 4, 8])
def test_norm_groups_respect_leaves(num_leaves, c_init):
    width = num_leaves * c_init
    groups = norm_groups(width, num_leaves)
    assert groups % num_leaves == 0  # a leaf holds whole groups
    assert width % groups == 0
    assert groups <= max(9, num_leaves)


def test_a_tree_and_its_plain_counterpart_of_equal_width_have_equal_groups():
    assert norm_groups(36, 9) == norm_groups(36, 1) == 9


def test_dealing_gives_each_leaf_its_part_of_both_maps():
    below = torch.arange(4.0).reshape(1, 4, 1, 1)
    skip = 10 + torch.arange(2.0).reshape(1, 2, 1, 1)
    dealt = deal(below, skip, 2).flatten().tolist()
    assert dealt == [0, 1, 10, 2, 3, 11]
    assert deal(below, skip, 1).flatten().tolist() == [0, 1, 2, 3, 10, 11]


def test_convolving_an_enlarged_image_is_a_transposed_convolution():
    x, weight = noise(2, 5, 4, 6), noise(7, 5, 3, 3, seed=1)
    expected = F.conv2d(F.interpolate(x, scale_factor=2), weight, padding=1)
    got = F.conv_transpose2d(x, enlarging(weight), stride=2, padding=1)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("parts", [1, 3])
def test_taking_in_skip_maps_without_joining_them_changes_nothing(parts):
    """The form used on CUDA has the same values and the same gradients."""
    convolution = UpBlock(12, 6, groups=parts, decoders=parts).double()[0]
    below, skip = noise(2, 12, 3, 4).requires_grad_(), noise(2, 6, 6, 8, seed=1).requires_grad_()
    direction = noise(2, 6, 6, 8, seed=2)
    joined = deal(F.interpolate(below, scale_factor=2), skip, parts)
    outputs = [convolution(joined), FastUNet(make_unet()).up(convolution, 0, below, skip)]
    torch.testing.assert_close(outputs[1], outputs[0])
    inputs = (below, skip, convolution.weight)
    plain, fast = (torch.autograd.grad((out * direction).sum(), inputs) for out in outputs)
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("groups", "kernel"), [(4, 3), (9, 1)])
def test_a_grouped_convolution_is_a_dense_one_with_zeros_between_leaves(groups, kernel):
    """The form used on CUDA has the same values and the same gradients."""
    x = noise(2, 2 * groups, 5, 5)
    weight = noise(3 * groups, 2, kernel, kernel, seed=1).requires_grad_()
    grouped = F.conv2d(x, weight, padding=kernel // 2, groups=groups)
    dense = F.conv2d(x, block_diagonal(weight, groups), padding=kernel // 2)
    torch.testing.assert_close(dense, grouped)
    direction = noise(*grouped.shape, seed=2)
    (expected,) = torch.autograd.grad((grouped * direction).sum(), weight)
    (found,) = torch.autograd.grad((dense * direction).sum(), weight)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("is_disjoint", [True, False])
def test_more_steps_see_more_of_an_image(is_disjoint):
    def reach(steps: int) -> int:
        """How many input columns one output pixel depends on."""
        torch.manual_seed(0)
        network = UNet(1, 1, 2, width=4, steps=steps, is_disjoint=is_disjoint).double()
        for block in [*network.encoder, *network.decoder]:
            block[1] = block[4] = nn.Identity()  # a normalisation sees everything at any depth
        y = noise(1, 1, 32, 256).requires_grad_()
        network(y).images[0, 0, 0, 16, 128].backward()
        return int((y.grad.abs().sum(dim=(0, 1, 2)) > 0).sum())

    assert network_widths(5) == [4, 8, 16, 32, 64, 64]
    assert network_widths(5, doublings=2) == [4, 8, 16, 16, 16, 16]
    assert reach(2) < reach(4) < reach(5)


def network_widths(steps: int, **options: int) -> list[int]:
    network = UNet(1, 1, 2, width=4, steps=steps, **options)
    assert network.multiple == 2**steps
    return [block[0].out_channels for block in network.encoder]


def test_width_that_cannot_be_dealt_out_is_refused():
    with pytest.raises(ValueError, match="width 10 cannot be dealt out evenly among 4 leaves"):
        UNet(1, 1, 4, width=10)
    leaves = UNet(1, 1, 4, width=10, is_disjoint=False)(torch.zeros(1, 1, 16, 16))
    assert leaves.images.shape == (1, 4, 1, 16, 16)  # one decoder deals nothing out


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_head_has_three_layers_and_starts_uniform(norm):
    torch.manual_seed(0)
    head = ProbabilityHead(12, 9, norm=norm)
    kinds = [type(m) for m in head.layers]
    hidden = nn.LayerNorm if norm == "layer" else nn.BatchNorm1d
    assert kinds.count(nn.Linear) == 3
    assert kinds.count(hidden) == kinds.count(nn.SiLU) == 2
    assert kinds[-1] is nn.Linear  # nothing after the last layer but the softmax
    log_probs = head([torch.randn(5, 8, 4, 4), torch.randn(5, 4, 8, 8)])
    torch.testing.assert_close(log_probs, torch.full((5, 9), -math.log(9)))


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_log_probs_normalise(norm):
    torch.manual_seed(0)
    head = ProbabilityHead(6, 5, norm=norm).double()
    for parameter in head.parameters():
        nn.init.normal_(parameter)
    log_probs = head([100 * noise(7, 6, 3, 3)])
    assert log_probs.std() > 1
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(7, dtype=torch.float64))
    assert log_probs.dtype == torch.float64


def test_head_stays_in_float32_under_autocast():
    head = ProbabilityHead(6, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = head([torch.randn(2, 6, 4, 4).bfloat16()])
    assert log_probs.dtype == torch.float32


def test_head_refuses_what_it_cannot_be():
    with pytest.raises(ValueError, match="'layer' or 'batch'"):
        ProbabilityHead(6, 5, norm="group")


def test_the_head_s_gradient_enters_the_decoder():
    network = make_unet()
    nn.init.normal_(network.head.layers[-1].weight)  # a zero layer would stop it too
    network(noise(2, 1, 16, 16).float()).log_probs[:, 0].sum().backward()
    body = [p.grad for n, p in network.named_parameters() if not n.startswith(("head", "to_image"))]
    head = [p.grad for p in network.head.parameters()]
    assert all(g is not None and g.abs().max() > 0 for g in (*head[:2], *body))


def test_head_sees_every_decoder_map():
    network = make_unet(num_leaves=2).double()
    nn.init.normal_(network.head.layers[-1].weight)
    first: nn.Linear = network.head.layers[0]
    network(noise(1, 1, 16, 16)).log_probs[:, 0].sum().backward()
    assert first.in_features == 15 * 4
    assert (first.weight.grad.abs().amax(dim=0) > 0).all()


@pytest.mark.parametrize("size", [(28, 28), (33, 47), (16, 16), (5, 40), (17, 3)])
@pytest.mark.parametrize("padding", ["reflect", "zeros"])
def test_any_size_goes_in_and_comes_out(size, padding):
    predictor = make_predictor(make_unet(num_leaves=2), 2, depth=1, padding=padding)
    tree = predictor(noise(2, 1, *size).float())
    assert tree.shape == (1, *size)


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
@pytest.mark.parametrize("size", [(28, 28), (33, 47), (1, 2)])
def test_cropping_undoes_padding(size, mode):
    x = noise(2, 3, *size)
    padded = pad(x, 16, mode)
    assert all(side % 16 == 0 for side in padded.shape[-2:])
    torch.testing.assert_close(crop(padded, size), x, rtol=0, atol=0)


def test_a_tree_of_depth_0_is_a_plain_estimator():
    predictor = make_predictor(make_unet(num_leaves=1, width=4), 3, depth=0)
    tree = predictor(noise(2, 1, 16, 16).float())
    assert tree.depth == 0
    assert tree.leaves.shape == (2, 1, 1, 16, 16)
    assert tree.log_probs[0].abs().max() == 0


@pytest.mark.parametrize("is_disjoint", [True, False])
@pytest.mark.parametrize("is_training", [True, False])
def test_a_tree_does_not_depend_on_its_batch_mates(is_disjoint, is_training):
    network = make_unet(is_disjoint=is_disjoint).double()
    nn.init.normal_(network.head.layers[-1].weight)
    predictor = make_predictor(network, 2, depth=2).train(is_training)
    y = noise(5, 1, 20, 20)
    together, alone = predictor(y), predictor(y[3:4])
    for level in range(3):
        torch.testing.assert_close(together.images[level][3:4], alone.images[level])
        torch.testing.assert_close(together.log_probs[level][3:4], alone.log_probs[level])


def test_batch_norm_in_the_head_couples_images_which_is_why_it_is_not_the_default():
    network = make_unet(head_norm="batch").double()
    nn.init.normal_(network.head.layers[-1].weight)
    y = noise(5, 1, 16, 16)
    assert not torch.allclose(network(y).log_probs[:2], network(y[:2]).log_probs)
    network.eval()
    torch.testing.assert_close(network(y).log_probs[:2], network(y[:2]).log_probs)


def test_dropout_acts_in_training_only():
    network = make_unet(dropout=0.5, head_dropout=0.5)
    y = noise(2, 1, 16, 16).float()
    assert not torch.equal(network(y).images, network(y).images)
    network.eval()
    assert torch.equal(network(y).images, network(y).images)


def test_wrap_makes_a_tree_of_any_backbone():
    backbone = nn.Conv2d(4, 7, 3, padding=1)  # four channels in, three out: nothing says otherwise
    predictor = wrap(backbone, features=7, channels=3, branching=(2, 3), depth=2)
    tree = predictor(noise(2, 4, 9, 11).float())
    assert tree.branching == (2, 3)
    assert tree.leaves.shape == (2, 6, 3, 9, 11)
    torch.testing.assert_close(tree.probs[-1], torch.full((2, 6), 1 / 6))
    tree.root.square().sum().backward()
    assert all(p.grad is not None for p in backbone.parameters())


def test_wrap_has_the_papers_layout_by_default():
    assert wrap(nn.Conv2d(1, 2, 1), features=2, channels=1).branching == (3, 3)


def test_wrap_takes_a_backbone_that_emits_the_leaves_itself():
    backbone = nn.Conv2d(1, 4 * 3, 3, padding=1)
    predictor = wrap(backbone, features=12, channels=3, branching=2, depth=2, leaves=True)
    y = noise(2, 1, 6, 6).float()
    torch.testing.assert_close(predictor(y).leaves, backbone(y).unflatten(1, (4, 3)))


def test_wrap_with_a_measurement_is_consistent_with_it():
    hole = Inpaint.box((2, 5), (1, 6), size=(8, 8))
    predictor = wrap(nn.Conv2d(1, 5, 1), features=5, channels=1, measurement=hole)
    x = noise(2, 1, 8, 8).float()
    tree = predictor(predictor.measure(x))
    for images in tree.images:
        torch.testing.assert_close(images[..., ~hole.hole], x[:, None][..., ~hole.hole].expand_as(
            images[..., ~hole.hole]))  # fmt: skip
        assert (images[..., hole.hole] != 0.5).any()


def test_wrap_pads_for_a_backbone_that_wants_a_multiple():
    backbone = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(1, 2, 1), nn.Upsample(scale_factor=4))
    predictor = wrap(backbone, features=2, channels=1, branching=2, depth=1, multiple=4)
    assert predictor(noise(1, 1, 9, 10).float()).shape == (1, 9, 10)


def test_wrong_number_of_features_is_named():
    predictor = wrap(nn.Conv2d(1, 7, 1), features=8, channels=1)
    with pytest.raises(ValueError, match=r"returned \(1, 7, 4, 4\).*features=8"):
        predictor(noise(1, 1, 4, 4).float())
    with pytest.raises(ValueError, match=r"9 leaves of 3 channels.*27 output maps, not features=8"):
        wrap(nn.Conv2d(1, 8, 1), features=8, channels=3, leaves=True)


class Both(nn.Module):
    """Returns more than feature maps."""

    def forward(self, y):
        return y.repeat(1, 3, 1, 1)[:, :8], y


@pytest.mark.parametrize("measurement", [None, Inpaint.box((0, 7), (0, 7), (16, 16))])
@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        (nn.Conv2d(3, 8, 3), "maps of 14×14 for a picture of 16×16.*padding"),
        (nn.Conv2d(3, 8, 3, stride=2, padding=1), "maps of 8×8 for a picture of 16×16"),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.Upsample(scale_factor=2)), "maps of 32×32 for"),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.AvgPool2d(16)), "maps of 1×1 for a picture of 16×16"),
        (nn.Sequential(nn.Conv2d(3, 8, 1), nn.Flatten()), r"returned \(2, 2048\).*\(b, 8, h, w\)"),
        (Both(), "returned a tuple; wrap one that returns its feature maps alone"),
    ],
    ids=["padding", "stride", "larger", "pooled", "flat", "tuple"],
)
def test_a_backbone_must_keep_the_size(backbone, message, measurement):
    """Else one pixel may be stretched to a whole leaf, and nobody would know."""
    predictor = wrap(backbone, features=8, channels=3, measurement=measurement)
    with pytest.raises(ValueError, match=message):
        predictor(noise(2, 3, 16, 16).float())


def test_wrap_refuses_a_node_with_one_child():
    with pytest.raises(ValueError, match="branching is 1; a node needs at least 2 children"):
        wrap(nn.Conv2d(1, 8, 1), features=8, channels=1, branching=1)


def test_backbone_parameters_of_head_are_called_head():
    """The trainer gives parameters under `head.` their own learning rate."""
    for network in (
        make_unet(),
        Backbone(nn.Conv2d(1, 2, 1), features=2, channels=1, num_leaves=2),
    ):
        names = {name.split(".")[0] for name, _ in network.named_parameters()}
        assert "head" in names


@pytest.mark.parametrize(
    ("leaves", "width", "is_disjoint", "widest"),
    [(9, 36, True, 40), (9, 36, False, 40), (3, 12, True, 16), (4, 12, True, 12), (4, 8, True, 8)],
)
def test_zeros_that_align_the_channels_change_nothing(
    monkeypatch, leaves, width, is_disjoint, widest
):
    """As GPUs run it in half precision: values and gradients are those of the plain network."""
    torch.manual_seed(0)
    network = UNet(1, 1, leaves, width=width, steps=2, is_disjoint=is_disjoint).double()
    nn.init.normal_(network.head.layers[-1].weight)
    for layer in network.modules():
        if isinstance(layer, nn.GroupNorm):
            nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    y, seen = torch.rand(2, 1, 8, 12, dtype=torch.float64), []
    twin = FastUNet(network)

    def run(form: nn.Module) -> list[Tensor]:
        network.zero_grad()
        images, log_probs = form(y)
        (images.square().sum() + log_probs[:, 0].sum()).backward()
        return [images.detach(), log_probs.detach(), *[p.grad for p in network.parameters()]]

    def assert_near(form: nn.Module) -> None:
        for got, wanted in zip(run(form), expected, strict=True):
            torch.testing.assert_close(got, wanted)

    expected = run(network)
    assert_near(twin)
    monkeypatch.setattr(fast, "is_half", lambda _: True)
    activate = fast.normalize_and_activate
    see = lambda norm, maps: seen.append(maps.shape[1]) or activate(norm, maps)  # noqa: E731
    monkeypatch.setattr(fast, "normalize_and_activate", see)
    assert_near(twin)
    assert seen[0] == widest
    torch.testing.assert_close(FoldedUNet(network)(y).images, expected[0])


def test_a_twin_has_the_very_weights_of_the_plain_network():
    network = make_unet(dropout=0.5)
    twin = FastUNet(network)
    assert {*map(id, twin.parameters())} == {*map(id, network.parameters())}
    y = noise(2, 1, 16, 16).float()
    twin.eval()
    assert not network.encoder[-1].training
    with torch.no_grad():
        network.to_image.bias += 1
        torch.testing.assert_close(twin(y).images, network(y).images)
