"""What the project keeps of its measurements: little, in one form, every log in one archive."""

import json
import re
import runpy
from pathlib import Path

import pytest

from posterior_trees import load

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SCRIPTS = ROOT / "reproduction" / "scripts"
COLLECT = runpy.run_path(str(SCRIPTS / "collect.py"))
PAGES = sorted(RESULTS.rglob("README.md"), key=lambda page: len(page.parts))
pytestmark = pytest.mark.skipif(not RESULTS.is_dir(), reason="results are not in the sdist")


def test_results_stay_small() -> None:
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 100
    assert sum(file.stat().st_size for file in files) <= 6_000_000


def test_a_folder_is_a_page_its_numbers_and_at_most_three_pictures() -> None:
    assert {file.name for file in RESULTS.iterdir() if file.is_file()} == {
        "README.md",
        "logs.tar.xz",
    }
    for folder in {file.parent for file in RESULTS.rglob("*") if file.is_file()} - {RESULTS}:
        names = {file.name for file in folder.iterdir() if file.is_file()}
        pictures = {name for name in names if name.endswith((".png", ".jpg"))}
        has_studies = any(entry.is_dir() for entry in folder.iterdir())
        pages = {"README.md"} if has_studies else {"README.md", "numbers.json"}
        assert names - pictures == pages, folder
        assert len(pictures) <= 3, folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_what_a_page_of_results_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    logs = COLLECT["read_archive"]()
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for name in re.findall(r"reproduction/scripts/\w+\.\w+|recipes/[\w/]+\.toml", text):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`logs:([^`]+)`", text):
        assert any(log.startswith(name) for log in logs), name


def test_files_that_are_collected_become_numbers_and_logs(tmp_path: Path) -> None:
    source, results = tmp_path / "run", tmp_path / "results"
    (source / "tries").mkdir(parents=True)
    (source / "a.json").write_text("[1]")
    (source / "log.jsonl").write_text("{}\n")
    (source / "tries" / "b.json").write_text("2")
    (source / "trees.png").write_bytes(b"picture")
    archive = results / "logs.tar.xz"
    COLLECT["collect"](source, "task", ["*.json"], results)
    first = archive.read_bytes()
    COLLECT["collect"](source, "task", ["*.json"], results)
    assert archive.read_bytes() == first
    assert json.loads((results / "task" / "numbers.json").read_text()) == [1]
    found = COLLECT["read_archive"](archive)
    assert found == {"task/log.jsonl": b"{}\n", "task/tries/b.json": b"2"}
    COLLECT["collect"](source, "more", ["**/*.json"], results)
    assert json.loads((results / "more" / "numbers.json").read_text()) == {"a": [1], "tries/b": 2}
    assert COLLECT["read_archive"](archive) == found | {"more/log.jsonl": b"{}\n"}


@pytest.mark.parametrize("name", ["tasks_table", "speed_table"])
def test_the_tables_are_printed_from_the_stored_numbers(name: str, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(SCRIPTS)
    monkeypatch.setattr("sys.argv", [name])
    runpy.run_path(str(SCRIPTS / f"{name}.py"), run_name="__main__")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(rows) > 20


def test_the_table_of_tasks_says_what_their_numbers_say() -> None:
    rows = re.findall(
        r"^\| \[.*?\]\((\w+)\)(.*)$", PAGES[0].read_text(encoding="utf-8"), re.MULTILINE
    )
    tasks = {name: cells for name, cells in rows if name != "digits"}
    assert len(tasks) == 6
    for name, cells in tasks.items():
        score = json.loads((RESULTS / name / "numbers.json").read_text(encoding="utf-8"))[name]
        psnr = (f"{row['mean']:.2f}" for row in score["psnr_hole"] or score["psnr"])
        nll = (f"{row['mean']:.3f}" for row in score["nll"][1:])
        rarest = min(leaf["frequency"] for leaf in score["leaves"])
        for text in (" / ".join(psnr), " / ".join(nll), f" {score['n']} ", f"{rarest:.1%}"):
            assert text in cells, (name, text)


def test_the_page_of_small_models_says_first_what_their_cards_say() -> None:
    """Its table is of other pictures, with other numbers."""
    head, *_ = (RESULTS / "models" / "README.md").read_text(encoding="utf-8").split("\n|")
    numbers = json.loads((RESULTS / "models" / "numbers.json").read_text(encoding="utf-8"))
    for score in numbers["whole_test_pictures"].values():
        file = ROOT / "models" / f"{score['model']}.safetensors"
        assert load(file, "cpu").about["test"]["psnr"] == score["psnr"]
        assert " / ".join(f"{depth['mean']:.2f}" for depth in score["psnr"]) in head


def test_pages_stay_short() -> None:
    """Words are what has a letter or a digit: bars of tables are none."""

    def count(page: Path) -> int:
        return sum(any(map(str.isalnum, w)) for w in page.read_text(encoding="utf-8").split())

    pages = [page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"]
    for folder in ("docs", "results", "reproduction"):
        pages += (ROOT / folder).rglob("*.md")
    assert count(ROOT / "README.md") <= 800
    assert sum(map(count, pages)) <= 15_000
