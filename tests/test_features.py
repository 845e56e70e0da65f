"""Children told apart by a part of the picture."""

import pytest
import torch
from tiny import make_tree
from torch.nn import functional

from posterior_trees import grow
from posterior_trees.data import ImageSet
from posterior_trees.errors import RecipeError
from posterior_trees.training.association.features import (
    Inside,
    Part,
    edges,
    eyes_of,
    inside,
    without_light,
)
from posterior_trees.training.objective import objective
from posterior_trees.training.trainer import fit

PART = (0.0, 0.5, 0.5, 1.0)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def errors_in(tree, x, *part):
    return Part(*part).adjust(tree, x, tree.errors(x))


def test_a_part_scales_with_the_image() -> None:
    x = torch.arange(64.0).view(1, 8, 8)
    assert torch.equal(inside(x, ()), x)
    assert torch.equal(inside(x, (0.0, 1.0, 0.0, 1.0)), x)
    assert torch.equal(inside(x, PART), x[:, :4, 4:])
    large = x.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)
    assert torch.equal(inside(large, PART)[:, ::4, ::4], x[:, :4, 4:])
    assert inside(x, (0.99, 1.0, 0.5, 0.51)).numel() == 1, "never without a pixel"


def test_the_whole_picture_as_a_part_changes_nothing() -> None:
    tree, x = make_tree(32, 8)
    whole = Part((0.0, 1.0, 0.0, 1.0))
    for ours, theirs in zip(objective(tree, x, 0.1, [whole]), objective(tree, x, 0.1), strict=True):
        assert torch.equal(ours, theirs)


def test_the_part_says_who_learns_and_all_pixels_what() -> None:
    tree, x = make_tree(32, 8)
    path = grow(inside(tree.leaves, PART), tree.log_probs[-1], (3, 3)).descend(inside(x, PART))
    loss = objective(tree, x, 0.0, [Part(PART)])
    levels = zip(tree.errors(x), path.T, strict=True)
    along = [errors.gather(1, nodes.unsqueeze(1)).squeeze(1) for errors, nodes in levels]
    assert torch.allclose(loss.squared, torch.stack(along).sum(dim=0))
    assert not torch.equal(path, tree.descend(x))
    assert torch.equal(loss.leaf, tree.descend(x)[:, -1]), "the probabilities learn the usual path"


def test_light_is_what_a_level_and_a_slope_explain() -> None:
    """The rest is that of a least-squares fit, and squares add up."""
    x = torch.randn(5, 3, 6, 9, dtype=torch.float64, generator=seeded())
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(9.0), indexing="ij")
    light = torch.stack([torch.ones(6, 9), rows, columns]).double().flatten(1).T
    fitted = light @ (torch.linalg.pinv(light) @ x.flatten(2).mT)
    rest = without_light(x)
    assert torch.allclose(rest, x - fitted.mT.reshape(x.shape), atol=1e-12)
    assert torch.allclose(rest.square().sum() + fitted.square().sum(), x.square().sum())
    assert torch.allclose(without_light(rest), rest, atol=1e-12)
    assert torch.allclose(without_light(x[..., :1, :1]), torch.zeros(1, dtype=x.dtype))


def test_nodes_in_another_light_or_colour_are_as_near() -> None:
    leaves, x = (torch.rand(32, n, 3, 8, 8, generator=seeded()) for n in (9, 1))
    tree, x = grow(leaves, torch.zeros(32, 9).log_softmax(dim=1), (3, 3)), x[:, 0]
    lit, colour = x.clone(), torch.rand(32, 8, 8, generator=seeded())
    lit[..., :4, 4:] += 0.2 + torch.linspace(0, 0.5, 4)
    lit[:, 0], lit[:, 1] = lit[:, 0] + colour, lit[:, 1] - colour
    as_it_was, now = (errors_in(tree, truth, PART, "shape") for truth in (x, lit))
    for before, after in zip(as_it_was, now, strict=True):
        assert torch.allclose(before, after, atol=1e-5)
    assert not torch.allclose(errors_in(tree, x, PART)[2], errors_in(tree, lit, PART)[2])


def test_edges_are_what_changes_from_pixel_to_pixel() -> None:
    x = torch.rand(2, 3, 5, 7, generator=seeded())
    down, across = edges(x).unbind(dim=-3)
    grey = x.mean(dim=1)
    assert torch.equal(down[:, :-1], grey[:, 1:] - grey[:, :-1])
    assert torch.equal(across[..., :-1], grey[..., 1:] - grey[..., :-1])
    assert not down[:, -1].any()
    assert not across[..., -1].any()
    torch.testing.assert_close(edges(x + 0.3), edges(x))


def soft_threshold(images: torch.Tensor) -> torch.Tensor:
    """Features of one's own, at half the size."""
    assert images.ndim == 4
    return functional.avg_pool2d(torch.sigmoid(10 * (images - 0.5)), 2)


