"""Traces: spans at both ends of every pattern, right parents, across gateways and event loops; what is not traced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceState

import iris
import iris.aio
import iris.sync
from iris.kernel import wire
from iris.kernel.config import KIB
from iris.kernel.names import NodeId
from iris.node.telemetry.tracing import TRACEPARENT, Tracing
from iris.testing import open_network
from tests.support.federations import echo, open_federation
from tests.support.spans import Spans, attributes, is_child, recorded

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded() as found:
        yield found


pytestmark = pytest.mark.usefixtures("own_home")


def store(seen: list[Mapping[str, str]] | None = None) -> iris.Service:
    service = iris.Service("store")

    @service.request
    async def look_up(request: iris.Request) -> object:
        await trio.lowlevel.checkpoint()
        if seen is not None:
            seen.append(request.headers)
        return request.payload

    @service.request("fail")
    async def fail(_: iris.Request) -> object:
        raise iris.RemoteError("no_row", "there is none")

    @service.broadcast
    async def hear(message: iris.Message) -> None:
        if seen is not None:
            seen.append(message.headers)

    @service.tunnel("copy")
    async def mirror(tunnel: iris.Tunnel) -> None:
        async for payload in tunnel:
            await tunnel.send(payload)

    return service


@asynccontextmanager
async def open_shop(heard: list[Mapping[str, str]] | None = None) -> AsyncIterator[tuple[iris.Node, iris.Node]]:
    """Yield a node that asks, and a member of the cluster ``store`` that it can ask."""
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        member.join("store", store(heard)),
    ):
        await shop.wait_for("store")
        yield shop, member


@asynccontextmanager
async def open_chain(heard: list[Mapping[str, str]] | None = None) -> AsyncIterator[iris.Node]:
    """Yield a node that asks ``front``, whose handler asks ``store``."""
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("front") as front,
        network.open_node("shop") as shop,
    ):
        service = iris.Service("front")

        @service.request
        async def ask_further(request: iris.Request) -> object:
            return await front.request("store", request.payload)

        async with member.join("store", store(heard)), front.join("front", service):
            await front.wait_for("store")
            await shop.wait_for("front")
            yield shop


def check_chain(spans: Spans, first: str, second: str) -> None:
    """Check that within ``checkout`` the handler of the first target has asked the second one."""
    root, (client, server), (next_client, next_server) = spans.named("checkout"), spans.ends(first), spans.ends(second)
    assert is_child(client, root)
    assert is_child(server, client)
    assert is_child(next_client, server)
    assert is_child(next_server, next_client)


async def test_a_request_has_a_span_at_each_end_below_the_callers(autojump_clock: object, spans: Spans) -> None:
    async with open_shop() as (shop, _):
        with spans.tracer.start_as_current_span("checkout"):
            assert await shop.request("store", b"1") == b"1"
            with pytest.raises(iris.RemoteError):
                await shop.request("store", b"1", operation="fail")
    client, server = spans.ends("store")
    assert is_child(client, spans.named("checkout"))
    assert is_child(server, client)
    assert attributes(client) == {
        "iris.node.id": shop.id,
        "iris.pattern": "request",
        "rpc.system.name": "iris",
        "rpc.method": "store",
        "server.address": "store",
    }
    assert attributes(server)["iris.peer.id"] == shop.id
    assert client.status.status_code is StatusCode.UNSET
    failed, failing = spans.ends("store/fail")
    assert failed.status.status_code is StatusCode.ERROR
    assert attributes(failed)["error.type"] == "no_row"
    assert is_child(failing, failed)


async def test_what_a_handler_asks_of_others_is_below_its_span(autojump_clock: object, spans: Spans) -> None:
    async with open_chain() as shop:
        with spans.tracer.start_as_current_span("checkout"):
            await shop.request("front", b"1")
        await shop.request("front", b"2")  # in no trace: the handler of before has left nothing behind
    assert len(spans.all()) == 5
    check_chain(spans, "front", "store")


async def test_a_survey_has_one_span_and_the_handlers_theirs_below_it(autojump_clock: object, spans: Spans) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as first,
        network.open_node("store") as second,
        network.open_node("shop") as shop,
        first.join("store", store()),
        second.join("store", store()),
    ):
        await shop.wait_for("store", 2)
        with spans.tracer.start_as_current_span("checkout"):
            async with shop.survey("store", b"all") as answers:
                assert len([answer async for answer in answers]) == 2
    survey = spans.named("store", SpanKind.CLIENT)
    assert is_child(survey, spans.named("checkout"))
    handled = [span for span in spans.all() if span.kind is SpanKind.SERVER]
    assert len(handled) == 2
    assert all(is_child(span, survey) for span in handled)


async def test_broadcasts_and_events_have_a_producer_and_a_consumer(autojump_clock: object, spans: Spans) -> None:
    heard: list[Mapping[str, str]] = []
    async with open_shop(heard) as (shop, member), member.subscribe("orders.>") as events:
        with spans.tracer.start_as_current_span("checkout"):
            await shop.broadcast("store", b"all", headers={"colour": "red"})
            await shop.publish("orders.new", b"1", key="k")
        await shop.publish("orders.new", b"2")
        event = await anext(events)
        assert event.payload == b"1"
        assert TRACEPARENT in event.headers
        assert TRACEPARENT not in (await anext(events)).headers
        while not heard:  # noqa: ASYNC110 -- a broadcast has no reply
            await trio.sleep(0.01)
        assert heard[0]["colour"] == "red"
    sent, processed = spans.named("send store", SpanKind.PRODUCER), spans.named("process store", SpanKind.CONSUMER)
    assert is_child(sent, spans.named("checkout"))
    assert is_child(processed, sent)
    assert attributes(check_event(spans)) == {
        "iris.node.id": member.id,
        "iris.peer.id": shop.id,
        "iris.pattern": "event",
        "messaging.system": "iris",
        "messaging.destination.name": "orders.new",
        "messaging.operation.name": "receive",
        "messaging.operation.type": "receive",
        "messaging.batch.message_count": 1,
    }


def check_event(spans: Spans) -> ReadableSpan:
    """Check that an event of ``checkout`` has a span at each end; return the subscriber's."""
    published = spans.named("send orders.new", SpanKind.PRODUCER)
    received = spans.named("receive orders.new", SpanKind.CLIENT)
    assert is_child(published, spans.named("checkout"))
    assert is_child(received, published)
    assert published.context is not None
    assert [link.context.span_id for link in received.links] == [published.context.span_id]
    return received


