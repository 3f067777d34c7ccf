"""Events that are confirmed: publish returns when every durable subscriber has stored them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from iris.kernel.errors import ConfigError, IrisError, NotSent, PayloadTooLarge, RequestTimeout
from iris.kernel.wire import kinds
from iris.patterns.pubsub.subscribe.events import Event
from iris.patterns.pubsub.subscribe.subscription import Overflow
from tests.support.events import collect, publish
from tests.support.meshes import MeshNode, check_tally, open_meshes
from tests.support.messages import raw


async def confirm(
    node: MeshNode, topic: str, payload: object = b"", *, timeout: float = 5.0, key: str | None = None
) -> None:
    await node.pubsub.confirming.publish(topic, payload, key=key, timeout=timeout, headers=None)


class Store:
    """A durable subscriber: what it has stored, and whether it confirms."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.telling = True
        self.delay = 0.0

    @property
    def payloads(self) -> list[object]:
        return [event.payload for event in self.events]

    @property
    def distinct(self) -> set[tuple[str, int]]:
        """Publisher and sequence of each event, by which repeats are recognised."""
        return {(event.publisher, event.sequence) for event in self.events}


@asynccontextmanager
async def open_store(
    node: MeshNode, pattern: str = ">", *, group: str | None = None, overflow: Overflow = "drop_oldest"
) -> AsyncIterator[Store]:
    """A durable subscriber that stores and confirms what it gets."""
    store = Store()
    async with (
        node.pubsub.subscribe(pattern, durable=True, group=group, overflow=overflow) as events,
        trio.open_nursery() as nursery,
    ):

        async def run() -> None:
            while True:
                batch = await events.receive_batch()
                await trio.sleep(store.delay)
                store.events += batch
                if store.telling:
                    await events.confirm(batch)

        nursery.start_soon(run)
        yield store
        nursery.cancel_scope.cancel()


# -- when it returns ---------------------------------------------------------------------------------------


