"""A subscription against a model: order, bounds, and losses that are counted and shown."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from iris.kernel import kinds, wire
from iris.kernel.errors import ConfigError, RemoteProtocolError
from iris.kernel.ids import NodeId
from iris.patterns import subscription as subscriptions
from iris.patterns.subscription import Event, Overflow, Subscription, SubscriptionLimits, check_run_untrusted
from iris.patterns.values import Sender
from tests.support.meshes import check_subscription

PUBLISHERS = [Sender("shop", NodeId(letter * 32)) for letter in "ab"]
SENDER = PUBLISHERS[0]


class Desk:
    """A subscription, and what it asks of publishers."""

    def __init__(
        self,
        overflow: Overflow = "drop_oldest",
        *,
        max_events: int = 10,
        max_bytes: int = 1000,
        group: str | None = None,
        allow: frozenset[str] | None = None,
    ) -> None:
        self.confirmed: list[tuple[NodeId, tuple[int, ...]]] = []
        self.holds: list[bool] = []
        self.subscription = Subscription(
            ">",
            group=group,
            overflow=overflow,
            durable=False,
            allow=allow,
            max_events=max_events,
            max_bytes=max_bytes,
            confirm=self.confirm,
            hold=self.holds.append,
        )
        self.arrived: Counter[str] = Counter()

    def confirm(self, ranges: Mapping[NodeId, Sequence[int]]) -> None:
        self.confirmed += [(node, tuple(numbers)) for node, numbers in ranges.items()]

    def deliver(
        self,
        first: int,
        payloads: Sequence[wire.Payload],
        *,
        topic: str = "t",
        sender: Sender = SENDER,
        confirm: int = 0,
    ) -> None:
        size = sum(wire.payload_size(payload) for payload in payloads)
        self.subscription.deliver(sender, topic, first, confirm, {}, None, payloads, size)

    def numbers(self, first: int, count: int, **options: Any) -> None:
        """Deliver events whose payloads are their numbers."""
        self.deliver(first, [b"%d" % number for number in range(first, first + count)], **options)

    def take(self) -> list[Event]:
        """Take everything that waits, without waiting."""
        taken: list[Event] = []
        while self.subscription._current is not None or self.subscription._runs:
            taken.append(self.subscription._take(self.subscription._current or self.subscription._begin_run()))
        return taken

    def take_numbers(self) -> list[tuple[int, int]]:
        """Take everything: number and missed of each event."""
        return [(int(event.payload), event.missed) for event in self.take()]

    @property
    def statistics(self) -> tuple[int, int, int, int, int]:
        check_subscription(self.subscription)
        it = self.subscription.statistics()
        return it.received, it.delivered, it.dropped, it.missed, it.waiting


# -- the model ---------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Numbering:
    """One publisher and topic, as the model sees it."""

    next: int = 1
    first: int | None = None
    taken: int | None = None


run_sizes = st.lists(st.sampled_from([1, 1, 5, 60]), min_size=1, max_size=15)
steps = st.lists(
    st.tuples(st.just("run"), st.integers(0, 1), st.sampled_from(["t", "u"]), st.integers(0, 3), run_sizes)
    | st.tuples(st.just("take"), st.integers(1, 12))
    | st.tuples(st.just("repeat"), st.integers(0, 1)),
    max_size=40,
)


@given(
    steps=steps,
    overflow=st.sampled_from(["drop_oldest", "drop_newest", "wait"]),
    max_events=st.integers(1, 12),
    max_bytes=st.sampled_from([60, 100, 1000]),
)
def test_every_event_is_delivered_in_order_or_counted_where_it_is_missing(
    steps: list[tuple[Any, ...]], overflow: Overflow, max_events: int, max_bytes: int
) -> None:
    desk = Desk(overflow, max_events=max_events, max_bytes=max_bytes)
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
                if subscription._current is not None or subscription._runs:
                    take(subscription._take(subscription._current or subscription._begin_run()))
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


def test_waiting_publishers_are_released_when_a_quarter_is_left() -> None:
    desk = Desk("wait", max_events=16)
    desk.numbers(1, 8)
    assert desk.holds == []
    desk.numbers(9, 1)
    desk.numbers(10, 50)
    assert desk.holds == [True]
    events = [desk.subscription._take(desk.subscription._current or desk.subscription._begin_run()) for _ in range(54)]
    assert [int(event.payload) for event in events] == list(range(1, 55))
    assert desk.holds == [True]
    desk.take()
    assert desk.holds == [True, False]
    assert desk.statistics == (59, 59, 0, 0, 0)


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
    desk.subscription.release()
    desk.subscription.release()
    assert desk.holds == [True, False]


# -- numbering ---------------------------------------------------------------------------------------------


def test_what_came_before_the_subscription_is_not_missed() -> None:
    desk = Desk()
    desk.numbers(500, 2)
    assert desk.take_numbers() == [(500, 0), (501, 0)]


def test_a_gap_is_shown_before_the_event_after_it_and_counted_at_once() -> None:
    desk = Desk()
    desk.numbers(1, 2)
    desk.numbers(6, 2)
    assert desk.statistics[3] == 3
    assert desk.take_numbers() == [(1, 0), (2, 0), (6, 3), (7, 0)]


def test_numberings_of_publishers_and_topics_are_apart() -> None:
    desk = Desk()
    desk.numbers(1, 1)
    desk.numbers(7, 1, topic="u")
    desk.numbers(3, 1, sender=PUBLISHERS[1])
    desk.numbers(2, 1)
    assert [event.missed for event in desk.take()] == [0, 0, 0, 0]


def test_an_event_that_comes_again_is_no_gap_for_the_next() -> None:
    desk = Desk()
    desk.numbers(1, 5)
    desk.numbers(2, 1)
    desk.numbers(6, 1)
    assert desk.take_numbers() == [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (2, 0), (6, 0)]
    assert desk.statistics[3] == 0


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
        assert len(desk.subscription._arrived) <= 100
        assert len(desk.subscription._expected) <= 100
        assert desk.take_numbers() == [(1, 0), (3, 1)]


# -- taking ------------------------------------------------------------------------------------------------


async def test_events_come_one_by_one_or_in_batches(autojump_clock: MockClock) -> None:
    desk = Desk(max_events=100)
    desk.numbers(1, 50)
    assert (await desk.subscription.__anext__()).payload == b"1"
    batch = await desk.subscription.receive_batch(20)
    assert [int(event.payload) for event in batch] == list(range(2, 22))
    assert len(await desk.subscription.receive_batch()) == 29
    assert desk.statistics == (50, 50, 0, 0, 0)


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
    desk.subscription.close()
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
        desk.subscription.close()


class Ticking(trio.abc.Clock):
    """A clock that moves by itself, a little with each look at it."""

    def __init__(self) -> None:
        self.now = 0.0

    def start_clock(self) -> None:
        """It is always running."""

    def current_time(self) -> float:
        self.now += 0.0001
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0 if deadline < math.inf else 1


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


def test_a_payload_that_a_peer_made_up_is_an_error_of_whoever_looks_at_it() -> None:
    desk = Desk()
    desk.deliver(1, [wire.join_payload(b"\xc1", packed=True)])
    (event,) = desk.take()
    with pytest.raises(RemoteProtocolError):
        _ = event.payload


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


GOOD = (kinds.EVENTS, "t", 1, 0, None, None, None, (b"x",))


def test_a_run_of_events() -> None:
    check_run_untrusted(GOOD)
    check_run_untrusted(
        (kinds.EVENTS, "t", 5, 7, "g", ("a", "b"), "k", (b"x", wire.join_payload(b"\x01", packed=True)))
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (1, None),
        (1, b"t"),
        (1, "x" * 257),
        (2, 0),
        (2, -1),
        (2, "1"),
        (2, True),
        (3, -1),
        (3, None),
        (4, 1),
        (6, 1),
        (7, ()),
        (7, b"x"),
        (7, ("x",)),
        (7, (None,)),
        (7, (b"x", 1)),
    ],
)
def test_a_malformed_run_is_the_peers_error(field: int, value: object) -> None:
    message: list[object] = list(GOOD)
    message[field] = value
    with pytest.raises(RemoteProtocolError):
        check_run_untrusted(tuple(message))