async def test_events_that_are_confirmed_together_are_in_the_trace_as_all_others(
    autojump_clock: object, spans: Spans
) -> None:
    seen: list[Mapping[str, str]] = []
    async with (
        open_shop() as (shop, member),
        member.subscribe_durable("orders.>") as events,
        trio.open_nursery() as nursery,
    ):

        async def keep() -> None:
            async for event in events:
                seen.append(event.headers)
                await events.confirm([event])

        nursery.start_soon(keep)
        async with shop.confirming() as confirming:
            with spans.tracer.start_as_current_span("checkout"):
                await confirming.publish("orders.new", b"1", headers={"colour": "red"})
            await confirming.publish("orders.new", b"2", headers={"colour": "red"})
            with trace.use_span(UNSAMPLED):
                for _ in range(3):
                    await confirming.publish("orders.new", b"3")
        nursery.cancel_scope.cancel()
    assert [headers.get("colour") for headers in seen] == ["red", "red", None, None, None]
    assert [TRACEPARENT in headers for headers in seen] == [True, False, True, True, True]
    assert seen[2:] == [HANDED_ON] * 3
    check_event(spans)


async def test_a_tunnel_has_a_span_at_each_end_for_as_long_as_it_is_open(autojump_clock: object, spans: Spans) -> None:
    async with open_shop() as (shop, _):
        with spans.tracer.start_as_current_span("checkout"):
            async with shop.open_tunnel("store", operation="copy") as tunnel:
                await tunnel.send(b"1")
                assert await tunnel.receive() == b"1"
                assert spans.all() == []
    client, server = spans.ends("store/copy")
    assert is_child(client, spans.named("checkout"))
    assert is_child(server, client)


