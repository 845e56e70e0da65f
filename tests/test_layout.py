"""Rooms in one direction: a module imports only from its own room and from those before it."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import posterior_trees

LIBRARY, REPRODUCTION = "posterior_trees", "posterior_trees_paper"
ROOMS = {
    "base": "engine errors functions lock schema store seeding progress assets",
    "method": "tree clustering loss metrics measure networks predictor balance baselines toys",
    "imaging": "imaging",
    "page": "figure explore",
    "recipe": "recipe",
    "data": "data",
    "guarantee": "guarantee",
    "models": "models",
    "fast": "fast",
    "training": "evaluation training",
    "pictures": "pictures serve export demo",
    "cli": "cli __main__",
}
"""The table of CONTRIBUTING.md, from left to right; the reproduction comes after all of them."""
ORDER = (*ROOMS, REPRODUCTION)
ROOM = {part: room for room, parts in ROOMS.items() for part in parts.split()}
ALLOWED = {
    ("posterior_trees.tree", "posterior_trees.imaging.stored"),  # Tree.load(folder)
    ("posterior_trees.tree", "posterior_trees.explore"),  # a bare `tree` in a notebook's cell
    ("posterior_trees.predictor.onepass", "posterior_trees.fast.predictor"),  # predictor.compile()
    ("posterior_trees.predictor.onepass", "posterior_trees.pictures.answer"),  # .predict(file)
}
"""Conveniences that import to the right, inside a function."""
RUNTIME = {"torch", "numpy", "scipy", "PIL", "safetensors", "sklearn", "matplotlib", "rich",
           "jaxtyping", "lightning_fabric", "filelock", "msgspec"}  # fmt: skip
"""Third-party modules that may be imported at the top of a file."""
HOMES = {
    LIBRARY: Path(posterior_trees.__file__).parent,
    REPRODUCTION: Path(__file__).parents[1] / "reproduction" / REPRODUCTION,
}


def name_of(top: str, file: Path) -> str:
    parts = (top, *file.relative_to(HOMES[top]).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(t, f): f for t, home in HOMES.items() for f in sorted(home.rglob("*.py"))}


def imports(file: Path, is_top_only: bool = False) -> Iterator[str]:
    """Every module a file imports, `if TYPE_CHECKING:` blocks apart; or only those at its top."""
    pending: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if is_top_only and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending.extend(ast.iter_child_nodes(node))


@functools.cache
def ours(name: str, is_top_only: bool = False) -> set[str]:
    """The modules of ours that a module imports."""
    found = set()
    for imported in imports(MODULES[name], is_top_only):
        while imported and imported not in MODULES:
            imported = imported.rpartition(".")[0]
        found.add(imported)
    return found - {"", LIBRARY, name}


@functools.cache
def reached(name: str, is_top_only: bool = False) -> set[str]:
    """Modules imported directly or through others."""
    seen: set[str] = set()
    pending = [name]
    while pending:
        for other in ours(pending.pop(), is_top_only) - seen:
            seen.add(other)
            pending.append(other)
    return seen


def room_of(name: str) -> str:
    top, _, rest = name.partition(".")
    return REPRODUCTION if top == REPRODUCTION else ROOM[rest.partition(".")[0]]


def test_the_source_is_found():
    assert ours("posterior_trees.metrics") == {"posterior_trees.tree"}
    assert "posterior_trees_paper.compare.table" in MODULES


def test_imports_point_one_way():
    wrong = {
        (name, other)
        for name in MODULES
        for other in ours(name)
        if name != LIBRARY and ORDER.index(room_of(other)) > ORDER.index(room_of(name))
    }
    assert wrong - ALLOWED == set(), "these import from a room to the right"
    assert ALLOWED - wrong == set(), "these are allowed and no longer needed"


def test_no_module_imports_itself_in_a_circle():
    """Not at the top, nor hidden inside functions, where only the conveniences may."""
    hidden = {(name, other) for name, other in ALLOWED}
    for name in MODULES:
        assert name not in reached(name, is_top_only=True), name
    for name in MODULES:
        for other in ours(name) - ours(name, is_top_only=True):
            if (name, other) not in hidden:
                assert name not in reached(other, is_top_only=True), f"{name} hides {other}"


def test_contributing_shows_the_same_table():
    text = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert " → ".join(ROOMS) in text
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    assert [row.split("**")[1] for row in rows] == list(ORDER)
    for row, parts in zip(rows, ROOMS.values(), strict=False):
        for part in parts.replace("__main__", "").split():
            assert f"`{part}`" in row, f"{part} is missing in the row {row}"


def test_the_command_line_imports_only_the_standard_library_at_its_top():
    own = (f"{LIBRARY}.cli", f"{REPRODUCTION}.cli")
    names = [n for n in MODULES if n.startswith(own) or n == f"{LIBRARY}.__main__"]
    assert {*own, f"{REPRODUCTION}.cli.compare", f"{LIBRARY}.__main__"} <= set(names)
    for name in names:
        for imported in imports(MODULES[name], is_top_only=True):
            top = imported.partition(".")[0]
            light = imported.startswith((*own, f"{LIBRARY}.errors", f"{LIBRARY}.functions"))
            assert light or top in sys.stdlib_module_names, f"{name}: {imported}"


@pytest.mark.parametrize("name", MODULES)
def test_top_level_imports_are_runtime_dependencies(name):
    """`beartype` and test tools never; web servers and the like only inside functions."""
    known = sys.stdlib_module_names | RUNTIME | {LIBRARY}
    known |= {"triton"} if name.startswith(f"{LIBRARY}.fast.kernels") else set()
    known |= {REPRODUCTION} if name.startswith(REPRODUCTION) else set()
    for imported in imports(MODULES[name], is_top_only=True):
        assert imported.partition(".")[0] in known, f"{name} imports {imported}"


def test_kernels_are_imported_only_where_they_run():
    """Inside functions: Triton comes with CUDA builds of torch only."""
    kernels, fused = f"{LIBRARY}.fast.kernels", f"{LIBRARY}.fast.fused"
    users = {n for n in MODULES if any(o.startswith(kernels) for o in ours(n, is_top_only=True))}
    assert {n for n in users if not n.startswith(kernels)} == {fused}
    for name in MODULES:
        assert fused not in reached(name, is_top_only=True), name


def test_measurements_describe_themselves():
    """Who asks for the class of a measurement is one of four files; the others ask itself."""
    names = "Inpaint|Colorize|Denoise|Downsample|Paired|Free"
    kinds = re.compile(rf"is(instance|subclass)\([^\n]*\b({names})\b")
    users = {name for name, file in MODULES.items() if kinds.search(file.read_text("utf-8"))}
    asking = ("measure.kinds", "models.build", "baselines.repaint", "toys")
    assert users == {f"{LIBRARY}.{name}" for name in asking}


def test_who_only_predicts_asks_for_no_class():
    """… but for the protocol `Predictor`; a `TreePredictor` has more than that."""
    asking = ("pictures", "serve", "evaluation.examples", "demo", "cli.predict", "cli.explore")
    names = [n for n in MODULES if n.startswith(tuple(f"{LIBRARY}.{part}" for part in asking))]
    assert len(names) > 20
    users = {n for n in names if re.search(r"\bTreePredictor\b", MODULES[n].read_text("utf-8"))}
    assert users == set()


def test_only_one_module_compiles():
    """The others ask it, so that none forgets the option that keeps results right."""
    users = {name for name, file in MODULES.items() if "torch.compile(" in file.read_text("utf-8")}
    assert users == {f"{LIBRARY}.fast.compiling"}


def test_training_needs_only_the_agreed_packages():
    """What `train`, `evaluate` and the baselines import, anywhere in their files."""
    names = {
        f"{LIBRARY}.training.trainer",
        f"{LIBRARY}.evaluation.score",
        f"{LIBRARY}.baselines",
        f"{REPRODUCTION}.baselines.train",
    }
    known = sys.stdlib_module_names | RUNTIME | {LIBRARY, REPRODUCTION}
    for name in {*names, *(other for n in names for other in reached(n))}:
        for imported in imports(MODULES[name]):
            top = imported.partition(".")[0]
            is_optional = (name, top) == (f"{LIBRARY}.models.hub", "huggingface_hub")
            is_optional |= name.startswith(f"{LIBRARY}.fast.kernels")
            assert top in known or is_optional, f"{name}: {top}"


def test_importing_the_package_does_not_import_what_only_some_commands_need():
    program = (
        "import sys\nfrom posterior_trees import Tree\n"
        "heavy = {'matplotlib', 'scipy', 'sklearn', 'lightning_fabric', 'rich', 'fastapi',\n"
        "         'beartype', 'PIL', 'posterior_trees.explore'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_names_of_the_package_are_the_public_ones():
    for name in dir(posterior_trees):
        assert getattr(posterior_trees, name) is not None
    assert not {"Any", "find_spec", "import_module", "TYPE_CHECKING"} & set(dir(posterior_trees))


def test_without_the_reproduction_its_commands_say_where_it_is():
    program = (
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name: None if name.endswith('_paper') else real(name)\n"
        "from posterior_trees.cli import main\n"
        "main(['toy', '--out', 'x', '--seeds', '1'])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ptrees toy" in done.stderr
    assert "checkout" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpu_tests_need_no_more_than_a_training_machine_has():
    """Nothing can be installed there: what else a test takes, it asks for itself."""
    here = Path(__file__).parent
    helpers = {file.stem: file for file in here.glob("*.py")}
    pending = [file for file in helpers.values() if "mark.gpu" in file.read_text(encoding="utf-8")]
    pending = [here / "conftest.py", *(file for file in pending if file.name != "test_layout.py")]
    assert len(pending) >= 9, "where are the GPU tests?"
    allowed = {*RUNTIME, "pytest", LIBRARY, REPRODUCTION, *sys.stdlib_module_names}
    seen = set()
    while pending:
        seen.add(file := pending.pop())
        tops = {name.partition(".")[0] for name in imports(file, is_top_only=True)}
        assert tops - allowed - helpers.keys() == set(), f"{file.name}: import inside the test"
        pending += {helpers[name] for name in tops & helpers.keys()} - seen
