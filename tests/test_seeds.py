"""Leaves that begin at clusters of what the root misses."""

import pytest
import torch
from tiny import make_tree

from posterior_trees import psnr
from posterior_trees.models.build import build_predictor
from posterior_trees.predictor import evaluating
from posterior_trees.training import learn
from posterior_trees.training.association.conscience import Conscience
from posterior_trees.training.association.starts import (
    SIDE,
    Starts,
    coarse,
    distances,
    find_centres,
)
from posterior_trees.training.association.surprise import Surprise
from posterior_trees.training.feed import Feed
from posterior_trees.training.learn import Learner
from posterior_trees.training.objective import objective
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_centres_are_means_of_squares() -> None:
    """So they are the residual itself where it is coarse, and their number is bounded."""
    flat = torch.rand(2, 3, 16, 16, generator=seeded())
    assert torch.allclose(coarse(flat), flat.flatten(1))
    fine = flat.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)  # 128 × 128
    twice = flat.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
    assert torch.allclose(coarse(fine), twice.flatten(1), atol=1e-6)
    assert coarse(torch.zeros(1, 1, 257, 100)).shape[1] <= SIDE**2
    assert coarse(torch.ones(1, 1, 257, 100)).eq(1).all(), "edges are means of what there is"
    assert coarse(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]


def test_a_rare_cluster_has_a_centre() -> None:
    """Two of 200 rows are far from all others."""
    rows = torch.randn(200, 5, generator=seeded())
    rows[:2] += 40
    centres = find_centres(rows, (3, 3), seeded())
    assert [len(level) for level in centres] == [1, 3, 9]
    assert torch.allclose(centres[0][0], rows.mean(dim=0), atol=1e-4)
    nearest = distances(rows, centres)[-1].argmin(dim=1)
    own = set(nearest[:2].tolist())
    assert not own & set(nearest[2:].tolist())
    places = Starts((3, 3), torch.tensor(0.0))
    places.make_room(torch.zeros(1, 1, 5))
    room = places.centres
    assert [level.shape for level in room] == [level.shape for level in centres]
    places.take(centres)
    assert places.centres is room, "a recorded step reads them where they were"
    assert all(map(torch.equal, room, centres))


def test_absent_centres_attract_nothing() -> None:
    rows = torch.tensor([[0.0], [0.0], [5.0]])
    near = distances(rows, find_centres(rows, (3, 3), seeded()))
    assert all(level.amin(dim=1).isfinite().all() for level in near)
    assert sum(level.isinf().all(dim=0).sum().item() for level in near) == 1 + 7


@pytest.mark.parametrize("more", [None, "rate", "conscience"])
def test_centres_lead_only_while_their_number_is_above_0(more) -> None:
    tree, x = make_tree(6, 4)
    conscience = Conscience((3, 3), torch.tensor(1.0, dtype=torch.float64))
    conscience.bias = torch.rand(13, generator=seeded(), dtype=torch.float64)
    rules = {None: [], "rate": [Surprise(0.3)], "conscience": [conscience]}[more]
    plain = objective(tree, x, 0.1, rules)
    centres = Starts((3, 3), torch.tensor(0.0))
    centres.take([torch.rand(n, 16, generator=seeded()) for n in (1, 3, 9)])
    far = distances(coarse(x - tree.root), centres.centres)

    def led(number: float, epsilon: float = 0.1):
        centres.is_guided = torch.tensor(number)
        return objective(tree, x, epsilon, [*rules, centres])

    for ours, theirs in zip(led(0.0), plain, strict=True):
        assert torch.equal(ours, theirs)
    path = tree.follow(tree.winners(far))
    assert torch.equal(led(1.0).leaf, path[:, -1])
    assert not torch.equal(led(1.0).leaf, plain.leaf)
    assert torch.allclose(led(1.0).nll, -tree.log_probs[-1].gather(1, path[:, -1:])[:, 0])
    alone = led(1.0, epsilon=0.0).squared
    levels = zip(tree.errors(x), path.T, strict=True)
    along = [errors.gather(1, nodes.unsqueeze(1)).squeeze(1) for errors, nodes in levels]
    assert torch.allclose(alone, torch.stack(along).sum(dim=0))


