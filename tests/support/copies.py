"""A member of a bridge and its copies, on nodes of their own."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from iris.kernel.errors import ConfigError
from iris.spark_bridge.admin import read_status
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.copies.follower import BridgeCopy, open_copy
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.replication.journal import LogChange
from iris.spark_bridge.log.replication.replication import Position
from iris.testing import Network
from tests.support.bridge_members import open_member
from tests.support.waiting import wait_until

open_primary = partial(open_member, min_copies=1)
"""Open a member that waits for one copy."""


@asynccontextmanager
async def open_follower(
    network: Network, directory: Path, name: str = "copy", *, host: str | None = None
) -> AsyncIterator[BridgeCopy]:
    """A copy of it."""
    async with (
        network.open_node("bridge", host=host) as node,
        open_copy(node, bridge="bridge", shard=0, directory=directory, name=name) as copy,
    ):
        yield copy


@asynccontextmanager
async def ended(
    member: AbstractAsyncContextManager[object], reason: str
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Have a member in the block that ends by itself; yield what waits for that."""
    began, has_ended = trio.Event(), trio.Event()

    async def be() -> None:
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match=reason), allow_unwrapped=True):
            async with member:
                began.set()
                await trio.sleep_forever()
        has_ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(be)
        await began.wait()
        yield has_ended.wait


async def wait_copies(client: BridgeClient, **states: str) -> None:
    """Wait until the bridge's copies are in these states."""

    async def found() -> dict[str, str]:
        return {copy.name: copy.state for copy in (await read_status(client)).copies["bridge"]}

    with trio.fail_after(60):
        while await found() != states:  # noqa: ASYNC110 -- there is no event
            await trio.sleep(0.05)


def hold(monkeypatch: pytest.MonkeyPatch, copy: BridgeCopy, stack: AsyncExitStack) -> threading.Event:
    """Have a copy write nothing more until the event is set, at the latest when ``stack`` is left."""
    go_on = threading.Event()
    stack.callback(go_on.set)
    repeat = copy.store.replication.repeat

    def hang(changes: Sequence[LogChange], *, term: int) -> Position | None:
        go_on.wait()
        return repeat(changes, term=term)

    monkeypatch.setattr(copy.store.replication, "repeat", hang)
    return go_on


async def wait_problem(copy: BridgeCopy, text: str) -> None:
    """Wait until a copy says this."""
    await wait_until(lambda: text in copy.problem)


async def values(client: BridgeClient) -> list[bytes]:
    """Return what readers get."""
    (shard,) = await client.shards()
    found: list[bytes] = []
    async for chunks in client.read(shard.address, shard.id, shard.earliest, shard.next):
        for chunk in chunks:
            found += decode_events(chunk.data).column("value").to_pylist()
    return found
