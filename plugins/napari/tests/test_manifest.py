"""What napari and pip are told of the plugin."""

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

PLUGIN = Path(__file__).parents[1]
ROOT = PLUGIN.parents[1]
OURS = {"posterior-trees", "napari-posterior-trees", "setuptools"}
"""Not pinned: what is developed here, and what makes environments."""


def test_npe2_accepts_the_manifest() -> None:
    command = [sys.executable, "-m", "npe2", "validate", "napari-posterior-trees"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "valid" in done.stdout


def test_the_main_package_knows_nothing_of_windows() -> None:
    wanted = re.compile(r"^\s*(from|import) (napari|qtpy|PyQt\d|PySide\d|magicgui|npe2)", re.M)
    files = list((ROOT / "src").rglob("*.py"))
    assert len(files) > 100
    assert [file.name for file in files if wanted.search(file.read_text("utf-8"))] == []


def pins(file: Path) -> dict[str, str]:
    lines = [line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines()]
    return {plain(name): version for name, _, version in
            (line.partition("==") for line in lines if line)}  # fmt: skip


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="what is needed depends on Python")
def test_all_that_it_needs_is_pinned_once_and_installed_so() -> None:
    ours, theirs = pins(PLUGIN / "constraints.txt"), pins(ROOT / "constraints.txt")
    assert {name for name in ours if theirs.get(name, ours[name]) != ours[name]} == set()
    needed = needs("napari-posterior-trees", ("", "test"))
    assert len(needed) > 90
    installed = {name: distribution(name).version.partition("+")[0] for name in needed}
    assert {name: (ours | theirs).get(name) for name in needed} == installed
    assert ours.keys() - needed == set(), "pinned, but nobody needs it"


def needs(name: str, extras: Sequence[str]) -> set[str]:
    """Everything that is installed with a distribution, ours apart."""
    todo, seen = [(name, extra) for extra in extras], set()
    while todo:
        seen.add(one := todo.pop())
        for need in map(Requirement, distribution(one[0]).requires or ()):
            if need.marker is None or need.marker.evaluate({"extra": one[1]}):
                todo += [(plain(need.name), e) for e in ("", *need.extras)]
        todo = [other for other in todo if other not in seen]
    return {name for name, _ in seen} - OURS
