"""The explorer in a real browser: walked by keyboard, asked with boxes, fed with pictures.

The tree in most tests has four leaves on a dark ground: a light patch L at the upper left is in
leaves 0 and 1, a patch R at the upper right in leaves 1 and 3, with these probabilities:

              L        no L
    R        0.23      0.07
    no R     0.40      0.30
"""

import contextlib
import io
import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Inpaint, Tree, TreePredictor, grow, load
from posterior_trees.checkpoint import find_model
from posterior_trees.explore import describe_trees, page, show
from posterior_trees.explore.cli import listen
from posterior_trees.explore.server import make_app
from posterior_trees.explore.start import sample_digits
from posterior_trees.explore.upload import answer
from posterior_trees.networks.head import Leaves

if os.environ.get("CI"):
    from playwright import sync_api
else:
    sync_api = pytest.importorskip("playwright.sync_api")

PROBS = [0.40, 0.23, 0.30, 0.07]
LEFT, RIGHT = (slice(2, 10), slice(2, 10)), (slice(2, 10), slice(18, 26))
NAMES = ("chromium", "chromium-browser", "google-chrome")


def make_leaves(size: int = 28, channels: int = 1) -> torch.Tensor:
    zoom = size // 28
    leaves = torch.full((4, channels, 28, 28), 0.2)
    leaves[:2, :, *LEFT] = 0.8
    leaves[1::2, :, *RIGHT] = 0.8
    return leaves.repeat_interleave(zoom, -1).repeat_interleave(zoom, -2)


def make_tree(batch: int = 1) -> Tree:
    leaves = make_leaves().expand(batch, 4, 1, 28, 28)
    return grow(leaves, torch.tensor(PROBS).log().expand(batch, 4), 2)


class Patches(torch.nn.Module):
    """A network that always gives the four leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = torch.nn.Parameter(make_leaves())

    def forward(self, y: torch.Tensor) -> Leaves:
        images = self.leaves.expand(len(y), *self.leaves.shape)
        return Leaves(images - 0.5, torch.tensor(PROBS).log().expand(len(y), 4))


def make_predictor() -> TreePredictor:
    hole = Inpaint.box((0, 19), (0, 27), (28, 28))
    return TreePredictor(
        Patches(), hole, branching=2, depth=2, channels=1, name="patches",
        about={"input_brightness": [0.3, 0.5]},
    ).eval()  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"no browser: none of {', '.join(NAMES)} is installed (tests/install_chromium.sh)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """`visit(address)`: a page that may neither complain nor leave the machine."""
    problems: list[str] = []
    contexts = []

    def open_page(
        address: str, width: int = 1280, height: int = 720, expected: str = "\0", **options: Any
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        opened = context.new_page()
        home = address.split("/", 3)[:3]

        def check(request: Any) -> None:
            is_ours = request.url.split("/", 3)[:3] == home
            if not is_ours and not request.url.startswith(("data:", "blob:", "about:")):
                problems.append(f"asked for {request.url}")

        opened.on("request", check)
        opened.on("pageerror", lambda error: problems.append(str(error)))

        def listen_to_console(message: Any) -> None:
            if message.type in ("error", "warning") and expected not in message.text:
                problems.append(message.text)

        opened.on("console", listen_to_console)
        opened.set_default_timeout(8000)
        opened.goto(address)
        return opened

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved page with three examples; the truth of each is its leaf 3."""
    file = tmp_path_factory.mktemp("page") / "index.html"
    trees = make_tree(3)
    file.write_text(
        page(trees, inputs=trees.root, truths=trees.leaves[:, 3], names=["a", "b", "c"]), "utf-8"
    )
    return file.as_uri()


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    import uvicorn

    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(10)


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    examples = describe_trees(make_tree(), names=["first"])
    with serving(make_app(make_predictor(), examples=examples)) as address:
        yield address


def selected(opened: Any) -> str:
    return opened.locator("#crumbs [aria-current]").inner_text().split()[0]


def press(opened: Any, *keys: str) -> None:
    for key in keys:
        opened.keyboard.press(key)


def drag(opened: Any, place: tuple[slice, slice], size: int = 28) -> None:
    """Draw a box on the large picture, in pixels of the image."""
    stage = opened.locator("#stage").bounding_box()
    (top, bottom), (left, right) = ((s.start + 0.2, s.stop - 0.2) for s in place)
    across, down = stage["width"] / size, stage["height"] / size
    opened.mouse.move(stage["x"] + left * across, stage["y"] + top * down)
    opened.mouse.down()
    opened.mouse.move(stage["x"] + right * across, stage["y"] + bottom * down, steps=3)
    opened.mouse.up()


