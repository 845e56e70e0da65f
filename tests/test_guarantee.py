"""What a tree says it says with a certificate: cuts, balls, intervals, typical inputs, files."""

import math
import sys

import pytest
import torch
from test_growth import make_growing
from tiny import make_blobs

from posterior_trees import Inpaint, Tree, calibrate, grow, load, wrap
from posterior_trees.data import ImageSet
from posterior_trees.errors import GuaranteeError, InputError, MeasureError
from posterior_trees.guarantee import boxes, cuts
from posterior_trees.guarantee.bank import Bank
from posterior_trees.guarantee.boxes import Box, Grid
from posterior_trees.guarantee.certificate import Guarantee
from posterior_trees.guarantee.certify import calibrate_trees, drawn, labels_of
from posterior_trees.guarantee.conformal import quantile
from posterior_trees.guarantee.measures import find_measure

LAYOUTS = [(3, 3), (2,), (2, 3), (4,), (2, 2, 2), (3, 2), ()]


def draw_trees(n: int, branching=(3, 3), seed: int = 0, absent: float = 0.0, shape=(1, 6, 6)):
    """Random trees, some leaves absent, and truths that are one of the leaves and noise."""
    g = torch.Generator().manual_seed(seed)
    leaves = torch.rand(n, math.prod(branching), *shape, generator=g, dtype=torch.float64)
    logits = 2 * torch.randn(n, leaves.shape[1], generator=g, dtype=torch.float64)
    lost = torch.rand(logits.shape, generator=g) < absent
    lost[:, 0] = False
    log_probs = logits.masked_fill(lost, -math.inf).log_softmax(dim=1)
    truth = torch.multinomial(log_probs.exp(), 1, generator=g)[:, 0]
    noise = torch.randn(n, *shape, generator=g, dtype=torch.float64)
    return grow(leaves, log_probs, branching), leaves[torch.arange(n), truth] + 0.1 * noise


def path_of(tree: Tree, x: torch.Tensor) -> list[list[tuple[int, ...]]]:
    """Of each image the paths of all nodes that the truth goes through."""
    return [
        [tree.paths(level)[node] for level, node in enumerate(nodes)]
        for nodes in tree.descend(x).tolist()
    ]


def holds(cut: list[tuple[int, ...]], path: list[tuple[int, ...]]) -> bool:
    return any(node in path for node in cut)


@pytest.mark.parametrize("branching", LAYOUTS)
@pytest.mark.parametrize("nodes", [1, 2, 3, None])
@pytest.mark.parametrize("absent", [0.0, 0.4])
def test_a_cut_above_the_score_holds_the_path(branching, nodes, absent):
    """And right below the score it does not: no smaller score would do."""
    tree, x = draw_trees(10, branching, absent=absent)
    every = cuts.antichains(tree.branching, nodes or 2)
    scores = cuts.score(tree, x, nodes).tolist()
    for i, (score, path) in enumerate(zip(scores, path_of(tree, x), strict=True)):
        masses = cuts.sieve(tree[i], every)[1].unique() / cuts.WHOLE
        between = (masses[1:] + masses[:-1]) / 2
        steps = torch.cat([masses, between, torch.tensor([score])])
        for q in steps[steps >= score].tolist():
            ((paths, _),) = cuts.cut(tree[i], q, nodes)
            assert holds(paths, path)
        if score > 0:
            ((paths, _),) = cuts.cut(tree[i], score - 0.5 / cuts.WHOLE, nodes)
            assert not holds(paths, path)


@pytest.mark.parametrize("branching", LAYOUTS)
@pytest.mark.parametrize("nodes", [1, 3, None])
def test_a_cut_is_an_antichain_with_more_than_the_mass_asked_for(branching, nodes):
    tree, _ = draw_trees(15, branching, absent=0.3)
    for q in (0.0, 0.3, 0.77, 0.99):
        for i, (paths, probs) in enumerate(cuts.cut(tree, q, nodes)):
            assert sum(probs) > q - 1e-6
            assert nodes is None or len(paths) <= nodes
            assert all(p > 0 for p in probs)
            for one in paths:
                assert not any(one != o and o[: len(one)] == one for o in paths)
                assert not tree[i].is_absent(len(one))[0, tree.paths(len(one)).index(one)]


