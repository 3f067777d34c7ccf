"""The layers are root folders that install as ``iris.*``: four lists describe them, and the lists must agree."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = {"cluster", "federation", "patterns", "security", "spark_bridge"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree() -> set[str]:
    """Every folder with an ``__init__.py``, as the name it is imported by."""
    inside = {f"iris.{layer}": ROOT / layer for layer in LAYERS} | {"iris": ROOT / "iris"}
    return {
        ".".join([name, *init.parent.relative_to(top).parts])
        for name, top in inside.items()
        for init in top.rglob("__init__.py")
    }


def test_every_package_of_the_tree_is_listed_for_the_wheel(project: dict[str, Any]) -> None:
    assert set(project["tool"]["setuptools"]["packages"]) == packages_in_tree()


def test_every_layer_is_mapped_to_its_root_folder(project: dict[str, Any]) -> None:
    assert project["tool"]["setuptools"]["package-dir"] == {"iris": "iris"} | {
        f"iris.{layer}": layer for layer in LAYERS
    }


def test_every_layer_is_linked_into_the_import_package_by_a_relative_symlink() -> None:
    links = {path.name: str(path.readlink()) for path in (ROOT / "iris").iterdir() if path.is_symlink()}
    assert links == {layer: f"../{layer}" for layer in LAYERS}


def test_the_type_checker_that_ignores_symlinks_is_told_every_layer(project: dict[str, Any]) -> None:
    assert {f"iris/{layer}" for layer in LAYERS} <= set(project["tool"]["pyright"]["include"])


def test_extras_name_each_other_only(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    for requirement in (r for listed in extras.values() for r in listed if r.startswith("iris-mesh")):
        names = requirement.removeprefix("iris-mesh[").removesuffix("]").split(",")
        assert set(names) <= set(extras), f"{requirement} names an extra that does not exist"


def test_test_folders_are_no_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