async def test_it_returns_when_the_event_is_stored_and_not_before(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_store(fleet["b"]) as store:
        store.delay = 0.5
        began = trio.current_time()
        await confirm(fleet["a"], "t", {"n": 1})
        assert store.payloads == [{"n": 1}]
        assert trio.current_time() - began == pytest.approx(0.5, abs=0.01)
        assert store.events[0].sequence == 1
        assert check_tally(fleet["a"].pubsub.publishing.tally).handed_over == 1


async def test_it_waits_for_every_durable_subscriber_and_for_no_other(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b", "c", "d") as fleet,
        open_store(fleet["b"]) as one,
        open_store(fleet["c"], group="g") as two,
        open_store(fleet["d"], group="g") as three,
        fleet["d"].pubsub.subscribe("t") as plain,
    ):
        one.delay, two.delay, three.delay = 0.1, 1.0, 1.0
        began = trio.current_time()
        for number in range(10):
            await confirm(fleet["a"], "t", number)
        assert trio.current_time() - began == pytest.approx(10.0, abs=0.2)
        assert one.payloads == list(range(10))
        assert sorted([*two.payloads, *three.payloads], key=str) == list(range(10))  # one of the group each
        assert [event.payload for event in await collect(plain)] == list(range(10))


async def test_the_error_without_a_durable_subscriber_says_what_is_stored(autojump_clock: MockClock) -> None:
    async with (
        open_meshes("a", "b") as fleet,
        fleet["b"].pubsub.subscribe("sales.>", durable=True),
        fleet["b"].pubsub.subscribe("plain"),
    ):
        with pytest.raises(NotSent, match=r"no durable subscriber of 'slaes\.done'") as caught:
            await confirm(fleet["a"], "slaes.done", 1)
    assert caught.value.__notes__ == ["what is stored here: sales.>"]


async def test_without_a_durable_subscriber_nothing_is_sent(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        async with fleet["b"].pubsub.subscribe("t") as events:
            with pytest.raises(NotSent, match="no durable subscriber of 't'"):
                await confirm(fleet["a"], "t")
            assert await collect(events) == []
        assert fleet["a"].pubsub.publishing.published == 0


async def test_a_node_may_store_its_own_events(autojump_clock: MockClock) -> None:
    async with open_meshes("a") as fleet, open_store(fleet["a"]) as store:
        await confirm(fleet["a"], "t", 1)
        assert store.payloads == [1]


async def test_a_subscriber_that_does_not_tell_costs_the_timeout(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_store(fleet["b"]) as store:
        store.telling = False
        began = trio.current_time()
        with pytest.raises(RequestTimeout, match="no durable subscriber of 't' has confirmed within 3 s"):
            await confirm(fleet["a"], "t", 1, timeout=3.0)
        assert trio.current_time() - began == pytest.approx(3.0)
        store.telling = True
        await confirm(fleet["a"], "t", 2)
        assert store.payloads == [1, 2]


async def test_a_subscriber_that_cannot_store_says_why(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet, fleet["b"].pubsub.subscribe(">", durable=True) as events:
        a = fleet["a"]
        fleet["c"].peer(a).link.post(kinds.ConfirmDelayed("nobody asked"), 0)
        async with trio.open_nursery() as nursery:

            async def refuse() -> None:
                async for event in events:
                    events._explain_delay([event.publisher], "no room")

            nursery.start_soon(refuse)
            with pytest.raises(RequestTimeout, match=f"within 1 s; node {fleet['b'].id} says: no room$"):
                await confirm(a, "t", timeout=1)
            nursery.cancel_scope.cancel()
        events._explain_delay([a.id], "no room")
        async with trio.open_nursery() as nursery:

            async def take() -> None:
                await events.confirm(await events.receive_batch())

            nursery.start_soon(take)
            await confirm(a, "t")
        with pytest.raises(RequestTimeout, match=r"within 1 s$"):  # there was room meanwhile
            await confirm(a, "t", timeout=1)
        assert len(a.pubsub.confirming._delays) == 1, "of the one that nobody asked"


async def test_many_at_once_are_confirmed_each_for_itself(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        async with open_store(fleet["b"]) as one, open_store(fleet["c"]) as two, trio.open_nursery() as nursery:
            one.delay = two.delay = 0.01
            for number in range(500):
                nursery.start_soon(confirm, fleet["a"], f"t.{number % 7}", number)
        for store in (one, two):
            assert sorted(event.payload for event in store.events) == list(range(500))
            assert {event.sequence for event in store.events} == set(range(1, 501))


async def test_the_sequence_counts_confirmed_events_only(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_store(fleet["b"]) as store:
        for number in range(3):
            await confirm(fleet["a"], "t", number)
            await publish(fleet["a"], "t", b"plain")
        await trio.sleep(1)
        assert [event.sequence for event in store.events] == [1, 0, 2, 0, 3, 0]
        assert [event.missed for event in store.events] == [0] * 6


# -- subscribers that are lost -----------------------------------------------------------------------------


async def test_what_may_be_lost_goes_out_again_under_the_same_number(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with open_store(b) as store, b.pubsub.subscribe("t") as plain, trio.open_nursery() as nursery:
            store.telling = False
            nursery.start_soon(confirm, a, "t", 1)
            await trio.sleep(0.1)
            assert store.payloads == [1]
            store.telling = True
            a.break_connections(b)
            await trio.sleep(0.5)
            assert len(store.payloads) > 1  # once more for the break, and perhaps for the lost frames
            assert len(store.distinct) == 1
            assert [event.payload for event in await collect(plain)] == [1]  # who does not store it gets it once


async def test_what_goes_out_again_after_others_have_come_is_taken(autojump_clock: MockClock) -> None:
    """What goes with it is of the time when it was published: others came to the topic behind it."""
    async with open_meshes("a", "b", "c") as fleet, open_store(fleet["b"]) as store, trio.open_nursery() as nursery:
        a, b, c = (fleet[name] for name in "abc")
        store.telling = False
        nursery.start_soon(confirm, a, "t", 1)
        await trio.sleep(0.1)
        async with c.pubsub.subscribe("t"):
            await publish(a, "t", 2)
        store.telling = True
        a.break_connections(b)
        await trio.sleep(1)
        assert [event.payload for event in store.events if event.sequence][:2] == [1, 1]
        assert not b.mesh.refusals


async def test_a_confirmation_that_was_lost_is_asked_for_again(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with open_store(b) as store, trio.open_nursery() as nursery:
            fleet.network.partition(["b"], ["a"], one_way=True)
            nursery.start_soon(confirm, a, "t", 1)
            await trio.sleep(0.5)
            assert store.payloads == [1]
            fleet.network.heal()
            await b.mesh.barrier(a.id)
        assert len(store.distinct) == 1


async def test_another_of_the_group_stands_in_for_one_that_is_lost(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a = fleet["a"]
        async with open_store(fleet["c"], group="g") as second, open_store(fleet["b"], group="g") as first:
            first.telling = False
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(confirm, a, "t", number)
                await trio.sleep(0.1)
                assert first.events
                assert second.events
                fleet.network.crash("b")
            assert sorted(event.payload for event in second.events) == list(range(20))
            assert {event.sequence for event in second.events} == set(range(1, 21))


async def test_a_member_of_the_group_that_takes_nothing_is_passed_over(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a, b, c = (fleet[name] for name in "abc")
        async with open_store(b, group="g") as first, open_store(c, group="g") as second:
            b.transport.pause()
            link = a.peer(b).link
            while link.has_room():
                link.post(kinds.Pong(0), 10_000)
            await trio.sleep(1)
            began = trio.current_time()
            for number in range(10):
                await confirm(a, "t", number)
            assert trio.current_time() - began < 2
            assert second.payloads == list(range(10))
            assert first.payloads == []
            b.transport.resume()


async def test_the_only_subscriber_may_come_back_in_time(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        a = fleet["a"]
        async with trio.open_nursery() as nursery:
            async with open_store(fleet["b"]) as store:
                await confirm(a, "t", 0)
                store.telling = False
                nursery.start_soon(confirm, a, "t", 1)
                await trio.sleep(0.1)
            await trio.sleep(1)
            nursery.start_soon(confirm, a, "t", 2)  # it is known that there was one
            await trio.sleep(1)
            async with open_store(fleet["b"]) as again:
                await trio.sleep(0.5)
                assert sorted(event.payload for event in again.events) == [1, 2]


async def test_a_subscriber_that_never_comes_back_costs_the_timeout(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet:
        async with open_store(fleet["b"]):
            await confirm(fleet["a"], "t", 0)
        await trio.sleep(0.1)
        with pytest.raises(RequestTimeout, match="is gone and has not come back within 2 s"):
            await confirm(fleet["a"], "t", 1, timeout=2)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 5))])
async def test_whatever_breaks_what_was_confirmed_is_stored(autojump_clock: MockClock, seed: int) -> None:
    chance = random.Random(seed)
    async with open_meshes("a", "b", "c", seed=seed) as fleet:
        a, b, c = (fleet[name] for name in "abc")
        confirmed: set[int] = set()
        failed: dict[int, IrisError] = {}

        async def trouble() -> None:
            for _ in range(20):
                await trio.sleep(chance.uniform(0.1, 0.5))
                chance.choice((a, b, c)).break_connections()
                if chance.random() < 0.3:
                    fleet.network.loss = 1.0
                    await trio.sleep(chance.uniform(0, 0.1))
                    fleet.network.loss = 0.0

        async def work(numbers: range) -> None:
            for number in numbers:
                try:
                    await confirm(a, f"t.{number % 3}", number, timeout=2)
                except IrisError as error:
                    failed[number] = error
                else:
                    confirmed.add(number)
                await trio.sleep(chance.uniform(0, 0.05))

        async with open_store(b) as one, open_store(b, group="g") as two, open_store(c, group="g") as three:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trouble)
                for worker in range(4):
                    nursery.start_soon(work, range(worker, 400, 4))
            stored = [{event.payload for event in store.events} for store in (one, two, three)]
            assert confirmed <= stored[0]
            assert len(confirmed) > 350
            assert set(failed) | confirmed == set(range(400))
            assert {type(error) for error in failed.values()} <= {RequestTimeout}


# -- waiting -----------------------------------------------------------------------------------------------


async def test_it_keeps_to_the_pauses_of_subscribers(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet:
        a = fleet["a"]
        async with (
            open_store(fleet["b"]) as store,
            fleet["c"].pubsub.subscribe("t", overflow="wait", max_events=2) as slow,
        ):
            for number in range(2):
                await confirm(a, "t", number)
            await trio.sleep(0.1)
            with pytest.raises(RequestTimeout, match="takes no more"):
                await confirm(a, "t", 2, timeout=1)
            assert len(await collect(slow)) == 2
            await confirm(a, "t", 3)
            assert store.payloads == [0, 1, 3]
            assert [event.missed for event in store.events] == [0, 0, 0]


async def test_it_can_be_cancelled_at_any_time(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", latency=(0.01, 0.01)) as fleet, open_store(fleet["b"]) as store:
        outcomes: set[bool] = set()
        for step in range(0, 40, 2):
            with trio.move_on_after(step / 1000) as scope:
                await confirm(fleet["a"], "t", step)
            outcomes.add(scope.cancelled_caught)
            assert not fleet["a"].pubsub.confirming.waiting
            await trio.sleep(1)
        assert outcomes == {True, False}
        assert store.payloads == list(range(0, 40, 2))  # it was on its way each time


# -- bad input ---------------------------------------------------------------------------------------------


async def test_bad_input_is_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b") as fleet, open_store(fleet["b"]) as store:
        a = fleet["a"]
        with pytest.raises(ConfigError, match="is not a topic"):
            await confirm(a, "a..b")
        with pytest.raises(ConfigError, match="is not a key"):
            await confirm(a, "t", key="\ud800")
        with pytest.raises(PayloadTooLarge):
            await confirm(a, "t", bytes(2_000_000))
        await confirm(a, "t", "good")
        assert [(event.payload, event.sequence, event.missed) for event in store.events] == [("good", 1, 0)]


@pytest.mark.parametrize(
    "ranges", [((1,),), ((2, 1),), ((0, 2_000_000),), (("1", "2"),), ((1, None),), b"", None, ((True, True),)]
)
async def test_malformed_confirmations_are_refused(autojump_clock: MockClock, ranges: object) -> None:
    async with open_meshes("a", "b") as fleet, open_store(fleet["b"]) as store:
        a, b = fleet["a"], fleet["b"]
        store.telling = False
        b.peer(a).link.post(raw(kinds.Confirmed, ranges), 0)
        await trio.sleep(0.1)
        assert a.mesh.refusals.total() == 1


async def test_nobody_confirms_what_another_was_asked(autojump_clock: MockClock) -> None:
    async with open_meshes("a", "b", "c") as fleet, open_store(fleet["b"]) as store:
        a, c = fleet["a"], fleet["c"]
        store.telling = False
        async with trio.open_nursery() as nursery:

            async def forge() -> None:
                await trio.sleep(0.5)
                c.peer(a).link.post(raw(kinds.Confirmed, (1, 1)), 0)

            nursery.start_soon(forge)
            with pytest.raises(RequestTimeout):
                await confirm(a, "t", timeout=2)


async def test_what_is_to_be_confirmed_goes_to_those_of_a_group_who_can(autojump_clock: MockClock) -> None:
    """Two subscriptions of a node in one group, of which one is not durable and so answers nothing."""
    async with open_meshes("a", "b") as fleet:
        a, b = fleet["a"], fleet["b"]
        async with (
            b.pubsub.subscribe("t", group="g") as passing,
            b.pubsub.subscribe("t", group="g", durable=True) as lasting,
            trio.open_nursery() as nursery,
        ):

            async def store() -> None:
                async for event in lasting:
                    await lasting.confirm([event])

            nursery.start_soon(store)
            for number in range(4):
                await confirm(a, "t", number)
            await publish(a, "t", *range(4, 8))
            await trio.sleep(0.1)
            received = passing.statistics().received, lasting.statistics().received
            assert sum(received) == 8
            assert received[0] > 0
            nursery.cancel_scope.cancel()


async def test_events_of_a_key_stay_with_a_member_as_long_as_one_is_unconfirmed(autojump_clock: MockClock) -> None:
    keys = [f"k{number}" for number in range(20)]
    async with open_meshes("a", "b", "c") as fleet, open_store(fleet["b"], group="g") as first:
        first.delay = 1.0
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(lambda key: confirm(fleet["a"], "t", "early", key=key), key)
            await trio.sleep(0.1)
            async with open_store(fleet["c"], group="g") as second:
                # A part of the keys belongs to the newcomer, which would store what is late before the other one has
                # stored what was early.
                for key in keys:
                    nursery.start_soon(lambda key: confirm(fleet["a"], "t", "late", key=key), key)
                await trio.sleep(4.0)
                assert first.payloads == ["early"] * 20 + ["late"] * 20
                assert second.payloads == []
                # Then each key is with the member to which it belongs.
                for key in keys:
                    await confirm(fleet["a"], "t", "after", key=key)
                assert 0 < len(second.payloads) < 20
        assert not fleet["a"].pubsub.confirming._holders
