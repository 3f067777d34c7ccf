"""Traces: spans at both ends of every pattern, right parents, across gateways and event loops; what is not traced."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, TraceState

import iris
import iris.aio
import iris.sync
from iris.kernel.names import NodeId
from iris.node.telemetry.tracing import TRACEPARENT, Tracing
from iris.testing import open_network
from tests.support.federations import echo, open_federation
from tests.support.spans import Spans, is_child, recorded

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with recorded() as found:
        yield found


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRIS_HOME", str(tmp_path / "home"))


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


async def test_a_request_has_a_span_at_each_end_below_the_callers(autojump_clock: object, spans: Spans) -> None:
    async with open_network() as network, network.open_node("store") as member, network.open_node("shop") as shop:
        async with member.join("store", store()):
            await shop.wait_for("store")
            with spans.tracer.start_as_current_span("checkout"):
                assert await shop.request("store", b"1") == b"1"
                with pytest.raises(iris.RemoteError):
                    await shop.request("store", b"1", operation="fail")
        root, client, server = (
            spans.named("checkout"),
            spans.named("store", SpanKind.CLIENT),
            spans.named("store", SpanKind.SERVER),
        )
        assert is_child(client, root)
        assert is_child(server, client)
        assert client.attributes is not None
        assert client.attributes["rpc.system.name"] == "iris"
        assert client.attributes["rpc.method"] == "store"
        assert client.attributes["iris.node.id"] == shop.id
        assert server.attributes is not None
        assert server.attributes["iris.peer.id"] == shop.id
        assert client.status.status_code is StatusCode.UNSET
        failed = spans.named("store/fail", SpanKind.CLIENT)
        assert failed.status.status_code is StatusCode.ERROR
        assert failed.attributes is not None
        assert failed.attributes["error.type"] == "no_row"
        assert is_child(spans.named("store/fail", SpanKind.SERVER), failed)


async def test_what_a_handler_asks_of_others_is_below_its_span(autojump_clock: object, spans: Spans) -> None:
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

        async with member.join("store", store()), front.join("front", service):
            await front.wait_for("store")
            await shop.wait_for("front")
            with spans.tracer.start_as_current_span("checkout"):
                await shop.request("front", b"1")
            await shop.request("front", b"2")  # in no trace: the handler of before has left nothing behind
    assert len(spans.all()) == 5
    assert is_child(spans.named("store", SpanKind.CLIENT), spans.named("front", SpanKind.SERVER))
    assert is_child(spans.named("store", SpanKind.SERVER), spans.named("store", SpanKind.CLIENT))


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
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        member.join("store", store(heard)),
        member.subscribe("orders.>") as events,
    ):
        await shop.wait_for("store")
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
    sent, processed = spans.named("send store"), spans.named("process store")
    assert (sent.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert is_child(sent, spans.named("checkout"))
    assert is_child(processed, sent)
    published, received = spans.named("send orders.new"), spans.named("receive orders.new")
    assert (published.kind, received.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert is_child(received, published)
    assert received.attributes is not None
    assert received.attributes["messaging.system"] == "iris"
    assert received.attributes["messaging.destination.name"] == "orders.new"
    assert received.attributes["messaging.operation.type"] == "receive"
    assert received.attributes["messaging.batch.message_count"] == 1


async def test_a_tunnel_has_a_span_at_each_end_for_as_long_as_it_is_open(autojump_clock: object, spans: Spans) -> None:
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        member.join("store", store()),
    ):
        await shop.wait_for("store")
        with spans.tracer.start_as_current_span("checkout"):
            async with shop.open_tunnel("store", operation="copy") as tunnel:
                await tunnel.send(b"1")
                assert await tunnel.receive() == b"1"
                assert spans.all() == []
    client = spans.named("store/copy", SpanKind.CLIENT)
    assert is_child(client, spans.named("checkout"))
    assert is_child(spans.named("store/copy", SpanKind.SERVER), client)


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
    nodes = {str(span.attributes["iris.node.id"]) for span in servers if span.attributes is not None}
    assert shop.id not in nodes


async def test_a_trace_that_is_not_sampled_is_handed_on_and_not_recorded(autojump_clock: object, spans: Spans) -> None:
    heard: list[Mapping[str, str]] = []
    state = TraceState([("vendor", "1")])
    unsampled = NonRecordingSpan(SpanContext(5, 7, is_remote=False, trace_flags=TraceFlags(0), trace_state=state))
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
            with trace.use_span(unsampled):
                await shop.request("front", b"1")
    assert heard == [{TRACEPARENT: f"00-{5:032x}-{7:016x}-00", "tracestate": "vendor=1"}]
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
    async with (
        open_network() as network,
        network.open_node("store") as member,
        network.open_node("shop") as shop,
        member.join("store", store(heard)),
        member.subscribe("orders.>") as events,
    ):
        await shop.wait_for("store")
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
def test_whatever_a_peer_calls_a_trace_raises_nothing(headers: dict[str, str]) -> None:
    tracing = Tracing(NodeId("0" * 32))
    request = iris.Request(
        payload=b"",
        sender=iris.Sender("shop", NodeId("1" * 32)),
        headers=headers,
        deadline=0.0,
        cluster="store",
        operation=None,
    )
    token = trace.set_span_in_context(trace.INVALID_SPAN)
    span = tracing.begin_handling("request", "store", None, request)
    if span is not None:
        span.end(None)
    tracing._attach(token)
    tracing.note_arrival("orders.new", NodeId("1" * 32), headers, 1)


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
    client, server = spans.named("shop", SpanKind.CLIENT), spans.named("shop", SpanKind.SERVER)
    assert is_child(client, spans.named("checkout"))
    assert is_child(server, client)
    assert is_child(spans.named("shop/leaf", SpanKind.CLIENT), server)
    assert is_child(spans.named("shop/leaf", SpanKind.SERVER), spans.named("shop/leaf", SpanKind.CLIENT))
    assert is_child(spans.named("receive orders.new"), spans.named("send orders.new"))


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
    client, server = spans.named("shop", SpanKind.CLIENT), spans.named("shop", SpanKind.SERVER)
    assert is_child(client, spans.named("checkout"))
    assert is_child(server, client)
    assert is_child(spans.named("shop/leaf", SpanKind.CLIENT), server)


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
    for kind in (SpanKind.CLIENT, SpanKind.SERVER):
        attributes = spans.named("store", kind).attributes
        assert attributes is not None
        assert attributes["error.type"] == "Cancelled"
