"""Credential and seeds from the environment: for programs as for the command, and behind what a program says itself."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- how programs of asyncio open a node
from collections.abc import Iterator

import pytest
import trio

import iris
import iris.aio
import iris.sync
from tests.support.command import Terminal, open_terminal


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A home and a directory of their own, with two credentials of one realm."""
    with open_terminal() as terminal:
        for name in ("IRIS_HOME", "XDG_RUNTIME_DIR"):
            monkeypatch.setenv(name, terminal.environment[name])
        monkeypatch.chdir(terminal.directory)
        assert terminal.run("keys", "realm", "realm.key").returncode == 0
        for name in ("store", "shop"):
            assert terminal.run("keys", "cluster", "realm.key", name, "--out", f"{name}.iris").returncode == 0
        yield terminal


async def _name(**options: object) -> str:
    async with iris.open_node(lan=False, **options) as node:  # type: ignore[arg-type]  # as a test says
        return node.name


async def test_a_program_that_names_no_credential_takes_that_of_the_environment(
    shell: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _name() == "local"
    monkeypatch.setenv("IRIS_CREDENTIAL", "store.iris")
    assert await _name() == "store"
    assert await _name(credential="shop.iris") == "shop", "what a program says itself wins"
    monkeypatch.setenv("IRIS_CREDENTIAL", "")
    assert await _name() == "local", "empty is not set"


def test_programs_of_asyncio_and_without_an_event_loop_do_so_too(
    shell: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_CREDENTIAL", str(shell.directory / "store.iris"))

    async def name() -> str:
        async with iris.aio.open_node(lan=False) as node:
            return node.name

    assert asyncio.run(name()) == "store"
    with iris.sync.open_node(lan=False) as node:
        assert node.name == "store"


async def test_seeds_of_the_environment_lead_to_other_nodes_unless_a_program_has_its_own(
    shell: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = iris.Environment(directory=None, lan=None)
    monkeypatch.setenv("IRIS_CREDENTIAL", "store.iris")
    async with iris.open_node(environment=alone, listen=["tcp://127.0.0.1:0"]) as first:
        (url,) = (address for address in first.addresses if address.startswith("tcp:"))
        monkeypatch.setenv("IRIS_SEEDS", f"tcp://127.0.0.1:1 {url}")
        options = {"credential": "shop.iris", "listen": ["tcp://127.0.0.1:0"], "environment": alone}
        async with iris.open_node(**options) as second:  # type: ignore[arg-type]  # the values are of several types
            assert [node.node for node in second.nodes()] == [first.id]
        async with iris.open_node(**options, seeds=["tcp://127.0.0.1:1"]) as third:  # type: ignore[arg-type]
            assert third.nodes() == ()


async def test_what_is_wrong_with_a_variable_names_it(shell: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_CREDENTIAL", "absent.iris")
    with pytest.raises(iris.ConfigError, match=r"absent\.iris"):
        await _name()
    monkeypatch.setenv("IRIS_CREDENTIAL", "store.iris")
    text = "'store' and not for 'greeters': leave the name out, or unset IRIS_CREDENTIAL"
    with pytest.raises(iris.ConfigError, match=text):
        await _name(name="greeters")
    monkeypatch.setenv("IRIS_SEEDS", "tcp://127.0.0.1:1 nonsense")
    with pytest.raises(iris.ConfigError, match=r"IRIS_SEEDS: .*nonsense"):
        await _name()


async def test_a_wrapped_credential_opens_with_the_passphrase_of_the_environment(
    shell: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRIS_PASSPHRASE", "open sesame")
    shell.environment["IRIS_PASSPHRASE"] = "open sesame"
    done = await trio.to_thread.run_sync(
        shell.run, "keys", "cluster", "realm.key", "vault", "--out", "vault.iris", "--passphrase"
    )
    assert done.returncode == 0, done.stderr.decode()
    monkeypatch.setenv("IRIS_CREDENTIAL", "vault.iris")
    assert await _name() == "vault"
    monkeypatch.delenv("IRIS_PASSPHRASE")
    with pytest.raises(iris.ConfigError, match="passphrase"):
        await _name()