def test_likeliest_leaves_are_nested_and_their_score_is_exact():
    """For nested cuts the path is inside exactly from the score on."""
    tree, x = draw_trees(40)
    for i, path in enumerate(path_of(tree, x)):
        score = cuts.score(tree[i], x[i : i + 1], None).item()
        for q in torch.linspace(0, 1, 41).tolist():
            ((paths, _),) = cuts.cut(tree[i], q, None)
            assert holds(paths, path) == (score <= q)


def test_nothing_finite_is_promised_where_nothing_can_be():
    tree, x = draw_trees(40)
    tree.guarantee = g = calibrate_trees(tree, x, measures={"mean": lambda i: i.mean().item()})
    g.facts["measures"]["mean"]["limits"] = [0.0, 1.0]
    assert g.finest_level < 0.99
    for nodes in (3, None):
        assert [c.paths for c in tree.cut(0.99, nodes)] == [((),)] * len(tree)
    assert tree.ball(0.99).radius.isinf().all()
    for found in (tree.interval("mean", 0.99), tree.interval((0, 0, 3, 3), 0.99, "after")):
        assert found.low.eq(0).all()
        assert found.high.eq(1).all()
    with pytest.raises(GuaranteeError, match=r"99 % needs 99 images"):
        calibrate_trees(tree, x, level=0.99)


def permuted(tree: Tree, seed: int) -> tuple[Tree, dict]:
    """Siblings in another order, and where each path went."""
    g = torch.Generator().manual_seed(seed)
    first, moved = torch.randperm(3, generator=g).tolist(), {(): ()}
    leaves, logs = [], []
    for new, old in enumerate(first):
        moved[(old,)] = (new,)
        for place, child in enumerate(torch.randperm(3, generator=g).tolist()):
            moved[(old, child)] = (new, place)
            leaves.append(tree.leaves[:, 3 * old + child])
            logs.append(tree.log_probs[-1][:, 3 * old + child])
    return grow(torch.stack(leaves, 1), torch.stack(logs, 1), (3, 3)), moved


def test_permuting_children_permutes_the_cut():
    tree, x = draw_trees(30, absent=0.2)
    other, moved = permuted(tree, 1)
    for nodes in (1, 3, None):
        assert torch.equal(cuts.score(tree, x, nodes), cuts.score(other, x, nodes))
        for q in (0.0, 0.4, 0.8, 0.95):
            pairs = zip(cuts.cut(tree, q, nodes), cuts.cut(other, q, nodes), strict=True)
            for (paths, _), (others, _) in pairs:
                assert {moved[path] for path in paths} == set(others)


def test_the_order_of_images_changes_nothing():
    tree, x = draw_trees(60)
    names = [f"a{i // 3}" for i in range(60)]
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    options = {"measures": {"top": lambda i: i[0, 0].mean().item()}}
    one = calibrate_trees(tree, x, names, **options)
    other = calibrate_trees(tree[order], x[order], [names[i] for i in order], **options)
    assert one.facts == other.facts
    for name, tensor in one.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def test_another_file_moves_no_other_group_between_folds():
    names = [f"p{i}" for i in range(300)]
    before = drawn(names, 0)
    assert 70 < before.sum() < 130
    assert torch.equal(drawn(["new", *names], 0)[1:], before)
    assert not torch.equal(drawn(names, 1), before)


def test_windows_of_a_file_and_fields_of_a_well_are_held_together():
    names = ["a/E01_s1.png@0,0", "a/E01_s1.png@0,8", "a/E01_s2.png@0,0"]
    assert labels_of(names, "file") == ["a/E01_s1.png", "a/E01_s1.png", "a/E01_s2.png"]
    assert labels_of(names, "well") == ["a/E01"] * 3
    assert labels_of(names, "image") == names
    with pytest.raises(GuaranteeError, match="3 images and 1 groups"):
        labels_of(names, ["x"])
    with pytest.raises(GuaranteeError, match="'plate'"):
        labels_of(names, "plate")


