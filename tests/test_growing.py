"""Training of trees that grow: what is learned of which node, and that it is learned."""

import json
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny import make_blobs
from torch import Tensor, nn

from posterior_trees import Inpaint, Tree, cli, load, nll, psnr, store, wrap
from posterior_trees.data import ImageSet, load_evaluation
from posterior_trees.errors import InputError, RecipeError
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import load_recipe, save_model
from posterior_trees.networks import Leaves, NodeNetwork
from posterior_trees.predictor import GrowingPredictor
from posterior_trees.predictor.region import open_part
from posterior_trees.recipe import Recipe, parse_resolved, read_recipe, write_recipe
from posterior_trees.store import read_facts
from posterior_trees.training.association.features import Inside, errors_inside, eyes_of
from posterior_trees.training.growing import (
    DICE,
    Asked,
    draw_levels,
    draw_regions,
    family,
    follow,
    prices,
    questions,
    walk,
)
from posterior_trees.training.objective import objective
from posterior_trees.training.probabilities import find_logits
from posterior_trees.training.run import read_log
from posterior_trees.training.trainer import fit

GROWING = ("network.kind=growing", "network.levels=3", "network.decoder=shared",
           "network.width=8", "network.steps=2")  # fmt: skip
SCRIPTS = Path(__file__).parents[1] / "reproduction" / "scripts"
PIXELS = eyes_of("pixels")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_growing(recipe: Recipe, measurement=None) -> GrowingPredictor:
    """Any weights, in float64, in the probability head too."""
    torch.manual_seed(0)
    predictor = build_predictor(recipe)
    assert isinstance(predictor, GrowingPredictor)
    for parameter in predictor.parameters():
        nn.init.normal_(parameter, std=0.3)
    found = predictor.with_measurement(measurement or predictor.measurement).double().eval()
    assert isinstance(found, GrowingPredictor)
    return found


def ask_for(predictor: GrowingPredictor, count: int, region: Tensor | None = None) -> Asked:
    x = torch.rand(count, predictor.channels, 8, 8, dtype=torch.float64, generator=seeded())
    is_open = open_part(predictor.measurement, x)
    region = draw_regions(torch.rand(count, DICE, generator=seeded(1)).double(), is_open, 0.5)
    return Asked(x, predictor.measure(x), region)


