"""Handlers that end oddly, and what looks on and raises: neither ends a member or a link, or changes an answer."""

from __future__ import annotations

import asyncio  # noqa: TID251 -- handlers of programs that are written for it
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from trio.testing import MockClock

import iris
import iris.aio
import iris.sync
from iris.testing import open_network
from tests.support.async_tests import on_asyncio
from tests.support.bridge_members import open_member
from tests.support.spans import recorded
from tests.sync.test_node import open_pair

pytestmark = pytest.mark.usefixtures("own_home")


class Failing(SpanProcessor):
    """An observer that raises."""

    def __init__(self) -> None:
        self.at = ""
        self.raised = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self.at == "start":
            self.raised += 1
            raise ValueError("the collector is away")

    def on_end(self, span: ReadableSpan) -> None:
        if self.at == "end":
            self.raised += 1
            raise ValueError("the collector is away")


@pytest.fixture
def failing() -> Iterator[Failing]:
    with recorded():
        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider)
        processor = Failing()
        provider.add_span_processor(processor)
        yield processor
        processor.at = ""  # a provider keeps its processors


class NoText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def shop() -> iris.Service:
    service = iris.Service("shop")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("speechless")
    async def speechless(_: iris.Request) -> None:
        raise NoText

    @service.broadcast
    async def hear(_: iris.Message) -> None:
        pass

    @service.tunnel
    async def echo_all(tunnel: iris.Tunnel) -> None:
        async for message in tunnel:
            await tunnel.send(message)

    return service


@pytest.mark.parametrize("at", ["start", "end"])
async def test_what_records_traces_and_raises_changes_no_answer(
    autojump_clock: MockClock, failing: Failing, at: str
) -> None:
    tracer = trace.get_tracer("tests")
    async with (
        open_network() as network,
        network.open_node("shop") as member,
        member.join("shop", shop()),
        member.subscribe("news.>") as events,
        network.open_node("caller") as caller,
    ):
        await caller.wait_for("shop")
        with trio.fail_after(30):
            with tracer.start_as_current_span("caller"):
                failing.at = at
                assert await caller.request("shop", 1) == 1
                with pytest.raises(iris.RemoteError):
                    await caller.request("shop", 1, operation="speechless")
                await caller.broadcast("shop", 1)
                async with caller.survey("shop", 5, timeout=1) as answers:
                    assert [answer.payload async for answer in answers] == [5]
                async with caller.open_tunnel("shop") as tunnel:
                    await tunnel.send("a")
                    assert await tunnel.receive() == "a"
                await caller.publish("news.today", "it rains")
                assert (await anext(events)).payload == "it rains"
                failing.at = ""
        assert failing.raised
        assert len(member.statistics().links) == 1


async def test_an_error_without_a_text_is_its_callers_answer_while_traces_are_recorded(
    autojump_clock: MockClock, failing: Failing
) -> None:
    tracer = trace.get_tracer("tests")
    async with (
        open_network() as network,
        network.open_node("shop") as member,
        member.join("shop", shop()),
        network.open_node("caller") as caller,
    ):
        await caller.wait_for("shop")
        with trio.fail_after(30), tracer.start_as_current_span("caller"):
            with pytest.raises(iris.RemoteError):
                await caller.request("shop", 1, operation="speechless")
            assert await caller.request("shop", 1) == 1


ODD: dict[str, Callable[[], BaseException]] = {
    "stop": lambda: StopIteration(3),
    "stop-async": lambda: StopAsyncIteration(3),
    "exit-in-group": lambda: BaseExceptionGroup("tasks", [SystemExit(1)]),
    "exit-deep": lambda: BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("more", [SystemExit(1)])]),
    "generator-in-group": lambda: BaseExceptionGroup("tasks", [GeneratorExit(), ValueError()]),
    "cancelled": lambda: asyncio.CancelledError(),
    "speechless": NoText,
}


def odd_error(odd: str) -> BaseException:
    return ODD[odd]()