async def test_one_trace_goes_through_gateways_to_another_site(autojump_clock: object, spans: Spans) -> None:
    async with open_federation() as federation:
        shop = await federation.two_sites(echo("store"))
        with spans.tracer.start_as_current_span("checkout"):
            assert await shop.request("store", b"over there") == b"over there"
            async with shop.survey("store", b"all") as answers:
                assert [answer.payload async for answer in answers] == [b"all"]
            async with shop.open_tunnel("store") as tunnel:
                await tunnel.send(b"x")
                assert await tunnel.receive() == b"x"
    root = spans.named("checkout")
    clients = [span for span in spans.all() if span.kind is SpanKind.CLIENT]
    servers = [span for span in spans.all() if span.kind is SpanKind.SERVER]
    assert (len(clients), len(servers)) == (3, 3)
    assert all(is_child(client, root) for client in clients)
    assert all(sum(is_child(server, client) for server in servers) == 1 for client in clients)
    assert shop.id not in {attributes(span)["iris.node.id"] for span in servers}


UNSAMPLED = NonRecordingSpan(SpanContext(5, 7, is_remote=False))
HANDED_ON = {TRACEPARENT: f"00-{5:032x}-{7:016x}-00"}
WITH_STATE = NonRecordingSpan(SpanContext(5, 7, is_remote=False, trace_state=TraceState([("vendor", "1")])))


@pytest.mark.parametrize(
    ("within", "handed_on"),
    [(UNSAMPLED, HANDED_ON), (WITH_STATE, {**HANDED_ON, "tracestate": "vendor=1"})],
    ids=["", "with a tracestate"],
)
async def test_a_trace_that_is_not_sampled_is_handed_on_and_not_recorded(
    autojump_clock: object, spans: Spans, within: trace.Span, handed_on: dict[str, str]
) -> None:
    heard: list[Mapping[str, str]] = []
    async with open_chain(heard) as shop:
        with trace.use_span(within):
            await shop.request("front", b"1")
            await shop.request("front", b"1", headers={"colour": "red"})  # which are those of one request
    assert heard == [handed_on, handed_on]
    assert spans.all() == []


async def test_a_handler_in_a_trace_that_is_not_sampled_knows_it(autojump_clock: object, spans: Spans) -> None:
    """What else traces in the handler has the caller's decision, and its trace, as its parent."""
    found: list[tuple[SpanContext, SpanContext]] = []
    service = iris.Service("store")

    @service.request
    async def look_up(_: iris.Request) -> None:
        with spans.tracer.start_as_current_span("query") as span:
            found.append((trace.get_current_span().get_span_context(), span.get_span_context()))
        assert not span.is_recording()
        found.append((trace.get_current_span().get_span_context(), span.get_span_context()))

    async with open_network() as network, network.open_node("store") as node, node.join("store", service):
        with trace.use_span(UNSAMPLED):
            await node.request("store")
    ((_, query), (caller, _)) = found
    assert caller == SpanContext(5, 7, is_remote=True)
    assert query.trace_id == caller.trace_id
    assert not query.trace_flags.sampled
    assert spans.all() == []


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({TRACEPARENT: VALID}, {TRACEPARENT: VALID}),
        ({"filler": "x" * 8000}, {"filler": "x" * 8000}),
    ],
    ids=["a trace of the program's own", "headers without room"],
)
async def test_headers_that_name_a_trace_or_have_no_room_stay_as_they_are(
    autojump_clock: object, spans: Spans, given: dict[str, str], sent: dict[str, str]
) -> None:
    heard: list[Mapping[str, str]] = []
    async with open_shop(heard) as (shop, member), member.subscribe("orders.>") as events:
        with spans.tracer.start_as_current_span("checkout"):
            await shop.request("store", b"1", headers=given)
            await shop.publish("orders.new", b"1", headers=given)
        assert heard == [sent]
        assert (await anext(events)).headers == sent


@pytest.mark.parametrize("headers", [5, ["a"], {"a": 1}, {1: "a"}, {"a": "\ud800"}], ids=repr)
async def test_headers_that_are_none_are_the_same_error_with_a_trace(
    autojump_clock: object, spans: Spans, headers: Any
) -> None:
    async with open_network() as network, network.open_node("store") as node, node.join("store", store()):
        with spans.tracer.start_as_current_span("checkout"):
            with pytest.raises(iris.LocalProtocolError):
                await node.request("store", b"1", headers=headers)
            with pytest.raises(iris.LocalProtocolError):
                await node.publish("orders.new", b"1", headers=headers)


