"""What opens is cancelled at each of its steps, on the real network: no file, socket, thread or task is left behind."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- programs of asyncio, too
import gc
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio

import iris
import iris.aio
from iris.doors import grant
from iris.doors.clients import ClientLimits, Clients
from iris.doors.http import open_http_door
from iris.doors.mqtt import open_mqtt_door
from iris.doors.nng import open_nng_door
from iris.federation.gateway import open_gateway
from iris.federation.policy import Policy
from iris.security.authority.issuing import issue_cluster
from iris.security.authority.realm_root import create_realm
from iris.security.files.credential_file import save_credential
from iris.security.identity import Credential
from iris.security.identity.permissions import Rights
from iris.spark_bridge.server.bridge import open_bridge

pytestmark = pytest.mark.long


@pytest.fixture
def credential(own_home: None) -> Credential:
    realm = create_realm(entropy=os.urandom)
    rights = Rights(serves=(">",), gateway=True)
    return issue_cluster(realm, "shop", entropy=os.urandom, wall_now=iris.Environment().wall_clock(), rights=rights)[1]


def open_sockets() -> set[str]:
    found: set[str] = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{descriptor.name} {descriptor.readlink()}")
        except OSError:
            continue
    return found


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of any task."""

    def __init__(self, scope: trio.CancelScope, steps: int) -> None:
        self._scope = scope
        self._left = steps

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


async def wait_tasks(number: int) -> bool:
    """Wait until there are so many tasks; others may be about to end theirs."""
    with trio.move_on_after(5):
        while trio.lowlevel.current_statistics().tasks_living != number:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.01)
        return True
    return False


async def cancelled_at_each_step(opening: Callable[[], AbstractAsyncContextManager[object]]) -> int:
    """Open, cancelled after 1, 2, 3, ... steps until it is open before that; return how many steps it has."""
    async with opening():
        pass
    gc.collect()
    await trio.sleep(0.05)
    await trio.sleep(0.5)
    before, tasks = open_sockets(), trio.lowlevel.current_statistics().tasks_living
    steps = 1
    while True:
        reached = False
        with trio.CancelScope() as scope:
            trio.lowlevel.add_instrument(instrument := CancelAt(scope, steps))
            try:
                async with opening():
                    reached = True
            finally:
                trio.lowlevel.remove_instrument(instrument)
        assert await wait_tasks(tasks), f"after {steps} steps"
        if open_sockets() - before:
            gc.collect()
            await trio.sleep(0.1)
            assert not open_sockets() - before, f"after {steps} steps"
        if reached:
            return steps
        steps += 1 if steps < 40 else 3


async def test_a_node_that_is_cancelled_while_it_opens_leaves_nothing(credential: Credential, tmp_path: Path) -> None:
    with another_process(credential, tmp_path, "tcp://127.0.0.1:0") as url, trio.fail_after(100):
        opening = partial(iris.open_node, credential=credential, lan=False, listen=["tcp://127.0.0.1:0"], seeds=[url])
        assert await cancelled_at_each_step(opening) > 20


@pytest.mark.parametrize("kind", ["client", "dial_only"])
async def test_a_client_that_is_cancelled_while_it_opens_leaves_nothing(
    credential: Credential, tmp_path: Path, kind: str
) -> None:
    options: Any = {kind: True}
    with another_process(credential, tmp_path, "ws://127.0.0.1:0/iris") as url, trio.fail_after(100):
        opening = partial(iris.open_node, credential=credential, lan=False, seeds=[url], **options)
        assert await cancelled_at_each_step(opening) > 20


async def test_a_gateway_that_is_cancelled_while_it_opens_leaves_nothing(
    credential: Credential, tmp_path: Path
) -> None:
    with trio.fail_after(100):

        @asynccontextmanager
        async def opening() -> AsyncGenerator[None]:
            async with (
                iris.open_node(credential=credential, lan=False, site="eu", listen=["tcp://127.0.0.1:0"]) as node,
                open_gateway(node, listen=["tcp://127.0.0.1:0"], policy=Policy()),
            ):
                yield

        assert await cancelled_at_each_step(opening) > 5