@pytest.mark.long
@pytest.mark.parametrize("odd", ODD)
def test_with_threads_a_handler_that_ends_oddly_fails_and_its_node_serves_on(odd: str) -> None:
    service = iris.Service("shop")
    heard: list[object] = []

    @service.request
    def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("leave")
    def leave(_: iris.Request) -> None:
        raise odd_error(odd)

    @service.broadcast
    def hear(message: iris.Message) -> None:
        heard.append(message.payload)
        raise odd_error(odd)

    @service.tunnel
    def talk(tunnel: iris.sync.Tunnel) -> None:
        tunnel.receive()
        raise odd_error(odd)

    with open_pair(service) as (_, client):
        for _ in range(2):
            with pytest.raises(iris.RemoteError):
                client.request("shop", b"", operation="leave", timeout=5)
            client.broadcast("shop", 1)
            with pytest.raises(iris.TunnelBroken), client.open_tunnel("shop") as tunnel:  # noqa: PT012
                tunnel.send(b"")
                tunnel.receive()
        assert client.request("shop", b"still here") == b"still here"


def odd_service(odd: str) -> iris.Service:
    service = iris.Service("shop")

    @service.request
    async def echo(request: iris.Request) -> object:
        return request.payload

    @service.request("leave")
    async def leave(_: iris.Request) -> None:
        raise odd_error(odd)

    @service.request("plain")
    def plain(_: iris.Request) -> None:
        raise odd_error(odd)

    @service.request("thread", thread=True)
    def thread(_: iris.Request) -> None:
        raise odd_error(odd)

    @service.broadcast
    async def hear(_: iris.Message) -> None:
        raise odd_error(odd)

    @service.tunnel
    async def talk(tunnel: Any) -> None:
        await tunnel.receive()
        raise odd_error(odd)

    return service


async def fail_and_serve_on(client: Any, *operations: str) -> None:
    await client.wait_for("shop")
    for operation in operations:
        with pytest.raises(iris.RemoteError):
            await client.request("shop", b"", operation=operation, timeout=5)
    await client.broadcast("shop", 1)
    with pytest.raises(iris.TunnelBroken):  # noqa: PT012
        async with client.open_tunnel("shop") as tunnel:
            await tunnel.send(b"")
            await tunnel.receive()
    assert await client.request("shop", b"still here") == b"still here"


@pytest.mark.long
@pytest.mark.parametrize("odd", [name for name in ODD if not name.startswith("exit")])
@on_asyncio()
async def test_with_asyncio_a_handler_that_ends_oddly_fails_and_its_node_serves_on(odd: str) -> None:
    async with (
        iris.aio.open_node("member") as member,
        member.join("shop", odd_service(odd)),
        iris.aio.open_node("client") as client,
    ):
        await fail_and_serve_on(client, "leave", "plain", "thread")


@pytest.mark.long
@pytest.mark.parametrize("odd", [name for name in ODD if not name.startswith("exit")])
async def test_a_handler_that_ends_oddly_fails_and_its_node_serves_on(autojump_clock: MockClock, odd: str) -> None:
    async with (
        open_network() as network,
        network.open_node("shop") as member,
        member.join("shop", odd_service(odd)),
        network.open_node("caller") as client,
    ):
        await fail_and_serve_on(client, "leave", "plain")


@pytest.mark.long
async def test_a_job_and_a_saga_whose_error_has_no_text_end_as_with_any_other(tmp_path: Path) -> None:
    undone: list[object] = []
    ended = 0
    service = iris.Service("shop", outcomes=iris.Outcomes())

    @service.request("undo")
    async def undo(request: iris.Request) -> None:
        undone.append(request.payload)

    @service.request("do")
    async def do(_: iris.Request) -> None:
        pass

    async def fail_at(block: Any, error: Exception) -> None:
        async with block:
            raise error

    with trio.fail_after(15):
        async with (
            open_network() as network,
            open_member(network, tmp_path / "log", topics=["jobs"]),
            network.open_node("shop") as member,
            member.join("shop", service),
            network.open_node("desk") as node,
        ):
            for error in (NoText(), ValueError("half a letter: \ud800")):
                async with node.bridge().queue("jobs") as jobs:
                    await jobs.put(1)
                    job = await anext(jobs.receive())
                    await fail_at(job, error)
                try:  # what watches ``pytest.raises`` asks for the text
                    async with node.bridge().saga(f"order-{type(error).__name__}") as saga:
                        await saga.request("shop", 1, operation="do", undo="undo")
                        raise error
                except iris.SagaUndone:
                    ended += 1
            assert len(undone) == ended == 2
