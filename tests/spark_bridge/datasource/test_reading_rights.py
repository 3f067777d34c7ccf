"""A reader gets from a bridge what it may subscribe to, unless the bridge was started for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from iris.kernel.errors import NotAllowed
from iris.node.node import Node
from iris.patterns.bridge_protocol import RemoteShard
from iris.spark_bridge.admin import read_events
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.datasource.options import SourceOptions
from iris.spark_bridge.datasource.reader import to_batches
from iris.spark_bridge.events.schema import SCHEMA
from iris.spark_bridge.log.chunk import Chunk
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.testing import Network, Rights, open_network
from tests.support.bridge_members import open_member

PUBLIC = tuple(range(0, 60, 3))
"""Events on public topics, by offset: every third one."""


@asynccontextmanager
async def open_reader(
    network: Network, directory: Path, subscribes: tuple[str, ...] | None, **options: Any
) -> AsyncIterator[tuple[BridgeClient, Node]]:
    """A bridge with sixty events, and a reader that may subscribe to some topics."""
    network.credential("reader", Rights(subscribes=subscribes))
    async with (
        open_member(network, directory, **options),
        network.open_node("publisher") as publisher,
        network.open_node("reader") as node,
    ):
        async with publisher.confirming(timeout=60) as events:
            for number in range(60):
                topic = f"public.{number}" if number in PUBLIC else "secret.x"
                await events.publish(topic, b"%s %d" % (topic.encode(), number))
        yield BridgeClient(node, "bridge", patience=5), node


async def read(
    client: BridgeClient, topics: Sequence[str] = (), *, start: int = 0, end: int = 60
) -> tuple[list[Chunk], RemoteShard]:
    (shard,) = await client.shards()
    chunks: list[Chunk] = []
    async for part in client.read("bridge", shard.id, start, end, TopicFilter(topics)):
        chunks += part
    return chunks, shard


def offsets(chunks: Sequence[Chunk], topics: Sequence[str] = (), *, start: int = 0, end: int = 60) -> list[int]:
    """Return the offsets of the events that Spark gets of these chunks."""
    found: list[int] = []
    for batch in to_batches(iter(chunks), SourceOptions(topics=tuple(topics)), start=start, end=end):
        assert batch.schema == SCHEMA
        found += batch.column("offset").to_pylist()
    return found


async def test_what_may_not_be_subscribed_to_does_not_leave_the_bridge(tmp_path: Path) -> None:
    async with open_network() as network, open_reader(network, tmp_path, ("public.>",)) as (client, _):
        chunks, _ = await read(client, ["public.>"])
        assert offsets(chunks) == list(PUBLIC), "also with a filter that keeps everything"
        assert b"secret" not in b"".join(bytes(chunk.frame) for chunk in chunks)
        chunks, _ = await read(client, ["public.6", "public.*"])
        assert offsets(chunks) == list(PUBLIC)
        chunks, _ = await read(client, ["public.6", "public.9"])
        assert offsets(chunks) == [6, 9], "what was not named is left out, too"
        chunks, _ = await read(client, ["public.none"])
        assert offsets(chunks) == []
        assert chunks[-1].end >= 60


@pytest.mark.parametrize(("start", "end"), [(0, 60), (1, 59), (4, 5), (3, 4), (20, 41)])
async def test_a_range_has_the_same_offsets_as_without_what_is_left_out(tmp_path: Path, start: int, end: int) -> None:
    async with open_network() as network, open_reader(network, tmp_path, ("public.>",)) as (client, _):
        chunks, _ = await read(client, ["public.>"], start=start, end=end)
        found = offsets(chunks, ["public.>"], start=start, end=end)
        assert found == [offset for offset in PUBLIC if start <= offset < end]


@pytest.mark.parametrize("topics", [(), (">",), ("*.*",), ("secret.x",), ("public.>", "secret.x")])
async def test_a_read_of_what_may_not_be_subscribed_to_is_refused(tmp_path: Path, topics: Sequence[str]) -> None:
    async with open_network() as network, open_reader(network, tmp_path, ("public.>",)) as (client, _):
        what = repr(topics[-1]) if topics else "all topics"
        with pytest.raises(NotAllowed) as caught:
            await read(client, topics)
        message = str(caught.value)
        assert f"nodes of cluster 'reader' may not subscribe to {what}" in message
        assert message.endswith("by the option subscribe or --topic, or have the bridge started with --reader reader")
        with pytest.raises(NotAllowed, match="may not subscribe"):
            [event async for event in read_events(client, topics=topics)]


async def test_one_that_may_subscribe_to_nothing_reads_nothing_and_holds_nothing_back(tmp_path: Path) -> None:
    async with open_network() as network, open_reader(network, tmp_path, ()) as (client, _):
        (shard,) = await client.shards()
        assert shard.next == 60, "how many there are is no secret"
        with pytest.raises(NotAllowed, match="may not subscribe to any topic"):
            await read(client, ["public.>"])
        with pytest.raises(NotAllowed, match="may not subscribe to any topic"):
            await client.pin("bridge", "g", {shard.id: 0})
        with pytest.raises(NotAllowed, match="may not subscribe to any topic"):
            await client.move("bridge", "g", {shard.id: 0})


async def test_inspection_shows_what_may_be_subscribed_to(tmp_path: Path) -> None:
    async with open_network() as network, open_reader(network, tmp_path, ("public.>",)) as (client, _):
        shown = [event["offset"] async for event in read_events(client, topics=["public.>"], last=10)]
        assert shown == [51, 54, 57]


async def test_no_file_is_named_to_one_that_may_not_have_all_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iris.spark_bridge.client.client.machine", lambda: "here")
    monkeypatch.setattr("iris.spark_bridge.server.operations.machine", lambda: "here")
    async with (
        open_network() as network,
        open_reader(network, tmp_path, ("public.>",)) as (client, _),
        network.open_node("other") as other,
    ):
        (shard,) = await client.shards()
        assert await client.locate("bridge", shard.id, 0, 60) is None
        everything = BridgeClient(other, "bridge", patience=5)
        assert await everything.locate("bridge", shard.id, 0, 60) is not None
        chunks, _ = await read(everything)
        assert offsets(chunks) == list(range(60))


async def test_a_bridge_that_was_started_for_a_reader_gives_it_everything(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_reader(network, tmp_path, (), readers=["reader"]) as (client, _),
        network.open_node("bridge") as own,
    ):
        chunks, shard = await read(client)
        assert offsets(chunks) == list(range(60))
        await client.pin("bridge", "g", {shard.id: 0})
        chunks, _ = await read(BridgeClient(own, "bridge", patience=5))
        assert offsets(chunks) == list(range(60))


@pytest.mark.parametrize("topics", [None, "public.>", [1], ["not a topic"], ["a"] * 257])
async def test_topics_that_are_none_are_refused(tmp_path: Path, topics: object) -> None:
    async with (
        open_network() as network,
        open_reader(network, tmp_path, ("public.>",)) as (client, node),
        node.open_tunnel("bridge", operation="read") as tunnel,
    ):
        (shard,) = await client.shards()
        await tunnel.send({"shard": shard.id, "start": 0, "end": 60, "topics": topics})
        answer = await tunnel.receive()
        assert answer["error"] == "bad_request"
        assert answer["message"].startswith("topics")