@pytest.mark.parametrize("is_grouped", [False, True])
def test_promises_hold_on_new_images(is_grouped):
    """5,000 images, half of them calibrate: 90 % within what 2,500 new ones can show."""
    tree, x = draw_trees(5000)
    half, new = slice(0, 2500), slice(2500, 5000)
    names = [f"g{i // 5}" for i in range(2500)] if is_grouped else None
    measures = {"ink": find_measure("ink"), "top": lambda i: i[..., :2, :].max().item()}
    tree.guarantee = calibrate_trees(tree[half], x[half], names, measures, (3, 3))
    judged, truth = tree[new], x[new]
    assert judged.guarantee is tree.guarantee
    paths = path_of(judged, truth)
    shares = {}
    for nodes in (3, None):
        found = judged.cut(0.9, nodes)
        inside = [holds(list(c.paths), p) for c, p in zip(found, paths, strict=True)]
        shares[f"cut {nodes}"] = sum(inside) / 2500
    errors = (judged.leaves - truth[:, None]).square().flatten(2).mean(2).amin(1).sqrt()
    shares["ball"] = (errors <= judged.ball(0.9).radius).double().mean().item()
    for name, measure in measures.items():
        value = torch.tensor([measure(image) for image in truth], dtype=torch.float64)
        found = judged.interval(name, 0.9)
        shares[name] = ((found.low <= value) & (value <= found.high)).double().mean().item()
    assert all(0.875 < share < 0.925 for share in shares.values()), shares


def test_a_box_chosen_after_looking_is_inside_as_often_as_promised():
    """An interval for one box alone is not: there are nine to choose from."""
    tree, x = draw_trees(4000, shape=(1, 9, 9))
    x = x.clamp(0, 1)
    tree.guarantee = calibrate_trees(tree[:2000], x[:2000], box=(3, 3), measures=["box=0,0,3,3"])
    grid, judged, truth = tree.guarantee.grid, tree[2000:], x[2000:]
    found = [judged.interval((row, column, 3, 3), 0.9, "after")
             for row in range(7) for column in range(7)]  # fmt: skip
    means = grid.means(truth)
    inside = torch.stack([
        (f.low <= m + 1e-12) & (m <= f.high + 1e-12)
        for f, m in zip(found, means.T, strict=True)
    ])  # fmt: skip
    assert inside.all(dim=0).double().mean().item() == pytest.approx(0.9, abs=0.025)
    single = judged.interval((0, 0, 3, 3), 0.9)
    assert single.of == "box=0,0,3,3"
    assert (single.high - single.low).mean() < 0.8 * (found[0].high - found[0].low).mean()


def test_all_boxes_hold_every_scaled_interval_of_one_box():
    """The quantile of a maximum is at least that of each of its parts."""
    tree, x = draw_trees(200, shape=(1, 9, 9))
    x = x.clamp(0, 1)
    g = calibrate_trees(tree, x, box=(3, 3))
    fits = drawn([f"{i:06d}" for i in range(200)], 0)
    mean, variance = boxes.moments(tree[~fits], g.grid)
    scaled = (g.grid.means(x[~fits]) - mean).abs() / (variance + g.fitted["boxes"]).sqrt()
    for level in (0.5, 0.8, 0.9):
        q = g.scores["boxes"].quantile(level) + 1e-6
        assert all(quantile(scaled[:, box], level) <= q for box in range(scaled.shape[1]))


def test_a_drawn_box_becomes_boxes_of_the_grid_side_by_side():
    grid = Grid.of(Box(2, 0, 20, 28), (6, 6))
    assert grid.counts == (8, 12)
    assert grid.fill(Box(2, 0, 6, 6)) == ([0], Box(2, 0, 6, 6))
    numbers, taken = grid.fill(Box(5, 3, 13, 5))
    assert taken == Box(6, 2, 12, 6)
    assert numbers == [2 * 12 + 1, 5 * 12 + 1]
    image = torch.rand(1, 1, 24, 28).mul(255).round() / 255
    means = grid.means(image)[0, numbers].mean()
    assert means == pytest.approx(image[..., 6:18, 2:8].mean().item(), abs=1e-6)
    assert grid.fill(Box(0, 0, 99, 99))[1] == Box(2, 2, 18, 24)
    with pytest.raises(MeasureError, match="boxes of 9×9 do not fit"):
        Grid.of(Box(0, 0, 8, 8), (9, 9))


