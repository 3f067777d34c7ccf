"""A bridge among nodes: an event that is confirmed to its publisher is on the disk, once.

On the network in memory and the real clock, because the log works in threads.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent, RemoteError, RequestTimeout
from iris.node.node import Node
from iris.patterns.pubsub.subscribe.subscription import Subscription
from iris.spark_bridge.client.client import BridgeClient
from iris.spark_bridge.errors import BridgeUnreachable, StoreBusy
from iris.spark_bridge.events.schema import decode_events
from iris.spark_bridge.log.recovery import open_store
from iris.spark_bridge.protocol import Extent
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.group_commit import GroupLimits
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.arrivals import stored
from tests.support.bridge_members import open_member
from tests.support.bridge_requests import ask_raw
from tests.support.waiting import wait_until


@asynccontextmanager
async def bridge_node(network: Network, directory: Path, *topics: str, **options: Any) -> AsyncIterator[BridgeMember]:
    """A node that is a member of the cluster ``bridge``."""
    async with (
        network.open_node("bridge") as node,
        open_bridge(node, topics=topics or ("a.>",), directory=directory, **options) as bridge,
    ):
        yield bridge


def events_in(directory: Path) -> list[bytes]:
    """Return what the log in a directory holds, with nobody running."""
    store = open_store(directory, shards=[0], entropy=os.urandom)
    try:
        return stored(store)
    finally:
        store.close()


async def test_a_confirmed_event_is_on_the_disk(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_node(network, tmp_path) as bridge,
        network.open_node("publisher") as publisher,
    ):
        await publisher.publish_confirmed("a.b", b"one")
        assert stored(bridge.store) == [b"one"]
        await publisher.publish_confirmed("a.c", {"n": 2}, key="k", headers={"h": "x"})
        (state,) = bridge.states.values()
        (chunk,) = bridge.store.reader.read(0, state.epoch, 1, 2, max_bytes=1)
        (row,) = decode_events(chunk.data).to_pylist()
        assert (row["topic"], row["key"], row["offset"]) == ("a.c", b"k", 1)
        assert {"key": "iris-sender", "value": b"publisher"} in row["headers"]


async def test_unconfirmed_events_are_stored_in_the_order_of_their_publisher(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_node(network, tmp_path) as bridge,
        network.open_node("publisher") as publisher,
    ):
        for number in range(1000):
            await publisher.publish("a.b", b"%d" % number)
        await wait_until(lambda: bridge.statistics().stored == 1000)
        assert stored(bridge.store) == [b"%d" % number for number in range(1000)]
        assert bridge.statistics().commits < 100


async def test_topics_that_their_publisher_had_forgotten_are_stored_without_repeats_and_gaps(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_node(network, tmp_path) as bridge,
        network.open_node("publisher", config=Config(published_topics=4)) as publisher,
    ):
        expected: list[bytes] = []
        for turn in range(3):
            for number in range(10):
                expected += (payloads := [b"%d %d %d" % (turn, number, place) for place in range(2)])
                await publisher.publish(f"a.{number}", payloads[0])
                await publisher.publish_confirmed(f"a.{number}", payloads[1])
        assert stored(bridge.store) == expected
        statistics = bridge.statistics()
        assert (statistics.repeats, statistics.stale, statistics.missed) == (0, 0, 0)


async def test_events_that_match_several_patterns_are_stored_once(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_node(network, tmp_path, "a.>", "*.b", "a.b", "a.>") as bridge,
        network.open_node("publisher") as publisher,
    ):
        for confirm in (False, True):
            for topic in ("a.b", "a.c", "x.b"):
                await (publisher.publish_confirmed if confirm else publisher.publish)(topic, topic.encode())
        await wait_until(lambda: bridge.statistics().stored == 6)
    assert sorted(events_in(tmp_path)) == [b"a.b", b"a.b", b"a.c", b"a.c", b"x.b", b"x.b"]


async def test_leaving_writes_what_has_arrived(tmp_path: Path) -> None:
    slow = GroupLimits(delay=60, quiet=60)
    async with (
        open_network() as network,
        network.open_node("publisher") as publisher,
        bridge_node(network, tmp_path, group=slow) as bridge,
    ):
        await publisher.publish("a.b", b"one")
        await wait_until(lambda: bridge.statistics().waiting == 1)
    assert events_in(tmp_path) == [b"one"]


async def test_a_publisher_waits_for_a_bridge_that_comes_back(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as publisher:
        async with bridge_node(network, tmp_path):
            await publisher.publish_confirmed("a.b", b"one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_confirmed, publisher, b"two")
            await trio.testing.wait_all_tasks_blocked()
            async with bridge_node(network, tmp_path):
                await wait_until(lambda: not nursery.child_tasks)
    assert events_in(tmp_path) == [b"one", b"two"]


async def publish_confirmed(publisher: Node, payload: bytes) -> None:
    await publisher.publish_confirmed("a.b", payload, timeout=60)


async def test_an_event_that_is_sent_again_after_a_crash_is_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bridge dies after it has written and before it has confirmed."""

    async def forget(*_: object) -> None:
        await trio.lowlevel.checkpoint()

    async with (
        open_network() as network,
        network.open_node("publisher", host="p") as publisher,
        trio.open_nursery() as publishing,
    ):
        async with open_member(network, tmp_path, topics=["a.>"], host="b") as bridge:
            await publisher.publish_confirmed("a.b", b"one")
            with monkeypatch.context() as patch:
                patch.setattr(Subscription, "_confirm_ranges", forget)
                publishing.start_soon(publish_confirmed, publisher, b"two")
                await wait_until(lambda: bridge.statistics().stored == 2)
                network.memory.partition("b", "p")
        network.memory.heal()
        async with bridge_node(network, tmp_path) as bridge:
            await wait_until(lambda: not publishing.child_tasks)
            assert bridge.statistics().repeats == 1
    assert events_in(tmp_path) == [b"one", b"two"]


