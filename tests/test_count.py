"""Counting nuclei: known numbers in known places, their odds, and a microscopist's command."""

import csv
import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Tree, cli, grow
from posterior_trees.imaging.regions import find_regions, label, otsu
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import save_model
from posterior_trees.pictures.nuclei import blocks
from posterior_trees.pictures.nuclei.count import count_nuclei
from posterior_trees.pictures.nuclei.report import count_table, per_leaf, write_count
from posterior_trees.pictures.tiles import Part
from posterior_trees.recipe import parse_recipe

A, B, C = (12, 10), (12, 40), (30, 25)
PROBS = (0.5, 0.2, 0.2, 0.1)


def field(*centres: tuple[int, int], radius: float = 4.5, bright: float = 0.7) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(44), torch.arange(56), indexing="ij")
    image = torch.full((1, 44, 56), 0.15, dtype=torch.float64)
    for row, column in centres:
        image[0][(rows - row) ** 2 + (columns - column) ** 2 <= radius**2] = bright
    return image


def tree_of(*leaves: torch.Tensor, probs: tuple[float, ...] = PROBS) -> Tree:
    return grow(torch.stack(leaves)[None], torch.tensor([probs]).double().log(), 2)


@pytest.fixture
def doubtful() -> Tree:
    """A is in all four leaves, B in leaves 0.0 and 1.0 (0.7), C in the last one (0.1)."""
    return tree_of(field(A, B), field(A), field(A, B), field(A, C))


def test_count_and_spread_are_those_of_the_leaves(doubtful: Tree) -> None:
    count = count_nuclei(doubtful)
    assert [leaf.nuclei for leaf in count.leaves] == [2, 1, 2, 2]
    assert [leaf.path for leaf in count.leaves] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [leaf.probability for leaf in count.leaves] == pytest.approx(PROBS)
    assert count.mean == pytest.approx(0.8 * 2 + 0.2 * 1)
    assert count.spread == pytest.approx(math.sqrt(0.8 * 0.2**2 + 0.2 * 0.8**2))
    pixels = int((field(A) > 0.5).sum())
    assert [leaf.bright_pixels for leaf in count.leaves] == [2 * pixels, pixels] + [2 * pixels] * 2


def test_nuclei_in_doubt_have_their_places_and_odds(doubtful: Tree) -> None:
    count = count_nuclei(doubtful)
    assert [(n.row, n.column) for n in count.nuclei] == [A, B, C]
    assert [n.probability for n in count.nuclei] == pytest.approx([1.0, 0.7, 0.1])
    assert [n.leaves for n in count.uncertain] == [((0, 0), (1, 0)), ((1, 1),)]


def test_the_expected_count_is_the_sum_of_the_nuclei_s_odds(doubtful: Tree) -> None:
    """E n = Σ P(nucleus), if every nucleus is told from the others."""
    count = count_nuclei(doubtful)
    assert count.mean == pytest.approx(sum(n.probability for n in count.nuclei))


def test_the_order_of_siblings_does_not_matter(doubtful: Tree) -> None:
    swapped = tree_of(field(A, C), field(A, B), field(A), field(A, B), probs=(0.1, 0.2, 0.2, 0.5))
    one, other = count_nuclei(doubtful), count_nuclei(swapped)
    assert (one.mean, one.spread) == pytest.approx((other.mean, other.spread))
    key = [(n.row, n.column, round(n.probability, 9)) for n in one.nuclei]
    assert key == [(n.row, n.column, round(n.probability, 9)) for n in other.nuclei]


def test_a_nucleus_that_moves_a_little_is_the_same_one() -> None:
    moved = (A[0] + 1, A[1] + 2)
    count = count_nuclei(tree_of(field(A), field(moved), field(A), field(moved)))
    assert len(count.nuclei) == 1
    assert not count.uncertain
    far = (A[0], A[1] + 8)
    count = count_nuclei(tree_of(field(A), field(far), field(A), field(A)))
    assert [n.probability for n in count.nuclei] == pytest.approx([0.8, 0.2])


