"""The packages of the tree, how they import each other, and the links at the root that show the layers."""

from __future__ import annotations

import ast
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOADING_PARTS = {
    "iris.api",  # each published name comes from where it is defined
    "iris.cli.bridge_log",  # verbs load what they need when they are typed
    "iris.cli.log",
    "iris.spark_bridge.session.columns.dead_letters",  # the data source loads pyarrow
    "iris.spark_bridge.session.registration",
    "iris.spark_bridge.session.session",
}
LAYERS = {"cluster", "federation", "patterns", "security", "spark_bridge"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


FOLDERS = [path for path in (ROOT / "iris").rglob("*") if path.is_dir() and path.name != "__pycache__"]


def test_every_folder_of_the_package_is_a_package() -> None:
    assert [str(path) for path in FOLDERS if any(path.glob("*.py")) and not (path / "__init__.py").exists()] == []


def test_the_page_for_engineers_names_every_room() -> None:
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    rooms = [file.parent.relative_to(ROOT / "iris") for file in (ROOT / "iris").glob("*/*/__init__.py")]
    assert rooms
    assert [str(room) for room in rooms if f"`{room}`" not in page] == []


def test_a_room_is_entered_by_its_facade() -> None:
    rooms = {
        ".".join(path.relative_to(ROOT).parts) for path in FOLDERS if "__all__" in (path / "__init__.py").read_text()
    }
    entered: set[tuple[str, str]] = set()
    for file in (ROOT / "iris").rglob("*.py"):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and module not in LOADING_PARTS:
                room = node.module.rpartition(".")[0]
                if room in rooms and node.module not in rooms and not module.startswith(f"{room}."):
                    entered.add((module, node.module))
    assert entered == set()


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def imported(root: str) -> dict[str, set[str]]:
    """Return the modules that each file below a folder imports; what a package hands on is of the package."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / root).rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        names = found.setdefault(module, set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                names |= {name if is_module(name) else str(node.module) for name in inner}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("root", ["iris", "benchmarks"])
def test_no_files_import_each_other_in_a_circle(root: str) -> None:
    graph = imported(root)
    TopologicalSorter({module: (names & graph.keys()) - {module} for module, names in graph.items()}).prepare()


def test_imports_lead_from_measuring_programs_to_what_tests_share_and_from_there_to_the_package() -> None:
    """``iris`` <- ``tests.support`` <- tests and ``benchmarks`` <- ``tests.benchmarks``, and never back."""
    beyond = {
        "iris": ("tests", "benchmarks"),
        "tests": ("benchmarks",),
        "benchmarks": ("tests",),
        "examples": ("tests", "benchmarks"),
    }
    back = [
        (module, name)
        for root, others in beyond.items()
        for module, names in imported(root).items()
        for name in names
        if name.split(".")[0] in others
        and not (root == "tests" and module.startswith("tests.benchmarks."))
        and not (root == "benchmarks" and name.startswith("tests.support"))
    ]
    assert back == []
    apart = [
        (module, name)
        for module, names in imported("tests").items()
        for name in names
        if module.startswith("tests.support.") and name.startswith("tests.") and not name.startswith("tests.support")
    ]
    assert apart == []


def test_the_layers_are_linked_at_the_root() -> None:
    links = {path.name: str(path.readlink()) for path in ROOT.iterdir() if path.is_symlink()}
    assert links == {layer: f"iris/{layer}" for layer in LAYERS}


def test_extras_name_each_other_only(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    for requirement in (r for listed in extras.values() for r in listed if r.startswith("iris-mesh")):
        names = requirement.removeprefix("iris-mesh[").removesuffix("]").split(",")
        assert set(names) <= set(extras), f"{requirement} names an extra that does not exist"


def test_test_folders_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