async def test_two_bridges_in_one_directory_are_refused(tmp_path: Path) -> None:
    async with open_network() as network, bridge_node(network, tmp_path, member="a"):
        with pytest.raises(StoreBusy):
            async with bridge_node(network, tmp_path, shards=[1], member="b"):
                pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": []}, "at least one topic"),
        ({"topics": ["a..b"]}, "not a topic pattern"),
        ({"shards": []}, "shards are"),
        ({"shards": [1, 1]}, "shards are"),
        ({"shards": [-1]}, "shards are"),
        ({"member": "no spaces"}, "not a cluster name"),
    ],
)
async def test_a_bridge_that_makes_no_sense_is_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    async with open_network() as network, network.open_node("bridge") as node:
        arguments: dict[str, Any] = {"topics": ["a"], "directory": tmp_path} | options
        with pytest.raises(ConfigError, match=message):
            async with open_bridge(node, **arguments):
                pass


# -- what readers ask ----------------------------------------------------------------------------------------


@asynccontextmanager
async def bridge_and_reader(directory: Path, **options: Any) -> AsyncIterator[tuple[BridgeMember, Node, BridgeClient]]:
    """A bridge, a node that publishes, and a client of the bridge on that node."""
    async with (
        open_network() as network,
        bridge_node(network, directory, **options) as bridge,
        network.open_node("reader") as node,
    ):
        yield bridge, node, BridgeClient(node, "bridge", patience=5)


async def test_shards_say_what_they_hold(tmp_path: Path) -> None:
    async with bridge_and_reader(tmp_path, shards=[0, 3]) as (_, node, client):
        await node.publish_confirmed("a.b", b"x")
        first, second = await client.shards()
        assert (first.number, second.number) == (0, 3)
        assert first.id.startswith("0@")
        assert first.address == "bridge"
        assert first.next + second.next == 1


async def test_a_question_for_offsets_waits_for_news(tmp_path: Path) -> None:
    async with bridge_and_reader(tmp_path) as (_, node, client):
        (shard,) = await client.shards()
        nothing = {shard.id: Extent(earliest=0, next=0, first=0, count=0, upto=0)}
        assert await client.wait_offsets("bridge", {shard.id: 7}, 5) == nothing, "the log was put back"
        assert await client.wait_offsets("bridge", {shard.id: 0}, 0.01) == nothing
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_confirmed, node, b"x")
            with trio.fail_after(60):
                found = await client.wait_offsets("bridge", {shard.id: 0}, 5)
                assert found == {shard.id: Extent(earliest=0, next=1, first=0, count=1, upto=1)}