def test_a_rare_answer_gets_its_leaf_at_once(tmp_path, recipe, blobs) -> None:
    """One blob in twelve is on the right, which y does not tell. The epoch after the seeds are
    found, exactly these images learn in one leaf."""
    changes = ("seed=1", "loss.epsilon_start=2", "loss.epsilon_scale=0.5", "loss.guided_epochs=2",
               "training.epochs=6", "optimizer.lr=0.02", "optimizer.head_lr=0.02")  # fmt: skip
    images = blobs(96, odds=1 / 12)
    x, _ = images.batch(torch.arange(96))
    share = (x[:, 0, 1:4, 4:7].mean(dim=(1, 2)) > 0.4).float().mean().item()
    predictor = fit(recipe(*changes), tmp_path, images=(images, None), accelerator="cpu")
    lines = read_log(tmp_path / "log.jsonl")
    assert min(lines[2]["leaf_usage"]) == pytest.approx(share, abs=1e-3)
    assert min(lines[3]["leaf_usage"]) == pytest.approx(share, abs=1e-3)
    tree = predictor(predictor.measure(x))
    rare = tree.descend(x)[:, -1] == tree.probs[-1].mean(dim=0).argmin()
    assert rare.float().mean().item() == pytest.approx(share, abs=1e-3)
    assert (psnr(tree, x)[rare, 1] > psnr(tree, x)[rare, 0] + 3).all()


def test_a_root_alone_learns_the_same_with_seeds(tmp_path, recipe, blobs) -> None:
    """The plain network of a recipe with seeds is that of a recipe without."""
    changes = ("tree.depth=0", "loss.epsilon_start=1", "training.epochs=3")
    images = blobs(48, odds=1 / 12), None
    with_seeds, without = (
        fit(
            recipe(*changes, f"loss.guided_epochs={n}"),
            tmp_path / n,
            images=images,
            accelerator="cpu",
        )
        for n in ("1", "0")
    )
    for one, other in zip(with_seeds.parameters(), without.parameters(), strict=True):
        assert torch.equal(one, other)


def test_centres_are_those_of_what_the_network_predicts(tmp_path, recipe, blobs, monkeypatch):
    """Nothing is dropped to find them, and batch norms do not learn from it."""
    seed, find, clustered = Learner.seed, find_centres, []

    def spy(self, batches, generator) -> None:
        kept = list(batches)
        before = {name: part.clone() for name, part in self.network.state_dict().items()}
        seed(self, kept, generator)
        for name, part in self.network.state_dict().items():
            assert torch.equal(part, before[name]), name
        with torch.no_grad(), evaluating(self.predictor):
            missed = torch.cat([coarse(x - self.predictor(y).root) for x, y in kept])
        assert torch.equal(clustered.pop(), missed)
        clustered.append("looked")

    def noting(rows, *options):
        clustered.append(rows)
        return find(rows, *options)

    monkeypatch.setattr(Learner, "seed", spy)
    monkeypatch.setattr(learn, "find_centres", noting)
    changes = ("loss.guided_epochs=1", "loss.epsilon_start=1", "training.epochs=2",
               "network.dropout=0.5", "network.head_norm=batch",
               "network.head_dropout=0.5")  # fmt: skip
    fit(recipe(*changes), tmp_path, images=(blobs(24), None), accelerator="cpu")
    assert clustered == ["looked"]


def test_the_images_to_be_clustered_are_drawn_from_all(recipe, blobs) -> None:
    """Files may be sorted: the first of them are no sample."""
    chosen, images = recipe(), blobs(40)
    feed = Feed(chosen, build_predictor(chosen), images)
    x = torch.cat([x for x, _ in feed.glance(16, seeded())])
    whole, _ = images.batch(range(40))
    found = torch.cdist(x.flatten(1), whole.flatten(1)).argmin(dim=1)
    assert len(found.unique()) == 16
    assert found.max() >= 16
    other = torch.cat([x for x, _ in feed.glance(16, torch.Generator().manual_seed(1))])
    assert not torch.equal(x, other)


def test_centres_guide_for_as_many_epochs_as_are_asked_for(
    tmp_path, recipe, blobs, monkeypatch
) -> None:
    """From 1 to 2.5 epochs of three steps each; then the nearest child takes over."""
    guided, inside = [], Learner.learn

    def spy(self, step, *batch):
        winners = inside(self, step, *batch)
        guided.append(self.numbers[-1].item())
        return winners

    monkeypatch.setattr(Learner, "learn", spy)
    changes = ("loss.guided_epochs=1.5", "loss.epsilon_start=1", "training.epochs=4")
    fit(recipe(*changes), tmp_path, images=(blobs(24), None), accelerator="cpu")
    assert guided == [0] * 3 + [1] * 5 + [0] * 4
