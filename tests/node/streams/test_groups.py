"""Groups of subscribers: every event to one of them, evenly, and what is lost is in the publisher's books."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from typing import Literal

import pytest
import trio
from trio.testing import MockClock

import iris
from iris.kernel.wire import kinds
from iris.patterns.books.event_sums import LOST_IN_FLIGHT, LOST_WITH_MEMBER
from tests.support.stages import IN_FLIGHT, Stage, open_stage

REPORTED = 0.2
"""Seconds after which a publisher knows what was taken."""


async def open_workers(stage: Stage, count: int) -> tuple[list[iris.Node], iris.Node]:
    workers = [await stage.node("worker", f"worker-{number}") for number in range(count)]
    return workers, await stage.node("writer")


async def take(events: iris.Subscription, taken: list[object], pause: float = 0.0) -> None:
    async for event in events:
        if pause:
            await trio.sleep(pause)
        taken.append(event.payload)


async def publish_confirmed(writer: iris.Node, count: int) -> None:
    async with writer.confirming(timeout=5) as events:
        for number in range(count):
            await events.publish("work", number)


async def test_many_topics_with_one_event_each_are_shared_evenly(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 3)
        async with trio.open_nursery() as nursery:
            taken: list[list[object]] = [[], [], []]
            for worker, of in zip(workers, taken, strict=True):
                events = await stage.enter(worker.subscribe("orders.>", group="workers"))
                nursery.start_soon(take, events, of)
            for number in range(300):
                await writer.publish(f"orders.{number}.created", number)
            await trio.sleep(IN_FLIGHT)
            nursery.cancel_scope.cancel()
        assert [len(of) for of in taken] == [100, 100, 100]
        assert sorted(number for of in taken for number in of if isinstance(number, int)) == list(range(300))


async def test_two_topics_that_alternate_both_reach_every_worker(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 2)
        async with (
            workers[0].subscribe("*", group="workers") as one,
            workers[1].subscribe("*", group="workers") as two,
        ):
            for _ in range(100):
                await writer.publish("heavy", 1)
                await writer.publish("light", 1)
            await trio.sleep(IN_FLIGHT)
            for events in (one, two):
                topics = Counter(event.topic for event in await events.receive_batch())
                assert sum(topics.values()) == 100
                assert min(topics["heavy"], topics["light"]) > 25


async def test_several_groups_on_one_node_do_not_take_each_others_turns(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        (worker,), writer = await open_workers(stage, 1)
        async with (
            worker.subscribe("t", group="a") as a1,
            worker.subscribe("t", group="a") as a2,
            worker.subscribe("t", group="b") as b1,
            worker.subscribe("t", group="b") as b2,
        ):
            for number in range(100):
                await writer.publish("t", number)
            await trio.sleep(IN_FLIGHT)
            assert [events.statistics().waiting for events in (a1, a2, b1, b2)] == [50] * 4


async def test_a_slow_worker_gets_what_it_can_do_and_the_others_the_rest(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 3)
        taken: list[list[object]] = [[], [], []]
        subscriptions: list[iris.Subscription] = []
        async with trio.open_nursery() as nursery:
            for worker, of, pause in zip(workers, taken, (0.0, 0.0, 0.1), strict=True):
                events = await stage.enter(worker.subscribe("work", group="workers"))
                subscriptions.append(events)
                nursery.start_soon(take, events, of, pause)
            for number in range(1000):
                await writer.publish("work", number)
                await trio.sleep(0.01)
            await trio.sleep(IN_FLIGHT)
            assert subscriptions[2].statistics().waiting < 200, "and not 850"
            assert abs(len(taken[0]) - len(taken[1])) < 150
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        assert sum(map(len, taken)) == 1000


@pytest.mark.parametrize("paused", [1, 2])
async def test_a_member_that_asks_for_a_pause_rests_and_the_others_go_on(
    autojump_clock: MockClock, paused: int
) -> None:
    limits = iris.SubscriptionLimits(events=20)
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 2)
        taken: list[object] = []
        async with (
            workers[0].subscribe("work", group="workers", overflow="wait", limits=limits) as one,
            workers[1].subscribe("work", group="workers", overflow="wait", limits=limits) as two,
            trio.open_nursery() as nursery,
        ):
            if paused == 1:
                nursery.start_soon(take, two, taken)
            with trio.move_on_after(5) as scope:
                for number in range(300):
                    await writer.publish("work", number)
                    await trio.sleep(0.001)
            assert scope.cancelled_caught == (paused == 2), "waits only if nobody can take it"
            await trio.sleep(IN_FLIGHT)
            waiting = one.statistics().waiting
            assert waiting <= 20
            if paused == 1:
                assert len(taken) == 300 - waiting
                with trio.move_on_after(5) as scope:
                    for number in range(20):  # a key has its member, and waits for it
                        await writer.publish("work", number, key=str(number))
                assert scope.cancelled_caught
            nursery.cancel_scope.cancel()


async def test_what_waits_at_a_member_that_leaves_goes_to_another_one_of_its_node(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        (worker,), writer = await open_workers(stage, 1)
        async with worker.subscribe("work", group="workers") as staying:
            async with worker.subscribe("*", group="workers") as leaving:
                for number in range(100):
                    await writer.publish("work", number)
                await writer.publish("other", "nobody else wants it")
                await trio.sleep(IN_FLIGHT)
                taken = [(await anext(leaving)).payload for _ in range(5)]
            await trio.sleep(REPORTED)
            rest = [event.payload for event in await staying.receive_batch()]
            assert sorted([*taken, *rest]) == list(range(100))
            left = leaving.statistics()
            assert (left.received, left.delivered, left.dropped, left.waiting) == (6, 5, 1, 0)
            assert [event async for event in leaving] == []
        await trio.sleep(REPORTED)
        assert writer.statistics().publishing.dropped == 1


async def test_events_that_were_taken_keep_their_numbers_when_the_rest_goes_to_another_member(
    autojump_clock: MockClock,
) -> None:
    async with open_stage() as stage:
        (worker,), writer = await open_workers(stage, 1)
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            async with worker.subscribe_durable("work", group="workers") as leaving:
                nursery.start_soon(publish_confirmed, writer, 20)
                await trio.sleep(IN_FLIGHT)
                taken = [await anext(leaving) for _ in range(5)]
                staying = await stack.enter_async_context(worker.subscribe_durable("work", group="workers"))
            rest = await staying.receive_batch()
            assert [event.payload for event in (*taken, *rest)] == list(range(20))
            await leaving.confirm(taken)
            await staying.confirm(rest)


async def test_what_waits_at_a_member_that_leaves_in_order_is_in_the_publishers_books(
    autojump_clock: MockClock,
) -> None:
    async with open_stage() as stage:
        stage.harmless = ("group without members",)
        workers, writer = await open_workers(stage, 2)
        taken: list[list[object]] = [[], []]
        async with workers[0].subscribe("work", group="workers") as staying, trio.open_nursery() as nursery:
            nursery.start_soon(take, staying, taken[0])
            async with workers[1].subscribe("work", group="workers") as leaving:
                for number in range(500):
                    await writer.publish("work", number)
                await trio.sleep(IN_FLIGHT)
                for _ in range(50):
                    taken[1].append((await anext(leaving)).payload)
            for number in range(500, 700):  # some of it is on its way to a member that has left
                await writer.publish("work", number)
            await trio.sleep(REPORTED)
            nursery.cancel_scope.cancel()
        await trio.sleep(REPORTED)
        published = writer.statistics().publishing
        assert published.sent == 700
        assert published.dropped >= 200
        assert sum(map(len, taken)) + published.dropped == 700
        with pytest.raises(iris.EventsLost, match=f"{published.dropped} of the events"):
            writer.raise_for_losses("work")
        assert stage.parts[writer.id].patterns.pubsub.publishing.outstanding(workers[1].id) == 0


async def test_a_node_that_leaves_after_its_work_is_done_leaves_nothing_in_the_books(
    autojump_clock: MockClock,
) -> None:
    async with open_stage() as stage:
        writer = await stage.node("writer")
        taken: list[object] = []
        async with stage.network.open_node("worker") as worker, worker.subscribe("work", group="workers") as events:
            for number in range(100):
                await writer.publish("work", number)
            await trio.sleep(IN_FLIGHT)
            for _ in range(80):
                taken.append((await anext(events)).payload)  # noqa: PERF401 -- one by one, and not all
        await trio.sleep(1)
        published = writer.statistics().publishing
        assert dict(published.lost) == {}
        assert (len(taken), published.handed_over, published.dropped) == (80, 100, 20)


async def test_what_a_member_had_that_died_is_in_the_publishers_books_as_lost(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 2)
        taken: list[list[object]] = [[], []]
        async with workers[0].subscribe("work", group="workers") as living, trio.open_nursery() as nursery:
            nursery.start_soon(take, living, taken[0])
            async with workers[1].subscribe("work", group="workers") as dying:
                nursery.start_soon(take, dying, taken[1], 0.02)
                for number in range(200):
                    await writer.publish("work", number)
                await trio.sleep(1.01)
                stage.crash("worker-1")
                done = len(taken[1])
                assert 20 < done < 80
                while not writer.statistics().publishing.lost:  # noqa: ASYNC110 -- there is no event
                    await trio.sleep(0.1)
                published = writer.statistics().publishing
                assert len(taken[0]) == 100
                assert dict(published.lost) == {LOST_WITH_MEMBER: pytest.approx(100 - done, abs=6)}
                assert published.lost[LOST_WITH_MEMBER] >= 100 - done, "what it had not reported is in doubt"
                assert published.sent == published.handed_over + published.lost[LOST_WITH_MEMBER] == 200
                nursery.cancel_scope.cancel()


async def test_events_for_a_group_that_are_lost_on_the_way_are_in_the_publishers_books(
    autojump_clock: MockClock,
) -> None:
    async with open_stage(seed=11) as stage:
        stage.harmless = ("",)
        (worker,), writer = await open_workers(stage, 1)
        taken: list[object] = []
        async with worker.subscribe("work", group="workers") as events, trio.open_nursery() as nursery:
            nursery.start_soon(take, events, taken)
            stage.network.memory.loss = 0.03
            for number in range(1000):
                await writer.publish("work", number)
                await trio.sleep(0.005)
            stage.network.memory.loss = 0.0
            for number in range(10):  # what comes shows that something is missing before it
                await writer.publish("work", 1000 + number)
                await trio.sleep(0.1)
            await trio.sleep(2)
            lost = 1010 - len(taken)
            assert lost > 5
            assert dict(writer.statistics().publishing.lost) == {LOST_IN_FLIGHT: lost}
            assert stage.parts[writer.id].patterns.pubsub.publishing.outstanding(worker.id) == 0
            nursery.cancel_scope.cancel()


async def test_a_member_that_was_cut_off_and_comes_back_is_lost_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        stage.harmless = ("",)
        workers, writer = await open_workers(stage, 2)
        taken: list[list[object]] = [[], []]
        async with (
            workers[0].subscribe("work", group="workers") as one,
            workers[1].subscribe("work", group="workers") as two,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(take, one, taken[0])
            for number in range(100):
                await writer.publish("work", number)
            await trio.sleep(1)
            stage.parts[writer.id].mesh.drop(workers[1].id, "test")
            lost = writer.statistics().publishing.lost
            assert dict(lost) == {LOST_WITH_MEMBER: 50}
            await trio.sleep(30)
            outstanding = stage.parts[writer.id].patterns.pubsub.publishing.outstanding
            assert outstanding(workers[1].id) == 0, "they are given up"
            nursery.start_soon(take, two, taken[1])
            await trio.sleep(1)
            for number in range(100, 200):
                await writer.publish("work", number)
            await trio.sleep(5)
            assert dict(writer.statistics().publishing.lost) == {LOST_WITH_MEMBER: 50}
            assert [outstanding(worker.id) for worker in workers] == [0, 0]
            assert len(taken[0]) + len(taken[1]) == 200, "nothing was lost after all"
            nursery.cancel_scope.cancel()


MANY = 2**62


@pytest.mark.parametrize(
    "total", [(0, 0, 0), (MANY, MANY, MANY), (0, MANY, 0), (MANY, 0, 0), (5, 5, 0), (0, 0, MANY), (3, 9, 9)]
)
async def test_a_member_that_lies_about_what_it_has_taken_leaves_the_books_in_order(
    autojump_clock: MockClock, total: tuple[int, int, int]
) -> None:
    arrived, received, dropped = total
    lie = (arrived, 0, received, 0, 0, dropped, 0)
    async with open_stage() as stage:
        (worker,), writer = await open_workers(stage, 1)
        async with worker.subscribe("work", group="workers") as events:
            for number in range(10):
                await writer.publish("work", number)
            for mark in range(3):
                message = kinds.Received(2, mark, False, lie, (kinds.ReceivedEntry("work", *lie),))
                stage.parts[worker.id].mesh.post(writer.id, message, 0)
            await trio.sleep(IN_FLIGHT)
            published = writer.statistics().publishing
            assert published.sent == 10 == published.handed_over + sum(published.lost.values())
            assert 0 <= stage.parts[writer.id].patterns.pubsub.publishing.outstanding(worker.id) <= 10
            assert events.statistics().waiting == 10
        stage.forget_accounts()


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
async def test_a_member_that_drops_gets_no_turns_of_a_busy_one(
    autojump_clock: MockClock, overflow: Literal["drop_newest", "drop_oldest"]
) -> None:
    async with open_stage() as stage:
        workers, writer = await open_workers(stage, 2)
        few = iris.SubscriptionLimits(events=10)
        async with (
            workers[0].subscribe("work", group="workers") as patient,
            workers[1].subscribe("work", group="workers", limits=few, overflow=overflow) as dropping,
            trio.open_nursery() as nursery,
        ):
            taken: list[object] = []
            nursery.start_soon(take, patient, taken, 0.01)
            nursery.start_soon(take, dropping, taken, 0.01)
            for number in range(5000):
                await writer.publish("work", number)
                await trio.sleep(0.001)
            statistics = patient.statistics(), dropping.statistics()
            nursery.cancel_scope.cancel()
        assert statistics[1].received < 2700, "its own turns"
        assert statistics[0].dropped == 0


async def test_a_subscription_of_a_node_that_is_full_is_passed_over_by_its_group(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        (worker,), writer = await open_workers(stage, 1)
        few = iris.SubscriptionLimits(events=10)
        async with (
            worker.subscribe("work", group="workers") as patient,
            worker.subscribe("work", group="workers", limits=few, overflow="drop_newest") as full,
        ):
            for number in range(1000):
                await writer.publish("work", number)
            await trio.sleep(IN_FLIGHT)
            assert full.statistics().dropped == 0
            assert (full.statistics().waiting, patient.statistics().waiting) == (10, 990)