@pytest.mark.parametrize(("first", "then"), [(4.5, 8.5), (8.5, 4.5)])
def test_a_nucleus_that_grows_or_shrinks_is_the_same_one(first: float, then: float) -> None:
    """Its area changes more than threefold, so that it covers less than half of the larger."""
    one, other = field(C, radius=first), field(C, radius=then)
    assert abs(math.log((one > 0.5).sum() / (other > 0.5).sum())) > math.log(3)
    count = count_nuclei(tree_of(one, one, one, other))
    assert [(n.row, n.column, n.probability) for n in count.nuclei] == [(*C, pytest.approx(1.0))]
    assert count.nuclei[0].pixels == int((one > 0.5).sum())
    assert not count.uncertain
    count = count_nuclei(tree_of(one, field(), one, other))
    assert [n.probability for n in count.nuclei] == pytest.approx([0.8])


LEFT, RIGHT = (20, 15), (20, 27)


def joined(width: int = 9) -> torch.Tensor:
    """Two nuclei with a bridge of that many pixels, which are one region."""
    image = field(LEFT, RIGHT)
    image[0, 20 - width // 2 : 21 + width // 2, 15:27] = 0.7
    return image


def test_a_region_over_two_nuclei_is_no_third_one() -> None:
    grown = joined()
    grown[0, 8:33, 4:38] = 0.7  # so large that the two are less than half of it
    for large in (joined(), grown):
        assert find_regions(large[0] > 0.5, 25).max() == 1
        count = count_nuclei(tree_of(*[field(LEFT, RIGHT)] * 3, large))
        assert [(n.row, n.column) for n in count.nuclei] == [LEFT, RIGHT]
        assert [n.probability for n in count.nuclei] == pytest.approx([1.0, 1.0])


def test_a_nucleus_that_is_two_in_other_leaves_is_in_those_too() -> None:
    count = count_nuclei(tree_of(joined(), field(LEFT), field(RIGHT), field()))
    assert [n.leaves for n in count.nuclei] == [((0, 0), (0, 1), (1, 0))]
    assert [n.probability for n in count.nuclei] == pytest.approx([0.9])


def test_a_nucleus_seen_apart_in_any_leaf_is_listed() -> None:
    """The last leaf has one region over LEFT, of the first two, and RIGHT, of the third."""
    count = count_nuclei(tree_of(field(LEFT), field(LEFT), field(RIGHT), joined()))
    assert [(n.row, n.column) for n in count.nuclei] == [LEFT, RIGHT]
    assert [n.probability for n in count.nuclei] == pytest.approx([0.8, 0.3])


def test_a_leaf_that_comes_twice_changes_nothing() -> None:
    """Random nuclei of all sizes: a leaf as two halves of its probability gives the same nuclei and
    the same odds, and each leaf with regions shows some of them."""
    generator = torch.Generator().manual_seed(3)

    def random_field() -> torch.Tensor:
        image = field()
        for row, column, size in torch.rand(6, 3, generator=generator).tolist():
            image = image.maximum(field((int(44 * row), int(56 * column)), radius=3.2 + 6 * size))
        return image

    for _ in range(20):
        leaves = [random_field() for _ in range(4)]
        once = count_nuclei(tree_of(*leaves), 0.5)
        halves = torch.tensor([PROBS]).double().repeat_interleave(2, dim=1).div(2).log()
        pairs = torch.stack(leaves)[None].repeat_interleave(2, dim=1)
        twice = count_nuclei(grow(pairs, halves, 2), 0.5)
        assert [n[:3] for n in once.nuclei] == [n[:3] for n in twice.nuclei]
        odds = [n.probability for n in once.nuclei]
        assert odds == pytest.approx([n.probability for n in twice.nuclei])
        showing = {path for n in once.nuclei for path in n.leaves}
        assert showing == {leaf.path for leaf in once.leaves if leaf.nuclei}


def test_an_absent_leaf_is_not_counted() -> None:
    tree = tree_of(field(A), field(A, B), field(A, B, C), field(A), probs=(0.5, 0.5, 0.0, 0.0))
    count = count_nuclei(tree)
    assert [leaf.path for leaf in count.leaves] == [(0, 0), (0, 1)]
    assert (count.mean, len(count.nuclei)) == (1.5, 2)
    assert per_leaf(count, tree) == {"nuclei": [1, 2, None, None]}


def test_an_empty_field_has_no_nuclei() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = [field() + 0.02 * torch.randn(1, 44, 56, generator=generator) for _ in range(4)]
    count = count_nuclei(tree_of(*noise))
    assert (count.mean, count.spread, count.nuclei) == (0.0, 0.0, [])
    faint = [field(A, B, bright=0.18)] * 4  # what Otsu would part from the ground
    assert otsu(faint[0]) < 0.18
    assert count_nuclei(tree_of(*faint)).nuclei == []


def test_a_threshold_of_one_s_own_is_used() -> None:
    tree = tree_of(field(A), field(A), field(A), field(B, bright=0.4))
    assert count_nuclei(tree, 0.5).leaves[-1].nuclei == 0
    assert count_nuclei(tree, 0.3).leaves[-1].nuclei == 1
    assert count_nuclei(tree, 0.3).threshold == 0.3


def test_otsu_parts_two_classes_as_trying_all_thresholds_does() -> None:
    generator = torch.Generator().manual_seed(1)
    dark = 0.25 + 0.06 * torch.randn(3000, generator=generator)
    light = 0.65 + 0.09 * torch.randn(800, generator=generator)
    values = torch.cat([dark, light]).double().clamp(0, 1)

    def between(t: float) -> float:
        below, above = values[values < t], values[values >= t]
        share = len(below) / len(values)
        return share * (1 - share) * (above.mean() - below.mean()).item() ** 2

    best = max((between(t / 256), t / 256) for t in range(60, 200))
    assert between(otsu(values)) == pytest.approx(best[0], rel=1e-3)
    assert otsu(values) == pytest.approx(best[1], abs=2 / 256)
    assert 0.3 < otsu(torch.tensor([0.2] * 9 + [0.8])) < 0.7


def test_specks_are_no_nuclei_and_touching_nuclei_are_two() -> None:
    specks = field(A, B, radius=2.0)[0] > 0.5
    assert find_regions(specks, smallest=25).max() == 0
    touching = field((20, 20), (20, 28))[0] > 0.5
    assert label(touching).max() == 1
    found = find_regions(touching, 25)
    assert found.max() == 2
    assert torch.equal(found > 0, touching)  # what was taken off grows back
    assert (found[20, 20], found[20, 28]) == (1, 2)


@pytest.mark.parametrize("shape", [(2, 4, 1, 8, 8), (1, 4, 3, 8, 8)])
def test_only_one_grey_tree_is_counted(shape: tuple[int, ...]) -> None:
    tree = grow(torch.rand(shape), torch.full(shape[:2], 0.25).log(), 2)
    with pytest.raises(ValueError, match=r"one tree of grey images.*take tree\[i\]"):
        count_nuclei(tree)


def test_json_and_csv_say_the_same(doubtful: Tree, tmp_path: Path) -> None:
    count = count_nuclei(doubtful)
    write_count(count, doubtful, tmp_path)
    facts = json.loads((tmp_path / "count.json").read_text())
    assert (facts["schema"], facts["mean"], facts["spread"]) == (1, count.mean, count.spread)
    leaves = list(csv.DictReader((tmp_path / "count_leaves.csv").open()))
    assert [int(row["nuclei"]) for row in leaves] == [leaf["nuclei"] for leaf in facts["leaves"]]
    assert [row["path"] for row in leaves] == ["0.0", "0.1", "1.0", "1.1"]
    nuclei = list(csv.DictReader((tmp_path / "count_nuclei.csv").open()))
    assert [float(row["probability"]) for row in nuclei] == [
        nucleus["probability"] for nucleus in facts["nuclei"]
    ]
    assert nuclei[1]["leaves"] == "0.0 1.0"
    with Image.open(tmp_path / "count.png") as picture:
        assert picture.size == (3 * 56, 3 * 44)


# --- tiles ----------------------------------------------------------------------------------------


def mosaic(
    *leaves: torch.Tensor, left: tuple[float, ...], right: tuple[float, ...]
) -> tuple[Tree, list[Part]]:
    """A tree of two tiles that meet in column 30, each with probabilities of its own."""
    mean = [(a + b) / 2 for a, b in zip(left, right, strict=True)]
    parts = [
        Part(slice(0, 44), columns, torch.tensor(probs, dtype=torch.float64))
        for columns, probs in ((slice(0, 30), left), (slice(30, 56), right))
    ]
    return tree_of(*leaves, probs=tuple(mean)), parts


def test_tiles_that_vary_on_their_own_add_their_means_and_variances() -> None:
    """All 16 pairs of leaves, one for each tile: A is at the left, B at the right."""
    left, right = (0.4, 0.3, 0.2, 0.1), (0.1, 0.1, 0.1, 0.7)
    shown = [(A, B), (A,), (B,), ()]
    tree, parts = mosaic(*[field(*nuclei) for nuclei in shown], left=left, right=right)
    count = count_nuclei(tree, parts=parts)
    assert per_leaf(count, tree) == {}  # no leaf has the field's count
    pairs = [
        (p * q, (A in a) + (B in b))
        for p, a in zip(left, shown, strict=True)
        for q, b in zip(right, shown, strict=True)
    ]
    mean = sum(p * n for p, n in pairs)
    assert count.tiles == 2
    assert count.mean == pytest.approx(mean)
    assert count.spread == pytest.approx(math.sqrt(sum(p * (n - mean) ** 2 for p, n in pairs)))
    odds = {(n.row, n.column): n.probability for n in count.nuclei}
    assert odds == pytest.approx({A: 0.7, B: 0.2})  # of the tile that each is in
    assert count.mean == pytest.approx(sum(odds.values()))


def test_tiles_in_the_same_leaf_are_spread_as_the_whole_fields_are() -> None:
    leaves = [field(A, B), field(A), field(B), field()]
    tree, parts = mosaic(*leaves, left=PROBS, right=PROBS)
    count = count_nuclei(tree, parts=parts)
    plain = count_nuclei(tree_of(*leaves))
    assert (count.mean, count.spread_together) == pytest.approx((plain.mean, plain.spread))
    assert plain.tiles == 1
    assert plain.spread == pytest.approx(plain.spread_together)
    assert count.spread < plain.spread  # 2 and 0 nuclei are rarer than in one leaf for both


def test_a_nucleus_on_the_seam_is_counted_once() -> None:
    seam = field((20, 30))
    tree, parts = mosaic(*[seam] * 4, left=PROBS, right=PROBS[::-1])
    count = count_nuclei(tree, parts=parts)
    assert (count.mean, count.spread, len(count.nuclei)) == (pytest.approx(1), pytest.approx(0), 1)


def test_the_table_of_a_mosaic_says_what_its_spread_means(tmp_path: Path) -> None:
    tree, parts = mosaic(*[field(A, B)] * 3, field(), left=PROBS, right=PROBS)
    write_count(count_nuclei(tree, parts=parts), tree, tmp_path)
    facts = json.loads((tmp_path / "count.json").read_text())
    assert facts["tiles"] == 2
    caption = str(count_table(facts, "").caption)
    assert "2 tiles that vary on their own, if all were in the same leaf: ± 0.6" in caption


# --- blocks ---------------------------------------------------------------------------------------


def test_blocks_find_what_the_whole_picture_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nuclei everywhere, on edges and corners of blocks too, in leaves that differ: the same nuclei
    with the same odds and pixels, numbered block by block."""
    monkeypatch.setattr(blocks, "HALO", 20)
    generator = torch.Generator().manual_seed(5)
    leaves = []
    for _ in range(4):
        image = torch.full((1, 176, 224), 0.15, dtype=torch.float64)
        for top, left in itertools.product(range(0, 176, 22), range(0, 224, 28)):
            if torch.rand((), generator=generator) < 0.8:
                radius = 3.6 + 3 * torch.rand((), generator=generator).item()
                image[:, top : top + 22, left : left + 28] = field((11, 14), radius=radius)[
                    :, :22, :28
                ]
        leaves.append(image)
    tree = tree_of(*leaves)
    parts = [Part(slice(0, 176), slice(a, a + 112), torch.tensor(PROBS)) for a in (0, 112)]
    once = count_nuclei(tree, parts=parts)
    in_blocks = count_nuclei(tree, parts=parts, block=47)
    assert len(once.nuclei) > 60
    assert sorted(in_blocks.nuclei) == sorted(once.nuclei)
    assert in_blocks[:6] == pytest.approx(once[:6])
    assert in_blocks.leaves == once.leaves
    number = {nucleus: i for i, nucleus in enumerate(once.nuclei, start=1)}
    order = torch.tensor([0, *[number[nucleus] for nucleus in in_blocks.nuclei]])
    assert torch.equal(order[in_blocks.labels], once.labels)
    corners = [(n.row // 47, n.column // 47) for n in in_blocks.nuclei]
    assert corners == sorted(corners)
    assert in_blocks.nuclei != once.nuclei


def test_a_pixel_that_two_blocks_claim_is_the_first_one_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a halo a nucleus on an edge is two, and each pixel one's."""
    monkeypatch.setattr(blocks, "HALO", 0)
    tree = tree_of(*[field((20, 28), radius=9)] * 4)
    count = count_nuclei(tree, block=28)
    assert [n.pixels for n in count.nuclei] == count.owned
    assert [int((count.labels == i).sum()) for i in (1, 2)] == count.owned[:2]
    monkeypatch.setattr(blocks, "HALO", 28)
    (only,) = count_nuclei(tree, block=28).nuclei
    assert only == count_nuclei(tree).nuclei[0]


def test_what_a_block_has_survives_a_file() -> None:
    (block,) = blocks.blocks_of((44, 56))
    tree = tree_of(field(A), field(A, B), field(), field(C))
    odds = blocks.Odds.of(tree.log_probs[-1][0], tree.branching, (44, 56))
    for threshold in (0.5, 0.9):  # the second has none
        one = blocks.count_block(tree.leaves[0, :, 0], block, odds, threshold)
        for mine, stored in zip(one, blocks.Found.from_bytes(one.to_bytes()), strict=True):
            assert mine.dtype == stored.dtype
            assert torch.equal(mine, stored)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A model of the cells' task that answers with its input: its last layer is zero."""
    recipe = parse_recipe('task = "cells_actin_to_dna"', ["network.c_init=1", "tree.branching=2"])
    predictor = build_predictor(recipe)
    torch.nn.init.zeros_(predictor.network.to_image.weight)
    torch.nn.init.zeros_(predictor.network.to_image.bias)
    file = tmp_path_factory.mktemp("model") / "cells.safetensors"
    save_model(file, predictor, recipe)
    return file


def raw(*centres: tuple[int, int]) -> np.ndarray:
    """What a camera of 12 bits makes of a field: dark 200, bright 1400."""
    return (200 + 1200 * (field(*centres)[0] > 0.5)).numpy().astype(np.uint16)


@pytest.mark.parametrize("ending", ["tif", "png"])
def test_a_whole_field_of_16_bits_is_predicted_and_counted(
    model: Path, tmp_path: Path, capsys, ending: str
) -> None:
    Image.fromarray(raw(A, B, C)).save(tmp_path / f"field.{ending}")
    words = ["predict", str(model), str(tmp_path / f"field.{ending}"), "--out", str(tmp_path / "o")]
    cli.main([*words, "--count", "--levels", "150", "2600", "--gamma", "0.5"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "field: 3.0 ± 0.0 nuclei; 0 of 3 are not in all leaves" in shown
    facts = json.loads((tmp_path / "o" / "field" / "count.json").read_text())
    assert [(n["row"], n["column"]) for n in facts["nuclei"]] == [list(A), list(B), list(C)] or [
        (n["row"], n["column"]) for n in facts["nuclei"]
    ] == [A, B, C]
    tree = Tree.load(tmp_path / "o" / "field" / "tree.safetensors")
    assert tree.shape == (1, 44, 56)
    assert tree.root.max().item() == pytest.approx(math.sqrt(1250 / 2450), abs=1e-4)
    page = (tmp_path / "o" / "index.html").read_text()
    (found,) = re.findall(r'"measures":({.*?})', page)
    assert json.loads(found) == {"nuclei": [3, 3, 3, 3]}
    cli.main(words)  # without --count: nothing of the old count stays
    assert '"measures":{}' in (tmp_path / "o" / "index.html").read_text()
    assert not list((tmp_path / "o" / "field").glob("count*"))


def test_eight_bits_need_no_levels(model: Path, tmp_path: Path, capsys) -> None:
    pixels = (255 * field(A, B)[0]).round().byte().numpy()
    Image.fromarray(pixels).save(tmp_path / "a.png")
    cli.main(
        ["predict", str(model), str(tmp_path / "a.png"), "--out", str(tmp_path / "o"), "--count"]
    )
    assert "a: 2.0 ± 0.0 nuclei" in " ".join(capsys.readouterr().out.split())


def test_counting_where_no_stain_is_predicted_is_remarked_upon(
    model: Path, tmp_path: Path, capsys
) -> None:
    Image.fromarray(np.full((28, 28), 60, np.uint8)).save(tmp_path / "a.png")
    words = [str(tmp_path / "a.png"), "--out", str(tmp_path / "o"), "--count"]
    cli.main(["predict", "digits", *words])
    assert (
        "bright regions of at least 25 pixels, none of them thin, for nuclei"
        in capsys.readouterr().err
    )
    note = json.loads((tmp_path / "o" / "a" / "tree.json").read_text())["note"]
    assert note.endswith("so they may be something else")
    assert note in (tmp_path / "o" / "index.html").read_text()
    cli.main(["predict", str(model), *words])
    assert "bright region" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threshold", "0.3"], "--threshold is for counting: add --count"),
        (["--levels", "9", "3"], "the levels are 9 and 3; the first must be the lower one"),
        (["--gamma", "0"], "gamma is 0; it must be positive"),
    ],
)
def test_wrong_options_are_explained(
    model: Path, tmp_path: Path, capsys, options: list[str], message: str
) -> None:
    Image.fromarray(raw(A)).save(tmp_path / "a.tif")
    with pytest.raises(SystemExit) as stop:
        cli.main(
            ["predict", str(model), str(tmp_path / "a.tif"), "--out", str(tmp_path / "o"), *options]
        )
    assert stop.value.code == 1
    assert message in capsys.readouterr().err


def test_the_table_says_when_touching_nuclei_make_leaves_differ(doubtful: Tree, tmp_path) -> None:
    """Two nuclei with a wide bridge between them are one region, and none of them is in doubt."""

    def caption(tree: Tree) -> str:
        write_count(count_nuclei(tree), tree, tmp_path)
        return str(count_table(json.loads((tmp_path / "count.json").read_text()), "").caption)

    apart = [field(LEFT, RIGHT)] * 3
    assert "touch" not in caption(doubtful)
    assert "nuclei that touch are one in some leaves" in caption(tree_of(*apart, joined()))


def bar(first: int, last: int) -> torch.Tensor:
    image = torch.full((1, 40, 60), 0.1, dtype=torch.float64)
    image[0, 10:22, first:last] = 0.8
    return image


def test_a_pixel_stays_with_the_first_nucleus_that_has_it() -> None:
    """The second bar overlaps less than half of the first; the third lies in the first."""
    leaves = torch.stack([bar(5, 25), bar(17, 57), bar(13, 25)])[None]
    tree = grow(leaves, torch.tensor([[0.5, 0.3, 0.2]]).double().log(), 3)
    found = count_nuclei(tree, 0.5)
    assert [nucleus.probability for nucleus in found.nuclei] == pytest.approx([0.7, 0.3])


def test_the_smallest_nucleus_has_exactly_so_many_pixels() -> None:
    bright = torch.zeros(20, 20, dtype=torch.bool)
    bright[5:12, 5:12] = True
    size = int((find_regions(bright, 1) > 0).sum())
    assert find_regions(bright, size).max() == 1
    assert find_regions(bright, size + 1).max() == 0
