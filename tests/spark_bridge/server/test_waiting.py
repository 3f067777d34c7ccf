"""Waiting for events of some topics, through a bridge's members: what wakes a reader, and what does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from iris.kernel.errors import NotAllowed, RemoteError
from iris.node.node import Node
from iris.spark_bridge.client.bridge_watch import BridgeWatch
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.log.topics.filter import TopicFilter
from iris.spark_bridge.server.bridge import open_bridge
from iris.testing import Rights, open_network
from tests.support.bridge_requests import ask_raw
from tests.support.waiting import wait_until


@asynccontextmanager
async def bridge_of(
    directory: Path, members: int = 1, subscribes: tuple[str, ...] | None = None
) -> AsyncIterator[tuple[BridgeClient, Node]]:
    """A client of a bridge of some members, each with a shard, and a publisher."""
    async with open_network() as network, AsyncExitStack() as stack:
        network.credential("reader", Rights(subscribes=subscribes))
        for number in range(members):
            node = await stack.enter_async_context(network.open_node("bridge"))
            shared: dict[str, Any] = {"of": members} if members > 1 else {}
            place = directory / str(number)
            await stack.enter_async_context(open_bridge(node, topics=[">"], directory=place, shards=[number], **shared))
        publisher = await stack.enter_async_context(network.open_node("publisher"))
        reader = await stack.enter_async_context(network.open_node("reader"))
        client = BridgeClient(reader, "bridge", patience=20)
        assert len(await client.shards()) == members
        yield client, publisher


async def publish(node: Node, topics: Sequence[str], **options: Any) -> None:
    async with node.confirming(timeout=60) as events:
        for topic in topics:
            await events.publish(topic, b"x", **options)


async def test_only_events_of_its_topics_end_a_readers_wait(tmp_path: Path) -> None:
    async with bridge_of(tmp_path) as (client, publisher):
        (shard,) = await client.shards()
        wanted = TopicFilter(["silent.*"])
        answers: list[int | None] = []

        async def wait() -> None:
            found = await client.wait_offsets("bridge", {shard.id: 0}, 10, wanted)
            answers.append(found[shard.id].first)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for turn in range(5):
                await publish(publisher, [f"noise.{turn}"] * 20)
            assert answers == []
            await publish(publisher, ["silent.x"])
            await wait_until(lambda: answers)
        assert answers == [100]


async def test_a_wait_that_ends_without_news_tells_how_far_it_has_looked(tmp_path: Path) -> None:
    async with bridge_of(tmp_path) as (client, publisher):
        (shard,) = await client.shards()
        await publish(publisher, ["noise"] * 50)
        found = await client.wait_offsets("bridge", {shard.id: 0}, 0.05, TopicFilter(["silent"]))
        assert (found[shard.id].first, found[shard.id].has_news) == (50, False)
        watch = BridgeWatch(None, TopicFilter(["silent"]))
        await watch.look(client)
        await watch.wait(client, {shard.id: 0}, 0)
        assert watch.passed == {shard.id: 50}


async def test_members_without_news_are_asked_how_far_they_are_when_another_has_some(tmp_path: Path) -> None:
    async with bridge_of(tmp_path, members=2) as (client, publisher):
        await publish(publisher, [f"noise.{number}" for number in range(100)])
        watch = BridgeWatch(None, TopicFilter(["heard"]))
        await watch.look(client)
        known = dict.fromkeys(watch.extents, 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, publisher, ["heard"])
            with trio.fail_after(8):
                await watch.wait(client, known, 10)
        extents = watch.extents.values()
        assert sum(extent.has_news for extent in extents) == 1
        assert sum(extent.next for extent in extents) == 101
        assert all(extent.first is not None and extent.first > 0 for extent in extents)


async def test_a_limit_is_divided_among_members_and_counts_wanted_events(tmp_path: Path) -> None:
    async with bridge_of(tmp_path, members=2) as (client, publisher):
        topics = ["noise", "noise", "a"] * 60
        for number, topic in enumerate(topics):
            await publisher.publish_confirmed(topic, b"x", key=f"k{number}", timeout=60)
        watch = BridgeWatch(None, TopicFilter(["a"]))
        await watch.look(client)
        known = dict.fromkeys(watch.extents, 0)
        await watch.wait(client, known, 0, limit=20)
        upto = {shard: extent.upto for shard, extent in watch.extents.items()}
        read = 0
        for shard, end in upto.items():
            address = watch.address(shard)
            assert address is not None
            assert end is not None
            found = await client.wait_offsets(address, {shard: 0}, 0, TopicFilter(["a"]), 1000)
            left = await client.wait_offsets(address, {shard: end}, 0, TopicFilter(["a"]), 1000)
            total, behind = found[shard].count or 0, left[shard].count or 0
            assert total > 0
            read += total - behind
        assert read == 20


async def test_a_regular_expression_is_matched_by_the_bridge(tmp_path: Path) -> None:
    async with bridge_of(tmp_path) as (client, publisher):
        (shard,) = await client.shards()
        for topic in ("a.b", "a.c", "b"):  # a chunk each
            await publisher.publish_confirmed(topic, b"x", timeout=60)
        for regex, first in ((r"a\..", 0), ("b", 2), ("c|d", 3), ("(?!a).*", 0)):
            found = await client.wait_offsets("bridge", {shard.id: 0}, 0, TopicFilter(regex=regex))
            assert found[shard.id].first == first, regex
        for wrong in ("(?!a).*", "(", "x" * 2000, 5):
            question: dict[str, object] = {"known": {}, "timeout": 0, "topics": [], "regex": wrong}
            with pytest.raises(RemoteError, match=r"regex|regular expression"):
                await ask_raw(client, "offsets", question)
        with pytest.raises(RemoteError, match="limit is 0"):
            await ask_raw(client, "offsets", {"known": {}, "timeout": 0, "limit": 0})


async def test_what_may_not_be_subscribed_to_is_not_heard_of(tmp_path: Path) -> None:
    async with bridge_of(tmp_path, subscribes=("public.>",)) as (client, publisher):
        (shard,) = await client.shards()
        await publish(publisher, ["secret", "public.x"])
        found = await client.wait_offsets("bridge", {shard.id: 0}, 0, TopicFilter(["public.*"]))
        assert found[shard.id].first in (0, 1)
        for wanted in (TopicFilter(["secret"]), TopicFilter(["public.x", ">"]), TopicFilter(regex="public.x")):
            with pytest.raises(NotAllowed, match="may not subscribe"):
                await client.wait_offsets("bridge", {shard.id: 0}, 0, wanted)
