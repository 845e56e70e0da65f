"""The explorer page: one file, no network, faithful to the trees, safe with any words."""

import base64
import io
import json
import math
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from posterior_trees import Tree, grow
from posterior_trees.errors import InputError, StoreError
from posterior_trees.explore import page, save_page, show
from posterior_trees.explore.export import MODULES, SERVED, static
from posterior_trees.explore.measures import brightness, count_bright

HOSTILE = "<script>alert(1)</script>"


def make_trees(
    branching: tuple[int, ...] = (3, 2), batch: int = 2, shape=(1, 6, 5), absent: tuple = ()
) -> Tree:
    generator = torch.Generator().manual_seed(0)
    n = math.prod(branching)
    leaves = torch.rand(batch, n, *shape, generator=generator, dtype=torch.float64)
    log_probs = torch.randn(batch, n, generator=generator, dtype=torch.float64)
    log_probs[:, list(absent)] = -math.inf
    return grow(leaves, log_probs.log_softmax(1), branching)


def inputs_of(trees: Tree) -> torch.Tensor:
    return trees.root.clone()


class Reader(HTMLParser):
    """What a browser would see: the elements, their attributes and the text inside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.elements.append((tag, dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.elements:
            tag, attrs, text = self.elements[-1]
            self.elements[-1] = (tag, attrs, text + data)

    def all(self, tag: str) -> list[tuple[dict, str]]:
        return [(attrs, text) for name, attrs, text in self.elements if name == tag]


def data_of(text: str) -> dict:
    ((_, content),) = [s for s in Reader(text).all("script") if s[0].get("id") == "trees"]
    return json.loads(content)


def pixels_of(uri: str) -> np.ndarray:
    head, content = uri.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def test_the_page_asks_the_network_for_nothing() -> None:
    trees = make_trees()
    text = page(trees, inputs=inputs_of(trees), truths=trees.leaves[:, 0])
    assert "http://" not in text
    assert "https://" not in text
    for _, attrs, _ in Reader(text).elements:
        assert "src" not in attrs or attrs["src"].startswith("data:")
        assert "href" not in attrs or attrs["href"].startswith("data:")
    assert not re.search(r"@import|url\(|\bfetch\(|import\(|XMLHttpRequest", text)
    assert "default-src 'none'" in text


def test_style_script_and_data_are_inside() -> None:
    trees = make_trees()
    reader = Reader(page(trees, inputs=inputs_of(trees)))
    (style,) = reader.all("style")
    data, script = reader.all("script")
    assert style[1].strip() == static("style.css").strip()
    assert script[0] == {"type": "module"}
    for module in MODULES:
        last = static(module).strip().splitlines()[-1]
        assert last.removeprefix("export ") in script[1]
    assert data[0]["type"] == "application/json"
    assert not [link for link, _ in reader.all("link") if link["rel"] == "stylesheet"]


def test_every_element_the_scripts_look_for_is_on_the_page() -> None:
    scripts = "".join(static(file) for file in SERVED if file.endswith(".js"))
    wanted = set(re.findall(r'\$\("([\w-]+)"\)', scripts))
    there = re.findall(r'\bid="([\w-]+)"', static("page.html"))
    assert len(there) == len(set(there))
    assert wanted <= set(there)


def test_each_module_comes_after_those_it_imports_and_no_name_is_taken_twice() -> None:
    """Both are what lets the modules of a saved page be one script."""
    names: list[str] = []
    for place, module in enumerate(MODULES):
        script = static(module)
        for imported in re.findall(r'from "\./([\w.]+)";', script):
            assert imported in MODULES[:place], f"{module} imports {imported}"
        found = re.findall(r"^(?:export )?(?:async )?(?:function|const|let) (\w+)", script, re.M)
        names += found + re.findall(r"^(?:const|let) \w+ = [^;]*?, ([A-Z]\w+) = ", script, re.M)
    assert sorted(names) == sorted(set(names))
    text = page(make_trees())
    assert not re.search(r"^(import|export)\b", text, re.MULTILINE)


def test_the_list_of_files_is_the_folder() -> None:
    folder = resources.files("posterior_trees.explore") / "static"
    assert {file.name for file in folder.iterdir()} == {*SERVED, "page.html"}


@pytest.mark.parametrize("channels", [1, 3])
def test_probabilities_and_images_survive_the_page(channels: int) -> None:
    trees = make_trees(shape=(channels, 6, 5))
    content = data_of(page(trees, inputs=inputs_of(trees), truths=trees.leaves[:, 4]))
    assert content["schema"] == 1
    assert content["branching"] == [3, 2]
    assert content["size"] == [6, 5]
    for i, example in enumerate(content["examples"]):
        for level, nodes in enumerate(example["levels"]):
            assert [node["p"] for node in nodes] == trees.probs[level][i].tolist()
            for node, image in zip(nodes, trees.images[level][i], strict=True):
                expected = (image * 255).round().byte().numpy()
                expected = expected[0] if channels == 1 else expected.transpose(1, 2, 0)
                assert np.array_equal(pixels_of(node["image"]), expected)
        assert example["truth"] == example["levels"][2][4]["image"]


def test_the_truth_carries_its_greedy_path() -> None:
    trees = make_trees()
    x = trees.leaves[:, 3]
    examples = data_of(page(trees, inputs=inputs_of(trees), truths=x))["examples"]
    assert [example["truth_path"] for example in examples] == trees.descend(x).tolist()
    examples = data_of(page(trees, inputs=inputs_of(trees)))["examples"]
    assert [(e["truth"], e["truth_path"]) for e in examples] == [(None, None)] * 2


def test_absent_nodes_are_null() -> None:
    trees = make_trees((2, 2), batch=1, absent=(1, 2, 3))
    (example,) = data_of(page(trees, inputs=inputs_of(trees)))["examples"]
    absent = [[node is None for node in level] for level in example["levels"]]
    assert absent == [[False], [False, True], [False, True, True, True]]


def test_a_root_alone_is_a_page_too() -> None:
    trees = make_trees(())
    content = data_of(page(trees, inputs=inputs_of(trees), truths=trees.root))
    assert content["branching"] == []
    assert [len(example["levels"]) for example in content["examples"]] == [1, 1]
    assert [example["truth_path"] for example in content["examples"]] == [[0], [0]]


def test_words_of_the_user_stay_words() -> None:
    trees = make_trees()
    title = "</title></script><script>alert(2)</script>"
    card = {"name": HOSTILE, "citation": "<!-- <img src=x onerror=alert(3)>"}
    text = page(
        trees, inputs=inputs_of(trees), names=[HOSTILE, "é “2”"], title=title, model_card=card
    )
    plain = page(trees, inputs=inputs_of(trees), names=["a", "b"])
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<!-- " not in text
    tags = [tag for tag, _, _ in Reader(text).elements]
    assert tags == [tag for tag, _, _ in Reader(plain).elements]
    content = data_of(text)
    assert [example["name"] for example in content["examples"]] == [HOSTILE, "é “2”"]
    assert content["title"] == title
    assert content["model"] == card
    assert Reader(text).all("title")[0][1].strip() == title


def test_a_name_that_looks_like_a_template_mark_changes_nothing() -> None:
    trees = make_trees(batch=1)
    name = "<title>Posterior trees</title>"
    assert data_of(page(trees, inputs=inputs_of(trees), names=[name], title=name))["title"] == name


def test_examples_without_names_are_numbered() -> None:
    trees = make_trees()
    examples = data_of(page(trees, inputs=inputs_of(trees)))["examples"]
    assert [example["name"] for example in examples] == ["Example 1", "Example 2"]


def test_values_are_clipped_only_for_display() -> None:
    leaves = torch.tensor([-0.5, 1.5]).reshape(1, 2, 1, 1, 1).expand(1, 2, 1, 2, 2)
    trees = grow(leaves, torch.zeros(1, 2).log_softmax(1), 2)
    (example,) = data_of(page(trees, inputs=trees.root))["examples"]
    low, high = (pixels_of(node["image"]) for node in example["levels"][1])
    assert (low.max(), high.min()) == (0, 255)
    assert trees.leaves.min() == -0.5
    assert trees.leaves.max() == 1.5


def test_nan_pixels_name_their_node() -> None:
    trees = make_trees((2, 2))
    trees.images[2][1, 2, 0, 0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"node \(1, 0\) of 'b' has 1 NaN or infinite pixels"):
        page(trees, inputs=torch.rand(2, 1, 6, 5), names=["a", "b"])
    with pytest.raises(ValueError, match="the input of 'Example 1' has 30 NaN"):
        page(make_trees(), inputs=torch.full((2, 1, 6, 5), torch.nan))


def test_nan_probabilities_name_their_node() -> None:
    trees = make_trees((2, 2))
    trees.log_probs[1][0, 1] = torch.nan
    with pytest.raises(ValueError, match=r"node \(1,\) of 'Example 1' has probability NaN"):
        page(trees, inputs=inputs_of(trees))


def test_unfitting_companions_are_named() -> None:
    trees = make_trees()
    with pytest.raises(ValueError, match="3 inputs for 2 trees"):
        page(trees, inputs=torch.rand(3, 1, 6, 5))
    with pytest.raises(ValueError, match="1 name for 2 trees"):
        page(trees, inputs=inputs_of(trees), names=["one"])
    with pytest.raises(ValueError, match="inputs: 4 channels"):
        page(trees, inputs=torch.rand(2, 4, 6, 5))
    with pytest.raises(ValueError, match=r"truths have shape \(1, 5, 6\), nodes \(1, 6, 5\)"):
        page(trees, inputs=inputs_of(trees), truths=torch.rand(2, 1, 5, 6))
    with pytest.raises(ValueError, match="holds no trees"):
        page(trees[0:0], inputs=torch.rand(0, 1, 6, 5))


def test_a_page_is_written_as_utf8_or_the_reason_is_given(tmp_path: Path) -> None:
    trees = make_trees()
    y = inputs_of(trees)
    save_page(tmp_path / "index.html", trees, inputs=y, title="Ziffern, größer")
    expected = page(trees, inputs=y, title="Ziffern, größer")
    assert (tmp_path / "index.html").read_text("utf-8") == expected
    with pytest.raises(StoreError, match=r"could not write .*There is no folder .*make it"):
        save_page(tmp_path / "nowhere" / "index.html", trees, inputs=y)


def test_rivals_stand_beside_our_trees() -> None:
    trees, rival = make_trees(), make_trees((2, 2))
    x = trees.leaves[:, 0]
    content = data_of(page(trees, truths=x, rivals={HOSTILE: rival}))
    for i, example in enumerate(content["examples"]):
        (other,) = example["rivals"]
        assert other["name"] == HOSTILE
        assert other["branching"] == [2, 2]
        assert other["truth_path"] == rival.descend(x)[i].tolist()
        assert [n["p"] for n in other["levels"][2]] == rival.probs[2][i].tolist()
    with pytest.raises(ValueError, match="a comparison needs trees of the same inputs"):
        page(trees, rivals={"short": rival[0]})


def test_a_measure_is_taken_of_every_leaf_that_is_there() -> None:
    trees = make_trees((2, 2), batch=1, absent=(2,))
    (example,) = data_of(page(trees, measures={"brightness": brightness}))["examples"]
    expected = trees.leaves[0].mean(dim=(1, 2, 3)).tolist()
    expected[2] = None
    assert example["measures"] == {"brightness": pytest.approx(expected)}
    with pytest.raises(ValueError, match="the measure 'bad' gave nan"):
        page(trees, measures={"bad": lambda image: math.nan})
    with pytest.raises(InputError, match="the measure 'own' failed: IndexError"):
        page(trees, measures={"own": lambda image: image[7]})


def test_bright_regions_are_counted_once_each() -> None:
    image = torch.zeros(1, 9, 9)
    image[0, 0, :] = image[0, :, 0] = image[0, 8, :] = 1  # one winding region
    image[0, 3:5, 3:5] = 1  # a second
    image[0, 6, 6] = 1  # a speck
    assert count_bright(image) == 2
    assert count_bright(image, smallest=1) == 3
    assert count_bright(torch.zeros(3, 4, 4)) == 0


def test_a_page_without_inputs_is_a_page_too() -> None:
    (example, _) = data_of(page(make_trees()))["examples"]
    assert example["input"] is None


@pytest.mark.parametrize("name", ["load", "Tree", "wrap"])
def test_trees_show_themselves_whatever_a_notebook_imports(name: str) -> None:
    code = f"""
from posterior_trees import {name}
from posterior_trees.tree import Tree
assert hasattr(Tree, "_repr_html_")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_notebook_shows_a_tree_in_a_frame_of_its_own() -> None:
    trees = make_trees()
    (frame,) = Reader(trees._repr_html_()).all("iframe")
    assert frame[0]["srcdoc"] == page(trees)
    assert "allow-same-origin" not in frame[0]["sandbox"]
    options = {"names": [HOSTILE, "b"], "inputs": inputs_of(trees)}
    (frame,) = Reader(show(trees, **options)._repr_html_()).all("iframe")
    assert frame[0]["srcdoc"] == page(trees, **options)
    points = grow(torch.rand(1, 2, 2), torch.zeros(1, 2).log_softmax(1), 2)
    assert points._repr_html_() is None