async def test_without_a_span_around_it_nothing_is_traced(autojump_clock: object, spans: Spans) -> None:
    heard: list[Mapping[str, str]] = []
    async with open_network() as network, network.open_node("store") as node, node.join("store", store(heard)):
        await node.request("store", b"1")
        await node.request("store", b"1", headers={"colour": "red"})
        await node.broadcast("store", b"1")
    assert heard[:2] == [{}, {"colour": "red"}]
    assert spans.all() == []


def hostile_headers() -> st.SearchStrategy[dict[str, str]]:
    parent = st.one_of(st.text(max_size=80), st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z"))
    state = st.one_of(st.text(max_size=600), st.from_regex(r"\A([a-z]{1,9}=[ -~]{0,9},?){0,40}\Z"))
    return st.fixed_dictionaries({TRACEPARENT: parent}, optional={"tracestate": state})


@hypothesis.given(hostile_headers())
def test_whatever_a_peer_calls_a_trace_raises_nothing_and_can_be_handed_on(headers: dict[str, str]) -> None:
    tracing = Tracing(NodeId("0" * 32))
    request = iris.Request(
        payload=b"",
        sender=iris.Sender("shop", NodeId("1" * 32)),
        headers=headers,
        deadline=0.0,
        cluster="store",
        operation=None,
    )

    def handle() -> None:
        span = tracing.begin_handling("request", "store", None, request)
        trace.get_current_span().get_span_context()
        call, sent = tracing.begin_call("request", "store", None, {"filler": "x" * 7000})
        wire.encode_headers(sent, 8 * KIB)
        for began in (call, span):
            if began is not None:
                began.end()
        tracing.arrived("orders.new", NodeId("1" * 32), headers, 1)

    copy_context().run(handle)


def test_a_handler_of_asyncio_and_its_requests_are_in_the_trace(spans: Spans) -> None:
    async def main() -> None:
        async with iris.aio.open_node("shop") as node:
            service = iris.Service("shop")

            @service.request
            async def ask_further(request: iris.Request) -> object:
                await asyncio.sleep(0)
                return await node.request("shop", request.payload, operation="leaf")

            @service.request("leaf")
            async def leaf(request: iris.Request) -> object:
                await asyncio.sleep(0)
                return request.payload

            async with node.join("shop", service), node.subscribe("orders.>") as events:
                with spans.tracer.start_as_current_span("checkout"):
                    assert await node.request("shop", b"1") == b"1"
                    await node.publish("orders.new", b"1")
                assert (await anext(events)).payload == b"1"

    asyncio.run(main())
    check_chain(spans, "shop", "shop/leaf")
    check_event(spans)


def test_a_handler_in_a_thread_and_its_requests_are_in_the_trace(spans: Spans) -> None:
    with iris.sync.open_node("shop") as node:
        service = iris.Service("shop")

        @service.request
        def ask_further(request: iris.Request) -> object:
            return node.request("shop", request.payload, operation="leaf")

        @service.request("leaf")
        def leaf(request: iris.Request) -> object:
            return request.payload

        with node.join("shop", service), spans.tracer.start_as_current_span("checkout"):
            assert node.request("shop", b"1") == b"1"
    check_chain(spans, "shop", "shop/leaf")


PROGRAM = """
import sys, trio, iris, iris.testing

async def main():
    async with iris.testing.open_network() as network, network.open_node("store") as node:
        assert node._tracing is None
        service = iris.Service("store")
        service.request(lambda request: request.payload)
        async with node.join("store", service):
            assert await node.request("store", b"1", headers={"traceparent": "x"}) == b"1"

trio.run(main)
print(sorted(name for name in sys.modules if name.partition(".")[0] in ("opentelemetry", "prometheus_client", "h11")))
"""


def test_a_program_that_wants_neither_loads_neither() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


async def test_a_call_that_is_cancelled_ends_its_span(autojump_clock: object, spans: Spans) -> None:
    async def hang(_: iris.Request) -> None:
        await trio.sleep_forever()

    service = iris.Service("store")
    service.request(hang)
    async with open_network() as network, network.open_node("store") as node, node.join("store", service):
        with spans.tracer.start_as_current_span("checkout"), trio.move_on_after(1):
            await node.request("store", b"1")
    assert [attributes(span)["error.type"] for span in spans.ends("store")] == ["Cancelled", "Cancelled"]
