"""What asyncio does without a way through trio keeps trio's promises: order, patience, turns, errors, headers."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- what is tried
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from opentelemetry import trace

import iris
import iris.aio
from iris.aio.testing import Network, autojump_clock, open_network
from iris.kernel.config import Config

SMALL = Config(link_bytes=2_000_000)


EAGER: Any = getattr(asyncio, "eager_task_factory", None)
"""The factory of tasks that begin at once.  None before Python 3.12."""


def run(test: Callable[[Network], Awaitable[None]], *, eager: bool = False) -> None:
    async def main() -> None:
        if eager:
            asyncio.get_running_loop().set_task_factory(EAGER)
        async with autojump_clock(), open_network() as network:
            await test(network)

    asyncio.run(main())


def sink(arrived: list[Any]) -> iris.Service:
    service = iris.Service("sink")

    @service.tunnel
    async def take(tunnel: iris.aio.Tunnel) -> None:
        async for message in tunnel:
            arrived.append(message)  # noqa: PERF401 -- as they come

    return service


MIXED: list[Any] = [[number, bytes(300_000 if number % 3 == 0 else 10)] for number in range(60)]


@pytest.mark.parametrize(
    "eager", [False, pytest.param(True, marks=pytest.mark.skipif(EAGER is None, reason="Python 3.12"))]
)
@pytest.mark.parametrize("messages", [MIXED, list(range(300))], ids=["large and small", "many"])
@pytest.mark.parametrize("given_up", [(), range(1, 60, 4)], ids=["", "cancelled"])
def test_messages_of_many_tasks_leave_in_the_order_of_the_calls(
    messages: Sequence[Any], given_up: Sequence[int], eager: bool
) -> None:
    async def test(network: Network) -> None:
        arrived: list[Any] = []
        async with (
            network.open_node("sink") as member,
            network.open_node("desk") as desk,
            member.join("sink", sink(arrived)),
        ):
            await desk.wait_for("sink")
            async with desk.open_tunnel("sink") as tunnel:
                tasks = [asyncio.ensure_future(tunnel.send(message)) for message in messages]
                await asyncio.sleep(0)
                for number in given_up:
                    tasks[number].cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        sent = [message for message, error in zip(messages, ended, strict=True) if error is None]
        assert arrived == sent
        assert len(sent) >= len(messages) - len(given_up)

    run(test, eager=eager)


def test_receivers_that_give_up_lose_no_message_and_change_no_order() -> None:
    async def test(network: Network) -> None:
        service = iris.Service("source")

        @service.tunnel
        async def give(tunnel: iris.aio.Tunnel) -> None:
            for number in range(500):
                await tunnel.send(number)
                if number % 7 == 0:
                    await asyncio.sleep(0.003)

        arrived: list[Any] = []
        async with (
            network.open_node("source") as member,
            network.open_node("desk") as desk,
            member.join("source", service),
        ):
            await desk.wait_for("source")
            async with desk.open_tunnel("source") as tunnel:
                while len(arrived) < 500:
                    try:
                        async with asyncio.timeout(0.001):
                            arrived.append(await tunnel.receive())
                    except TimeoutError:
                        await asyncio.sleep(0)
        assert arrived == list(range(500))

    run(test)


@pytest.mark.parametrize("overflow", ["wait", "drop_oldest"])
def test_publishers_of_other_topics_do_not_wait_for_a_link_that_stands_still(overflow: Any) -> None:
    async def test(network: Network) -> None:
        async with (
            network.open_node("slow", host="slow") as slow,
            network.open_node("fast") as fast,
            network.open_node("desk", config=SMALL) as desk,
            slow.subscribe("slow", overflow=overflow),
            fast.subscribe("fast") as events,
        ):
            await asyncio.sleep(1)
            network.memory.pause("slow")

            async def publish() -> None:
                async with asyncio.timeout(0.05):
                    await desk.publish("slow", bytes(1000))

            with suppress(TimeoutError):
                while True:
                    await publish()
            while True:  # until one is published, and only the next one on the topic waits
                with suppress(TimeoutError):
                    await publish()
                    break
            for number in range(3000):
                async with asyncio.timeout(0.05):
                    await desk.publish("fast", number)
            assert [(await anext(events)).payload for _ in range(1000)] == list(range(1000))
            network.memory.resume("slow")

    run(test)


def test_links_that_are_full_slow_who_publishes_on_many_topics_and_nothing_is_lost() -> None:
    async def test(network: Network) -> None:
        async with (
            network.open_node("slow", host="slow") as slow,
            network.open_node("desk", config=SMALL) as desk,
            slow.subscribe("t.>", overflow="wait") as events,
        ):
            await asyncio.sleep(1)
            network.memory.pause("slow")

            async def publish() -> None:
                for number in range(4000):
                    await desk.publish(f"t.{number % 500}", [number, bytes(1000)])

            publishing = asyncio.create_task(publish())
            await asyncio.sleep(1)
            assert not publishing.done()
            network.memory.resume("slow")
            taken = [(await anext(events)).payload[0] for _ in range(4000)]
            await publishing
            assert taken == list(range(4000))
            assert not desk.statistics().events.lost

    run(test)


@pytest.mark.parametrize("kind", ["alike", "keyed", "of many topics", "values"])
def test_other_tasks_get_a_turn_every_1024_events(kind: str) -> None:
    async def test(network: Network) -> None:
        published = latest = longest = 0

        async def look() -> None:
            nonlocal latest, longest
            while True:
                await asyncio.sleep(0)
                longest, latest = max(longest, published - latest), published

        async with network.open_node("desk") as desk, network.open_node("ear") as ear, ear.subscribe("t.>"):
            await asyncio.sleep(1)
            looking = asyncio.create_task(look())
            await asyncio.sleep(0)  # it looks from here on
            for published in range(5000):
                topic = f"t.{published % 40}" if kind == "of many topics" else "t.0"
                payload = {"n": published} if kind == "values" else b"x"
                await desk.publish(topic, payload, key=str(published) if kind == "keyed" else None)
            looking.cancel()
        assert 0 < longest <= 1025

    run(test)


PAYLOADS: list[Any] = [
    b"", b"x", "text", None, 7, 1.5, {"a": [1, {"b": b"c"}]}, bytearray(b"ab"), memoryview(b"cd"), [1, "two"], True,
]  # fmt: skip


OPTIONS: list[dict[str, Any]] = [{}, {"key": "k"}, {"headers": {"a": "b"}}, {"expires": 5}]


def test_events_arrive_as_those_that_trio_publishes() -> None:
    async def test(network: Network) -> None:
        async with network.open_node("desk") as desk, network.open_node("ear") as ear, ear.subscribe("t") as events:
            await asyncio.sleep(1)
            for payload in PAYLOADS:
                for options in OPTIONS:
                    arrived: list[iris.Event] = []
                    for publish in (desk.publish, by_trio(desk)):
                        await publish("t", payload, **options)
                        arrived.append(await anext(events))
                    at_once, other = arrived
                    assert (at_once.payload, at_once.key) == (other.payload, other.key)
                    assert at_once.headers.keys() == other.headers.keys()

    run(test)


def by_trio(node: iris.aio.Node) -> Callable[..., Awaitable[None]]:
    async def publish(*args: Any, **options: Any) -> None:
        await node._guest.call(partial(node._inner.publish, *args, **options))

    return publish


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    (("no topic", b""), {}),
    (("t.*", b""), {}),
    (([], b""), {}),
    ((7, b""), {}),
    (("t", object()), {}),
    (("t", bytes(20_000_000)), {}),
    (("t", "\ud800"), {}),
    (("t", b""), {"key": 7}),
    (("t", b""), {"key": "k" * 10_000}),
    (("t", b""), {"headers": {"a": 1}}),
    (("t", b""), {"headers": [1]}),
    (("t", b""), {"headers": {"a": "b" * 100_000}}),
    (("t", b""), {"expires": -1}),
    (("t", b""), {"expires": "soon"}),
    (("t", b""), {"expires": float("nan")}),
]


@pytest.mark.parametrize("before", [False, True], ids=["first", "in a run"])
def test_what_trio_refuses_is_refused_with_the_same_words(before: bool) -> None:
    async def test(network: Network) -> None:
        async with network.open_node("desk") as desk, network.open_node("ear") as ear, ear.subscribe("t"):
            await asyncio.sleep(1)
            for args, options in WRONG:
                said: list[str] = []
                for publish in (desk.publish, by_trio(desk)):
                    if before:
                        await desk.publish("t", b"one that others may go along with")
                    try:
                        await publish(*args, **options)
                    except Exception as error:  # noqa: BLE001 -- whatever it is
                        said.append(repr(error))
                assert len(said) == 2, (args[0], options)
                assert said[0] == said[1]

    run(test)


def test_elsewhere_nothing_is_published_at_once() -> None:
    async def test(network: Network) -> None:
        async with network.open_node("desk") as desk, network.open_node("ask", client=True) as client:
            with pytest.raises(iris.ConfigError):
                await client.publish("t", b"")
            said: list[BaseException] = []

            def in_thread() -> None:
                async def publish() -> None:
                    await desk.publish("t", b"")

                try:
                    asyncio.run(publish())
                except RuntimeError as error:
                    said.append(error)

            thread = threading.Thread(target=in_thread)
            thread.start()
            thread.join()
            assert "another thread" in str(said)
        with pytest.raises(iris.aio.ClosedResourceError):
            await desk.publish("t", b"")
        with pytest.raises(iris.aio.ClosedResourceError):
            await desk.publish("no topic", b"")

    run(test)


def test_within_a_span_an_event_carries_its_trace() -> None:
    async def test(network: Network) -> None:
        async with network.open_node("desk") as desk, network.open_node("ear") as ear, ear.subscribe("t") as events:
            await asyncio.sleep(1)
            context = trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(0))
            await desk.publish("t", b"before")
            with trace.use_span(trace.NonRecordingSpan(context)):
                await desk.publish("t", b"within")
            await desk.publish("t", b"after")
            arrived = [await anext(events) for _ in range(3)]
            assert ["traceparent" in event.headers for event in arrived] == [False, True, False]
            assert [event.payload for event in arrived] == [b"before", b"within", b"after"]

    run(test)


def test_events_that_subscribers_do_not_get_are_counted() -> None:
    async def test(network: Network) -> None:
        async with (
            network.open_node("slow", host="slow") as slow,
            network.open_node("desk", config=SMALL) as desk,
            slow.subscribe("t") as events,
        ):
            await asyncio.sleep(1)
            network.memory.pause("slow")
            for _ in range(5000):
                await desk.publish("t", bytes(1000))
            with pytest.raises(iris.EventsLost) as lost:
                desk.raise_for_losses("t")
            network.memory.resume("slow")
            taken = missed = 0
            await asyncio.sleep(2)
            await desk.publish("t", b"the end")
            while (event := await anext(events)).payload != b"the end":
                taken, missed = taken + 1, missed + event.missed
            missed += event.missed
            assert taken + missed == 5000
            assert lost.value.count == missed

    run(test)