def test_measures_are_found_by_name():
    image = torch.zeros(1, 4, 4)
    image[0, 1:3, 1] = 1.0
    assert find_measure("ink")(image) == pytest.approx(2 / 16)
    assert find_measure("share=0.5")(image) == pytest.approx(2 / 16)
    assert find_measure("box=1,1,2,1")(image) == 1.0
    assert find_measure("statistics:mode") is __import__("statistics").mode
    for wrong in ("share", "box=1,2", "spots"):
        with pytest.raises(MeasureError, match=r"share=LEVEL|share=0\.5"):
            find_measure(wrong)
    with pytest.raises(InputError, match="write MODULE:FUNCTION"):
        find_measure("no_such_module:f")
    with pytest.raises(MeasureError, match="leaves the image, 4×4"):
        find_measure("box=2,2,4,4")(image)


def test_a_measure_that_fails_on_one_picture_names_it():
    images = make_blobs(40)
    predictor = make_predictor()
    bad = images.x[7].float() / 255

    def picky(image):
        if torch.allclose(image, bad):
            raise KeyError("no nucleus")
        return 1.0

    with pytest.raises(MeasureError, match=r"'picky' fails of 7: KeyError"):
        calibrate(predictor, images, measures={"picky": picky})
    with pytest.raises(MeasureError, match="gave nan"):
        calibrate(predictor, images, measures={"m": lambda i: math.nan})


def make_predictor(seed: int = 0, hole_rows: int = 5):
    torch.manual_seed(seed)
    hole = torch.zeros(8, 8, dtype=torch.bool)
    hole[:hole_rows] = True
    backbone = torch.nn.Conv2d(1, 6, 3, padding=1)
    made = wrap(backbone, features=6, channels=1, branching=2, depth=2, measurement=Inpaint(hole))
    return made.eval()


@pytest.fixture(scope="module")
def certified():
    predictor = make_predictor()
    predictor.guarantee = calibrate(predictor, make_blobs(120), measures=["ink"], bank=60)
    return predictor


def test_a_wrapped_backbone_can_be_certified(certified):
    x, _ = make_blobs(5, seed=9).batch(range(5))
    tree = certified(certified.measure(x))
    assert len(tree.cut(0.9)) == 5
    assert tree[2].ball(0.9).radius.shape == (1,)
    assert tree.interval("ink").low.shape == (5,)
    found = tree.cut(0.9)[0]
    assert found.groups is None
    assert found.n == certified.guarantee.n
    assert certified.typical(certified.measure(x)).gt(0.02).all()
    inverted = 1 - certified.measure(x)
    assert certified.typical(inverted).max() < 0.05


def test_a_growing_predictor_can_be_certified_and_what_it_grows_is_not():
    """Its network is asked at every node; how typical an input is, the root's question tells."""
    predictor = make_growing().float()
    images = ImageSet(torch.randint(256, (60, 3, 20, 24), dtype=torch.uint8))
    predictor.guarantee = calibrate(predictor, images, box=(3, 3))
    x, _ = images.batch(range(60))
    y = predictor.measure(x)
    assert predictor(y).cut(0.8)[0].n == predictor.guarantee.n
    assert predictor(y).interval((4, 4, 3, 3), 0.8, chosen="after").low.shape == (60,)
    assert 0.3 < predictor.typical(y).mean() < 0.7
    with pytest.raises(GuaranteeError, match="not about what was grown"):
        predictor.begin(y[:1]).grow(nodes=7).tree().cut(0.8)


def test_promises_get_lost_with_other_images_and_are_not_there_in_training(certified):
    x, _ = make_blobs(3, seed=9).batch(range(3))
    tree = certified(certified.measure(x))
    for lost in (tree.map_images(lambda level: level[..., :4]), make_predictor()(x)):
        with pytest.raises(GuaranteeError, match="run ptrees calibrate"):
            lost.cut(0.9)
    certified.train()
    try:
        assert certified(certified.measure(x)).guarantee is None
    finally:
        certified.eval()