async def test_a_bridge_that_is_cancelled_while_it_opens_leaves_nothing_and_can_be_opened(
    credential: Credential, tmp_path: Path
) -> None:
    with trio.fail_after(100):
        async with iris.open_node(credential=credential, lan=False, listen=["tcp://127.0.0.1:0"]) as node:
            opening = partial(open_bridge, node, topics=["jobs"], directory=tmp_path / "log")
            assert await cancelled_at_each_step(opening) > 5
            async with opening():
                await node.publish_confirmed("jobs", 1)


OTHER = """
import sys, trio, iris
async def main():
    async with iris.open_node(credential=sys.argv[1], lan=False, listen=[sys.argv[2]]) as node:
        print(node._parts.mesh.listening[-1], flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@contextmanager
def another_process(credential: Credential, directory: Path, listen: str) -> Generator[str]:
    """Have a node in a process of its own; where it listens."""
    save_credential(directory / "shop.json", credential)
    command = [sys.executable, "-c", OTHER, str(directory / "shop.json"), listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            yield other.stdout.readline().strip()
        finally:
            other.kill()


async def cancelled_at_each_turn(opening: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    async with opening():
        pass
    gc.collect()
    await asyncio.sleep(0.1)
    before, tasks = open_sockets(), len(asyncio.all_tasks())
    for turns in itertools.count(1, 2):
        reached = False

        async def enter() -> None:
            nonlocal reached
            async with opening():
                reached = True

        task = asyncio.ensure_future(enter())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert len(asyncio.all_tasks()) == tasks, f"after {turns} turns"
        if open_sockets() - before:
            gc.collect()
            await asyncio.sleep(0.1)
            assert not open_sockets() - before, f"after {turns} turns"
        if reached and not task.cancelled():
            return
        if turns > 400:
            return


def test_a_node_of_asyncio_that_is_cancelled_while_it_opens_leaves_nothing(credential: Credential) -> None:
    async def main() -> None:
        async with asyncio.timeout(100):
            opening = partial(iris.aio.open_node, credential=credential, lan=False, listen=["tcp://127.0.0.1:0"])
            async with opening():
                await cancelled_at_each_turn(opening)
            await cancelled_at_each_turn(opening)

    threads = threading.active_count()
    asyncio.run(main())
    assert threading.active_count() <= threads + 3, "trio keeps some for 10 s"


@asynccontextmanager
async def nng_door(node: iris.aio.Node, clients: Clients, **_: object) -> AsyncGenerator[None]:
    with TemporaryDirectory(prefix="iris") as directory:  # short: the path of a socket has at most 107 bytes
        async with open_nng_door(node, clients, f"ipc://{directory}/door", "web"):
            yield


@pytest.mark.parametrize("open_door", [open_http_door, open_mqtt_door, nng_door])
def test_a_door_that_is_cancelled_while_it_opens_leaves_nothing(
    credential: Credential, tmp_path: Path, open_door: Callable[..., AbstractAsyncContextManager[object]]
) -> None:
    grant(tmp_path / "tokens", "web", call=(">",))

    async def main() -> None:
        clients = Clients(tmp_path / "tokens", iris.Environment().wall_clock, ClientLimits())

        @asynccontextmanager
        async def opening() -> AsyncGenerator[None]:
            with socket.create_server(("127.0.0.1", 0)) as made:
                async with open_door(node, clients, sockets=[made]):
                    yield

        async with asyncio.timeout(100):
            async with iris.aio.open_node(credential=credential, lan=False, listen=["tcp://127.0.0.1:0"]) as node:
                await cancelled_at_each_turn(opening)

    asyncio.run(main())