# ---- the loss --------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_asked_for_everything_at_the_top_it_is_the_loss_of_a_one_pass_tree(recipe, epsilon):
    predictor = make_growing(recipe(*GROWING, "tree.depth=1", "measurement.kind=denoise"))
    x, y, region = ask_for(predictor, 6)
    everything, one = Asked(x, y, torch.ones_like(region)), torch.ones(6, dtype=torch.long)
    root, parent = walk(predictor, everything, one, PIXELS)
    leaves = predictor.network(*questions(predictor, everything, root, parent, one))
    tree = family(predictor, leaves, y, root)
    rules = [Inside(everything.region, PIXELS)]
    paid = prices(tree, x, everything.region)
    found = objective(tree, x, epsilon, rules, errors=paid)
    for ours, theirs in zip(found, objective(predictor(y), x, epsilon), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def make_family(count: int, children: int) -> tuple[Tree, Tensor, Tensor]:
    images = torch.rand(count, children + 2, 3, 8, 8, dtype=torch.float64, generator=seeded())
    logits = torch.rand(count, children, dtype=torch.float64, generator=seeded(1))
    one = torch.zeros(count, 1, dtype=torch.float64)
    tree = Tree([images[:, :1], images[:, 2:]], [one, logits.log_softmax(dim=1)], (children,))
    is_open = torch.ones(count, 1, 8, 8, dtype=torch.float64)
    dice = torch.rand(count, DICE, dtype=torch.float64, generator=seeded(2))
    return tree, images[:, 1], draw_regions(dice, is_open, 0.5)


def test_at_epsilon_1_all_pay_the_plain_squared_error_and_at_0_the_winner_inside():
    tree, x, region = make_family(40, 3)
    plain = (tree.leaves - x[:, None]).square()
    inside = (plain * region[:, None]).sum(dim=(2, 3, 4)) / (3 * region.sum(dim=(1, 2, 3)))[:, None]
    paid = (plain.mean(dim=(2, 3, 4)) + inside) / 2
    root = (tree.root - x).square().mean(dim=(1, 2, 3))
    rules, errors = [Inside(region, PIXELS)], prices(tree, x, region)
    every, winner = (objective(tree, x, epsilon, rules, errors) for epsilon in (1.0, 0.0))
    torch.testing.assert_close(every.squared, root + paid.sum(dim=1))
    nearest = inside.argmin(dim=1)
    assert not torch.equal(nearest, tree.descend(x)[:, 1]), "some are nearest elsewhere"
    torch.testing.assert_close(winner.squared, root + paid.gather(1, nearest[:, None])[:, 0])
    log_probs = tree.log_probs[1].gather(1, nearest[:, None])[:, 0]
    torch.testing.assert_close(winner.nll, -log_probs)


def test_the_order_of_siblings_does_not_matter():
    tree, x, region = make_family(40, 4)
    order = torch.tensor([2, 0, 3, 1])
    other = Tree([tree.images[0], tree.leaves[:, order]],
                 [tree.log_probs[0], tree.log_probs[1][:, order]], (4,))  # fmt: skip
    losses = [objective(t, x, 0.2, [Inside(region, PIXELS)], prices(t, x, region))
              for t in (tree, other)]  # fmt: skip
    for name in ("squared", "nll", "entropy"):
        torch.testing.assert_close(*(getattr(loss, name) for loss in losses))
    assert torch.equal(order[losses[1].leaf], losses[0].leaf)


# ---- the walk --------------------------------------------------------------------------------


@pytest.mark.parametrize("trunk", ["unet", "residual"])
def test_the_walk_ends_at_the_truths_node_above_its_level(recipe, trunk):
    changes = ("network.multipliers=[1,2]", "network.attention=[]", "network.blocks=1")
    predictor = make_growing(recipe(*GROWING, f"network.trunk={trunk}", *changes))
    asked = ask_for(predictor, 7)
    path = [nodes for nodes, *_ in follow(predictor, asked, 3, PIXELS)]
    for seed in range(6):
        level = draw_levels(7, 3, seeded(seed))
        assert set(level.tolist()) == {1, 2, 3}
        node, parent = walk(predictor, asked, level, PIXELS)
        for i, number in enumerate(level.tolist()):
            torch.testing.assert_close(node[i], path[number - 1][i])
            torch.testing.assert_close(parent[i], path[max(number - 2, 0)][i])
    for (_, children, winner), below in zip(follow(predictor, asked, 2, PIXELS), path[1:],
                                            strict=True):  # fmt: skip
        far = errors_inside(children.images, asked.x, asked.region, PIXELS)
        assert torch.equal(far.argmin(dim=1), winner)
        assert torch.equal(children.images[torch.arange(7), winner], below)


@pytest.mark.parametrize(("count", "levels"), [(2, 6), (7, 3), (16, 6), (5, 1)])
def test_every_batch_has_each_level_as_often_up_to_one(count, levels):
    total: Counter[int] = Counter()
    for step in range(200):
        drawn = draw_levels(count, levels, seeded(step))
        found = Counter(drawn.tolist())
        total += found
        assert drawn.tolist() == sorted(drawn.tolist(), reverse=True)
        assert set(found) <= set(range(1, levels + 1))
        assert all(abs(found[level] - count / levels) < 1 for level in range(1, levels + 1))
        for processes in (1, 2):
            mine = drawn[processes - 1 :: processes]
            for above in range(1, levels):  # `walk` takes no more along
                assert (mine > above).sum() <= -(-len(mine) * (levels - above) // levels)
    for level in range(1, levels + 1):
        assert total[level] == pytest.approx(200 * count / levels, rel=0.2)


class Kept:
    """Bytes that a way back keeps, weights apart."""

    def __init__(self, predictor: nn.Module) -> None:
        self.own = {p.untyped_storage().data_ptr() for p in predictor.parameters()}
        self.kept: dict[int, Tensor] = {}

    def keep(self, tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in self.own:
            self.kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.kept.values())


def test_what_a_step_keeps_does_not_grow_with_the_depth(recipe):
    """The only thing that is more is the plane of each level in what the network is given."""
    found = {}
    for levels in (2, 8):
        predictor = make_growing(recipe(*GROWING, f"network.levels={levels}"))
        asked, level = ask_for(predictor, 4), draw_levels(4, levels, seeded())
        kept = Kept(predictor)
        with torch.autograd.graph.saved_tensors_hooks(kept.keep, lambda tensor: tensor):
            node, parent = walk(predictor, asked, level, PIXELS)
            leaves = predictor.network(*questions(predictor, asked, node, parent, level))
            tree = family(predictor, leaves, asked.y, node)
            objective(tree, asked.x, 0.1, [Inside(asked.region, PIXELS)]).squared.sum().backward()
        assert not node.requires_grad
        found[levels] = kept.nbytes
    planes = 8 * (8 - 2) * (2 * 4) * 8 * 8
    assert found[8] == found[2] + planes


# ---- regions ---------------------------------------------------------------------------------


def test_regions_are_of_many_sizes_and_inside_what_is_open():
    is_open = torch.zeros(400, 1, 24, 32)
    is_open[:, :, 3:15, 5:29] = 1
    dice = torch.rand(400, DICE, generator=seeded())
    region = draw_regions(dice, is_open, 0.5)
    assert ((region == 0) | (region == 1)).all()
    assert torch.equal(region * is_open, region)
    sizes = region.sum(dim=(1, 2, 3))
    assert sizes.min() >= 1
    whole = sizes == 12 * 24
    assert 160 < whole.sum() < 240
    assert torch.equal(whole, dice[:, 0] >= 0.5)
    assert torch.equal(draw_regions(dice, is_open, 0.0), is_open)
    parts = sizes[~whole].log2().long()
    assert len(parts.unique()) >= 7, "from some pixels to most of them"
    assert torch.equal(draw_regions(dice, is_open, 0.5), region)
    boxes = region[~whole & (dice[:, 1] < 1 / 3), 0]
    for box in boxes:
        rows, columns = box.amax(dim=1), box.amax(dim=0)
        assert torch.equal(box, rows[:, None] * columns), "a box is one"
    assert 40 < len(boxes) < 95
    others = region[~whole & (dice[:, 1] > 1 / 3), 0]
    is_box = [torch.equal(r, r.amax(dim=1)[:, None] * r.amax(dim=0)) for r in others]
    assert sum(is_box) < len(others) / 2


@pytest.mark.parametrize("place", [0.0, 1 - 2**-24])
def test_a_region_has_at_least_one_pixel(place):
    is_open = torch.zeros(2, 1, 8, 8)
    is_open[:, :, 2, 3] = is_open[:, :, 6, 1] = 1
    for kind in (0.2, 0.5, 0.9):
        smallest = torch.tensor([0, kind, place, 1, 1, 0, 0, 0]).expand(2, -1)
        assert draw_regions(smallest, is_open, 0.5).sum() == 2


def test_nothing_of_a_step_waits_for_the_device(recipe):
    """On the meta device, where no number can be read; as in a recorded step."""
    chosen = recipe(*GROWING, "data.channels=3", "measurement.kind=colorize")
    predictor = build_predictor(chosen, device="meta")
    assert isinstance(predictor, GrowingPredictor)
    with torch.device("meta"):
        x = torch.zeros(5, 3, 8, 8)
        whole = open_part(predictor.measurement, x)
        asked = Asked(x, predictor.measure(x), draw_regions(torch.rand(5, DICE), whole, 0.5))
        level = torch.ones(5, dtype=torch.long)
        node, parent = walk(predictor, asked, level, eyes_of("edges"))
        leaves = predictor.network(*questions(predictor, asked, node, parent, level))
    assert family(predictor, leaves, asked.y, node).leaves.shape == (5, 2, 3, 8, 8)


# ---- a run -----------------------------------------------------------------------------------


def make_spots(count: int, seed: int = 0) -> ImageSet:
    """A loud spot on the left and a quiet one on the right of the hidden rows come and go, each by
    itself."""
    comes = (torch.rand(count, 2, generator=seeded(seed)) < 0.5).float()
    x = torch.zeros(count, 1, 8, 8)
    x[:, 0, 1:4, 0:3] = 0.9 * comes[:, 0, None, None]
    x[:, 0, 1:4, 5:8] = 0.5 * comes[:, 1, None, None]
    return ImageSet((255 * x).to(torch.uint8))


LEARNED = ("training.epochs=20", "training.batch_size=16", "optimizer.lr=0.01",
           "optimizer.head_lr=0.01", "loss.epsilon_start=3", "loss.epsilon_scale=1",
           "optimizer.schedule=cosine", "training.average_half_life=0.5")  # fmt: skip


def test_it_learns_to_split_where_it_is_asked(tmp_path, recipe):
    """Of held-out pictures: children are better than their root, and one look at the quiet spot is
    worth more there than one at the whole picture, which the loud one decides."""
    images = make_spots(192), make_spots(64, seed=1)
    chosen = recipe(*GROWING, *LEARNED, "network.levels=2", "tree.depth=2", "seed=0")
    predictor = fit(chosen, tmp_path, images=images, accelerator="cpu")
    assert isinstance(predictor, GrowingPredictor)
    x = images[1].batch(torch.arange(64))[0]
    whole = open_part(predictor.measurement, x)
    quiet = whole * (torch.arange(8) >= 4)
    left: dict[str, list[float]] = {}
    for name, region in (("whole", whole), ("quiet", quiet)):
        asked = Asked(x, predictor.measure(x), region)
        path = [nodes for nodes, *_ in follow(predictor, asked, 3, PIXELS)]
        left[name] = [errors_inside(n[:, None], x, quiet, PIXELS).mean().item() for n in path]
        if name == "whole":
            far = [errors_inside(n[:, None], x, whole, PIXELS).mean().item() for n in path]
            assert far[1] < 0.35 * far[0]
            assert far[2] < 0.6 * far[1]
    assert left["whole"][0] == left["quiet"][0], "the root does not depend on the question"
    assert left["quiet"][1] < 0.3 * left["quiet"][0]
    assert left["whole"][1] > 0.8 * left["whole"][0]
    assert left["whole"][2] < 0.5 * left["whole"][0], "its grandchildren tell the quiet one, too"
    squared = [line["squared"] for line in read_log(tmp_path / "log.jsonl")]
    assert squared[-1] < squared[0] / 4


def test_its_files_commands_and_calibration_are_those_of_any_model(
    tmp_path, recipe, blob_folder, capsys
):
    changes = (*GROWING, "tree.depth=2", "training.calibrate=true", "training.epochs=4",
               "optimizer.lr=0.01", "optimizer.head_lr=0.05", "loss.surprise=0.02",
               "network.head_dropout=0.1", "loss.features=shape")  # fmt: skip
    run, chosen = tmp_path / "run", recipe(*changes)
    options = [word for change in changes for word in ("--set", change)]
    words = ["train", str(blob_folder / "blobs.toml"), "--data", str(blob_folder), "--device"]
    cli.main([*words, "cpu", "--out", str(run), *options])
    assert load_recipe(run) == chosen
    assert parse_resolved(write_recipe(chosen), "it") == chosen
    record = read_facts(run / "best.safetensors")["about"]["calibration"]
    assert len(record["offsets"]) == 2
    assert record["nll_after"][-1] <= record["nll_before"][-1]
    predictor = load(run, "cpu")
    assert isinstance(predictor, GrowingPredictor)
    assert predictor.network.levels == 3
    tree = predictor(predictor.measure(make_blobs(2).batch(torch.arange(2))[0]))
    assert tree.branching == (2, 2)
    y = predictor.measure(make_blobs(1).batch(torch.arange(1))[0])
    growth = predictor.begin(y, region=(1, 1, 2, 2)).grow(nodes=5)
    assert len(growth.nodes) == 5
    line = read_log(run / "log.jsonl")[-1]
    assert len(line["leaf_usage"]) == 2
    assert len(line["val_nll"]) == 3
    place = ["--data", str(blob_folder), "--device", "cpu"]
    cli.main(["evaluate", str(run), *place, "--json", str(tmp_path / "scores.json")])
    table = json.loads((tmp_path / "scores.json").read_text())
    assert table["branching"] == [2, 2]
    assert len(table["psnr_hole"]) == 3
    assert len(table["leaves"]) == 4
    cli.main([*words, "cpu", "--out", str(tmp_path / "dry"), *options, "--dry-run"])
    assert 'kind = "growing"' in (said := capsys.readouterr().out)
    assert f"# {sum(p.numel() for p in predictor.parameters()):,} weights" in said


def test_calibration_finds_the_layer_of_a_nodes_children(recipe):
    predictor = make_growing(recipe(*GROWING)).float()
    y = predictor.measure(torch.rand(1, 1, 8, 8))
    trunk = predictor.network.trunk
    assert find_logits(predictor, y) is trunk.get_submodule("head.layers.6")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("balancer.is_on=true",), r"no one tree .* Set balancer\.is_on=false"),
        (("loss.guided_epochs=1", "loss.conscience=1"),
         r"Set loss\.guided_epochs=0, loss\.conscience=0"),
        (("loss.focus=[0.0, 0.5, 0.0, 1.0]",), r"Set loss\.focus=\[\]"),
        (("loss.surprise=[0.1, 0.2]", "tree.depth=2"), r"loss\.surprise is .* or 1 of them"),
        (("network.trunk=residual", "network.decoder=disjoint"),
         r'network\.trunk "residual" has one decoder'),
        (("network.levels=0",), r"network\.levels is 0; it must be at least 1"),
    ],
)  # fmt: skip
def test_what_needs_one_tree_is_refused(recipe, changes, words):
    with pytest.raises(RecipeError, match=words):
        recipe(*GROWING, *changes)


