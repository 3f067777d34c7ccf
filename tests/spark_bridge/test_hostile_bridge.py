"""A bridge that answers nonsense: its readers get one error, and no other bridge is ended by it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

import iris
from iris.kernel.config import MIB
from iris.kernel.errors import RemoteProtocolError
from iris.patterns.tunnel.tunnel import Tunnel
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.reader import to_batches
from iris.spark_bridge.errors import LogDamaged
from iris.spark_bridge.events.gaps import Gap
from iris.spark_bridge.log.chunk import frame_header
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Network, open_network
from tests.spark_bridge.events.test_record_batches import growing_less_than

SHARD: dict[str, Any] = {
    "id": "0@0000000000000000",
    "number": 0,
    "address": "bridge",
    "earliest": 0,
    "next": 5,
    "size": 0,
    "timestamp": 0,
    "of": 0,
    "gap": -1,
    "term": 1,
}


GAP: dict[str, Any] = {
    "shard": 0,
    "offset": 4,
    "upto": 4,
    "topic": "a.x",
    "cluster": "shop",
    "publisher": "ab" * 16,
    "count": 2,
    "timestamp": 0,
}


async def all_gaps(client: BridgeClient) -> list[Gap]:
    return [gap async for gap in client.gaps("bridge", "0@0000000000000000", 0, 9)]


@asynccontextmanager
async def open_liar(network: Network, reply: Callable[[], object]) -> AsyncIterator[BridgeClient]:
    """A service under the name of a bridge that answers everything with what ``reply`` returns; its client."""
    service = iris.Service("bridge")

    async def answer(_: iris.Request) -> object:
        return reply()

    for operation in ("shards", "offsets", "times", "pin", "gaps"):
        service.request(operation)(answer)
    async with (
        network.open_node("bridge") as node,
        node.join("bridge", service),
        network.open_node("reader") as reader,
    ):
        yield BridgeClient(reader, "bridge", patience=5)


ASKED: dict[str, Callable[[BridgeClient], Any]] = {
    "shards": lambda client: client.shards(),
    "offsets": lambda client: client.wait_offsets("bridge", {}, 0),
    "times": lambda client: client.offsets_at(["bridge"], 0),
    "pin": lambda client: client.pin("bridge", "g", {}),
    "gaps": lambda client: all_gaps(client),
}


def say(shard: object) -> dict[str, object]:
    return {"shards": [shard], "known": {}}


WRONG: tuple[object, ...] = (None, -1, "no name", 2**63, [], 1.5)
NONSENSE: dict[str, tuple[object, ...]] = {
    "shards": (
        None,
        5,
        {"a": 1},
        [SHARD],
        {"shards": [SHARD]},
        {"shards": [SHARD], "known": []},
        {"shards": [SHARD], "known": {"1": 1}},
        {"shards": [SHARD], "known": {"-1": "bridge"}},
        {"shards": [SHARD], "known": {"1": "no name"}},
        say(None),
        say([]),
        say({}),
        *(say(SHARD | {name: wrong}) for name in SHARD for wrong in WRONG if (name, wrong) != ("gap", -1)),
    ),
    "offsets": (
        None,
        [],
        {"x": [0, 1]},
        {"0@a": None},
        {"0@a": [0]},
        {"0@a": [1, 0, -1]},
        {"0@a": ["0", 1, -1]},
        {"0@a": [0, 1, -2]},
    ),
    "times": (None, [], {"x": 1}, {"0@a": None}, {"0@a": -1}, {"0@a": 2**63}, {"0@a": True}),
    "gaps": (None, {}, 5, [None], [{}], [GAP] * 257, *([GAP | {name: wrong}] for name in GAP for wrong in WRONG)),
    "pin": (None, [], {}, {"start": None}, {"start": {"x": 1}}, {"start": {"0@a": "1"}}),
}


@pytest.mark.parametrize("operation", ASKED)
async def test_an_answer_that_makes_no_sense_is_one_error(operation: str) -> None:
    replies = iter(NONSENSE[operation])
    async with open_network() as network, open_liar(network, lambda: next(replies)) as client:
        for _ in NONSENSE[operation]:
            with pytest.raises(RemoteProtocolError, match="in a form that is not understood"):
                await ASKED[operation](client)
    assert next(replies, None) is None, "each was given once"


async def test_a_bridge_is_not_ended_by_who_comes_later_and_answers_nonsense(tmp_path: Path) -> None:
    service = iris.Service("bridge")
    asked = trio.Event()

    @service.request("shards")
    async def answer(_: iris.Request) -> object:  # pyright: ignore[reportUnusedFunction]
        asked.set()
        return {"shards": [None], "known": []}

    async with (
        open_network() as network,
        network.open_node("bridge") as one,
        network.open_node("bridge") as other,
    ):
        first, later = sorted((one, other), key=lambda node: node.id)
        async with open_bridge(first, topics=["t"], directory=tmp_path) as bridge, later.join("bridge", service):
            with trio.fail_after(20):
                await asked.wait()
            await later.publish_confirmed("t", b"x", timeout=20)
            assert bridge.statistics().stored == 1


async def test_the_answer_of_a_bridge_is_understood() -> None:
    async with open_network() as network, open_liar(network, lambda: say(SHARD)) as client:
        assert [shard.id for shard in await client.shards()] == ["0@0000000000000000"]


@pytest.mark.parametrize("data", [b"", b"\xff" * 200])
async def test_a_chunk_that_holds_no_batch_is_an_error(data: bytes) -> None:
    header = frame_header(data, shard=0, epoch="00" * 8, first=0, count=5, timestamp=0)
    service = iris.Service("bridge")

    @service.tunnel("read")
    async def read(tunnel: Tunnel) -> None:  # pyright: ignore[reportUnusedFunction]
        await tunnel.receive()
        await tunnel.send(header + data)
        await tunnel.send_eof()

    async with (
        open_network() as network,
        network.open_node("bridge") as node,
        node.join("bridge", service),
        network.open_node("reader") as reader,
    ):
        client = BridgeClient(reader, "bridge", patience=5)
        chunks = [chunk async for part in client.read("bridge", "0@" + "00" * 8, 0, 5) for chunk in part]
        with growing_less_than(MIB), pytest.raises(LogDamaged):
            list(to_batches(iter(chunks), SourceOptions(), start=0, end=5))
