"""The wheel and the sdist: what is in them, and that the same source gives the same bits.

Setuptools silently leaves out packages that are not listed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from distribution.reproducible import source_files

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
BUILD = "import sys; sys.path.insert(0, 'distribution'); import reproducible; {call}(sys.argv[1])"


def copy_of_tree(directory: Path) -> Path:
    """Copy the tree as it is without its history: setuptools writes into the tree that it builds."""
    made = (".git", ".venv*", "build", "dist", "*.egg-info", ".*_cache", ".hypothesis", "__pycache__", ".coverage*")
    shutil.copytree(ROOT, directory, symlinks=True, ignore=shutil.ignore_patterns(*made))
    return directory


def build(source: Path, out: Path, call: str, umask: int = 0o022) -> Path:
    """Build a wheel or an sdist as pip does in an environment with what that needs."""
    out.mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-P", "-c", BUILD.format(call=f"reproducible.{call}"), str(out)]
    done = subprocess.run(
        command, cwd=source, env=environment, umask=umask, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_tree(tmp_path_factory.mktemp("source") / "iris")


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(source, tmp_path_factory.mktemp("wheel") / "out", "build_wheel")


@pytest.fixture(scope="module")
def sdist(source: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, of a tree in which a wheel was built before."""
    return build(source, tmp_path_factory.mktemp("sdist") / "out", "build_sdist")


def test_the_same_source_gives_the_same_bits_of_an_sdist_and_of_a_wheel(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    """Wherever, whenever and by whom it is built: unpacked elsewhere, with other dates and modes."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for file in unpacked.rglob("*"):
        if file.is_file() and not file.is_symlink():
            file.chmod(0o600 | file.stat().st_mode & 0o100)
            os.utime(file, (1e9, 1e9))
    assert build(unpacked, tmp_path / "sdist", "build_sdist", 0o077).read_bytes() == sdist.read_bytes()
    assert build(unpacked, tmp_path / "wheel", "build_wheel", 0o077).read_bytes() == wheel.read_bytes()


def test_the_sdist_holds_the_tree_with_what_its_own_tests_need(source: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        entries = {entry.name.partition("/")[2]: entry for entry in archive}
    folders = ("benchmarks", "clients", "deploy", "distribution", "docs", "examples", "iris", "tests", "typings")
    found = (
        file
        for folder in folders
        for file in (source / folder).rglob("*")
        if not file.is_dir() and "__pycache__" not in file.parts  # the build itself has left some
    )
    assert {str(file.relative_to(source)) for file in found} <= entries.keys()
    assert {".ci/run", "CHANGELOG.md", "Makefile", "PKG-INFO", "deploy/compose/make-secrets.sh"} <= entries.keys()
    assert not [name for name in entries if name.startswith((".venv", "build/", "iris_mesh.egg-info"))]
    assert entries["security"].linkname == "iris/security"
    assert {(entry.uid, entry.gid, entry.uname, entry.gname) for entry in entries.values()} == {(0, 0, "", "")}
    assert {entry.mode for entry in entries.values()} == {0o644, 0o755}


def test_of_a_checkout_the_sdist_holds_what_git_has(tmp_path: Path) -> None:
    for name in ("tracked.py", "removed.py", "secret.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner.py").write_text("")
    (tmp_path / "link").symlink_to("folder")
    for command in (("init", "-q"), ("add", "tracked.py", "removed.py", "folder", "link")):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "removed.py").unlink()
    assert {str(path) for path in source_files(tmp_path)} == {"tracked.py", "folder/inner.py", "link"}


def test_the_changelog_is_of_this_version() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    newest = "Unreleased" if "dev" in VERSION else VERSION
    assert headings[0].startswith(f"## [{newest}]")


def test_the_wheel_holds_every_source_file_under_its_import_name(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "iris").rglob("*.py")}
    page = {f"iris/cli/operators/dash/dash.{kind}" for kind in ("css", "html", "js", "svg")}
    page |= {f"iris/demo/page.{kind}" for kind in ("css", "html", "js")}
    expected = modules | page | {"iris/py.typed", "iris/doors/http/iris.js", "iris/doors/http/iris.d.ts"}
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


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is missing: apt install openssh-client")
def test_a_release_is_signed_by_a_key_that_is_known_and_by_no_other(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "distribution", tmp_path / "distribution")
    dist, signers = tmp_path / "dist", tmp_path / "distribution" / "allowed_signers"
    dist.mkdir()
    (dist / "iris_mesh-1.0.0-py3-none-any.whl").write_text("a wheel")
    keys = tmp_path / "known", tmp_path / "other"
    for key in keys:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    signers.write_text(f"{signers.read_text()}release {(tmp_path / 'known.pub').read_text()}")
    written = tmp_path / "sbom"
    written.write_text('#!/bin/sh\nwhile [ "$1" != --output-file ]; do shift; done\necho {} > "$2"\n')
    written.chmod(0o755)

    def release(key: Path) -> int:
        command = [str(tmp_path / "distribution" / "release.sh"), str(written), sys.executable]
        environment = {**os.environ, "IRIS_SIGNING_KEY": str(key), "IRIS_IMAGE": ""}
        return subprocess.run(command, env=environment, check=False, capture_output=True).returncode

    def verified() -> bool:
        verify = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-f",
            str(signers),
            "-I",
            "release",
            "-n",
            "iris-release",
            "-s",
            "SHA256SUMS.sig",
        ]
        with (dist / "SHA256SUMS").open() as sums:
            signed = subprocess.run(verify, cwd=dist, stdin=sums, check=False, capture_output=True)
        summed = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=dist, check=False, capture_output=True)
        return (signed.returncode, summed.returncode) == (0, 0)

    known, other = keys
    assert release(other) != 0
    assert not (dist / "SHA256SUMS.sig").exists()
    assert release(known) == 0
    assert verified()
    assert "iris_mesh-1.0.0.cdx.json" in (dist / "SHA256SUMS").read_text()
    (dist / "iris_mesh-1.0.0-py3-none-any.whl").write_text("another wheel")
    assert not verified()
