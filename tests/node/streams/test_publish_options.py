"""Options of publishing, through whole nodes: last values, strict mode, and the reports to a publisher."""

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
        await writer.publish("lamp.kitchen", "on", retain=True)
        await writer.publish("lamp.hall", {"level": 3}, retain=True)
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
        await writer.publish("t", 1, retain=True)
        stage.network.memory.crash("host-of-the-writer")
        await trio.sleep(10)
        async with reader.subscribe("t") as events:
            await trio.sleep(IN_FLIGHT)
            assert events.statistics().received == 0


async def test_strict_publishing_tells_of_what_a_slow_subscriber_has_dropped(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        async with reader.subscribe("t", limits=iris.SubscriptionLimits(events=10)) as events:
            for number in range(10):
                await writer.publish("t", number, strict=True)
            await writer.publish("t", 10)
            await trio.sleep(_TOLD)
            with pytest.raises(iris.EventsLost, match="1 of the events") as caught:
                await writer.publish("t", 11, strict=True)
            assert caught.value.count == 1
            await trio.sleep(_TOLD)
            assert events.statistics().received == 12  # the one that raised was published
            statistics = writer.statistics().publishing
            assert (statistics.published, statistics.dropped, statistics.refused) == (12, 2, 0)
            assert dict(statistics.lost) == {}


async def test_last_values_and_strict_mode_go_along_with_confirmation(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        reader, writer = await stage.node("reader"), await stage.node("writer")
        with pytest.raises(iris.NotSent, match="no durable subscriber"):
            await writer.publish("t", 1, confirm=True, retain=True)

        async def store(task_status: trio.TaskStatus[None]) -> None:
            async with reader.subscribe("t", durable=True) as events:
                task_status.started()
                while True:
                    await events.confirm(await events.receive_batch())

        async with trio.open_nursery() as nursery:
            await nursery.start(store)
            await writer.publish("t", 2, confirm=True, retain=True, strict=True)
            nursery.cancel_scope.cancel()
        async with reader.subscribe("t") as events:
            event = await anext(events)
            assert (event.payload, event.retained) == (2, True)


async def test_limits_of_last_values_are_the_callers_error(autojump_clock: MockClock) -> None:
    async with open_stage() as stage:
        writer = await stage.node("writer", config=iris.Config(retained_events=1))
        await writer.publish("a", 1, retain=True)
        with pytest.raises(iris.NotSent, match="the limits are 1 and"):
            await writer.publish("b", 1, retain=True)
        assert writer.statistics().published == 1
