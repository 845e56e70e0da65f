"""What README, docs, notebook and examples show is run here, on tiny settings."""

import dataclasses
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from posterior_trees_paper.compare.inputs import save_inputs
from posterior_trees_paper.compare.methods import Inputs

from posterior_trees import Inpaint, load, psnr
from posterior_trees.assets import sample_pictures
from posterior_trees.cli import make_parser
from posterior_trees.models.build import build_predictor
from posterior_trees.models.checkpoint import save_model
from posterior_trees.predictor import GrowingPredictor
from posterior_trees.recipe import Recipe, parse_recipe, read_recipe
from posterior_trees.training.run import read_log

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
ARGUMENTS = {
    "own_backbone": ["--steps", "3", "--out", "out"],
    "own_images": ["--steps", "3", "--out", "out"],
}


def find_blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The fenced blocks of a language, each with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    found = FENCE.finditer(text)
    return [(text.count("\n", 0, m.start(2)), m[2]) for m in found if m[1] == language]


def pages_with(language: str) -> list:
    return [pytest.param(page, id=page.name) for page in PAGES if find_blocks(page, language)]


def save_noise(file: Path, *shape: int, bits: int = 8) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(0).integers(2**bits, size=shape)
    Image.fromarray(pixels.astype(f"uint{bits}")).save(file)


def save_growing_cells(file: Path) -> None:
    """A tiny network of the recipe that has learned where `cells` sees nuclei, and no more: how
    its children differ from that is at random."""
    changes = ["network.width=8", "network.steps=2", "network.doublings=1"]
    recipe = read_recipe(ROOT / "recipes" / "growing" / "cells.toml", changes)
    torch.manual_seed(0)
    predictor = build_predictor(recipe).eval()
    assert isinstance(predictor, GrowingPredictor)
    y = sample_pictures("cells")[..., 132:260, :256]
    with torch.no_grad():
        root = load("cells", "cpu")(y).root
    optimizer = torch.optim.Adam(predictor.parameters(), 1e-2)
    for step in range(60):
        level = torch.full((len(y),), 1 + step % 4)
        children = predictor.split(y, root, root, torch.ones_like(y), level).images
        optimizer.zero_grad()
        loss = (predictor.root(y) - root).square().mean() + (
            children - root[:, None]
        ).square().mean()
        loss.backward()
        optimizer.step()
    save_model(file, predictor, recipe)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the files that a reader of the pages is said to have."""
    monkeypatch.chdir(tmp_path)
    save_noise(tmp_path / "my_digit.png", 28, 28)
    for number in range(6):
        save_noise(tmp_path / "my_photos" / f"{number}.jpg", 20 + number, 30, 3)
    for stain in ("w1", "w4"):
        folder = tmp_path / f"BBBC022_v1_images_20585{stain}"
        save_noise(folder / f"IXMtest_A01_s1_{stain}0F3A.tif", 8, 8, bits=16)
    hole, x = Inpaint.box((0, 3), (0, 7), (8, 8)), torch.rand(2, 1, 8, 8)
    inputs = Inputs(torch.tensor([7, 12]), ["seven", "twelve"], x, hole(x), hole)
    save_inputs(tmp_path / "inputs", inputs, {})
    return tmp_path


@pytest.mark.parametrize("page", pages_with("python"))
def test_python_on_the_page_runs(page: Path, workplace: Path) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    for line, text in find_blocks(page, "python"):
        exec(compile("\n" * line + text, str(page), "exec"), names)


def run_blocks(page: Path, *words: str) -> dict[str, Any]:
    """What is named after those blocks of a page that say one of `words`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for _, text in find_blocks(page, "python"):
        if any(word in text for word in words):
            exec(text, names)
    return names


@pytest.mark.parametrize(
    ("page", "loop"), [("README.md", "epsilon_at("), ("docs/own_images.md", "epochs = ")]
)
def test_examples_train_what_they_show(page: str, loop: str, workplace: Path) -> None:
    """A loop ends with leaves that have parted: each level is better than the one above it."""
    torch.manual_seed(0)
    names = run_blocks(ROOT / page, loop)
    x, net = names["x"], names.get("net") or names["predictor"]
    x = x if x.is_floating_point() else x / 255
    if "eps" in names:
        assert names["eps"] < 0.1
    else:
        assert read_log(Path("runs/squares/log.jsonl"))[-1]["epsilon"] < 0.1
    with torch.no_grad():
        tree = net(net.measure(x))
    assert (psnr(tree, x).mean(dim=0).diff() > 2).all()
    assert tree.descend(x)[:, -1].bincount(minlength=net.num_leaves).min() > 0


@pytest.mark.parametrize("page", pages_with("sh"))
def test_commands_on_the_page_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for _, text in find_blocks(page, "sh"):
        for command in text.splitlines():
            words = shlex.split(command, comments=True)
            if words[0] == "ptrees":
                make_parser().parse_args(words[1:])
            elif words[0] == "make":
                assert f"\n{words[1]}:" in makefile, command
            for word in words:
                assert not word.startswith(("recipes/", "examples/")) or (ROOT / word).is_file()


