"""A publisher with more topics than it remembers: those it has not published on for longest are forgotten.

What is forgotten begins anew with its next event, and subscribers see neither repeats nor gaps that are none.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.errors import EventsLost, NotSent
from iris.kernel.names import NodeId
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe import subscription
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Subscription
from tests.support.events import collect, missed, publish
from tests.support.meshes import MeshNode, open_meshes
from tests.support.subscriptions import SENDER, Desk

FEW = Config(published_topics=4)
"""So that topics are forgotten soon."""

NODE = SENDER.node


def others(node: MeshNode) -> list[str]:
    """Return enough topics to have every other one forgotten."""
    return [f"other.{number}" for number in range(node.mesh.config.published_topics)]


async def forget(node: MeshNode) -> None:
    """Publish on so many other topics that all before them are forgotten."""
    for topic in others(node):
        await publish(node, topic, 0)


def remembered(node: MeshNode) -> list[str]:
    return list(node.pubsub.publishing._topics)


async def test_of_many_topics_the_last_ones_are_remembered(autojump_clock: MockClock) -> None:
    async with open_meshes("a", config=FEW) as fleet:
        a = fleet["a"]
        for number in range(1000):
            await publish(a, f"t.{number}", 1)
            assert len(remembered(a)) <= 4
        assert remembered(a) == ["t.996", "t.997", "t.998", "t.999"]
        await publish(a, "t.997", 1, 2, 3)
        await publish(a, "t.1000", 1)
        assert remembered(a) == ["t.998", "t.999", "t.997", "t.1000"]
        assert a.pubsub.publishing.published == 1004


async def test_subscribers_of_forgotten_topics_get_every_event_once_and_miss_none(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=FEW) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t.*") as events, b.pubsub.subscribe("t.*", durable=True) as durable:
            for turn in range(5):
                for number in range(10):
                    await publish(a, f"t.{number}", turn, turn + 100)
            for one in (events, durable):
                taken = await collect(one)
                assert len(taken) == 100
                assert one.statistics().missed == missed(taken) == 0
                for number in range(10):
                    expected = [payload for turn in range(5) for payload in (turn, turn + 100)]
                    assert [event.payload for event in taken if event.topic == f"t.{number}"] == expected


async def test_what_is_lost_of_a_topic_that_begins_anew_is_missed_and_no_more(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=FEW) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 1, 2)
            assert len(await collect(events)) == 2
            await forget(a)
            fleet.network.loss = 1.0
            await publish(a, "t", 3, 4, 5)
            await trio.sleep(0.1)
            fleet.network.loss = 0.0
            await publish(a, "t", 6)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(6, 3)]
            assert events.statistics().missed == 3


async def test_what_waits_too_long_at_the_subscriber_is_missed_in_either_numbering(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=FEW) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", max_events=3) as events:
            await publish(a, "t", 1, 2)
            await forget(a)
            await publish(a, "t", *range(3, 9))
            await trio.sleep(1)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(6, 3), (7, 0), (8, 0)]
            statistics = events.statistics()
            assert (statistics.missed, statistics.dropped) == (0, 5)


async def test_a_last_value_outlives_the_numbering_of_its_topic(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c", config=FEW) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("t") as early:
            await a.pubsub.publish("t", "kept", key=None, headers=None, within=None, retain=True)
            await publish(a, "t", 1)
            await forget(a)
            async with c.pubsub.subscribe("t") as late:
                await publish(a, "t", 2)
                await forget(a)
                a.break_connections()  # so that the value is sent again
                await trio.sleep(1)
                await publish(a, "t", 3)
                assert [(event.payload, event.retained) for event in await collect(early)] == [
                    ("kept", False), (1, False), (2, False), (3, False)
                ]  # fmt: skip
                assert [(event.payload, event.retained) for event in await collect(late)] == [
                    ("kept", True), (2, False), (3, False)
                ]  # fmt: skip
                assert early.statistics().missed == late.statistics().missed == 0


async def test_a_last_value_of_a_topic_that_begins_anew_is_no_gap(autojump_clock: MockClock) -> None:
    """It is sent again after a reset, and may be the first that comes of the new numbering."""
    async with open_meshes("a", "b", config=FEW) as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 1)
            await collect(events)
            await forget(a)
            fleet.network.loss = 1.0
            await a.pubsub.publish("t", "kept", key=None, headers=None, within=None, retain=True)
            await trio.sleep(0.1)
            fleet.network.loss = 0.0
            a.break_connections()
            assert [(event.payload, event.retained, event.missed) for event in await collect(events)] == [
                ("kept", True, 0)
            ]
            assert events.statistics().missed == 0


async def test_a_confirmed_event_of_a_forgotten_topic_is_repeated_under_its_number(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=FEW) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", durable=True) as events:
            nursery.start_soon(_confirm, a, "t", 1)
            first = [await anext(events)]
            await forget(a)
            nursery.start_soon(_confirm, a, "t", 2)
            second = [await anext(events)]
            a.break_connections()  # neither was confirmed: both come again
            while len(first) < 2 or len(second) < 2:
                event = await anext(events)
                (first if event.payload == 1 else second).append(event)
            assert {event.sequence for event in first} == {1}
            assert {event.sequence for event in second} == {2}
            await events.confirm([*first, *second])
            assert events.statistics().missed == missed([*first, *second]) == 0
            await trio.sleep(1)
        with pytest.raises(NotSent, match="no durable subscriber"):
            await _confirm(a, "u", 3)


async def _confirm(node: MeshNode, topic: str, payload: object) -> None:
    await node.pubsub.confirming.publish(topic, payload, key=None, timeout=60, headers=None)


async def test_losses_of_a_forgotten_topic_are_in_the_sums_and_raise_nothing(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", config=FEW) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(b.books.run)
        check = a.pubsub.publishing.raise_for_losses
        async with b.pubsub.subscribe("t", max_events=1):
            await publish(a, "t", *range(6))
            await trio.sleep(1)
            with pytest.raises(EventsLost) as caught:
                check("t")
            assert caught.value.count == 5
            await publish(a, "t", 6)
            await trio.sleep(1)
            await forget(a)
            check("t")
            await publish(a, "t", 7)
            check("t")
            await trio.sleep(1)
            with pytest.raises(EventsLost) as caught:
                check("t")
            assert caught.value.count == 1
            assert a.pubsub.statistics().dropped == 7
        nursery.cancel_scope.cancel()


async def test_what_no_link_takes_of_a_forgotten_topic_is_counted(autojump_clock: MockClock) -> None:
    config = Config(published_topics=4, link_bytes=2_000_000)
    async with open_meshes("a", "b", config=config) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe(">", durable=True):
            nursery.start_soon(_confirm, a, "t", 1)
            await trio.sleep(0.1)
            await forget(a)
            b.transport.pause()
            for number in range(3000):
                await publish(a, f"u.{number}", bytes(1000))
            a.pubsub.confirming.lost(b.id)  # it is asked for again, while there is no room
            await trio.sleep(1)
            statistics = a.pubsub.statistics()
            assert statistics.lost["subscriber stalled"] > 100
            assert statistics.sent == statistics.handed_over + sum(statistics.lost.values())
            nursery.cancel_scope.cancel()
        b.transport.resume()


@pytest.mark.parametrize("seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 4))])
async def test_whatever_breaks_no_loss_is_invented_and_no_event_comes_twice(
    autojump_clock: MockClock, seed: int
) -> None:
    """Of a topic that was not forgotten since its last event every loss is reported; of others, never too much."""
    chance = random.Random(seed)
    topics = [f"t.{number}" for number in range(8)]
    async with open_meshes("a", "b", "c", seed=seed, config=FEW) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        published: Counter[str] = Counter()
        async with b.pubsub.subscribe("t.*") as first, c.pubsub.subscribe(">", max_events=20) as second:
            taken: dict[Subscription, list[Event]] = {first: [], second: []}
            for step in range(600):
                topic = topics[min(chance.randrange(8), chance.randrange(8))]
                await publish(a, topic, step)
                published[topic] += 1
                await trio.sleep(0.02)
                match chance.randrange(60):
                    case 0:
                        a.break_connections()
                    case 1:
                        fleet.network.loss = 1.0
                    case 2 | 3 | 4:
                        fleet.network.loss = 0.0
                    case 5:
                        for one, events in taken.items():
                            events += await collect(one)
                    case _:
                        pass
            fleet.network.loss = 0.0
            await trio.sleep(10)
            for one, events in taken.items():
                events += await collect(one)
                for topic in topics:
                    mine = [event for event in events if event.topic == topic]
                    assert len(mine) + missed(mine) <= published[topic]
                    numbers = [event.payload for event in mine]
                    assert numbers == sorted(set(numbers))
            assert len(taken[first]) > 100
            assert first.statistics().missed == missed(taken[first]) > 0


# -- the subscriber's side ---------------------------------------------------------------------------------


def test_a_numbering_that_begins_anew_goes_on_from_where_it_begins() -> None:
    desk = Desk()
    desk.numbers(11, 2, milestones=(10,))
    desk.numbers(101, 1, milestones=(100,))
    desk.numbers(205, 1, milestones=(200,))
    desk.numbers(11, 1, milestones=(10,))  # one that is published again
    assert desk.take_numbers() == [(11, 0), (12, 0), (101, 0), (205, 4), (11, 0)]
    assert desk.subscription.statistics().missed == 4


def test_topics_that_begin_after_those_that_were_forgotten_are_owed_from_their_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "_MAX_NUMBERINGS", 4)
    desk = Desk(version=1)
    desk.beginnings.confirmed(NODE, 1, 0)
    for began, topic in ((0, "a"), (1, "b"), (2, "c"), (3, "d"), (4, "e")):
        desk.numbers(began + 1, 1, topic=topic, milestones=(began,))
    assert [missing for _, missing in desk.take_numbers()] == [0] * 5
    assert desk.subscription._followed <= 4
    desk.numbers(9, 1, topic="f", milestones=(6,))
    desk.numbers(30, 1, topic="a", milestones=(0, 20, 0))  # how much of it has come is not known any more
    assert desk.take_numbers() == [(9, 2), (30, 0)]


def test_where_too_many_publishers_are_forgotten_topics_count_from_their_first_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "_MAX_NUMBERINGS", 4)
    monkeypatch.setattr(subscription, "_MAX_PUBLISHERS", 1)
    desk = Desk(version=1)
    desk.beginnings.confirmed(NODE, 1, 0)
    for number in range(5):
        sender = Sender("shop", NodeId(f"{number:032x}"))
        desk.numbers(1, 1, sender=sender, milestones=(0,))
    desk.numbers(5, 1, milestones=(0,))
    assert [missing for _, missing in desk.take_numbers()] == [0] * 6
    assert desk.subscription.version is None
    assert not desk.subscription._forgotten