def answers(opened: Any, box: int = 0) -> list[str]:
    opened.wait_for_selector(".question >> nth=0")
    return opened.locator(".question").nth(box).locator("strong").all_inner_texts()


def drawn_order(opened: Any, level: int) -> list[str]:
    """Names of a level's nodes from left to right."""
    return opened.evaluate(
        """level => [...document.querySelectorAll('.node')]
        .filter(n => Number(n.getAttribute('aria-level')) === level + 1)
        .sort((a, b) => new DOMMatrix(a.style.transform).e - new DOMMatrix(b.style.transform).e)
        .map(n => n.path.map(c => c + 1).join('.'))""",
        level,
    )


# ---- walking --------------------------------------------------------------------------------


def test_the_whole_tree_is_walked_by_keyboard(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    assert selected(opened) == "Root"
    walk = [("ArrowDown", "1"), ("ArrowDown", "1.1"), ("ArrowRight", "1.2"), ("ArrowRight", "2.1"),
            ("2", "2.2"), ("ArrowUp", "2"), ("ArrowLeft", "1"), ("Home", "Root"), ("2", "2"),
            ("1", "2.1"), ("ArrowDown", "2.1"), ("9", "2.1")]  # fmt: skip
    for key, expected in walk:
        press(opened, key)
        assert selected(opened) == expected, key
    assert opened.locator("#crumbs").inner_text().split() == [
        "Root",
        "100%",
        "2",
        "37%",
        "2.1",
        "30%",
    ]
    press(opened, "PageDown")
    assert opened.url.endswith("#2/")
    assert opened.locator("#examples [aria-current=true]").inner_text() == "b"


def test_a_view_is_kept_in_the_address(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "1", "2", "m", "m", "t")
    drag(opened, LEFT)
    address = opened.url
    again = visit(address)
    assert selected(again) == "1.2"
    assert again.locator("#modes input:checked").input_value() == "variance"
    assert again.locator("#truth").get_attribute("aria-pressed") == "true"
    assert answers(again) == answers(opened)
    assert again.url == address
    visit(saved + "#99/7.7.7;mode=nonsense;box=a,b;box=900,-5,9999,0,77;side=12")


def test_every_node_says_what_it_is(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "t")
    labels = [n.get_attribute("aria-label") for n in opened.locator("[role=treeitem]").all()]
    assert "Root, the mean of all answers, probability 100%, nearest to the truth" in labels
    assert "Node 2.2, probability 7%, nearest to the truth" in labels
    assert "Node 1.2, probability 23%" in labels
    assert len(labels) == 7
    opened.keyboard.press("Tab")
    reached = set()
    for _ in range(30):
        reached.add(
            opened.evaluate("document.activeElement.id || document.activeElement.className")
        )
        opened.keyboard.press("Tab")
    assert {"truth", "theme", "open-help", "flicker", "add-box"} <= reached
    assert any("node" in name for name in reached)


def test_hovering_fades_and_space_flickers(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    opened.locator("[aria-label^='Node 2.1']").hover()
    assert opened.locator("#node-name").inner_text() == "Node 2.1"
    assert opened.evaluate("document.getElementById('front').getAnimations().length") == 1
    opened.mouse.move(5, 400)
    assert opened.locator("#node-name").inner_text() == "Root: the mean"
    press(opened, "1", " ")
    seen = set()
    for _ in range(12):
        seen.add(opened.locator("#node-name").inner_text())
        opened.wait_for_timeout(120)
    assert seen == {"Node 1", "Node 2"}
    press(opened, " ")
    assert opened.locator("#flicker").get_attribute("aria-pressed") == "false"
    assert opened.locator("#node-name").inner_text() == "Node 1"


def canvas_pixel(opened: Any, row: int, column: int) -> list[int]:
    script = """([y, x]) => [...document.getElementById('map-canvas').getContext('2d')
             .getImageData(x, y, 1, 1).data]"""
    return opened.evaluate(script, [row, column])


def test_modes_show_where_and_how_nodes_differ(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved, expected="willReadFrequently")  # the test itself reads the canvas
    opened.locator("#modes label", has_text="Variance").click()
    opened.wait_for_selector("#map-canvas:not([hidden])")
    left, right, ground = (canvas_pixel(opened, *at) for at in ((5, 5), (5, 21), (25, 14)))
    assert left[:3] == [252, 255, 164]  # the root's children differ in L most …
    assert sum(ground[:3]) < 20  # … and not at all below
    assert sum(right[:3]) < sum(left[:3]) / 2
    spread = 0.6 * (0.63 * 0.37) ** 0.5
    assert float(opened.locator("#scale-high").inner_text()) == pytest.approx(spread, abs=0.006)
    press(opened, "1")
    spread = 0.6 * (0.40 * 0.23) ** 0.5 / 0.63  # between the children of node 1, in R
    assert float(opened.locator("#scale-high").inner_text()) == pytest.approx(spread, abs=0.006)
    press(opened, "m", "m", "m")
    assert opened.locator("#modes input:checked").input_value() == "difference"
    red, _, blue, _ = canvas_pixel(opened, 5, 5)
    assert red > blue  # node 1 is brighter than the root in L
    press(opened, "ArrowRight")
    red, _, blue, _ = canvas_pixel(opened, 5, 5)
    assert red < blue
    press(opened, "m", "m")
    assert canvas_pixel(opened, 25, 14)[3] < 20 < canvas_pixel(opened, 5, 21)[3]


def test_absent_nodes_are_drawn_blank_and_never_entered(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    log_probs = torch.tensor([[0.6, 0.0, 0.0, 0.4]]).log()
    (tmp_path / "a.html").write_text(page(grow(make_leaves()[None], log_probs, 2)), "utf-8")
    opened = visit((tmp_path / "a.html").as_uri())
    assert opened.locator(".node.absent").count() == 2
    press(opened, "1", "2")
    assert selected(opened) == "1"
    press(opened, "ArrowDown", "ArrowRight", "m", "m")
    assert selected(opened) == "2.2"
    drag(opened, LEFT)
    assert answers(opened) == ["0.60", "0.40"]
    keep(opened, "save-svg")
    assert zipfile.ZipFile(io.BytesIO(keep(opened, "save-zip"))).testzip() is None


def test_a_root_alone_is_a_page_too(visit: Callable[..., Any], tmp_path: Path) -> None:
    tree = grow(make_leaves()[None, :1], torch.zeros(1, 1), ())
    (tmp_path / "r.html").write_text(page(tree, inputs=tree.root, truths=tree.root), "utf-8")
    opened = visit((tmp_path / "r.html").as_uri())
    press(opened, "ArrowDown", "1", " ", "b", "m", "m", "m", "m", "t", "ArrowRight", "Home")
    assert selected(opened) == "Root"
    assert opened.locator(".node").count() == 1


# ---- asking ---------------------------------------------------------------------------------


def test_a_box_is_answered_with_probabilities(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    drag(opened, LEFT)
    assert answers(opened) == ["0.63", "0.37"]
    assert opened.locator("#spoken").text_content() == "Box 1: A 63%, B 37%"
    opened.locator(".question input").nth(0).fill("lit")
    opened.locator(".question input").nth(1).fill("dark")
    press(opened, "Tab")
    drag(opened, RIGHT)
    assert answers(opened, 1) == ["0.70", "0.30"]
    cells = opened.locator(".joint td").all_inner_texts()[1:]
    assert cells == ["0.40", "0.23", "0.30", "0.07"]
    assert opened.locator(".joint th").all_inner_texts() == ["A", "B", "lit", "dark"]
    assert "box=2,2,8,8,0,lit,dark" in opened.url
    press(opened, "Escape")
    assert opened.locator("#ask").is_hidden()


def test_the_tree_is_sorted_by_disagreement_inside_the_box(
    visit: Callable[..., Any], saved: str
) -> None:
    opened = visit(saved)
    assert drawn_order(opened, 2) == ["1.1", "1.2", "2.1", "2.2"]
    drag(opened, LEFT)
    answers(opened)
    # L is likely, so the leaves without it are farther from the mean answer.
    assert drawn_order(opened, 1) == ["2", "1"]
    press(opened, "Escape")
    drag(opened, RIGHT)
    answers(opened)
    # In R, the rarer light patch is farther from the mean, so lit leaves come first everywhere.
    assert drawn_order(opened, 2) == ["1.2", "1.1", "2.2", "2.1"]
    press(opened, "2", "ArrowRight")
    assert selected(opened) == "2"  # the last of its level on the screen


def test_a_box_where_all_leaves_agree_says_so(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    drag(opened, (slice(20, 27), slice(5, 20)))
    assert answers(opened) == ["1.00"]
    assert "all leaves agree" in opened.locator(".question h3").inner_text()
    opened.get_by_label("More answers").click()
    assert len(answers(opened)) == 2
    opened.get_by_label("Remove box 1").click()
    assert opened.locator(".question").count() == 0


def test_a_box_needs_no_pointer(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    press(opened, "b", *["ArrowLeft"] * 9, *["ArrowUp"] * 9, "Shift+ArrowLeft")
    assert "box=0,0,8,9,0" in opened.url
    assert answers(opened) == ["0.63", "0.37"]
    press(opened, "Delete")
    assert "box" not in opened.url


def test_groups_of_leaves_are_nested_and_cheapest_first(
    visit: Callable[..., Any], served: str
) -> None:
    """Ward's method: every grouping refines the next, probabilities are kept, and of three points
    on a line the two near ones are joined first."""
    opened = visit(served)
    generator = np.random.default_rng(0)
    p = generator.dirichlet(np.ones(7)).tolist()
    region = [{"leaf": i, "p": p[i], "values": generator.random(5).tolist()} for i in range(7)]
    script = """async ([region, count]) => {
        const { groupLeaves } = await import('/static/answers.js');
        return groupLeaves(region, count).map(({ p, leaves }) => ({ p, leaves }));
    }"""
    finer: list[dict] = []
    for count in range(7, 0, -1):
        groups = opened.evaluate(script, [region, count])
        assert len(groups) == count
        assert sum(g["p"] for g in groups) == pytest.approx(1)
        assert sorted(leaf for g in groups for leaf in g["leaves"]) == list(range(7))
        for small in finer:
            assert any(set(small["leaves"]) <= set(g["leaves"]) for g in groups)
        finer = groups
    line = [{"leaf": i, "p": 1 / 3, "values": [v]} for i, v in enumerate((0.0, 0.3, 1.0))]
    groups = opened.evaluate(script, [line, 2])
    assert sorted(sorted(g["leaves"]) for g in groups) == [[0, 1], [2]]


def test_a_measure_is_a_histogram_over_the_leaves(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    values = iter([3, 4, 3, 7])
    text = page(make_tree(), measures={"count": lambda image: next(values)})
    (tmp_path / "m.html").write_text(text, "utf-8")
    opened = visit((tmp_path / "m.html").as_uri())
    chart = opened.locator(".histogram .bars")
    assert chart.get_attribute("aria-label") == "Distribution of count: 3: 70%; 4: 23%; 7: 7%"
    assert opened.locator(".histogram p").inner_text().split("\n") == ["3", "mean 3.51", "7"]


# ---- sharing --------------------------------------------------------------------------------


def keep(opened: Any, button: str) -> bytes:
    opened.locator("#share summary").click()
    with opened.expect_download() as download:
        opened.locator(f"#{button}").click()
    return Path(download.value.path()).read_bytes()


def test_the_tree_is_kept_as_figure_stack_and_archive(
    visit: Callable[..., Any], saved: str
) -> None:
    opened = visit(saved)
    tree = make_tree()
    nodes = [(path, tree.node(path)) for level in range(3) for path in tree.paths(level)]
    pixels = [(n.image[0, 0].double() * 255).round().byte().numpy() for _, n in nodes]
    stack = Image.open(io.BytesIO(keep(opened, "save-tiff")))
    assert stack.n_frames == 7
    for i, (path, node) in enumerate(nodes):
        stack.seek(i)
        assert np.array_equal(np.asarray(stack), pixels[i])
        about = json.loads(stack.tag_v2[270].rstrip("\0"))
        assert about == {"path": list(path), "probability": pytest.approx(node.prob.item())}
    archive = zipfile.ZipFile(io.BytesIO(keep(opened, "save-zip")))
    assert archive.testzip() is None
    table = json.loads(archive.read("tree.json"))
    assert (table["schema"], table["branching"], table["size"]) == (1, [2, 2], [28, 28])
    for row, (path, _), expected in zip(table["nodes"], nodes, pixels, strict=True):
        assert row["path"] == list(path)
        stored = np.asarray(Image.open(io.BytesIO(archive.read(row["image"]))))
        assert np.array_equal(stored, expected)
    assert b"<svg" in keep(opened, "save-svg")
    with Image.open(io.BytesIO(keep(opened, "save-png"))) as figure:
        assert np.unique(np.asarray(figure.convert("L"))).size > 5


def test_the_citation_is_copied(visit: Callable[..., Any], saved: str) -> None:
    opened = visit(saved)
    opened.locator("#share summary").click()
    opened.locator("#copy-citation").click()
    opened.wait_for_selector("#message:not([hidden])")
    assert opened.locator("#message").inner_text() == "Citation copied"


def test_a_notebook_s_frame_works(visit: Callable[..., Any], tmp_path: Path) -> None:
    frame = show(make_tree())._repr_html_()
    (tmp_path / "cell.html").write_text(f"<!doctype html><body>{frame}</body>", "utf-8")
    opened = visit((tmp_path / "cell.html").as_uri())
    inside = opened.frame_locator("iframe")
    inside.locator("[aria-label^='Node 2.1']").click()
    assert inside.locator("#node-name").inner_text() == "Node 2.1"


# ---- comparing ------------------------------------------------------------------------------


def test_two_methods_stand_side_by_side_and_share_their_answers(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    rival = grow(make_leaves()[None], torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log(), 2)
    (tmp_path / "c.html").write_text(page(make_tree(), rivals={"Samples": rival}), "utf-8")
    opened = visit((tmp_path / "c.html").as_uri())
    assert opened.locator(".pane h2").all_inner_texts() == ["This model", "Samples"]
    press(opened, "1", "c", "2", "ArrowDown")
    assert selected(opened) == "2.2"
    assert "side=2" in opened.url
    press(opened, "c")
    assert selected(opened) == "1"
    drag(opened, LEFT)
    assert answers(opened) == ["0.37", "0.63"]  # likeliest first on the average of both
    press(opened, "c")
    assert answers(opened) == ["0.70", "0.30"]  # the same answers, with the other's probabilities
    opened.locator(".pane").nth(0).locator("[aria-label^='Node 2.1']").click()
    assert selected(opened) == "2.1"
    assert answers(opened) == ["0.37", "0.63"]


# ---- own pictures ---------------------------------------------------------------------------


def test_an_own_picture_gets_its_tree(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    assert opened.locator("#examples button").count() == 1
    Image.new("L", (50, 40), 40).save(tmp_path / "mine.png")
    opened.locator("#own-button").click()
    opened.locator("#file").set_input_files(tmp_path / "mine.png")
    opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#examples [aria-current=true]").inner_text() == "mine.png"
    assert opened.locator("#own").is_hidden()
    assert opened.locator(".node").count() == 7
    press(opened, "t")
    assert opened.locator("#truth img").count() == 1


def test_a_page_without_examples_waits_for_the_first_picture(
    visit: Callable[..., Any], tmp_path: Path
) -> None:
    with serving(make_app(make_predictor())) as address:
        opened = visit(address)
        opened.wait_for_selector("#own[open]")
        press(opened, "ArrowDown", "m", " ", "b", "Escape")
        Image.new("RGB", (28, 28), (40, 40, 40)).save(tmp_path / "mine.jpg")
        opened.locator("#own-button").click()
        opened.locator("#file").set_input_files(tmp_path / "mine.jpg")
        opened.wait_for_selector(".node >> nth=6")
        assert not opened.evaluate("document.body.classList.contains('empty')")


def test_a_bad_upload_is_explained_and_the_page_goes_on(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served, expected="status of 422")
    opened.wait_for_selector("body.ready")
    (tmp_path / "not.png").write_text("no picture")
    opened.locator("#own-button").click()
    with opened.expect_response(lambda r: "predict" in r.url) as response:
        opened.locator("#file").set_input_files(tmp_path / "not.png")
    assert response.value.status == 422
    opened.wait_for_selector("#message.problem:not([hidden])")
    assert "not an image" in opened.locator("#message").inner_text()
    press(opened, "Escape", "ArrowDown")
    assert selected(opened) == "1"


def test_every_stroke_of_a_drawing_grows_a_tree(visit: Callable[..., Any], served: str) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    opened.locator("#own-button").click()
    paper = opened.locator("#draw").bounding_box()
    for stroke in (0.3, 0.6):
        with opened.expect_response(lambda r: "predict" in r.url):
            opened.mouse.move(paper["x"] + stroke * paper["width"], paper["y"] + 20)
            opened.mouse.down()
            opened.mouse.move(paper["x"] + 100, paper["y"] + paper["height"] - 10, steps=4)
            opened.mouse.up()
        opened.wait_for_selector("#examples button:nth-child(2)")
    assert opened.locator("#examples span").all_inner_texts() == ["drawing", "first"]
    press(opened, "Escape", "t")
    source = opened.locator("#truth img").get_attribute("src")
    script = """async (source) => { const i = new Image(); i.src = source; await i.decode();
        const c = document.createElement('canvas'); const p = c.getContext('2d');
        p.drawImage(i, 0, 0); return [i.width, p.getImageData(0, 0, 28, 28).data
        .reduce((a, b) => a + b)] }"""
    width, ink = opened.evaluate(script, source)
    assert width == 28
    assert ink > 28 * 28 * 255 * 1.05  # more than opacity: something was drawn


def test_a_served_page_saves_itself_as_one_file(
    visit: Callable[..., Any], served: str, tmp_path: Path
) -> None:
    opened = visit(served)
    opened.wait_for_selector("body.ready")
    drag(opened, LEFT)
    answers(opened)
    (tmp_path / "kept.html").write_bytes(keep(opened, "save-page"))
    kept = visit((tmp_path / "kept.html").as_uri())
    press(kept, "2", "1")
    assert selected(kept) == "2.1"
    assert kept.locator("#own-button").is_hidden()
    drag(kept, LEFT)
    assert answers(kept) == ["0.63", "0.37"]


# ---- room and speed -------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (1920, 1080), (820, 1180), (412, 900)])
def test_nothing_overlaps_or_leaves_the_window(
    visit: Callable[..., Any], saved: str, width: int, height: int
) -> None:
    opened = visit(saved, width, height)
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [n.bounding_box() for n in opened.locator(".node").all()]
    opened.wait_for_timeout(350)
    boxes = [n.bounding_box() for n in opened.locator(".node").all()]
    for i, a in enumerate(boxes):
        assert a["x"] >= 0
        assert a["x"] + a["width"] <= width
        for b in boxes[:i]:
            apart_x = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
            apart_y = a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"]
            assert apart_x or apart_y


def test_large_colour_trees_stay_fluid(visit: Callable[..., Any], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    small = torch.rand(1, 9, 3, 16, 16, generator=generator)
    leaves = small.repeat_interleave(16, -1).repeat_interleave(16, -2)
    tree = grow(leaves, torch.zeros(1, 9).log_softmax(1), 3)
    (tmp_path / "big.html").write_text(page(tree, inputs=tree.root), "utf-8")
    opened = visit((tmp_path / "big.html").as_uri())
    opened.wait_for_timeout(300)
    drag(opened, (slice(20, 180), slice(20, 180)), size=256)
    answers(opened)
    opened.locator("#modes label", has_text="Heat").click()
    script = """key => { const start = performance.now(); document.body.dispatchEvent(
        new KeyboardEvent('keydown', { key, bubbles: true }));
        return performance.now() - start; }"""
    taken = sorted(opened.evaluate(script, key) for key in ("1", "2", "ArrowRight", "ArrowUp", "3"))
    assert taken[2] < 400, f"a step took {taken[2]:.0f} ms"  # about 60 ms on an idle core


def test_dark_and_light_follow_the_system_and_the_button(
    visit: Callable[..., Any], saved: str
) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark, light = visit(saved, color_scheme="dark"), visit(saved, color_scheme="light")
    colours = dark.evaluate(ground), light.evaluate(ground)
    assert colours[0] != colours[1]
    dark.locator("#theme").click()
    assert dark.evaluate(ground) == colours[1]


def test_the_shipped_model_answers_within_a_second() -> None:
    if not find_model("digits").exists():
        pytest.skip("the shipped model is not in this checkout")
    predictor = load("digits", device="cpu")
    stream = io.BytesIO()
    Image.fromarray((sample_digits(1)[0, 0] * 255).byte().numpy()).save(stream, "PNG")
    taken = []
    for _ in range(3):
        started = time.perf_counter()
        made = answer(predictor, stream.getvalue(), "digit.png")
        (example,) = describe_trees(made.tree, inputs=made.y, truths=made.x)
        taken.append(time.perf_counter() - started)
    assert len(example["levels"][-1]) == 9
    assert min(taken) < 1