def test_a_predictor_of_ones_own_grows_as_the_recipe_says(tmp_path, recipe):
    hole = Inpaint.box((0, 4), (0, 7), size=(8, 8))

    def mine(levels: int) -> GrowingPredictor:
        extra = NodeNetwork.extra_channels(1, levels) if levels else 0
        return wrap(nn.Conv2d(1 + extra, 8, 3, padding=1), features=8, channels=1, branching=2,
                    depth=1, levels=levels, measurement=hole)  # fmt: skip

    images = make_blobs(24), make_blobs(8, seed=1)
    fit(recipe(*GROWING), tmp_path, images=images, predictor=mine(3), accelerator="cpu")
    found = load(tmp_path, "cpu", predictor=mine(3))
    assert found.begin(found.measure(torch.rand(1, 1, 8, 8))).grow(nodes=3).children
    for chosen, levels in ((recipe(), 3), (recipe(*GROWING), 0), (recipe(*GROWING), 2)):
        with pytest.raises(InputError, match=f"the predictor grows {levels} levels and the recipe"):
            fit(chosen, tmp_path / "no", images=images, predictor=mine(levels), accelerator="cpu")


def test_leaves_are_named_by_the_question():
    """So that a batch of both kinds comes apart again."""
    images = torch.arange(6.0)[:, None, None, None, None].expand(-1, 2, 1, 8, 8)
    predictor = wrap(nn.Conv2d(12, 8, 1), features=8, channels=1, branching=2, depth=1, levels=6)
    assert isinstance(predictor, GrowingPredictor)
    y, node = torch.zeros(3, 1, 8, 8), torch.full((3, 1, 8, 8), 10.0)
    tree = family(predictor, Leaves(images, torch.zeros(6, 2).log_softmax(dim=1)), y, node)
    assert tree.root[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert (tree.leaves == 10).all(), "children that are alike are their node"


# ---- what the unattended script says of models -----------------------------------------------


@pytest.mark.filterwarnings("ignore:level 4 is deeper")
def test_the_tables_compare_what_they_say(tmp_path, recipe, blob_folder):
    """The path in the whole picture is that of the tree that is grown at once; errors and NLL of a
    one-pass tree are those of its metrics; a model is as good as itself."""
    script = runpy.run_path(str(SCRIPTS / "growing_models.py"))
    found = {}
    for name, changes in (("digits", GROWING), ("digits_tree", GROWING[2:])):
        chosen = recipe(*changes, "tree.depth=2", "network.head_dropout=0.1")
        predictor = build_predictor(chosen).eval()
        for parameter in predictor.parameters():
            nn.init.normal_(parameter, std=0.3, generator=seeded())
        store.write_json(store.make_folder_of(tmp_path / name / "study.json"),
                         [{"epochs": 1, "training_seconds": 2.0, "commit": "abc"}])  # fmt: skip
        save_model(model := tmp_path / name / "blobs.safetensors", predictor, chosen, {})
        file = tmp_path / name / "grown.safetensors"
        script["judge"](model, file, blob_folder, limit=3, device="cpu")
        values, _ = store.read(file)
        images = load_evaluation(chosen.data, blob_folder, "test")
        x = images.batch(torch.arange(len(images)))[0]
        tree = predictor(predictor.measure(x))
        hole = predictor.measurement.hole
        torch.testing.assert_close(script["psnr"](values["whole_error"])[:, :3].float(),
                                   psnr(tree, x, hole))  # fmt: skip
        torch.testing.assert_close(values["whole_nll"][:, :3], nll(tree, x))
        found[name] = values
    assert found["digits"]["box_error"].shape == (8, 4)
    assert found["digits"]["box_by_gain_error"].shape[1] == 1
    assert "seen_error" not in found["digits_tree"]
    is_open = open_part(predictor.measurement, x)
    boxes = script["boxes_of"](torch.arange(8), is_open)
    assert torch.equal(boxes[3:5], script["boxes_of"](torch.arange(3, 5), is_open[3:5]))
    table = script["tables"](tmp_path)
    assert [line.split(" | ")[0] for line in table.splitlines() if "abc" in line] == [
        "| digits", "| digits_tree"
    ]  # fmt: skip
    job = script["read"](tmp_path / "digits")
    assert script["left_in_box"](job, job, "box_error") == (1, 1, 1)
    assert all(gap.mean == 0 for gap in script["gaps"](job, job, "whole_error"))


@pytest.mark.parametrize("file", sorted((SCRIPTS.parents[1] / "recipes" / "growing").iterdir()),
                         ids=lambda file: file.stem)  # fmt: skip
def test_its_recipes_are_those_of_growing_trees_and_of_one_pass_trees_alike(file):
    growing, tree = read_recipe(file), read_recipe(file, ["network.kind=unet"])
    ours, theirs = (build_predictor(chosen, "meta") for chosen in (growing, tree))
    assert isinstance(ours, GrowingPredictor)
    count = [sum(p.numel() for p in predictor.parameters()) for predictor in (ours, theirs)]
    assert count[0] == pytest.approx(count[1], rel=0.1)
    assert f"recipes/growing/{file.name}" in file.read_text(encoding="utf-8")
    assert f"|{file.stem}|" in (SCRIPTS / "growing.sh").read_text(encoding="utf-8")
