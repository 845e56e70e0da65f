"""The wheel installs into an empty environment, and the demo runs from it."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


def run(*command: object, cwd: Path) -> str:
    """The output of a command that must succeed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def find_dependencies(requirements: list[str]) -> dict[str, Distribution]:
    """The installed distributions that these need, and those that they need, and so on."""
    found: dict[str, Distribution] = {}
    todo: list[tuple[Requirement, list[str]]] = [(Requirement(text), [""]) for text in requirements]
    seen: set[tuple[str, str]] = set()
    while todo:
        need, extras = todo.pop()
        wanted = any(need.marker is None or need.marker.evaluate({"extra": e}) for e in extras)
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        if not wanted or (name, str(need.extras)) in seen:
            continue
        seen.add((name, str(need.extras)))
        found[name] = distribution(name)
        todo += [(Requirement(text), ["", *need.extras]) for text in found[name].requires or []]
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = ("build", "--wheel", "--no-isolation", "--outdir", folder)
    run(sys.executable, "-m", *command, ROOT, cwd=folder)
    return next(folder.glob("posterior_trees-*.whl"))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    source = ROOT / "src"
    files = {
        file.relative_to(source).as_posix()
        for file in (source / "posterior_trees").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == files
    essential = (
        "assets/digits.safetensors",
        "assets/cells.safetensors",
        "assets/digits.png",
        "explore/static/page.html",
    )
    assert packed > {f"posterior_trees/{name}" for name in (*essential, "py.typed")}


def test_the_demo_runs_from_the_wheel_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """The environment holds the wheel and, linked from ours, only what the wheel says it needs."""
    venv.create(tmp_path / "empty", with_pip=False, symlinks=os.name != "nt")
    scripts = tmp_path / "empty" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *options, wheel, cwd=tmp_path)

    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(python, "-c", ask, cwd=tmp_path).strip())
    (package,) = Distribution.discover(name="posterior-trees", path=[str(site)])
    needed = find_dependencies(package.requires or []).values()
    tops = {file.parts[0]: dist for dist in needed for file in dist.files or []}  # some share one
    for top in tops.keys() - {"..", "__pycache__"}:
        (site / top).symlink_to(Path(str(tops[top].locate_file(top))))

    ask = "import posterior_trees; print(posterior_trees.__file__)"
    assert Path(run(python, "-c", ask, cwd=tmp_path).strip()).is_relative_to(site)
    run(scripts / "ptrees", "demo", "--out", "trees", cwd=tmp_path)
    page = (tmp_path / "trees" / "index.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert not re.search(r'(src|href)="(?!data:)', page), "the page must hold all it needs"
