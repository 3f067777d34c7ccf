"""Many confirmed events at a time: all of them on disk when the block ends, in order, whatever breaks meanwhile."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from iris.kernel.config import Config
from iris.kernel.errors import ConfigError, NotSent, PayloadTooLarge, RequestTimeout
from iris.kernel.names import NodeId
from iris.patterns.pubsub.publish.ack_batch import ConfirmedEvents, open_confirmed_events
from iris.patterns.pubsub.publish.acks import Unconfirmed
from iris.patterns.pubsub.subscribe.events import EventRun
from tests.support.meshes import MeshNode, check_tally, open_meshes

NODE = NodeId("ab" * 16)


def confirming(node: MeshNode, timeout: float = 5.0) -> AbstractAsyncContextManager[ConfirmedEvents]:
    return open_confirmed_events(node.pubsub.confirming, Config(), timeout)


class Log:
    """Log of a durable subscriber: runs, as a bridge receives them; repeats are left out by their number."""

    def __init__(self) -> None:
        self.runs: list[EventRun] = []
        self.payloads: list[object] = []
        self.telling = trio.Event()
        self.telling.set()

    def take(self, run: EventRun) -> None:
        self.runs.append(run)
        for number, payload in enumerate(run.payloads, run.confirm):
            if number > len(self.payloads):
                assert number == len(self.payloads) + 1, "an event was passed over"
                self.payloads.append(payload)


@asynccontextmanager
async def open_log(node: MeshNode, log: Log | None = None) -> AsyncIterator[Log]:
    log = log or Log()
    async with (
        node.pubsub.subscribe(">", durable=True, overflow="wait") as events,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            while True:
                for found in await events._receive_runs():
                    log.take(found)
                    await log.telling.wait()
                    await events._confirm_ranges(
                        {found.publisher: (found.confirm, found.confirm + len(found.payloads) - 1)}
                    )

        nursery.start_soon(run)
        yield log
        nursery.cancel_scope.cancel()


async def test_all_are_stored_when_the_block_ends_and_travel_together(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:
        async with confirming(fleet["a"]) as events:
            for number in range(5000):
                await events.publish("t", b"%d" % number)
        assert log.payloads == [b"%d" % number for number in range(5000)]
        assert events.confirmed == events.published == 5000
        assert len(log.runs) < 10
        assert check_tally(fleet["a"].pubsub.publishing.tally).handed_over == 5000
        assert not fleet["a"].pubsub.confirming.waiting


async def test_topics_keys_headers_and_other_values_keep_their_order(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:
        async with confirming(fleet["a"]) as events:
            for number in range(100):
                key, headers = str(number % 3), {"n": str(number % 5)} if number % 2 else None
                await events.publish(f"t.{number // 10}", b"%d" % number, key=key, headers=headers)
        assert log.payloads == [b"%d" % number for number in range(100)]
        for run in log.runs:
            for payload in run.payloads:
                number = int(payload)  # type: ignore[arg-type]  # bytes here
                assert (run.topic, run.key) == (f"t.{number // 10}", str(number % 3))
                assert dict(run.headers) == ({"n": str(number % 5)} if number % 2 else {})


async def test_events_with_long_headers_travel_in_runs_that_subscribers_take(autojump_clock: MockClock) -> None:
    headers = {"h": "x" * 4000}
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:
        async with confirming(fleet["a"]) as events:
            for number in range(100):
                await events.publish("t", b"%d" % number, key="k", headers=headers)
        assert log.payloads == [b"%d" % number for number in range(100)]
        assert {len(run.payloads) for run in log.runs} == {8, 4}
        assert not fleet["b"].mesh.refusals


async def test_an_event_does_not_wait_for_the_next_one(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log, confirming(fleet["a"]) as events:
        await events.publish("t", b"one")
        await trio.sleep(0.1)
        assert log.payloads == [b"one"]
        assert events.confirmed == 1


async def test_publishing_waits_when_too_much_is_unconfirmed(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:
        log.telling = trio.Event()
        async with confirming(fleet["a"]) as events:
            with trio.move_on_after(1) as scope:
                for _ in range(40):
                    await events.publish("t", bytes(1_000_000))
            assert scope.cancelled_caught
            assert 15 <= events.published <= 18
            log.telling.set()
            await events.publish("t", b"last")
        assert log.payloads[-1] == b"last"
        assert len(log.payloads) == events.published


async def test_what_may_be_lost_goes_out_again_in_order(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with open_log(b) as log, confirming(a) as events:
            log.telling = trio.Event()
            for number in range(2000):
                await events.publish("t", b"%d" % number)
            a.break_connections(b)
            await trio.sleep(0.5)
            log.telling.set()
        assert log.payloads == [b"%d" % number for number in range(2000)]


async def test_a_subscriber_that_comes_back_gets_the_rest(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, confirming_after(fleet["a"], fleet["b"]) as (events, log):
        for number in range(1, 300):
            await events.publish("t", b"%d" % number)
        await trio.sleep(1)
        async with open_log(fleet["b"], log):
            await events.wait_confirmed()
        assert log.payloads == [b"%d" % number for number in range(300)]


@asynccontextmanager
async def confirming_after(a: MeshNode, b: MeshNode) -> AsyncIterator[tuple[ConfirmedEvents, Log]]:
    """Confirmed events of which the first is stored; then the subscriber is gone."""
    log = Log()
    async with confirming(a) as events:
        async with open_log(b, log):
            await events.publish("t", b"0")
            await events.wait_confirmed()
        yield events, log


async def test_what_is_not_confirmed_in_time_is_an_error_that_says_what_is(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:
        counts: list[tuple[int, int]] = []

        async def work() -> None:
            async with confirming(fleet["a"], timeout=2) as events:
                await events.publish("t", b"one")
                await events.wait_confirmed()
                log.telling = trio.Event()
                await events.publish("t", b"two")
                await trio.sleep(3)
                counts.append((events.confirmed, events.published))
                await events.publish("t", b"three")

        with pytest.raises(RequestTimeout, match="within 2 s"):
            await work()
        assert counts == [(1, 2)]
        assert log.payloads == [b"one", b"two"]
        assert not fleet["a"].pubsub.confirming.waiting


async def test_other_tasks_do_not_wait_for_what_was_left_and_publish_nothing_more_in_it(
    autojump_clock: MockClock,
) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log, trio.open_nursery() as nursery:
        log.telling = trio.Event()
        ended, shared = list[str](), list[ConfirmedEvents]()

        async def wait(events: ConfirmedEvents) -> None:
            with pytest.raises(trio.ClosedResourceError, match="the block"):
                await events.wait_confirmed()
            ended.append("wait")

        async def fill(events: ConfirmedEvents) -> None:
            try:
                while True:
                    await events.publish("t", bytes(200_000))
            except trio.ClosedResourceError:
                ended.append("fill")

        async def leave() -> None:
            async with confirming(fleet["a"]) as events:
                shared.append(events)
                await events.publish("t", b"one")
                nursery.start_soon(wait, events)
                nursery.start_soon(fill, events)
                await trio.sleep(1)
                raise ZeroDivisionError

        began = trio.current_time()
        with pytest.raises(ZeroDivisionError):
            await leave()
        (events,) = shared
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(ended) == ["fill", "wait"]
        assert trio.current_time() - began < 2
        assert not fleet["a"].pubsub.confirming.waiting
        published = events.published
        with pytest.raises(trio.ClosedResourceError, match="the block"):
            await events.publish("t", b"late")
        assert events.published == published


async def test_who_waits_after_the_end_for_what_is_confirmed_has_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]):
        async with confirming(fleet["a"]) as events:
            await events.publish("t", b"one")
        await events.wait_confirmed()


async def test_several_tasks_may_share_it(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_log(fleet["b"]) as log:

        async def work(events: ConfirmedEvents, topic: str) -> None:
            for number in range(500):
                await events.publish(topic, f"{topic}{number}".encode())

        async with confirming(fleet["a"]) as events, trio.open_nursery() as nursery:
            for topic in "xyz":
                nursery.start_soon(work, events, topic)
        for letter in (b"x", b"y", b"z"):
            own = [payload for payload in log.payloads if isinstance(payload, bytes) and payload.startswith(letter)]
            assert own == [letter + b"%d" % number for number in range(500)]


async def test_bad_input_is_the_callers_error_and_harms_no_other_event(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a = fleet["a"]
        async with confirming(a) as events:
            with pytest.raises(NotSent, match="start a bridge"):
                await events.publish("t", b"")
        async with open_log(fleet["b"]) as log:
            async with confirming(a) as events:
                await events.publish("t", b"one")
                with pytest.raises(PayloadTooLarge):
                    await events.publish("t", bytes(2_000_000))
                with pytest.raises(ConfigError, match="is not a topic"):
                    await events.publish("a..b", b"")
                with pytest.raises(ConfigError, match="is not a key"):
                    await events.publish("t", b"", key="\ud800")
                await events.publish("t", b"two")
            assert log.payloads == [b"one", b"two"]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_breaks_all_are_stored_in_order(autojump_clock: MockClock, seed: int) -> None:
    chance = random.Random(seed)
    async with open_meshes("a", "b", seed=seed) as fleet, open_log(fleet["b"]) as log:
        a, b = fleet["a"], fleet["b"]

        async def trouble() -> None:
            while True:
                await trio.sleep(chance.uniform(0.1, 0.5))
                chance.choice((a, b)).break_connections()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trouble)
            async with confirming(a, timeout=30) as events:
                for number in range(3000):
                    await events.publish("t", b"%d" % number)
                    if not number % 100:
                        await trio.sleep(chance.uniform(0, 0.2))
            nursery.cancel_scope.cancel()
        assert log.payloads == [b"%d" % number for number in range(3000)]


# -- parts of a run ----------------------------------------------------------------------------------------


def run_of(count: int, *, first: int) -> Unconfirmed:
    run = Unconfirmed("t", [b""] * count, None, None, 0)
    run.first = first
    run.pending[NODE] = 0
    return run


async def test_a_run_is_confirmed_when_each_of_its_events_is() -> None:
    run = run_of(10, first=5)
    for first, last in ((1, 6), (1, 6), (9, 9), (14, 99), (10, 13), (10, 13)):
        run.confirm(NODE, first, last)
        assert not run.done
    run.confirm(NODE, 7, 8)
    assert run.done == {NODE}


async def test_a_node_that_was_not_asked_confirms_nothing() -> None:
    run = run_of(3, first=1)
    run.confirm(NodeId("cd" * 16), 1, 3)
    assert not run.done


async def test_numbers_of_other_runs_are_passed_over() -> None:
    run = run_of(3, first=10)
    run.confirm(NODE, 1, 9)
    run.confirm(NODE, 13, 20)
    assert run.pending == {NODE: 0}
