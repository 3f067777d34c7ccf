"""Look-up of the service by ``iris run``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from pathlib import Path

import click
import pytest

import iris
import iris.aio
from iris.cli.main import run_command
from iris.cli.run import load_service

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Write]:
    """Write a module into the current directory, which is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_module(name: str, code: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code)

    yield write_module
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_a_service_is_found_in_the_current_directory(write: Write) -> None:
    write("app_found", "import iris\ndatabases = iris.Service('databases')\n")
    assert load_service("app_found:databases").name == "databases"


@pytest.mark.parametrize("target", ["", ":", "app", "app:", ":databases", ".app:databases", "..:databases"])
def test_what_names_no_service_is_refused_before_anything_is_imported(target: str) -> None:
    with pytest.raises(click.UsageError, match="names no service: write MODULE:SERVICE"):
        load_service(target)


def test_a_module_that_is_not_there_is_named(write: Write) -> None:
    with pytest.raises(click.UsageError, match="there is no module app_absent in"):
        load_service("app_absent:databases")


def test_what_a_module_needs_and_lacks_is_named(write: Write) -> None:
    write("app_needy", "import no_such_thing\n")
    with pytest.raises(iris.ConfigError, match="app_needy needs the module no_such_thing"):
        load_service("app_needy:databases")


def test_what_a_module_lacks_is_named_even_if_its_own_name_begins_like_that(write: Write) -> None:
    write("app_prefixed", "import app_pre\n")
    with pytest.raises(iris.ConfigError, match="app_prefixed needs the module app_pre, which is not installed"):
        load_service("app_prefixed:databases")


def test_a_module_in_a_package_that_is_not_there_is_named(write: Write) -> None:
    for target in ("app_absent.inner.one", "json.app_absent"):
        with pytest.raises(click.UsageError, match=f"there is no module {target} in"):
            load_service(f"{target}:databases")


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("x = 1\nraise ValueError('bad setting')\n", r"app_broken\.py:2: ValueError: bad setting"),
        ("x = 1\ndef f(:\n", r"app_broken\.py:2: SyntaxError"),
        ("import iris\niris.Service('no name')\n", r"app_broken\.py:2: ConfigError: 'no name'"),  # where Iris raises
    ],
)
def test_a_module_that_fails_is_shown_with_the_line(write: Write, code: str, complaint: str) -> None:
    write("app_broken", code)
    with pytest.raises(iris.ConfigError, match=complaint):
        load_service("app_broken:databases")


def test_the_services_that_are_there_are_named(write: Write) -> None:
    write("app_other", "import iris\nlogs = iris.Service('logs')\nnumber = 1\n")
    for attribute in ("databases", "number"):
        with pytest.raises(click.UsageError, match=f"no iris.Service called {attribute}; it has logs"):
            load_service(f"app_other:{attribute}")


def test_a_service_of_asyncio_is_one(write: Write) -> None:
    write("app_asyncio", "import iris.aio\nprices = iris.aio.Service('prices')\n")
    assert isinstance(load_service("app_asyncio:prices"), iris.aio.Service)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "Missing argument 'MODULE:SERVICE...'"),
        (("app_two:a", "app_two:b"), "two services are of the cluster shop: one node serves a cluster once"),
        (("app_two:a", "app_two:c", "--cluster", "x"), "--cluster names the cluster of one service"),
    ],
)
def test_services_that_cannot_share_a_node_are_refused(
    write: Write, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], complaint: str
) -> None:
    write("app_two", "import iris\na = iris.Service('shop')\nb = iris.Service('shop')\nc = iris.Service('store')\n")
    assert run_command(["run", *arguments]) == 2
    assert complaint in capsys.readouterr().err
