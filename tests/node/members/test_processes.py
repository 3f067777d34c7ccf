"""Nodes in processes of their own, over TCP on loopback, with credentials: the real network, the real clock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import iris
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.files.credential_file import save_credential
from iris.security.identity.credential import Credential
from iris.security.identity.permissions import Rights
from tests.support.command import Terminal, open_terminal

APP = """
import os
import iris

workers = iris.Service("workers")

@workers.request
async def work(request: iris.Request) -> object:
    return os.getpid()
"""


@pytest.fixture
def terminal() -> Generator[Terminal]:
    with open_terminal() as opened:
        (opened.directory / "app.py").write_text(APP)
        yield opened


@asynccontextmanager
async def open_shop(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[iris.Node, Path]]:
    """Open a node that listens at a TCP port, and write the credential of workers that join through it."""
    runtime = terminal.directory.parent / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))  # not that of the workers: they meet over TCP or not at all
    realm, shop = issue_cluster(create_realm(os.urandom), "shop", entropy=os.urandom, wall_now=wall_now())
    realm, workers = issue_cluster(realm, "workers", entropy=os.urandom, wall_now=wall_now(), rights=Rights())
    file = terminal.directory / "workers.json"
    save(file, workers)
    async with iris.open_node(credential=shop, listen=["tcp://127.0.0.1:0"]) as node:
        yield node, file


def wall_now() -> float:
    return iris.Environment().wall_clock()


def save(file: Path, credential: Credential) -> None:
    save_credential(file, credential)


def tcp_address(node: iris.Node) -> str:
    (address,) = [url for url in node.addresses if url.startswith("tcp://")]
    assert not address.endswith(":0")
    return address


@contextmanager
def workers(terminal: Terminal, node: iris.Node, file: Path, count: int) -> Generator[list[subprocess.Popen[bytes]]]:
    with ExitStack() as stack:
        arguments = ("run", "app:workers", "--credential", str(file), "--seeds", tcp_address(node))
        yield [stack.enter_context(terminal.started(*arguments)) for _ in range(count)]


async def test_nodes_with_credentials_meet_through_a_seed_over_tcp(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop(terminal, monkeypatch) as (node, file):
        with workers(terminal, node, file, 1) as (process,):
            await node.wait_for("workers", timeout=20)
            assert await node.request("workers") == process.pid
            (member,) = node.members("workers")
            assert all(url.startswith(("tcp://127.0.0.1:", "ipc://")) for url in member.addresses)
            process.send_signal(signal.SIGINT)
            async with node.watch("workers") as changes:
                kinds = [(await anext(changes)).kind]
                while kinds[-1] not in ("left", "lost"):
                    kinds.append((await anext(changes)).kind)
            assert kinds[-1] == "left"
            assert await trio.to_thread.run_sync(process.wait) == 0


async def test_no_idempotent_request_fails_when_a_member_is_killed(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_shop(terminal, monkeypatch) as (node, file):
        with workers(terminal, node, file, 3) as processes:
            await node.wait_for("workers", members=3, timeout=20)
            answered: dict[int, int] = {}
            begun = since_dead = 0

            async def ask() -> None:
                nonlocal begun
                while not since_dead or begun < since_dead + 400:
                    begun += 1
                    number = begun
                    who = await node.request("workers", timeout=60, options=iris.RequestOptions(idempotent=True))
                    answered[who] = answered.get(who, 0) + 1
                    assert not (since_dead and number > since_dead and who == processes[0].pid), "the dead answer"

            async with trio.open_nursery() as nursery:
                for _ in range(8):
                    nursery.start_soon(ask)
                while len(answered) < 3:
                    await trio.testing.wait_all_tasks_blocked(0.001)
                processes[0].kill()
                await trio.to_thread.run_sync(processes[0].wait)
                since_dead = begun
            assert set(answered) == {process.pid for process in processes}
            statistics = node.statistics().requests
            assert statistics.sent == statistics.answered == sum(answered.values())


async def test_a_node_of_another_realm_is_not_let_in(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_shop(terminal, monkeypatch) as (node, _):
        _, foreign = issue_cluster(create_realm(os.urandom), "shop", entropy=os.urandom, wall_now=wall_now())
        config = iris.Config(handshake_timeout=2.0)
        async with iris.open_node(credential=foreign, seeds=[tcp_address(node)], config=config) as stranger:
            assert stranger.realm != node.realm
            with pytest.raises(iris.NoSuchCluster):
                await stranger.request("shop")
        assert "the node there is of another realm" in caplog.text
        assert node.statistics().refusals["AuthenticationError"] >= 1
        assert not node.statistics().links


async def test_an_address_in_use_is_one_clear_error(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_shop(terminal, monkeypatch) as (node, _):
        with pytest.raises(iris.ConfigError, match=r"cannot listen at tcp://127\.0\.0\.1:\d+: the address is in use"):
            async with iris.open_node(listen=[tcp_address(node)]):
                pass
