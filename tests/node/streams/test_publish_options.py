"""Ways to publish, through whole nodes: last values, losses that are raised, and the reports to a publisher."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

import iris
from tests.support.stages import IN_FLIGHT, open_stage

_TOLD = 0.5
"""Seconds after which losses have been reported."""


async def test_a_subscriber_that_comes_later_has_the_last_values_when_it_is_there(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        writer = await stage.node("writer")
        await writer.retain("lamp.kitchen", "on")
        await writer.retain("lamp.hall", {"level": 3})
        await writer.publish("lamp.hall", "flicker")
        reader = await stage.node("reader")
        async with reader.subscribe("lamp.*") as events:
            assert events.statistics().waiting == 2
            found = {event.topic: (event.payload, event.retained) for event in [await anext(events) for _ in range(2)]}
            assert found == {"lamp.kitchen": ("on", True), "lamp.hall": ({"level": 3}, True)}
            await writer.publish("lamp.hall", "off")
            event = await anext(events)
            assert (event.payload, event.retained, event.missed) == ("off", False, 0)
        assert writer.forget_retained("lamp.hall")
        assert not writer.forget_retained("lamp.hall")
        assert writer.statistics().publishing.retained == 1


async def test_a_publisher_that_is_gone_takes_its_last_values_with_it(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader = await stage.node("reader")
        writer = await stage.node("writer", "host-of-the-writer")
        await writer.retain("t", 1)
        stage.network.memory.crash("host-of-the-writer")
        await trio.sleep(10)
        async with reader.subscribe("t") as events:
            await trio.sleep(IN_FLIGHT)
            assert events.statistics().received == 0


async def test_what_a_slow_subscriber_has_dropped_is_raised_once(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        async with reader.subscribe("t", limits=iris.SubscriptionLimits(events=10)) as events:
            for number in range(10):
                await writer.publish("t", number)
                writer.raise_for_losses("t")
            await writer.publish("t", 10)
            await trio.sleep(_TOLD)
            await writer.publish("t", 11)
            with pytest.raises(iris.EventsLost, match="1 of the events") as caught:
                writer.raise_for_losses("t")
            assert caught.value.count == 1
            writer.raise_for_losses("t")
            await trio.sleep(_TOLD)
            assert events.statistics().received == 12
            statistics = writer.statistics().publishing
            assert (statistics.published, statistics.dropped, statistics.refused) == (12, 2, 0)
            assert dict(statistics.lost) == {}


async def test_last_values_go_along_with_confirmation(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        with pytest.raises(iris.NotSent, match="no durable subscriber"):
            await writer.retain_confirmed("t", 1)

        async def store(task_status: trio.TaskStatus[None]) -> None:
            async with reader.subscribe_durable("t") as events:
                task_status.started()
                while True:
                    await events.confirm(await events.receive_batch())

        async with trio.open_nursery() as nursery:
            await nursery.start(store)
            await writer.retain_confirmed("t", 2)
            writer.raise_for_losses("t")
            nursery.cancel_scope.cancel()
        async with reader.subscribe("t") as events:
            event = await anext(events)
            assert (event.payload, event.retained) == (2, True)


async def test_limits_of_last_values_are_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        writer = await stage.node("writer", config=iris.Config(retained_events=1))
        await writer.retain("a", 1)
        with pytest.raises(iris.NotSent, match="the limits are 1 and"):
            await writer.retain("b", 1)
        assert writer.statistics().published == 1
