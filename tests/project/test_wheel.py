"""The wheel that people install must have every package, because setuptools silently leaves out what is not listed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built without network from a copy: setuptools writes into the tree that it builds."""
    copy = tmp_path_factory.mktemp("source") / "iris"
    shutil.copytree(
        ROOT,
        copy,
        symlinks=True,
        ignore=shutil.ignore_patterns(
            ".git", ".venv", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "docs"
        ),
    )
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    done = subprocess.run([*build, "--wheel-dir", str(out), str(copy)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_file_under_its_import_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "iris").rglob("*.py")}
    page = {f"iris/cli/operators/dash/dash.{kind}" for kind in ("css", "html", "js", "svg")}
    expected = modules | page | {"iris/py.typed", "iris/doors/http/iris.js"}
    assert {name for name in names if ".dist-info/" not in name} == expected


def test_the_wheel_and_the_sdist_hold_each_module_once(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    assert len(names) == len(set(names))
    assert not [name for name in names if not name.startswith("iris/")]


def test_the_wheel_holds_nothing_that_would_shadow_other_packages(wheel: Path) -> None:
    top = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"iris"}


def test_the_wheel_brings_the_iris_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "iris = iris.__main__:main" in archive.read(entry_points).decode()


def test_the_installed_wheel_works_away_from_the_tree(wheel: Path, tmp_path: Path) -> None:
    """An installation has only what the wheel holds."""
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    program = "import iris, iris.cluster, iris.federation, iris.cli.main; print(iris.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(target)}
    run = [sys.executable, "-P", "-c", program]
    done = subprocess.run(run, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.strip() == str(target / "iris" / "__init__.py")
