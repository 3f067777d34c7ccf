"""``open_node`` where the directory for its files cannot be made, or another process keeps a lock there."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

import iris
from iris.cluster.discovery import address_book as address_file
from iris.security.files.private_files import locked
from tests.node.opening.test_opening import OUTSIDE, World


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))
    return World(tmp_path / "run")


@pytest.fixture
def no_home(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine that this user can keep nothing on."""
    monkeypatch.setenv("IRIS_HOME", "/proc/nowhere/iris")
    return world


@pytest.mark.parametrize("local", [False, True])
async def test_without_a_place_for_its_files_a_node_does_not_open_and_says_what_to_set(
    no_home: World, local: bool
) -> None:
    with pytest.raises(iris.ConfigError, match="set IRIS_HOME to a directory that this user can write") as caught:
        async with iris.open_node(credential=None if local else no_home.shop, environment=no_home.environment()):
            raise AssertionError("not reached")
    assert "\n" not in str(caught.value)
    assert ("revocations=" in str(caught.value)) == (not local)
    assert no_home.is_untouched


async def test_a_node_that_is_told_where_its_revocation_list_is_does_without_an_address_book_and_says_so_once(
    no_home: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with iris.open_node(
        credential=no_home.shop, revocations=tmp_path / "list", environment=no_home.environment()
    ) as node:
        assert node.name == "shop"
    lines = [record.getMessage() for record in caplog.records if record.name == "iris"]
    assert len(lines) == 1
    assert lines[0].endswith("where nodes are is not remembered")


async def test_an_address_book_that_another_process_has_locked_holds_up_nobody_who_closes(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_file, "_PATIENCE", 0.05)
    async with iris.open_node(credential=world.shop, listen=[OUTSIDE], environment=world.environment()):
        book = Path(os.environ["IRIS_HOME"]) / "addresses" / f"{world.shop.realm_id}.json"
        with ExitStack() as stack:
            async with iris.open_node(credential=world.shop, environment=world.environment()):
                stack.enter_context(locked(book.with_name(f"{book.name}.lock"), "address book"))
            assert not book.exists()
        assert "another process has held this lock" in caplog.text
        async with iris.open_node(credential=world.shop, environment=world.environment()):
            pass
        assert book.exists(), "the next one to close writes it"


@pytest.mark.parametrize(
    ("name", "told"), [("x" * 300, "File name too long"), ("a\0b", "embedded null (byte|character)")]
)
async def test_a_place_for_revocations_where_no_file_can_be_is_one_clear_error(
    world: World, tmp_path: Path, name: str, told: str
) -> None:
    with pytest.raises(iris.ConfigError, match=f"revocation list .*: {told}") as caught:
        async with iris.open_node(credential=world.shop, revocations=tmp_path / name, environment=world.environment()):
            raise AssertionError("not reached")
    assert "\n" not in str(caught.value)
    assert world.is_untouched
