"""Imports point one way: tree ← loss, metrics, figure, explore, baselines ← train ← cli."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import posterior_trees

SOURCE = Path(posterior_trees.__file__).parent
PACKAGE = "posterior_trees"
SIBLINGS = ("loss", "metrics", "figure", "explore", "baselines")
RUNTIME = {"torch", "numpy", "PIL", "safetensors", "sklearn", "matplotlib", "rich", "jaxtyping",
           "lightning_fabric"}  # fmt: skip
"""Third-party modules that may be imported at the top of a file."""


def name_of(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(file): file for file in sorted(SOURCE.rglob("*.py"))}


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
    """The modules of this package that a module imports, itself and its own parts aside."""
    found = set()
    for imported in imports(MODULES[name], is_top_only):
        if imported.startswith(PACKAGE + "."):
            inner = imported.removeprefix(PACKAGE + ".")
            while inner and inner not in MODULES:
                inner = inner.rpartition(".")[0]
            found.add(inner)
    return found - {"", name}


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


def part_of(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def parts_of(package: str) -> list[str]:
    return [name for name in MODULES if part_of(name, package)]


def test_the_source_is_found():
    assert {"tree", "loss", "train", "cli", "networks.unet", "data"} <= MODULES.keys()
    assert ours("loss") == {"association", "tree"}
    assert ours("association") == {"tree"}


def test_the_tree_imports_nothing_of_ours():
    assert ours("tree") == set()


@pytest.mark.parametrize("sibling", SIBLINGS)
def test_siblings_do_not_import_each_other(sibling):
    others = [s for s in SIBLINGS if s != sibling]
    for name in MODULES:
        if part_of(name, sibling):
            wrong = [i for i in reached(name) if any(part_of(i, other) for other in others)]
            assert wrong == [], f"{name} imports {wrong}"


def test_nothing_but_the_command_line_comes_after_training():
    """Nobody imports cli, and only cli (and what a user runs) imports train."""
    for name in MODULES:
        if name not in ("", "__main__") and not part_of(name, "cli"):
            assert not [i for i in reached(name) if part_of(i, "cli")], name
    for name in ("tree", *SIBLINGS, "measure", "balance", "predictor", "networks", "data", "recipe",
                 "checkpoint", "evaluate", "store", *parts_of("training")):  # fmt: skip
        assert "train" not in reached(name), name


def test_what_a_recipe_can_say_is_declared_apart_from_how_it_is_read():
    assert ours("recipe_sections") == set()
    assert "recipe_sections" in ours("recipe")


def test_data_networks_and_measurements_know_nothing_of_training():
    later = {"train", "evaluate", "checkpoint", *parts_of("training")}
    for name in MODULES:
        if any(part_of(name, early) for early in ("data", "networks", "measure", "balance")):
            assert not reached(name) & later, name


def test_no_module_imports_itself_in_a_circle():
    for name in MODULES:
        if name:  # the package's own __init__ only collects names
            assert name not in reached(name, is_top_only=True), name


def test_the_command_line_imports_only_the_standard_library_at_its_top():
    names = [name for name in MODULES if name == "__main__" or part_of(name, "cli")]
    assert {"cli", "cli.compare", "__main__"} <= set(names)
    for name in names:
        for imported in imports(MODULES[name], is_top_only=True):
            top = imported.partition(".")[0]
            assert top in sys.stdlib_module_names or imported.startswith(f"{PACKAGE}.cli"), imported


@pytest.mark.parametrize("name", MODULES)
def test_top_level_imports_are_runtime_dependencies(name):
    """`beartype` and test tools never; web servers and the like only inside functions."""
    known = sys.stdlib_module_names | RUNTIME | {PACKAGE}
    known |= {"triton"} if part_of(name, "networks.kernels") else set()
    for imported in imports(MODULES[name], is_top_only=True):
        assert imported.partition(".")[0] in known, f"{name or '__init__'} imports {imported}"


def test_kernels_are_imported_only_where_they_run():
    """Inside functions: Triton comes with CUDA builds of torch only."""
    users = {name for name in MODULES if "networks.kernels" in ours(name, is_top_only=True)}
    assert users - {"networks.kernels.conv"} == {"networks.fused"}
    for name in MODULES:
        assert "networks.fused" not in reached(name, is_top_only=True), name


def test_only_one_module_compiles():
    """The others ask it, so that none forgets the option that keeps results right."""
    users = {name for name, file in MODULES.items() if "torch.compile(" in file.read_text("utf-8")}
    assert users == {"compiling"}


def test_training_needs_only_the_agreed_packages():
    """What `train`, `evaluate` and the baselines import, anywhere in their files."""
    names = {"train", "evaluate", "baselines"}
    reachable = {*names, *(other for n in names for other in reached(n))}
    for name in [n for n in reachable if not part_of(n, "networks.kernels")]:
        for imported in imports(MODULES[name]):
            top = imported.partition(".")[0]
            assert top in sys.stdlib_module_names | RUNTIME | {PACKAGE}, f"{name}: {imported}"


def test_importing_the_package_does_not_import_what_only_some_commands_need():
    program = (
        "import sys, posterior_trees\n"
        "heavy = {'matplotlib', 'sklearn', 'lightning_fabric', 'rich', 'fastapi', 'beartype'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