def test_a_guarantee_is_refused_by_other_weights_dtypes_and_holes(certified):
    g = certified.guarantee
    flat = make_predictor()
    flat.branching = (4,)
    others = [make_predictor(1), make_predictor(hole_rows=4), make_predictor().double(), flat]
    for other in others:
        with pytest.raises(GuaranteeError, match="another predictor"):
            other.guarantee = g
    same = make_predictor()
    same.guarantee = g
    x, _ = make_blobs(2, seed=9).batch(range(2))
    y = same.measure(x)
    assert same(y).cut(0.9)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(GuaranteeError, match="dtype"):
        same(y).cut(0.9)
    assert same(y).cut(0.9)
    with torch.no_grad():
        next(same.network.parameters()).add_(0.1)
    with pytest.raises(GuaranteeError, match="another predictor"):
        same(y).cut(0.9)
    with pytest.raises(GuaranteeError, match="another predictor"):
        same.typical(y)
    same.guarantee = None
    assert same(y).guarantee is None


def test_functions_nobody_foresaw_need_a_bank(certified, tmp_path):
    x, _ = make_blobs(4, seed=9).batch(range(4))
    tree = certified(certified.measure(x))
    found = tree.interval(lambda image: image[..., :4, :].max().item(), 0.8)
    assert found.n < 60
    assert (found.low <= found.high).all()
    bank = certified.guarantee.bank
    bank.save(tmp_path / "bank.safetensors")
    again = Bank.load(tmp_path / "bank.safetensors")
    assert torch.equal(again.leaves, bank.leaves)
    certified.guarantee.bank = None
    with pytest.raises(MeasureError, match="--bank N"):
        tree.interval(lambda image: 0.0)
    certified.guarantee.bank = again._replace(prints="other")
    with pytest.raises(GuaranteeError, match="bank is of another predictor"):
        tree.interval(lambda image: 0.0)
    certified.guarantee.bank = bank
    for name in ("ink?", (0, 0, 2, 2)):
        with pytest.raises(MeasureError, match=r"named when calibrating|nothing is promised"):
            tree.interval(name, 0.9)


def test_a_certificate_is_read_back_bit_for_bit(certified, tmp_path):
    g = certified.guarantee
    again = Guarantee.of(g.tensors(), g.facts)
    x, _ = make_blobs(4, seed=9).batch(range(4))
    tree = certified(certified.measure(x))
    for level in (0.5, 0.9):
        assert again.cut(tree, level) == g.cut(tree, level)
        assert torch.equal(again.ball(tree, level).radius, g.ball(tree, level).radius)
        assert torch.equal(again.interval(tree, "ink", level).low, tree.interval("ink", level).low)
    g.save(tmp_path / "mine.guarantee")
    same = make_predictor()
    same.guarantee = Guarantee.load(tmp_path / "mine.guarantee")
    assert same(certified.measure(x)).cut(0.9) == g.cut(tree, 0.9)
    tree.save(tmp_path / "tree.safetensors")
    with pytest.raises(GuaranteeError, match=r"is no guarantee: Guarantee\.save"):
        Guarantee.load(tmp_path / "tree.safetensors")
    with pytest.raises(GuaranteeError, match="upgrade"):
        Guarantee.of(g.tensors(), g.facts | {"guarantee": 99})
    foreign = g.facts["measures"]["ink"] | {"source": "antigravity:fly"}
    foreign = Guarantee.of(g.tensors(), g.facts | {"measures": {"ink": foreign}})
    with pytest.raises(MeasureError, match="no file brings along"):
        foreign.interval(tree, "ink", 0.9)
    assert foreign.for_page(tree[0])["intervals"] == {}
    assert "antigravity" not in sys.modules


def test_trees_that_are_not_finite_are_refused():
    broken = make_predictor()
    with torch.no_grad():
        next(broken.network.parameters())[0] = math.nan
    with pytest.raises(GuaranteeError, match=r"trees of 40 images are not finite, first that of 0"):
        calibrate(broken, make_blobs(40))


def test_fields_of_a_well_are_held_together_where_the_recipe_kept_wells_whole():
    images = ImageSet(make_blobs(90).x, names=[f"E{i // 3:02d}_s{i}.png" for i in range(90)])
    predictor = make_predictor()
    assert calibrate(predictor, images).groups is None
    predictor.about["kept_whole"] = "well"
    assert calibrate(predictor, images).groups == sum(not fits for fits in drawn(
        [f"E{i:02d}" for i in range(30)], 0))  # fmt: skip
    assert load("cells", "cpu").about["kept_whole"] == "well"