async def test_cursors_are_kept_by_the_bridge(tmp_path: Path) -> None:
    async with bridge_and_reader(tmp_path) as (_, _, client):
        (shard,) = await client.shards()
        assert await client.pin("bridge", "g", {shard.id: 3}) == {shard.id: 3}
        assert await client.pin("bridge", "g", {shard.id: 9}) == {shard.id: 3}
        await client.move("bridge", "g", {shard.id: 5})
        (cursor,) = await ask_raw(client, "cursors", None)
        assert cursor["offsets"] == {shard.id: 5}


async def test_offsets_are_found_by_time(tmp_path: Path) -> None:
    seconds = 1000.0
    async with bridge_and_reader(tmp_path, wall_clock=lambda: seconds) as (_, node, client):
        for _ in range(3):
            await node.publish_confirmed("a.b", b"x")
            seconds += 1000  # more than a busy machine takes for an event: meanwhile the log goes by a clock of its own
        (shard,) = await client.shards()
        assert await client.offsets_at(["bridge"], 1_500_000_000) == {shard.id: 1}
        assert await client.offsets_at(["bridge"], 0) == {shard.id: 0}


@pytest.mark.parametrize(
    ("operation", "payload"),
    [
        ("offsets", None),
        ("offsets", {"known": {}, "timeout": 3600}),
        ("offsets", {"known": {"x": "y"}, "timeout": 1}),
        ("times", {"timestamp": "now"}),
        ("pin", {"group": "", "start": {}}),
        ("move", {"group": "g", "offsets": []}),
    ],
)
async def test_a_malformed_question_is_refused(tmp_path: Path, operation: str, payload: Any) -> None:
    async with bridge_and_reader(tmp_path) as (_, _, client):
        with pytest.raises(RemoteError, match="bad_request"):
            await ask_raw(client, operation, payload)


async def test_only_the_bridges_own_nodes_may_trim(tmp_path: Path) -> None:
    async with bridge_and_reader(tmp_path) as (_, node, client):
        (shard,) = await client.shards()
        with pytest.raises(Exception, match="only nodes of cluster 'bridge'"):
            await ask_raw(client, "trim", {"shard": shard.id, "before": 1})
        assert node.name == "reader"


async def test_nothing_beyond_the_end_is_trimmed(tmp_path: Path) -> None:
    async with open_network() as network, bridge_node(network, tmp_path), network.open_node("bridge") as owner:
        client = BridgeClient(owner, "bridge", patience=5)
        await owner.publish_confirmed("a.b", b"x")
        (shard,) = await client.shards()
        with pytest.raises(RemoteError, match=r"before is 2: shard .* ends at 1"):
            await ask_raw(client, "trim", {"shard": shard.id, "before": 2})
        assert await ask_raw(client, "trim", {"shard": shard.id, "before": 1}) == 1


async def test_readers_that_are_not_named_are_refused(tmp_path: Path) -> None:
    async with bridge_and_reader(tmp_path, readers=["analysts"]) as (_, _, client):
        with pytest.raises(Exception, match="may not read"):
            await client.shards()


async def test_a_bridge_that_nobody_serves_is_said_with_its_name() -> None:
    async with open_network() as network, network.open_node("reader") as node:
        client = BridgeClient(node, "archive", patience=0.2)
        with pytest.raises(BridgeUnreachable, match="iris bridge --name archive"):
            await client.shards()


@pytest.mark.parametrize("patience", [math.nan, math.inf, 0.0, -1.0])
async def test_a_patience_that_is_no_time_is_refused(patience: float) -> None:
    async with open_network() as network, network.open_node("reader") as node:
        with pytest.raises(ConfigError, match=r"patience with bridge 'archive' is .*: use seconds, more than 0"):
            BridgeClient(node, "archive", patience=patience)


async def test_without_a_bridge_a_confirmed_publish_is_an_error(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("publisher") as publisher:
        with pytest.raises(NotSent, match="start a bridge"):
            await publisher.publish_confirmed("a.b", b"one", timeout=0.1)
        async with bridge_node(network, tmp_path):
            await publisher.publish_confirmed("a.b", b"one")
        with pytest.raises(RequestTimeout):
            await publisher.publish_confirmed("a.b", b"two", timeout=0.1)
