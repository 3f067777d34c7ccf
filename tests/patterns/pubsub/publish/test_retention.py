"""Last values: who comes later gets them once, marked, and goes on from there without a gap."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent, PayloadTooLarge, RequestTimeout
from iris.kernel.wire import kinds
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Subscription
from tests.support.events import collect, missed, publish
from tests.support.meshes import Fleet, MeshNode, check_tally, open_meshes


async def retain(node: MeshNode, topic: str, *payloads: object, within: float | None = None) -> None:
    for payload in payloads:
        await node.pubsub.publish(topic, payload, key=None, headers=None, within=within, retain=True)


def seen(events: list[Event]) -> list[tuple[str, object, bool]]:
    return [(event.topic, event.payload, event.retained) for event in events]


async def test_who_comes_later_gets_the_last_value_once_and_who_was_there_gets_it_as_any_event(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("state.*") as early:
            await retain(a, "state.x", 1, 2)
            await retain(a, "state.y", {"v": 3})
            async with c.pubsub.subscribe("state.>") as late:
                assert late.statistics().waiting == 2  # they are here when subscribe returns
                await publish(a, "state.x", 4)
                assert seen(await collect(early)) == [
                    ("state.x", 1, False),
                    ("state.x", 2, False),
                    ("state.y", {"v": 3}, False),
                    ("state.x", 4, False),
                ]
                assert sorted(seen(await collect(late)), key=str) == [
                    ("state.x", 2, True),
                    ("state.x", 4, False),
                    ("state.y", {"v": 3}, True),
                ]
        check_tally(a.pubsub.publishing.tally)


async def test_events_between_the_last_value_and_the_subscription_are_not_missed(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "t", "kept")
        await publish(a, "t", *range(10))
        async with b.pubsub.subscribe("t") as late:
            await publish(a, "t", "new")
            events = await collect(late)
            assert seen(events) == [("t", "kept", True), ("t", "new", False)]
            assert missed(events) == 0


async def test_the_value_carries_key_headers_and_sender(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await a.pubsub.publish("t", b"v", key="k", headers={"h": "1"}, within=None, retain=True)
        async with b.pubsub.subscribe("t") as late:
            (event,) = await collect(late)
            assert (event.key, event.headers, event.sender.cluster, event.retained) == ("k", {"h": "1"}, "a", True)


async def test_a_second_subscription_of_a_node_gets_the_values_and_the_first_does_not_get_them_again(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "t", 1)
        async with b.pubsub.subscribe("t") as first:
            assert seen(await collect(first)) == [("t", 1, True)]
            async with b.pubsub.subscribe("t") as second, b.pubsub.subscribe(">") as third:
                assert (second.statistics().waiting, third.statistics().waiting) == (1, 1)  # they are here
                assert seen(await collect(second)) == [("t", 1, True)]
                assert seen(await collect(third)) == [("t", 1, True)]
                assert await collect(first) == []


async def test_each_publisher_keeps_its_own_and_a_node_keeps_for_itself(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        for name in "ab":
            await retain(fleet[name], "t", f"of {name}")
        async with fleet["b"].pubsub.subscribe("t") as late:
            events = await collect(late)
            assert sorted((event.sender.cluster, event.payload) for event in events) == [("a", "of a"), ("b", "of b")]


@pytest.mark.parametrize("group", [None, "workers"])
async def test_groups_and_durable_subscribers_get_no_last_values(autojump_clock: MockClock, group: str | None) -> None:
    async with open_meshes("a", "b") as fleet:
        await retain(fleet["a"], "t", 1)
        async with fleet["b"].pubsub.subscribe("t", group=group, durable=group is None) as late:
            assert await collect(late) == []


async def test_a_value_that_is_forgotten_or_replaced_is_not_given_any_more(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "x", 1)
        await retain(a, "y", 1, 2)
        assert a.pubsub.retention.events.forget("x")
        async with b.pubsub.subscribe(">") as late:
            assert seen(await collect(late)) == [("y", 2, True)]


async def test_beyond_the_limits_nothing_is_published_and_nothing_is_given_up(autojump_clock: MockClock) -> None:
    config = Config(retained_events=2, retained_bytes=1000)
    async with open_meshes("a", "b", config=config) as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "x", b"1")
        await retain(a, "y", b"1")
        with pytest.raises(NotSent, match="the limits are 2 and 1000"):
            await retain(a, "z", b"1")
        with pytest.raises(NotSent, match="'x' cannot be retained"):
            await retain(a, "x", bytes(1000))
        assert a.pubsub.publishing.published == 2
        async with b.pubsub.subscribe(">") as late:
            assert sorted(seen(await collect(late))) == [("x", b"1", True), ("y", b"1", True)]
            assert a.pubsub.statistics().retained == 2


@pytest.mark.parametrize(
    ("topic", "payload", "error"),
    [("no topic", b"", ConfigError), ("t", bytes(2**20 + 1), PayloadTooLarge), ("t", b"", NotSent)],
    ids=["topic", "payload", "nobody confirms"],
)
async def test_what_was_not_published_is_not_kept(
    autojump_clock: MockClock, topic: str, payload: object, error: type[Exception]
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "t", "before")
        with pytest.raises(error):
            await retain(a, topic, payload, within=1.0)
        async with b.pubsub.subscribe(">") as late:
            assert seen(await collect(late)) == [("t", "before", True)]


async def test_a_confirmed_value_is_kept_too_even_if_nobody_confirms_it_in_time(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", durable=True):
            with pytest.raises(RequestTimeout):
                await retain(a, "t", "published", within=1.0)
        async with b.pubsub.subscribe("t") as late:
            assert seen(await collect(late)) == [("t", "published", True)]


@pytest.mark.parametrize("within", [None, 2.0])
async def test_a_value_that_waits_for_a_subscriber_is_not_given_to_others_before(
    autojump_clock: MockClock, within: float | None
) -> None:
    async with open_meshes("a", "b", "c", "d") as fleet:
        a, b, c, d = (fleet[name] for name in "abcd")
        async with (
            b.pubsub.subscribe("t", overflow="wait", max_events=2) as slow,
            d.pubsub.subscribe("t", durable=True),
        ):
            await publish(a, "t", 0, 1)
            await trio.sleep(0.1)
            with trio.move_on_after(1) as scope:
                await retain(a, "t", "held", within=within)
            assert scope.cancelled_caught
            async with c.pubsub.subscribe("t") as late:
                assert await collect(late) == []
            if within:
                with pytest.raises(RequestTimeout, match="takes no more"):
                    await retain(a, "t", "held", within=within)
            assert len(await collect(slow)) == 2


async def test_a_value_that_was_lost_on_its_way_comes_when_the_connection_is_back(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t") as events:
            await publish(a, "t", 1)
            assert len(await collect(events)) == 1
            fleet.network.partition(["a"], ["b"])
            await retain(a, "t", "last")
            fleet.network.heal()
            a.break_connections(b)
            taken = await collect(events)
            assert [(event.payload, event.missed) for event in taken] == [("last", 0)]
            await publish(a, "t", 3)
            assert [(event.payload, event.missed) for event in await collect(events)] == [(3, 0)]


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))])
async def test_whatever_happens_every_late_subscriber_ends_with_the_last_value(
    autojump_clock: MockClock, seed: int
) -> None:
    rng = random.Random(seed)
    async with open_meshes("a", "b", "c", seed=seed) as fleet:
        a = fleet["a"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_publish_at_random, a, rng)
            for _ in range(20):
                await trio.sleep(rng.uniform(0, 0.02))
                nursery.start_soon(_subscribe_late, fleet, rng.choice("bc"))
                if rng.random() < 0.2:
                    a.break_connections()


async def _publish_at_random(node: MeshNode, rng: random.Random) -> None:
    for number in range(200):
        await retain(node, "t", number)
        if rng.random() < 0.3:
            await trio.sleep(rng.uniform(0, 0.01))


async def _subscribe_late(fleet: Fleet, name: str) -> None:
    async with fleet[name].pubsub.subscribe("t") as late:
        events = await collect(late)
        numbers = [event.payload for event in events]
        assert numbers == sorted(set(numbers)), "a value came twice or late"
        assert numbers[-1] == 199
        check_gaps(late, numbers, missed(events))


def check_gaps(late: Subscription, numbers: list[int], gaps: int) -> None:
    """Every number from the first one on came, or was announced as missing."""
    assert 199 - numbers[0] + 1 == len(numbers) + gaps
    assert late.statistics().missed == gaps


async def test_a_peer_that_asks_nonsense_is_refused(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        await retain(a, "t", 1)
        b.mesh.post(a.id, kinds.RetainedWanted("a..b"), 0)
        await trio.sleep(1)
        assert a.mesh.refusals["message of kind RetainedWanted"] == 1


async def test_who_asks_again_and_again_gets_values_at_a_bounded_rate_and_all_of_them_in_the_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(a.pubsub.run)
        for number in range(1000):
            await retain(a, f"t.{number}", number)
        async with b.pubsub.subscribe("t.*") as early:
            sent = 0
            post = a.pubsub.publishing.post

            def count(*given: Any) -> bool:
                nonlocal sent
                sent += 1
                return post(*given)

            monkeypatch.setattr(a.pubsub.publishing, "post", count)
            for number in range(100):
                b.mesh.post(a.id, kinds.Reset() if number % 2 else kinds.RetainedWanted("t.*"), 0)
                await trio.sleep(0.05)
            assert sent < 30_000  # of 100,000
            async with b.pubsub.subscribe(">") as late:
                await trio.sleep(3)
                assert late.statistics().received == 1000
            before = sent
            await trio.sleep(10)
            assert sent == before  # there is an end of it
            assert early.statistics().received == 1000
        assert a.pubsub.retention.behind == 0
        nursery.cancel_scope.cancel()


async def test_values_that_were_asked_for_too_often_are_not_kept_for_who_has_gone(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, trio.open_nursery() as nursery:
        a, b = fleet["a"], fleet["b"]
        nursery.start_soon(a.pubsub.run)
        for number in range(1000):
            await retain(a, f"t.{number}", number)
        async with b.pubsub.subscribe("t.*"):
            for _ in range(50):
                b.mesh.post(a.id, kinds.RetainedWanted("t.*"), 0)
                await trio.sleep(0.01)
            assert a.pubsub.retention.behind == 1
            a.mesh.drop(b.id, "it is given up")
            assert a.pubsub.retention.behind == 0
            await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def test_of_two_values_at_the_same_time_the_one_that_was_published_last_is_kept(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("state.x") as early:
            while a.pubsub.publishing.publish_at_once("state.y", bytes(100_000)):
                pass  # until others are to have a turn before the next event
            async with trio.open_nursery() as nursery:
                for value in range(2):
                    nursery.start_soon(retain, a, "state.x", value)
            values = [event.payload for event in await collect(early)]
        assert sorted(values) == [0, 1]
        async with b.pubsub.subscribe("state.x") as late:
            assert seen(await collect(late)) == [("state.x", values[-1], True)]


async def test_a_confirmed_value_is_kept_when_it_is_published_and_not_while_it_waits_for_a_link(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with b.pubsub.subscribe("state.>", durable=True) as stored, trio.open_nursery() as nursery:

            async def store() -> None:
                while True:
                    await stored.confirm(await stored.receive_batch())

            nursery.start_soon(store)
            link = a.peer(b).link
            publishing = a.pubsub.publishing
            while link.has_room():
                number = publishing.number(publishing.resolve("state.y"))
                events = kinds.Events("state.y", number, 0, None, None, None, (bytes(100_000),), (0,))
                publishing.post_to(b.id, events, 100_000)
            nursery.start_soon(partial(retain, a, "state.x", "confirmed", within=5.0))
            await trio.lowlevel.checkpoint()
            assert a.pubsub.confirming.waiting == 0, "it waits for the link"
            assert a.pubsub.retention.events.get("state.x") is None
            await trio.sleep(1)
            async with c.pubsub.subscribe("state.x") as late:
                assert seen(await collect(late)) == [("state.x", "confirmed", True)]
            nursery.cancel_scope.cancel()


async def test_who_comes_while_a_value_is_confirmed_gets_what_those_have_that_were_there(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b", "c", "d") as fleet:
        a, b, c, d = (fleet[name] for name in "abcd")
        await retain(a, "state.x", "former")
        async with (
            b.pubsub.subscribe("state.x", durable=True),  # which never confirms
            c.pubsub.subscribe("state.x") as early,
        ):
            await collect(early)
            async with trio.open_nursery() as nursery:

                async def come() -> None:
                    async with d.pubsub.subscribe("state.x") as late:
                        assert seen(await collect(late)) == [("state.x", "unconfirmed", True)]

                nursery.start_soon(come)
                with pytest.raises(RequestTimeout):
                    await retain(a, "state.x", "unconfirmed", within=2.0)
            assert seen(await collect(early)) == [("state.x", "unconfirmed", False)]
        with pytest.raises(NotSent, match="no durable subscriber"):
            await retain(a, "state.z", 1, within=2.0)
        assert a.pubsub.retention.events.get("state.z") is None, "it was not published"
