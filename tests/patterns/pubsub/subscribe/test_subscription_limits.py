"""One subscription: limits, and a model of it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel import wire
from iris.kernel.errors import ConfigError
from iris.patterns.messages import Sender
from iris.patterns.pubsub.subscribe.subscription import Overflow, SubscriptionLimits
from tests.support.events import collect
from tests.support.meshes import check_subscription, open_meshes
from tests.support.subscriptions import PUBLISHERS, SENDER, Desk, Ticking


async def test_a_wait_that_is_cancelled_loses_no_event(autojump_clock: MockClock) -> None:
    desk = Desk(max_events=100)
    taken: list[int] = []

    async def deliver() -> None:
        for number in range(1, 101):
            await trio.sleep(1)
            desk.numbers(number, 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deliver)
        for step in range(300):
            with trio.move_on_after(0.9 if step % 3 else 0.1):
                if step % 2:
                    taken.append(int((await desk.subscription.__anext__()).payload))
                else:
                    taken += [int(event.payload) for event in await desk.subscription.receive_batch()]
    taken += [number for number, _ in desk.take_numbers()]
    assert taken == list(range(1, 101))


async def test_one_task_takes_at_a_time(autojump_clock: MockClock) -> None:
    desk = Desk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.subscription.__anext__)
        await wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await desk.subscription.__anext__()
        desk.numbers(1, 1)


async def test_what_waits_is_taken_before_the_iteration_ends(autojump_clock: MockClock) -> None:
    desk = Desk()
    desk.numbers(1, 2)
    desk.subscription._close()
    assert [int(event.payload) async for event in desk.subscription] == [1, 2]
    with pytest.raises(trio.EndOfChannel):
        await desk.subscription.receive_batch()


async def test_closing_ends_a_wait(autojump_clock: MockClock) -> None:
    desk = Desk()

    async def iterate() -> None:
        assert [event async for event in desk.subscription] == []

    async with trio.open_nursery() as nursery:
        nursery.start_soon(iterate)
        await wait_all_tasks_blocked()
        desk.subscription._close()


@pytest.mark.parametrize("batches", [False, True])
def test_a_subscriber_that_always_finds_events_lets_others_run_and_can_be_cancelled(batches: bool) -> None:
    async def main() -> None:
        desk = Desk(max_events=100_000, max_bytes=10_000_000)
        for first in range(1, 50_001, 10):
            desk.numbers(first, 10)
        with trio.move_on_after(0.1) as scope:
            if batches:
                while True:
                    await desk.subscription.receive_batch(10)
            async for _ in desk.subscription:
                pass
        assert scope.cancelled_caught
        assert desk.statistics[4] > 10_000

    trio.run(main, clock=Ticking())


# -- confirming --------------------------------------------------------------------------------------------


async def test_confirmations_are_told_as_ranges_by_publisher(autojump_clock: MockClock) -> None:
    desk = Desk(max_events=100)
    desk.numbers(1, 3, confirm=10)
    desk.numbers(4, 1)
    desk.numbers(5, 1, confirm=13)
    desk.numbers(6, 1, confirm=20)
    desk.numbers(1, 1, sender=PUBLISHERS[1], confirm=5)
    batch = await desk.subscription.receive_batch()
    assert [event.sequence for event in batch] == [10, 11, 12, 0, 13, 20, 5]
    await desk.subscription.confirm(batch)
    assert desk.confirmed == [(SENDER.node, (10, 13, 20, 20)), (PUBLISHERS[1].node, (5, 5))]


# -- who may -----------------------------------------------------------------------------------------------


def test_publishers_that_are_not_named_are_refused_and_counted() -> None:
    desk = Desk(allow=frozenset({"billing"}))
    desk.numbers(1, 3)
    desk.numbers(1, 2, sender=Sender("billing", PUBLISHERS[1].node))
    assert desk.statistics == (2, 0, 0, 0, 2)
    assert desk.subscription.statistics().refused == 3


# -- bad input ---------------------------------------------------------------------------------------------


def test_an_event_shows_what_it_is() -> None:
    desk = Desk()
    desk.deliver(1, [wire.encode_payload({"a": 1}, 100)])
    (event,) = desk.take()
    assert event.payload == {"a": 1}
    assert event.raw_payload != event.payload
    assert (event.topic, event.sender, event.publisher, event.key, event.headers) == (
        "t",
        SENDER,
        SENDER.node,
        None,
        {},
    )
    assert "topic='t'" in repr(event)
    assert "0 events waiting" in repr(desk.subscription)


def test_a_payload_that_a_peer_made_up_is_left_out_counted_and_told() -> None:
    desk = Desk()
    desk.deliver(1, [wire.join_payload(b"\xc1", packed=True), b"x"], confirm=7)
    (event,) = desk.take()
    assert (event.payload, event.missed, event.sequence) == (b"x", 1, 8)
    assert desk.subscription.statistics().malformed == 1
    assert (desk.counted("dropped"), desk.counted("refused")) == (0, 1)
    assert desk.delayed == [(SENDER.node, f"the payload cannot be read: {desk.malformed[0]}")]
    check_subscription(desk.subscription)


@pytest.mark.parametrize("overflow", ["", "drop", None, "WAIT"])
def test_overflow_is_one_of_three(overflow: Any) -> None:
    with pytest.raises(ConfigError, match="drop_oldest"):
        Desk(overflow)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "1"])
def test_limits_are_whole_numbers_above_zero(value: Any) -> None:
    for name in ("events", "bytes"):
        with pytest.raises(ConfigError, match=f"limits: {name}"):
            SubscriptionLimits(**{name: value})
    assert SubscriptionLimits().events is None


@pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest"])
async def test_headers_and_keys_count_towards_what_may_wait(autojump_clock: MockClock, overflow: Overflow) -> None:
    """Otherwise 65,536 events with 16 KiB of headers each would be nothing, and a gibibyte."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with b.pubsub.subscribe("t", max_bytes=51_000, overflow=overflow) as events:
            for number in range(100):
                headers = {"number": str(number), "long": "x" * 4000}
                await a.pubsub.publish("t", b"", key="k" * 100, headers=headers, within=None, retain=False)
                await trio.sleep(0.001)
            await trio.sleep(1)
            statistics = events.statistics()
            assert (statistics.waiting, statistics.dropped) == (12, 88)
            assert 12 * 4100 <= statistics.waiting_bytes <= 51_000
            assert len(await collect(events)) == 12
            assert events.statistics().waiting_bytes == 0
