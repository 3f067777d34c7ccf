"""The rooms of the house: packages, their size, and the links at the root that show the layers."""

from __future__ import annotations

import ast
import runpy
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FACADE = 40
LOADING_PARTS = {
    "iris.api",  # each published name comes from where it is defined
    "iris.cli.bridge_log",  # verbs load what they need when they are typed
    "iris.spark_bridge.session.columns.dead_letters",  # the data source loads pyarrow
    "iris.spark_bridge.session.registration",
    "iris.spark_bridge.session.session",
}
SAME_NAMES_ON_PURPOSE = ("aio", "sync")
"""A program moves from trio to asyncio or plain calls by another import."""
MESSAGES = ROOT / "iris/kernel/wire/kinds.py"
"""What is in it is always written with its module before it: ``kinds.Request``."""
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


def test_facades_are_short() -> None:
    inits = [path / "__init__.py" for path in FOLDERS]
    lengths = {str(init.relative_to(ROOT)): len(init.read_text().splitlines()) for init in inits if init.exists()}
    assert {name: length for name, length in lengths.items() if length >= LONGEST_FACADE} == {}


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


def test_no_files_import_each_other_in_a_circle() -> None:
    figures = runpy.run_path(str(ROOT / "docs" / "rooms.py"))
    assert figures["circles"](figures["imports"](figures["sources"](ROOT))) == []


def test_the_layers_are_linked_at_the_root() -> None:
    links = {path.name: str(path.readlink()) for path in ROOT.iterdir() if path.is_symlink()}
    assert links == {layer: f"iris/{layer}" for layer in LAYERS}


def test_one_class_name_stands_once() -> None:
    names = [
        node.name
        for file in (ROOT / "iris").rglob("*.py")
        if not (file.parent.parent == ROOT / "iris" and file.parent.name in SAME_NAMES_ON_PURPOSE)
        if file != MESSAGES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted(name for name, count in Counter(names).items() if count > 1) == []


def test_extras_name_each_other_only(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    for requirement in (r for listed in extras.values() for r in listed if r.startswith("iris-mesh")):
        names = requirement.removeprefix("iris-mesh[").removesuffix("]").split(",")
        assert set(names) <= set(extras), f"{requirement} names an extra that does not exist"


def test_test_folders_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