def test_features_of_ones_own_tell_children_apart(recipe) -> None:
    tree, x = make_tree(32, 8)
    chosen = recipe(f"loss.features={__name__}:soft_threshold").loss
    own = tree.map_images(Part((), chosen.features).of).errors(soft_threshold(x))
    assert own[2].shape == (32, 9)
    found = errors_in(tree, x, (), chosen.features)
    for mine, theirs in zip(found, own, strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(tree.winners(found)[1], tree.winners(tree.errors(x))[1])
    everything = torch.ones(32, 1, 8, 8, dtype=x.dtype)
    inside_all = Inside(everything, eyes_of(chosen.features)).adjust(tree, x, found)
    torch.testing.assert_close(inside_all[2], found[2])


@pytest.mark.parametrize("features", ["pixel", "os.path", "a b:c"])
def test_features_that_are_none_are_refused(recipe, features) -> None:
    with pytest.raises(RecipeError, match=r"loss\.features is .*'pixels', 'shape', 'edges'"):
        recipe(f"loss.features={features}")


def test_centres_are_of_differences_which_features_of_ones_own_do_not_know(recipe) -> None:
    with pytest.raises(RecipeError, match=r"guided_epochs 2: .* or loss\.guided_epochs=0"):
        recipe("loss.features=my.module:phi", "loss.guided_epochs=2")


@pytest.mark.parametrize("features", ["nowhere:function", "torch:nothing"])
def test_features_that_are_not_found_are_named(features) -> None:
    with pytest.raises(RecipeError, match=f"'{features}': .* Write module:function"):
        eyes_of(features)


@pytest.mark.parametrize("seeds", [0, 2])
def test_children_differ_in_the_part(tmp_path, recipe, seeds) -> None:
    """A loud spot on the left and a quiet one on the right come and go, each by itself. Two
    children tell the loud one apart, unless the quiet one is asked for."""
    comes = (torch.rand(96, 2, generator=seeded()) < 0.5).float()
    x = torch.zeros(96, 1, 8, 8)
    x[:, 0, 1:4, 0:3] = 0.9 * comes[:, 0, None, None]
    x[:, 0, 1:4, 5:8] = 0.4 * comes[:, 1, None, None]
    images = ImageSet((255 * x).to(torch.uint8))
    changes = ("tree.branching=2", "tree.depth=1", "training.epochs=12", "optimizer.lr=0.01",
               "network.c_init=4", "loss.epsilon_start=2", "loss.epsilon_scale=0.5",
               f"loss.guided_epochs={seeds}")  # fmt: skip

    def differences(*more: str) -> tuple[float, float]:
        run = tmp_path / str(len(more))
        predictor = fit(recipe(*changes, *more), run, images=(images, None), accelerator="cpu")
        tree = predictor(predictor.measure(x[:1]))
        apart = (tree.leaves[0, 0] - tree.leaves[0, 1])[0].abs()
        return apart[1:4, 0:3].mean().item(), apart[1:4, 5:8].mean().item()

    loud, quiet = differences()
    assert loud > 0.6
    assert quiet < 0.2
    loud, quiet = differences("loss.focus=[0.0, 0.5, 0.5, 1.0]")
    assert quiet > 0.25
    assert loud < 0.3


@pytest.mark.parametrize("seeds", [0, 2])
def test_children_do_not_differ_in_the_light(tmp_path, recipe, seeds) -> None:
    """The hidden half is dark or bright, and a faint spot comes and goes in it."""
    comes = (torch.rand(96, 2, generator=seeded()) < 0.5).float()
    x = torch.zeros(96, 1, 8, 8)
    x[:, 0, :4] = 0.5 * comes[:, 0, None, None]
    x[:, 0, 1:3, 3:5] += 0.4 * comes[:, 1, None, None]
    images = ImageSet((255 * x).to(torch.uint8))
    changes = ("tree.branching=2", "tree.depth=1", "training.epochs=12", "optimizer.lr=0.01",
               "network.c_init=4", "loss.epsilon_start=2", "loss.epsilon_scale=0.5",
               "loss.focus=[0.0, 0.5, 0.0, 1.0]", f"loss.guided_epochs={seeds}")  # fmt: skip

    def differences(features: str) -> tuple[float, float]:
        """Of two leaves: around the spot, and in it beyond that."""
        chosen = recipe(*changes, f"loss.features={features}")
        run = tmp_path / features
        predictor = fit(chosen, run, images=(images, None), accelerator="cpu")
        apart = predictor(predictor.measure(x[:1])).leaves[0].diff(dim=0)[0, 0, :4]
        around = torch.cat([apart[:, :2], apart[:, 6:]]).mean()
        return around.abs().item(), (apart[1:3, 3:5].mean() - around).abs().item()

    light, spot = differences("pixels")
    assert light > 0.35
    assert spot < 0.15
    light, spot = differences("shape")
    assert light < 0.2
    assert spot > 0.2


@pytest.mark.parametrize("focus", ["[0.5]", "[0.5, 0.2, 0.0, 1.0]", "[0.0, 1.0, 0.0, 1.5]"])
def test_a_part_outside_the_picture_is_refused(recipe, focus) -> None:
    with pytest.raises(RecipeError, match=r"loss\.focus is \[.*top, bottom, left, right"):
        recipe(f"loss.focus={focus}")
