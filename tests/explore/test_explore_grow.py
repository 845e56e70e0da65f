"""Trees that a reader grows on the page: for a place, further, with more branches, and back."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browsing import drag, keep, make_predictor, picture_of, press, selected, serving
from PIL import Image
from torch import nn

from posterior_trees import Downsample, Inpaint
from posterior_trees.errors import InputError
from posterior_trees.measure import Measurement
from posterior_trees.networks import NodeNetwork, UNet
from posterior_trees.pictures.answer import Answer, answer
from posterior_trees.pictures.reading import read
from posterior_trees.predictor import GrowingPredictor
from posterior_trees.serve.growths import KEPT, Growths
from posterior_trees.serve.server import make_app

expect = pytest.importorskip("playwright.sync_api").expect

LEVELS = 4
PLACE = (slice(4, 12), slice(16, 24))


def make_growing(measurement: Measurement | None = None) -> GrowingPredictor:
    """A growing predictor with random weights, whose children differ where it looks."""
    torch.manual_seed(1)
    into = 1 + NodeNetwork.extra_channels(1, LEVELS)
    trunk = UNet(into, 1, 3, width=6, steps=2, is_disjoint=False, is_regional=True)
    for parameter in trunk.parameters():
        nn.init.normal_(parameter, std=0.2)
    measurement = measurement or Inpaint.box((0, 19), (0, 27), (28, 28))
    return GrowingPredictor(
        NodeNetwork(trunk, LEVELS), measurement, branching=3, depth=2, channels=1, multiple=4
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def predictor() -> GrowingPredictor:
    return make_growing()


def made_of(predictor: Any) -> Answer:
    picture = np.asarray(Image.linear_gradient("L").resize((28, 28)), dtype=np.float32) / 255
    return answer(predictor, read(picture, predictor))


def ask(growths: Growths, token: str, **request: Any) -> dict:
    return growths.grow(json.dumps({"token": token, **request}))


def shown(tree: dict) -> int:
    return sum(bool(n) and not n.get("same") for level in tree["levels"] for n in level)


@pytest.fixture
def kept(predictor: GrowingPredictor) -> tuple[Growths, str]:
    growths = Growths(predictor)
    return growths, growths.keep(made_of(predictor))["token"]


# ---- what the server answers --------------------------------------------------------------------


def test_a_lower_worth_shows_more_of_the_same_branches(kept) -> None:
    sizes = [shown(ask(*kept, worth=worth)) for worth in (0, 2, 4, 8)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1] <= 61


def test_levels_sum_to_1_and_what_is_not_split_stands_for_itself(kept) -> None:
    tree = ask(*kept, worth=3)
    for level in tree["levels"]:
        assert sum(node["p"] for node in level if node) == pytest.approx(1, abs=1e-4)
        assert all("image" not in node for node in level if node and node.get("same"))


def test_a_node_is_split_wherever_it_lies(kept) -> None:
    first = ask(*kept, split=[[], [2]])
    assert shown(first) == 7
    assert first["grown"]["split"] == [[], [2]]
    second = ask(*kept, split=[[], [2], [2, 1]])
    assert shown(second) == 10
    assert second["branching"] == [3, 3, 3]
    assert first == ask(*kept, split=[[], [2]]), "a request says all: it takes splits back, too"


def test_a_region_grows_another_tree_and_not_another_root(kept) -> None:
    whole, part = ask(*kept, worth=4), ask(*kept, worth=4, region=[4, 16, 8, 8])
    assert whole["levels"][0] == part["levels"][0]
    assert whole["levels"][1] != part["levels"][1]
    assert part["grown"]["region"] == [4, 16, 8, 8]


def painted(value: int = 255, size: tuple[int, int] = (28, 28)) -> str:
    from posterior_trees.explore.content import png_url

    pixels = np.zeros(size, np.uint8)
    pixels[PLACE] = value
    return png_url(Image.fromarray(pixels))


def test_a_painted_place_is_the_box_of_the_same_pixels(kept) -> None:
    box, mask = ask(*kept, worth=4, region=[4, 16, 8, 8]), ask(*kept, worth=4, region=painted())
    assert box["levels"] == mask["levels"]


def test_a_place_is_painted_on_the_answer_whatever_the_size_of_the_measurement() -> None:
    predictor = make_growing(Downsample(2))
    picture = read(torch.rand(1, 14, 14), predictor)
    growths = Growths(predictor)
    token = growths.keep(answer(predictor, picture))["token"]
    assert shown(ask(growths, token, worth=1, region=painted())) >= 4


def test_a_node_named_twice_is_split_once_and_too_many_are_refused(kept) -> None:
    assert ask(*kept, split=[[]] * 3000) == ask(*kept, split=[[]])
    with pytest.raises(InputError, match="5000 nodes to split, at most 4096"):
        ask(*kept, split=[[0] * n for n in range(5000)])


def test_below_the_trained_levels_it_is_said(kept) -> None:
    path: list[int] = []
    paths = [path]
    for _ in range(LEVELS):
        path = [*path, 0]
        paths.append(path)
    assert ask(*kept, split=paths[:-1])["grown"]["note"] == ""
    assert "Below level 4 the model was not trained" in ask(*kept, split=paths)["grown"]["note"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"region": [22, 0, 4, 4]}, "shows only what is known already: ask inside"),
        ({"region": [0, 0, 0, 4]}, "does not lie inside the picture"),
        ({"region": "data:image/png;base64,!"}, "the region is no picture"),
        ({"region": painted(128)}, "the region has a pixel of value 128"),
        ({"region": painted(size=(20, 28))}, "the region is 20×28, this model takes 28×28"),
        ({"region": {"box": 3}}, "the region is a box"),
        ({"split": [[0]]}, r"path \(0,\) is not shown"),
        ({"split": "all"}, "it must be list"),
        ({"worth": "much"}, "it must be float"),
        ({"token": "other"}, "no longer kept"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_words(kept, request_: dict, words: str) -> None:
    growths, token = kept
    with pytest.raises(InputError, match=words):
        growths.grow(json.dumps({"token": token, "worth": 2, **request_}))
    assert shown(ask(growths, token, split=[[]])) == 4, "and the next question is answered"


def test_a_refused_split_leaves_what_was_kept(kept) -> None:
    before = ask(*kept, split=[[], [1]])
    with pytest.raises(InputError, match="is not shown"):
        ask(*kept, split=[[], [1], [0, 0]])
    assert ask(*kept, split=[[], [1]]) == before


def test_only_the_newest_pictures_are_kept_and_only_of_models_that_grow(predictor) -> None:
    growths, made = Growths(predictor), made_of(predictor)
    tokens = [growths.keep(made)["token"] for _ in range(KEPT + 1)]
    with pytest.raises(InputError, match="no longer kept"):
        ask(growths, tokens[0], worth=0)
    assert shown(ask(growths, tokens[1], worth=0)) >= 4
    fixed = make_predictor()
    assert Growths(fixed).keep(made_of(fixed)) == {}


# ---- the page -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def growing(predictor: GrowingPredictor) -> Iterator[str]:
    growths = Growths(predictor)
    made = made_of(predictor)
    with serving(
        make_app(predictor, examples=[made.describe("one") | growths.keep(made)], growths=growths)
    ) as home:
        yield home


def nodes(opened: Any) -> int:
    return opened.locator(".node").count()


def wait_for(opened: Any, words: str) -> None:
    expect(opened.locator("#grown-words")).to_contain_text(words)


def test_a_place_is_asked_about_and_the_tree_grows_for_it(
    visit: Callable[..., Any], growing: str
) -> None:
    opened = visit(growing)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#grow-here").inner_text() == "Grow for the whole picture"
    before = picture_of(opened, ".node >> nth=1 >> img")
    drag(opened, PLACE)
    opened.get_by_role("button", name="What may be here?").click()
    wait_for(opened, "the marked place")
    assert not np.array_equal(picture_of(opened, ".node >> nth=1 >> img"), before)
    assert int(opened.locator("#grow-count").inner_text().split()[0]) > 2


def test_a_leaf_is_split_further_and_the_split_is_taken_back(
    visit: Callable[..., Any], growing: str
) -> None:
    opened = visit(growing)
    opened.wait_for_selector("body.ready")
    assert nodes(opened) == 13
    assert opened.locator("#split").is_disabled()  # the root is split
    press(opened, "2", "3")
    assert selected(opened) == "2.3"
    press(opened, "s")
    expect(opened.locator(".node")).to_have_count(16)
    assert selected(opened) == "2.3"
    press(opened, "ArrowDown")
    assert selected(opened).startswith("2.3.")
    shares = [item.split()[-1] for item in opened.locator("#crumbs li").all_inner_texts()]
    assert len(shares) == 4  # the probability of every node of the path
    press(opened, "u")
    expect(opened.locator(".node")).to_have_count(13)
    assert selected(opened) == "2.3"  # what is gone is left
    assert opened.locator("#undo").is_disabled()


def test_the_slider_takes_as_many_branches_as_it_takes(
    visit: Callable[..., Any], growing: str
) -> None:
    opened = visit(growing)
    opened.wait_for_selector("body.ready")
    counts = []
    for worth in (0, 3, 10):
        opened.locator("#grow-worth").fill(str(worth))
        expect(opened.locator("body.waiting")).to_have_count(0)
        counts.append(int(opened.locator("#grow-count").inner_text().split()[0]))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_a_place_of_any_shape_is_painted(visit: Callable[..., Any], growing: str) -> None:
    opened = visit(growing)
    opened.wait_for_selector("body.ready")
    opened.get_by_role("button", name="Paint a place").click()
    drag(opened, PLACE)
    assert opened.locator(".box").count() == 0
    assert opened.locator("#region").is_visible()
    opened.get_by_role("button", name="What may be here?").click()
    wait_for(opened, "the marked place")
    opened.get_by_role("button", name="Stop painting").click()
    assert opened.locator("#region").is_hidden()


def test_a_saved_page_keeps_what_was_grown_and_says_what_growing_on_needs(
    visit: Callable[..., Any], growing: str, tmp_path: Path
) -> None:
    opened = visit(growing)
    opened.wait_for_selector("body.ready")
    press(opened, "1", "1", "s")
    expect(opened.locator(".node")).to_have_count(16)
    (tmp_path / "kept.html").write_bytes(keep(opened, "save-page"))
    saved = visit((tmp_path / "kept.html").as_uri())
    assert nodes(saved) == 16
    assert saved.locator("#grow").is_hidden()
    assert (
        "To grow on, open the picture in the program" in saved.locator("#grown-words").inner_text()
    )
    figure = Image.open(BytesIO(keep(saved, "save-png")))
    assert figure.width < 2 * 100 * 13, "as wide as the leaves that are drawn"


def test_a_model_that_does_not_grow_offers_nothing(visit: Callable[..., Any], served: str) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#grow").is_hidden()