def test_too_few_images_or_groups_are_refused():
    images = make_blobs(40)
    with pytest.raises(GuaranteeError, match=r"0 images to calibrate on"):
        calibrate(make_predictor(), images.subset([]))
    with pytest.raises(GuaranteeError, match=r"in 2 groups.* --fit SPLIT"):
        calibrate(make_predictor(), images, ["a"] * 10 + ["b"] * 10 + ["c"] * 20)
    wells = ImageSet(images.x, names=[f"E{i // 2:02d}_s{i}.png" for i in range(40)])
    with pytest.raises(GuaranteeError, match=r"95 % is finer than 1\d wells allow: .* 19 wells"):
        calibrate(make_predictor(), wells, "well", level=0.95,
                  watch=lambda _: pytest.fail("predicted before"))  # fmt: skip


def test_images_that_fit_the_scales_leave_all_groups_for_scores():
    images = make_blobs(40)
    names = [f"w{i % 8}" for i in range(40)]
    g = calibrate(make_predictor(), images, names, fit=make_blobs(30, seed=5), bank=20)
    assert (g.n, g.groups) == (40, 8)
    assert g.bank is not None
    assert len(g.bank.groups) == 20


def test_trained_images_are_refused_by_name():
    from posterior_trees.data import fingerprint

    images, predictor = make_blobs(40), make_predictor()
    predictor.about["train_names"] = fingerprint(images.names)
    windows = ImageSet(images.x, names=[f"{name}@0,8" for name in images.names])
    for known in (images, windows):
        with pytest.raises(GuaranteeError, match="trained on"):
            calibrate(predictor, known)
    again = ImageSet(images.x, names=[f"new{i}" for i in range(40)])
    assert calibrate(predictor, again).n > 10


@pytest.mark.slow
def test_digits_are_covered_as_promised():
    """The shipped model, 5,000 test digits calibrate and 5,000 are judged."""
    from posterior_trees.data import load_evaluation
    from posterior_trees.models.checkpoint import load_recipe

    predictor = load("digits")
    images = load_evaluation(load_recipe("digits").data, None, "test")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    g = calibrate(predictor, images.subset(order[:5000]), measures=["ink"])
    predictor.guarantee = g
    counts = torch.zeros(3)
    for part in order[5000:].split(500):
        x, _ = images.batch(part)
        with torch.inference_mode():
            tree = predictor(predictor.measure(x))
        paths = path_of(tree, x)
        counts[0] += sum(holds(list(c.paths), p) for c, p in zip(tree.cut(), paths, strict=True))
        hole = predictor.measurement.hole
        errors = (tree.leaves - x[:, None])[..., hole].square().flatten(2).mean(2).amin(1).sqrt()
        counts[1] += (errors <= tree.ball().radius).sum()
        ink, found = x.double().mean(dim=(1, 2, 3)), tree.interval("ink")
        counts[2] += ((found.low <= ink) & (ink <= found.high)).sum()
    assert ((counts / 5000 > 0.88) & (counts / 5000 < 0.92)).all(), counts


def test_a_field_of_tiles_has_no_promise_but_may_be_calibrated_as_such():
    """Fields are drawn by wells; what is calibrated is what runs, tiles and all."""
    from posterior_trees.pictures.tiles import predict_tiled

    torch.manual_seed(0)
    backbone = torch.nn.Conv2d(1, 6, 3, padding=1)
    predictor = wrap(backbone, features=6, channels=1, branching=2, depth=2).eval()
    x = torch.rand(24, 1, 40, 40, generator=torch.Generator().manual_seed(0))
    tiny = ImageSet(
        (255 * torch.rand(60, 1, 24, 24)).byte(), (255 * torch.rand(60, 1, 24, 24)).byte()
    )
    predictor.guarantee = calibrate(predictor, tiny)
    field, _ = predict_tiled(predictor, x[:1], tile=24, overlap=8)
    with pytest.raises(GuaranteeError, match="field of tiles: calibrate on fields"):
        field.cut()
    trees = [predict_tiled(predictor, y[None], tile=24, overlap=8)[0] for y in x]
    fields = grow(
        torch.cat([tree.leaves for tree in trees]),
        torch.cat([tree.log_probs[-1] for tree in trees]),
        predictor.branching,
    )
    fields.guarantee = calibrate_trees(fields, x, [f"well {i // 2}" for i in range(24)])
    assert fields.cut(0.8)[0].groups is not None
