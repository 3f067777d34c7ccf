"""Events lost before the first one that arrives are reported as missed as well, and never more than those."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.names import NodeId
from iris.patterns.pubsub.interest import start_offsets as beginnings
from iris.patterns.pubsub.interest.start_offsets import Milestones, StartOffsets, owed_from
from iris.patterns.pubsub.subscribe import subscription
from iris.patterns.pubsub.subscribe.events import Event
from tests.support.events import collect, missed, publish
from tests.support.meshes import open_meshes
from tests.support.subscriptions import SENDER, Desk

NODE = SENDER.node


@pytest.mark.parametrize(
    ("milestones", "published", "first", "owed"),
    [
        ((), 5, 9, 9),
        ((5,), None, 9, 9),
        ((5,), 5, 9, 6),
        ((6,), 5, 9, 7),
        ((4,), 5, 9, 9),
        ((4, 5, 3), 5, 9, 4),
        ((4, 6, 8), 5, 9, 9),
        ((4, 4, 3), 5, 9, 9),
        ((5, 8, 6), 5, 9, 6),
    ],
)
def test_what_follows_a_milestone_after_the_confirmation_is_owed(
    milestones: Milestones, published: int | None, first: int, owed: int
) -> None:
    assert owed_from(milestones, published, first) == owed


def test_a_version_is_confirmed_by_the_first_one_that_is_as_new() -> None:
    known = StartOffsets()
    assert known.published(NODE, 1) is None
    known.confirmed(NODE, 2, 10)
    known.confirmed(NODE, 3, 10)
    known.confirmed(NODE, 7, 30)
    assert [known.published(NODE, version) for version in range(1, 9)] == [10, 10, 10, 30, 30, 30, 30, None]


def test_what_is_told_again_after_a_reset_does_not_count() -> None:
    known = StartOffsets()
    known.confirmed(NODE, 2, 10)
    known.confirmed(NODE, 2, 50)
    known.confirmed(NODE, 1, 60)
    assert known.published(NODE, 1) == 10


def test_of_many_confirmations_some_are_forgotten_and_later_ones_stand_for_them() -> None:
    known = StartOffsets()
    for version in range(10_000):
        known.confirmed(NODE, version, version * 3)
    found = [known.published(NODE, version) for version in range(10_000)]
    assert len(set(found)) <= 64
    assert all(count is not None and count >= version * 3 for version, count in enumerate(found))
    assert found[-1] == 9_999 * 3


def test_only_so_many_publishers_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "_PUBLISHERS", 3)
    known = StartOffsets()
    nodes = [NodeId(f"{number:032x}") for number in range(4)]
    for node in nodes:
        known.confirmed(node, 1, 0)
    assert [known.published(node, 1) for node in nodes] == [None, 0, 0, 0]


def test_numberings_that_were_forgotten_are_not_missed_when_they_are_met_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscription, "_MAX_NUMBERINGS", 2)
    desk = Desk(version=1)
    desk.beginnings.confirmed(NODE, 1, 0)
    taken: list[tuple[int, int]] = []
    for topic, first in (("a", 2), ("b", 2), ("c", 2), ("a", 3)):
        desk.numbers(first, 1, topic=topic, milestones=(0,))
        taken += desk.take_numbers()
    assert taken == [(2, 1), (2, 1), (2, 1), (3, 0)]


# -- between nodes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [0, 4], ids=["a new topic", "a topic that was there"])
async def test_the_first_events_after_subscribing_are_missed_if_they_are_lost(
    autojump_clock: MockClock, known: int
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await publish(a, "t", *range(known))
        await publish(a, "other", 1)
        async with b.pubsub.subscribe("t") as events:
            fleet.network.loss = 1.0
            await publish(a, "t", *range(5))
            await trio.sleep(0.1)
            fleet.network.loss = 0.0
            await publish(a, "t", 5)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(5, 5)]
            assert events.statistics().missed == 5


async def test_a_topic_that_began_while_a_subscriber_was_cut_off_is_missed(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            a.mesh.drop(b.id, "a partition")
            b.mesh.drop(a.id, "a partition")
            await publish(a, "t", 1, 2, 3)
            await a.mesh.connect([b.url])
            await a.pubsub.wait_interest_exchanged()
            await publish(a, "t", 4)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(4, 3)]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_second_subscription_does_not_miss_what_came_before_it(
    autojump_clock: MockClock, durable: bool
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", durable=durable) as first:
            await publish(a, "t", 1, 2)
            assert len(await collect(first)) == 2
            async with b.pubsub.subscribe("t", durable=durable) as second:
                await publish(a, "t", 3)
                assert [(event.payload, event.missed) for event in await collect(second)] == [(3, 0)]
            assert [(event.payload, event.missed) for event in await collect(first)] == [(3, 0)]


async def test_who_subscribes_again_while_cut_off_does_not_miss_what_came_before(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t"):
            await trio.sleep(0.1)
            fleet.network.loss = 1.0
        await publish(a, "t", 1, 2, 3)
        async with b.pubsub.subscribe("t") as events:
            fleet.network.loss = 0.0
            await b.mesh.barrier(a.id)
            await b.pubsub.wait_interest_exchanged()
            await publish(a, "t", 4)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(4, 0)]


@pytest.mark.parametrize("seed", range(4))
async def test_whenever_one_subscribes_and_whatever_breaks_no_event_is_lost_without_a_trace(
    autojump_clock: MockClock, seed: int
) -> None:
    """Of topics that begin later each event is received or missed; of others never more than were published."""
    chance = random.Random(seed)
    topics = [f"t.{number}" for number in range(6)]
    async with open_meshes("a", "b", seed=seed) as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        published: Counter[str] = Counter()
        ending = trio.Event()

        async def subscribe() -> None:
            await trio.sleep(chance.uniform(0, 5))
            before = published.copy()
            async with b.pubsub.subscribe("t.*") as events:
                there = published.copy()
                await ending.wait()
                taken: list[Event] = await collect(events)
            for topic in topics:
                mine = [event for event in taken if event.topic == topic]
                count = len(mine) + missed(mine)
                assert count <= published[topic] - before[topic]
                if not there[topic] and b.pubsub.unconfirmed_subscriptions == 0:
                    assert count == published[topic]

        for _ in range(8):
            nursery.start_soon(subscribe)
        for step in range(600):
            topic = topics[chance.randrange(1 + step // 100)]
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
                case _:
                    pass
        fleet.network.loss = 0.0
        await trio.sleep(10)
        for topic in topics:
            await publish(a, topic, "last")
            published[topic] += 1
        await trio.sleep(1)
        ending.set()