@pytest.mark.parametrize("page", pages_with("toml"))
def test_recipes_on_the_page_are_accepted(page: Path) -> None:
    for _, text in find_blocks(page, "toml"):
        is_whole = "measurement" in tomllib.loads(text)
        parse_recipe(text, () if is_whole else ("measurement.kind=inpaint",))


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in PAGES])
def test_links_on_the_page_lead_somewhere(page: Path) -> None:
    targets = LINK.findall(page.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert not broken


def test_recipe_reference_has_every_key_with_its_default() -> None:
    listed, section = {}, ""
    for line in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"## `\[(\w+)\]`", line):
            section = heading[1] + "."
        if row := re.match(r"\| `(\w+)` \| `(.*?)` \|", line):
            listed[section + row[1]] = tomllib.loads(f"value = {row[2]}")["value"]
    known = {}
    for part in dataclasses.fields(Recipe):
        if part.default_factory is dataclasses.MISSING:
            known[part.name] = part.default
        else:
            section = dataclasses.asdict(part.default_factory())
            known |= {f"{part.name}.{key}": value for key, value in section.items()}
    known = {key: list(v) if isinstance(v, tuple) else v for key, v in known.items()}
    assert listed == known, "bring docs/recipes.md up to date"


def test_every_choice_and_deviation_is_in_the_method_page() -> None:
    packages = ROOT / "src" / "posterior_trees", ROOT / "reproduction" / "posterior_trees_paper"
    made = Counter()
    for package, file in ((home, file) for home in packages for file in home.rglob("*.py")):
        for kind in re.findall(r"\b(Choice|Deviation)[:,]", file.read_text(encoding="utf-8")):
            made[file.relative_to(package).as_posix(), kind] += 1
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| `([\w/.]+)` \| (Choice|Deviation): ", re.MULTILINE)
    listed = Counter(row.findall(page))
    difference = {"to add": made - listed, "to remove": listed - made}
    assert not any(difference.values()), f"bring docs/method.md up to date: {difference}"


def run_notebook(name: str) -> dict[str, Any]:
    """What is named after all its cells."""
    notebook = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = "".join(line for line in cell["source"] if not line.startswith("%"))
            exec(compile(text, cell["id"], "exec"), names)
    return names


def test_the_notebook_of_digits_runs(workplace: Path) -> None:
    run_notebook("digits")
    assert (workplace / "digits.html").is_file()


def test_the_notebook_of_guarantees_runs(workplace: Path) -> None:
    names = run_notebook("guarantees")
    found, new, width = names["found"], names["new"], names["width"]
    rows = zip(found.low, found.high, new, strict=True)
    assert sum(low <= width(x) <= high for low, high, x in rows) > 4
    assert (found.high - found.low).max() < 28


@pytest.mark.parametrize("grows", [False, True], ids=["one-pass", "growing"])
def test_the_notebook_of_cells_runs(
    grows: bool, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the model of the package, and with one that grows, where a checkout has it."""
    monkeypatch.setattr("posterior_trees.models.shelf.CHECKOUT", workplace)
    if grows:
        (workplace / "pyproject.toml").touch()
        (workplace / "models").mkdir()
        save_growing_cells(workplace / "models" / "cells_growing.safetensors")
    names = run_notebook("growing_cells")
    assert names["grows"] == grows
    here, asked, leaf = names["here"], names["asked"], names["leaf"]
    assert len(here.nodes) == (10 if grows else 7)
    assert names["further"] is grows, "a finished tree ends on its second level"
    assert len(leaf) == 1
    assert len(asked.leaves) == len(names["answers"]) == 9
    assert (names["gain"] == pytest.approx(1)) is not grows
    assert (workplace / "nucleus.html").is_file()


@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_example_runs(name: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ROOT / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(file), *ARGUMENTS[name]])
    runpy.run_path(str(file), run_name="__main__")
    assert '"levels"' in (workplace / "out" / "index.html").read_text(encoding="utf-8")


def test_own_images_takes_the_folders_of_a_user(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        for channel, shape in (("blurred", (16, 16)), ("sharp", (16, 16, 3))):
            save_noise(workplace / "mine" / channel / f"{number}.png", *shape)
    folders = ["--inputs", "mine/blurred", "--targets", "mine/sharp"]
    monkeypatch.setattr(sys, "argv", ["own_images.py", *folders, *ARGUMENTS["own_images"]])
    runpy.run_path(str(ROOT / "examples" / "own_images.py"), run_name="__main__")
    recipe = parse_recipe((workplace / "out" / "recipe.toml").read_text(encoding="utf-8"))
    assert (recipe.data.name, recipe.data.channels, recipe.data.input_channels) == ("mine", 3, 1)
