"""One subscription: order, gaps, batches."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel.errors import SubscriberTooSlow
from iris.kernel.names import NodeId
from iris.patterns.pubsub.subscribe import subscription as subscriptions
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Overflow
from tests.support.meshes import check_subscription
from tests.support.subscriptions import PUBLISHERS, Desk, Numbering, steps


@given(
    steps=steps,
    overflow=st.sampled_from(["drop_oldest", "drop_newest", "wait"]),
    max_events=st.integers(1, 12),
    max_bytes=st.sampled_from([60, 100, 1000]),
    labels=st.sampled_from([0, 0, 7, 50]),
)
def test_every_event_is_delivered_in_order_or_counted_where_it_is_missing(
    steps: list[tuple[Any, ...]], overflow: Overflow, max_events: int, max_bytes: int, labels: int
) -> None:
    desk = Desk(overflow, max_events=max_events, max_bytes=max_bytes)
    desk.labels = labels
    subscription = desk.subscription
    numberings: dict[tuple[NodeId, str], Numbering] = {}
    received = lost = 0
    taken: list[Event] = []

    def take(event: Event) -> None:
        taken.append(event)
        numbering = numberings[event.publisher, event.topic]
        number = event.payload.split()[0]
        assert numbering.first is not None
        if number.startswith(b"r"):
            assert event.missed == 0
            if numbering.taken is None:  # the first time had been dropped
                numbering.taken = numbering.first
            return
        previous = numbering.taken if numbering.taken is not None else numbering.first - 1
        assert int(number) == previous + 1 + event.missed
        numbering.taken = int(number)

    for step in steps:
        if step[0] == "run":
            _, publisher, topic, gap, sizes = step
            sender = PUBLISHERS[int(publisher)]
            numbering = numberings.setdefault((sender.node, topic), Numbering())
            first = numbering.next + gap
            if numbering.first is None:
                numbering.first = first
            else:
                lost += gap
            numbering.next = first + len(sizes)
            payloads = [(b"%d " % (first + index)).ljust(size) for index, size in enumerate(sizes)]
            received += len(sizes)
            desk.deliver(first, payloads, topic=topic, sender=sender)
        elif step[0] == "repeat":  # a confirmed event that goes out again under its old number
            sender = PUBLISHERS[int(step[1])]
            known = numberings.get((sender.node, "t"))
            if known is not None and known.first is not None:
                received += 1
                desk.deliver(known.first, [b"r"], sender=sender, confirm=3)
        else:
            for _ in range(step[1]):
                event = desk.take_one()
                if event is not None:
                    take(event)
        it = subscription.statistics()
        check_subscription(subscription)
        assert (it.received, it.delivered, it.missed) == (received, len(taken), lost)
        if overflow != "wait":
            assert it.waiting <= max_events
            assert it.waiting_bytes <= max_bytes
        else:
            assert it.dropped == 0
    for event in desk.take():
        take(event)
    assert subscription.statistics().waiting == subscription.statistics().waiting_bytes == 0
    if overflow == "wait":
        assert desk.holds == [index % 2 == 0 for index in range(len(desk.holds))]
        assert not desk.holds or desk.holds[-1] is False


# -- overflow ----------------------------------------------------------------------------------------------


def test_the_newest_are_kept_even_of_a_run_larger_than_the_limit() -> None:
    desk = Desk("drop_oldest", max_events=10)
    desk.numbers(1, 1000)
    assert desk.statistics == (1000, 0, 990, 0, 10)
    assert desk.take_numbers() == [(991, 990), *[(number, 0) for number in range(992, 1001)]]


def test_the_oldest_are_kept_even_of_a_run_larger_than_the_limit() -> None:
    desk = Desk("drop_newest", max_events=10)
    desk.numbers(1, 1000)
    assert desk.statistics == (1000, 0, 990, 0, 10)
    assert desk.take_numbers() == [(number, 0) for number in range(1, 11)]
    desk.numbers(1001, 1)
    assert desk.take_numbers() == [(1001, 990)]


def test_bytes_are_a_limit_of_their_own() -> None:
    cases: list[tuple[Overflow, list[int]]] = [("drop_oldest", [3, 4]), ("drop_newest", [1, 2])]
    for overflow, kept in cases:
        desk = Desk(overflow, max_events=100, max_bytes=100)
        desk.deliver(1, [b"1".ljust(50), b"2".ljust(50), b"3".ljust(50), b"4".ljust(50)])
        assert [int(event.payload) for event in desk.take()] == kept


def test_an_event_that_can_never_fit_is_dropped_alone() -> None:
    dropping: list[Overflow] = ["drop_oldest", "drop_newest"]
    for overflow in dropping:
        desk = Desk(overflow, max_bytes=100)
        desk.deliver(1, [bytes(101)])
        assert desk.statistics == (1, 0, 1, 0, 0)
        desk.numbers(2, 1)
        assert desk.take_numbers() == [(2, 1)]


def test_an_event_that_can_never_fit_leaves_those_that_wait() -> None:
    desk = Desk("drop_oldest", max_bytes=100)
    desk.numbers(1, 3)
    desk.deliver(4, [bytes(101)])
    desk.deliver(5, [b"5", bytes(101), b"7"])
    assert desk.statistics == (7, 0, 2, 0, 5)
    assert desk.take_numbers() == [(1, 0), (2, 0), (3, 0), (5, 1), (7, 1)]


def test_what_its_labels_make_too_large_leaves_those_that_wait() -> None:
    desk = Desk("drop_oldest", max_bytes=100)
    desk.numbers(1, 3)
    desk.labels = 20
    desk.deliver(4, [bytes(81)])
    desk.deliver(5, [b"5".ljust(60)])
    assert desk.take_numbers() == [(1, 0), (2, 0), (3, 0), (5, 1)]


async def test_a_subscription_that_fails_ends_at_once_and_every_event_is_counted() -> None:
    desk = Desk("fail", max_events=10)
    desk.numbers(1, 10)
    assert [number for number, _ in desk.take_numbers(3)] == [1, 2, 3]
    desk.numbers(11, 4)
    assert desk.statistics == (14, 3, 4, 0, 7)
    for _ in range(2):
        with pytest.raises(SubscriberTooSlow, match=r"7 events of \d+ bytes waited when 4") as caught:
            await anext(desk.subscription)
        assert caught.value.waiting == 7
    with pytest.raises(SubscriberTooSlow):
        await desk.subscription.receive_batch()
    desk.numbers(15, 1)
    assert desk.statistics == (15, 3, 5, 0, 7)
    assert desk.subscription.statistics().too_slow == 1


async def test_one_event_above_the_limits_fails_a_subscription_that_waits() -> None:
    desk = Desk("fail", max_bytes=100)
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(SubscriberTooSlow):
                await anext(desk.subscription)

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        desk.deliver(1, [bytes(101)])
    assert desk.statistics == (1, 0, 1, 0, 0)


async def test_a_batch_ends_where_its_subscription_has_failed() -> None:
    desk = Desk("fail", max_events=4)
    desk.numbers(1, 4)
    first = await anext(desk.subscription)
    desk.numbers(5, 2)
    assert (int(first.payload), desk.subscription._filled([first], 10)) == (1, [first])
    assert desk.subscription._pop_at_once() is None
    assert desk.subscription._watch(lambda: None) is None


def test_waiting_publishers_are_released_when_a_quarter_is_left() -> None:
    desk = Desk("wait", max_events=16)
    desk.numbers(1, 8)
    assert desk.holds == []
    desk.numbers(9, 1)
    desk.numbers(10, 50)
    assert desk.holds == [True]
    assert desk.take_numbers(54) == [(number, 0) for number in range(1, 55)]
    assert desk.holds == [True]
    desk.take()
    assert desk.holds == [True, False]
    assert desk.statistics == (59, 59, 0, 0, 0)


def test_publishers_are_asked_to_wait_when_more_than_half_of_the_bytes_are_taken() -> None:
    desk = Desk("wait", max_bytes=100)
    desk.deliver(1, [bytes(50)])
    assert desk.holds == []
    desk.deliver(2, [bytes(1)])
    assert desk.holds == [True]


def test_a_publisher_that_does_not_wait_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "IN_FLIGHT_EVENTS", 100)
    desk = Desk("wait", max_events=10)
    for first in range(1, 2001, 200):
        desk.numbers(first, 200)
    assert desk.statistics == (2000, 0, 1890, 0, 110)
    assert desk.take_numbers()[-1] == (110, 0)


def test_a_subscription_that_ends_releases_its_publishers() -> None:
    desk = Desk("wait", max_events=2)
    desk.numbers(1, 2)
    for _ in range(2):
        desk.subscription._release()
    assert desk.holds == [True, False]


# -- numbering ---------------------------------------------------------------------------------------------


def test_members_of_a_group_see_no_gaps() -> None:
    """Each gets a part of the numbering by design."""
    desk = Desk(group="workers")
    desk.numbers(1, 1)
    desk.numbers(9, 1)
    assert desk.take_numbers() == [(1, 0), (9, 0)]
    assert desk.statistics[3] == 0


def test_memory_of_numberings_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "_MAX_NUMBERINGS", 100)
    desk = Desk()
    for number in range(1000):
        desk.numbers(1, 1, topic=f"t{number}")
        desk.numbers(3, 1, topic=f"t{number}")
        assert desk.subscription._followed == followed(desk) <= 100
        assert desk.take_numbers() == [(1, 0), (3, 1)]


def followed(desk: Desk) -> int:
    by_publisher = desk.subscription._numberings.values()
    for numberings in by_publisher:
        assert len(numberings.expected) == len(numberings.arrived)
    return sum(len(numberings.arrived) for numberings in by_publisher)


@pytest.mark.parametrize(("all_", "each"), [(100, 1000), (1000, 60)])
def test_a_publisher_with_many_topics_hides_no_gap_of_another(
    monkeypatch: pytest.MonkeyPatch, all_: int, each: int
) -> None:
    monkeypatch.setattr(subscriptions, "_MAX_NUMBERINGS", all_)
    monkeypatch.setattr(subscriptions, "_MAX_TOPICS", each)
    one, other = PUBLISHERS
    desk = Desk()
    for number in range(20):
        desk.numbers(1, 1, sender=one, topic=f"t{number}")
        desk.take()
    for number in range(1000):
        desk.numbers(1, 1, sender=other, topic=f"t{number}")
        assert desk.subscription._followed == followed(desk) <= min(all_, each + 20)
    desk.take()
    for number in range(20):
        desk.numbers(7, 1, sender=one, topic=f"t{number}")
        assert desk.take_numbers() == [(7, 5)]
    assert desk.subscription.statistics().missed == 20 * 5


# -- taking ------------------------------------------------------------------------------------------------


async def test_events_come_one_by_one_or_in_batches(autojump_clock: MockClock) -> None:
    desk = Desk(max_events=100)
    desk.numbers(1, 50)
    assert (await desk.subscription.__anext__()).payload == b"1"
    batch = await desk.subscription.receive_batch(20)
    assert [int(event.payload) for event in batch] == list(range(2, 22))
    assert len(await desk.subscription.receive_batch()) == 29
    assert desk.statistics == (50, 50, 0, 0, 0)
