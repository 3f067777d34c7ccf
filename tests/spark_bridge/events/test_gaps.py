"""Gaps in a log: what a bridge has missed, before, during and after it was away, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from iris.kernel.config import Config
from iris.kernel.errors import RequestTimeout
from iris.node.node import Node
from iris.patterns.pubsub.subscribe.events import EventRun
from iris.spark_bridge.events import gaps as gap_books
from iris.spark_bridge.events.gaps import Gap, GapBook, read_gap
from iris.spark_bridge.log.retention import Retention
from iris.spark_bridge.server.bridge import open_bridge
from iris.spark_bridge.server.member import BridgeMember
from iris.testing import Network, open_network
from tests.support.arrivals import fake_event, make_store, stored
from tests.support.bridge_members import open_member
from tests.support.waiting import wait_until


@asynccontextmanager
async def bridge_on(network: Network, directory: Path, name: str = "bridge") -> AsyncIterator[BridgeMember]:
    async with (
        network.open_node(name) as node,
        open_bridge(node, topics=["a.>"], directory=directory, name=name) as bridge,
    ):
        yield bridge


async def settled(shop: Node, bridge: BridgeMember) -> list[tuple[str, int, int]]:
    """Return what is missing, once all that was published is stored: topic, offset, number of events."""
    await shop.publish_confirmed("a.end", b"end")
    return [(gap.topic, gap.offset, gap.count) for gap in bridge.store.reader.gaps()]


# -- what is a gap -----------------------------------------------------------------------------------------


async def test_what_was_published_while_a_bridge_was_away_is_a_gap_that_stays(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        async with bridge_on(network, tmp_path) as bridge:
            for _ in range(3):
                await shop.publish("a.x", b"")
            assert await settled(shop, bridge) == []
        for _ in range(5):
            await shop.publish("a.x", b"")
        async with bridge_on(network, tmp_path) as bridge:
            await shop.publish("a.x", b"")
            assert await settled(shop, bridge) == [("a.x", 4, 5)]
            (gap,) = bridge.store.reader.gaps()
            assert (gap.shard, gap.upto, gap.cluster, gap.publisher) == (0, 4, "shop", shop.id)
            assert bridge.statistics().missed == 5
            assert [state.gap for state in bridge.states.values()] == [4]
        async with bridge_on(network, tmp_path) as bridge:
            assert bridge.store.reader.gaps() == [gap]
            assert bridge.statistics().missed == 0


async def test_topics_that_began_while_it_was_away_are_missed_from_their_beginning(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        await shop.publish("a.before", b"not owed")
        async with bridge_on(network, tmp_path) as bridge:
            assert await settled(shop, bridge) == []
        for topic in ("a.new", "a.new", "a.before", "a.before", "a.before"):
            await shop.publish(topic, b"")
        async with bridge_on(network, tmp_path) as bridge:
            await shop.publish("a.new", b"")
            await shop.publish("a.before", b"")
            assert await settled(shop, bridge) == [("a.new", 1, 2), ("a.before", 2, 3)]


async def test_a_publisher_that_began_while_it_was_away_and_knew_of_it_counts(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("bystander"):
        async with bridge_on(network, tmp_path):
            pass
        async with network.open_node("shop") as shop:
            for _ in range(4):
                await shop.publish("a.x", b"")
            async with bridge_on(network, tmp_path) as bridge:
                await shop.publish("a.x", b"")
                assert await settled(shop, bridge) == [("a.x", 0, 4)]


async def test_what_was_refused_a_publisher_is_no_gap_for_it_was_told(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("shop") as shop,
        bridge_on(network, tmp_path / "east", "east") as east,
    ):
        async with bridge_on(network, tmp_path / "west", "west"):
            await shop.publish_confirmed("a.x", b"1")
        with pytest.raises(RequestTimeout, match="'west'"):
            await shop.publish_confirmed("a.x", b"2", timeout=0.2)
        async with bridge_on(network, tmp_path / "west", "west") as west:
            await shop.publish_confirmed("a.x", b"3")
            assert await settled(shop, west) == []
            assert east.store.reader.gaps() == []
            assert stored(east.store) == [b"1", b"2", b"3", b"end"]
            assert stored(west.store) == [b"1", b"3", b"end"]


# -- what is none ------------------------------------------------------------------------------------------


async def test_what_was_published_before_the_first_subscription_is_no_gap(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        for _ in range(5):
            await shop.publish("a.x", b"")
        async with bridge_on(network, tmp_path) as bridge:
            await shop.publish("a.x", b"")
            assert await settled(shop, bridge) == []


async def test_a_publisher_that_is_restarted_has_another_numbering(tmp_path: Path) -> None:
    async with open_network() as network, bridge_on(network, tmp_path) as bridge:
        for _ in range(3):
            async with network.open_node("shop") as shop:
                for _ in range(10):
                    await shop.publish("a.x", b"")
                assert await settled(shop, bridge) == []
        assert len(stored(bridge.store)) == 33


async def test_other_topics_and_patterns_leave_no_gaps(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        open_member(network, tmp_path, topics=["a.>", "a.x"]) as bridge,
        network.open_node("shop") as shop,
    ):
        for turn in range(30):
            topic = ("a.x", "b.x", "a.y")[turn % 3]
            await (shop.publish_confirmed if topic != "b.x" and turn % 2 == 0 else shop.publish)(topic, b"")
        assert await settled(shop, bridge) == []


async def test_events_that_wait_for_a_bridge_that_was_killed_leave_none(tmp_path: Path) -> None:
    async with open_network() as network, network.open_node("shop") as shop:
        done = trio.Event()

        async def publish() -> None:
            await wait_until(shop.durable_subscribers)
            async with shop.confirming(timeout=30) as events:
                for number in range(2_000):
                    await events.publish(f"a.{number % 7}", b"%d" % number)
                    if number % 50 == 0:
                        await trio.sleep(0.002)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            for turn in range(4):
                async with (
                    network.open_node("bridge", host=f"bridge-{turn}") as node,
                    open_bridge(node, topics=["a.>"], directory=tmp_path) as bridge,
                ):
                    await trio.sleep(0.05)
                    network.memory.crash(f"bridge-{turn}")
            async with bridge_on(network, tmp_path) as bridge:
                with trio.fail_after(30):
                    await done.wait()
                assert await settled(shop, bridge) == []
                assert {int(value) for value in stored(bridge.store)[:-1]} == set(range(2_000))
                assert len(stored(bridge.store)) == 2_001


async def test_a_publisher_that_forgets_topics_leaves_none(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        network.open_node("shop", config=Config(published_topics=4)) as shop,
    ):
        for turn in range(2):
            async with bridge_on(network, tmp_path) as bridge:
                for number in range(100):
                    await (shop.publish_confirmed if number % 3 == turn else shop.publish)(f"a.{number % 10}", b"")
                assert await settled(shop, bridge) == []


async def test_what_spark_has_written_is_not_missing_where_it_is_published(tmp_path: Path) -> None:
    async with (
        open_network() as network,
        bridge_on(network, tmp_path) as bridge,
        network.open_node("other") as other,
    ):
        await other.publish("a.x", b"1")
        await other.publish("a.x", b"row", headers={"iris-bridge": "bridge"})
        await other.publish("a.x", b"2")
        await wait_until(lambda: bridge.statistics().stored == 2)
        assert bridge.store.reader.gaps() == []


# -- how they are kept -------------------------------------------------------------------------------------


def gap(offset: int, *, topic: str = "t", cluster: str = "c", shard: int = 0, count: int = 1, at: int = 0) -> Gap:
    return Gap(
        shard=shard, offset=offset, upto=offset, topic=topic, cluster=cluster, publisher="p", count=count, timestamp=at
    )


def test_a_gap_is_written_and_read() -> None:
    one = dataclasses.replace(gap(7, topic="ä.b", count=3), upto=9)
    assert read_gap(0, 7, one.to_record()) == one
    assert [one.spans(*span) for span in ((0, 7), (0, 8), (8, 9), (9, 20), (10, 20))] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_gaps_at_one_place_are_one() -> None:
    book = GapBook()
    for count in (2, 3):
        book.note(gap(5, count=count))
    book.note(gap(5, topic="u"))
    assert [(one.topic, one.count) for one in book] == [("t", 5), ("u", 1)]
    assert book.last(0) == 5
    assert book.last(1) == -1


def test_of_one_topic_there_are_only_so_many_and_the_last_one_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_books, "MAX_OF_TOPIC", 3)
    book = GapBook()
    for offset in range(10):
        book.note(gap(offset, at=offset))
    assert [(one.offset, one.upto, one.count) for one in book] == [(0, 0, 1), (1, 1, 1), (2, 9, 8)]


def test_one_cluster_takes_no_room_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_books, "MAX_OF_CLUSTER", 4)
    book = GapBook()
    book.note(gap(0))
    for number in range(100):
        book.note(gap(number, topic=f"made.up.{number}", cluster="villain"))
    assert sorted((one.cluster, one.topic) for one in book) == [
        ("c", "t"),
        *[("villain", f"made.up.{number}") for number in range(96, 100)],
    ]
    assert ({key[2] for key in book.changed}, len(book.removed)) == (
        {"t", *[f"made.up.{n}" for n in range(96, 100)]},
        96,
    )


def test_a_number_that_is_made_up_is_counted_as_far_as_numbers_go() -> None:
    book = GapBook()
    for offset in (1, 1, 1):
        book.note(gap(offset, count=2**62))
    assert [one.count for one in book] == [2**62]


def run(first: int, count: int = 1, **fields: object) -> EventRun:
    return fake_event(b"x" * 1000, first=first, milestones=(0,), **fields)  # type: ignore[arg-type]


def test_gaps_go_with_the_events_around_them(tmp_path: Path) -> None:
    store = make_store(tmp_path, segment_bytes=64 * 1024)
    for turn in range(100):
        store.appender.append({0: [run(2 * turn + 1)]}, now=turn)
    assert len(store.reader.gaps()) == gap_books.MAX_OF_TOPIC
    store.retainer.trim(0, 50)
    assert [one.offset for one in store.reader.gaps()][:2] == [50, 51]
    store.retainer.retain(Retention(max_bytes=1), now=1000)
    kept = store.reader.gaps()
    store.close()
    store = make_store(tmp_path, segment_bytes=64 * 1024)
    assert store.reader.gaps() == kept
    store.close()


def test_an_append_that_fails_notes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: [run(1)]}, now=1)

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("iris.spark_bridge.log.appender.write_gaps", fail)
        with pytest.raises(ZeroDivisionError):
            store.appender.append({0: [run(5)]}, now=2)
    assert store.reader.gaps() == []
    assert [state.gap for state in store.shards()] == [-1]
    assert store.appender.append({0: [run(5)]}, now=3).missed == 3
    assert [(one.offset, one.count) for one in store.reader.gaps()] == [(1, 3)]
    store.close()


def test_shards_that_share_a_topic_by_key_make_no_gaps(tmp_path: Path) -> None:
    store = make_store(tmp_path, shards=(0, 1))
    for turn in range(10):
        store.appender.append({1: [run(2 * turn + 2)], 0: [run(2 * turn + 1)]}, now=turn)
    assert store.reader.gaps() == []
    store.appender.append({1: [run(24)], 0: [run(21), run(23)]}, now=11)
    assert [(one.shard, one.offset, one.count) for one in store.reader.gaps()] == [(1, 10, 1)]
    store.close()


def test_publishers_that_are_forgotten_are_forgotten_with_their_numbers(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.appender.append({0: [run(1)]}, now=1_000_000)
    assert store.retainer.forget_publishers(2_000_000) == 1
    assert store.appender.append({0: [run(9)]}, now=3_000_000).missed == 0
    store.close()


def test_who_is_not_judged_has_no_gaps(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    for first in (1, 9):
        assert store.appender.append({0: [run(first)]}, now=1, judged=lambda _: False).missed == 0
    store.close()
