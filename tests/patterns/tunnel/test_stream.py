"""The stream over a tunnel, against trio's own check of what a stream is, and with TLS and HTTP over it."""

from __future__ import annotations

import random
import ssl

import h11
import pytest
import trio
import trio.testing

from iris.kernel.config import Config
from iris.patterns.tunnel.tunnel import TunnelStream
from tests.support.door_certificate import make_certificate
from tests.support.tunnels import open_nodes, open_pair

SMALL = Config(tunnel_window=8192, tunnel_chunk=1024, max_payload=100_000)


async def test_it_keeps_every_rule_of_half_closeable_streams(autojump_clock: trio.testing.MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):

        async def make() -> tuple[TunnelStream, TunnelStream]:
            one, other = await near.open(far)
            return one.as_stream(), other.as_stream()

        async def make_clogged() -> tuple[TunnelStream, TunnelStream]:
            one, other = await make()
            for stream, size in ((one, 1024), (one, 1), (other, 1024), (other, 1)):
                with trio.move_on_after(5):
                    while True:
                        await stream.send_all(bytes(size))
            return one, other

        await trio.testing.check_half_closeable_stream(make, make_clogged)


async def test_a_gigantic_send_is_throttled_and_arrives(autojump_clock: trio.testing.MockClock) -> None:
    data = random.Random(1).randbytes(3_000_000)
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def send() -> None:
            stream = near.as_stream()
            await stream.send_all(data)
            await stream.send_eof()

        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked()
        statistics = near.statistics()
        assert statistics.bytes_sent <= 4 * 8192 + 32 * 1024
        assert statistics.bytes_held <= 2 * 8192 + 32 * 1024
        stream = far.as_stream()
        got = bytearray()
        while piece := await stream.receive_some(777):
            assert len(piece) <= 777
            got += piece
        assert got == data


async def test_messages_can_be_read_as_a_stream_before_they_are_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(b"")
        await near.send(bytes(50_000))
        stream = far.as_stream()
        count = 0
        while count < 50_000:
            piece = await stream.receive_some()
            assert piece, "an empty message is not the end of the stream"
            count += len(piece)


async def test_cancelling_receive_some_loses_no_byte(autojump_clock: trio.testing.MockClock) -> None:
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:

        async def send() -> None:
            stream = near.as_stream()
            for number in range(200):
                await stream.send_all(bytes([number]))
                if number % 7 == 0:
                    await trio.sleep(0.3)
            await stream.send_eof()

        nursery.start_soon(send)
        stream = far.as_stream()
        got = b""
        while True:
            with trio.move_on_after(0.1):
                piece = await stream.receive_some(3)
                got += piece
                if not piece:
                    break
        assert got == bytes(range(200))


async def test_a_broken_tunnel_shows_as_a_broken_resource(autojump_clock: trio.testing.MockClock) -> None:
    async with open_nodes(SMALL) as (near, far):
        tunnel, other = await near.open(far)
        stream = tunnel.as_stream()
        await other.as_stream().send_all(b"before")
        await trio.testing.wait_all_tasks_blocked()
        near.table.node_lost(far.node, "it is gone")
        assert await stream.receive_some() == b"before"
        with pytest.raises(trio.BrokenResourceError, match="it is gone"):
            await stream.receive_some()
        with pytest.raises(trio.BrokenResourceError, match="it is gone"):
            await stream.send_all(b"x")
        with pytest.raises(trio.BrokenResourceError, match="it is gone"):
            await stream.wait_send_all_might_not_block()
        with pytest.raises(trio.BrokenResourceError, match="it is gone"):
            await stream.send_eof()
        with pytest.raises(trio.BrokenResourceError, match="it is gone"):
            await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            await stream.receive_some()


async def test_a_value_in_the_stream_breaks_it(autojump_clock: trio.testing.MockClock) -> None:
    async with open_pair(SMALL) as (near, far):
        await near.send(["a", "value"])
        with pytest.raises(trio.BrokenResourceError, match="value was sent"):
            await far.as_stream().receive_some()
        await trio.sleep(1)
        with pytest.raises(trio.BrokenResourceError, match="value was sent"):
            await near.as_stream().send_all(b"more")


async def test_tls_runs_over_it(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    client, server = tls
    async with open_pair() as (near, far), trio.open_nursery() as nursery:

        async def echo() -> None:
            async with trio.SSLStream(far.as_stream(), server, server_side=True) as stream:
                async for data in stream:
                    await stream.send_all(data)

        nursery.start_soon(echo)
        async with trio.SSLStream(near.as_stream(), client, server_hostname="localhost") as stream:
            sent = bytes(range(256)) * 2000
            nursery.start_soon(stream.send_all, sent)
            got = b""
            while len(got) < len(sent):
                got += await stream.receive_some()
            assert got == sent


async def next_event(connection: h11.Connection, stream: trio.abc.ReceiveStream) -> h11.Event | type[h11.PAUSED]:
    """Return what comes next over a connection of HTTP/1.1, as the examples of h11 do."""
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            assert event is h11.PAUSED or isinstance(event, h11.Event)
            return event
        connection.receive_data(bytes(await stream.receive_some(4096)))


async def read_body(connection: h11.Connection, stream: trio.abc.ReceiveStream) -> bytes:
    body = b""
    while isinstance(event := await next_event(connection, stream), h11.Data):
        body += event.data
    assert isinstance(event, h11.EndOfMessage)
    return body


async def serve_http(stream: trio.abc.HalfCloseableStream) -> None:
    """Answer each request with its body, of which ``/close`` ends with the stream, and others in chunks."""
    connection = h11.Connection(h11.SERVER)
    while isinstance(request := await next_event(connection, stream), h11.Request):
        body = await read_body(connection, stream)
        headers = [("Connection", "close")] if request.target == b"/close" else [("Transfer-Encoding", "chunked")]
        answer: list[h11.Event] = [h11.Response(status_code=200, headers=headers)]
        answer += [h11.Data(data=body[start : start + 5_000]) for start in range(0, len(body), 5_000)]
        for event in (*answer, h11.EndOfMessage()):
            data = connection.send(event)
            assert data is not None
            await stream.send_all(data)
        if connection.our_state is h11.MUST_CLOSE:
            await stream.send_eof()
            return
        connection.start_next_cycle()


async def test_http_runs_over_it(autojump_clock: trio.testing.MockClock) -> None:
    """Several requests over one connection, and an answer that ends where the stream ends: with half a close."""
    body = random.Random(2).randbytes(70_000)
    async with open_pair(SMALL) as (near, far), trio.open_nursery() as nursery:
        nursery.start_soon(serve_http, far.as_stream())
        stream = near.as_stream()
        connection = h11.Connection(h11.CLIENT)
        for target in ("/first", "/second", "/close"):
            headers = [("Host", "tunnel"), ("Content-Length", str(len(body)))]
            for event in (
                h11.Request(method="POST", target=target, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                data = connection.send(event)
                assert data is not None
                await stream.send_all(data)
            response = await next_event(connection, stream)
            assert isinstance(response, h11.Response)
            assert response.status_code == 200
            assert await read_body(connection, stream) == body
            if target != "/close":
                connection.start_next_cycle()
        assert connection.their_state is h11.MUST_CLOSE
        assert await stream.receive_some() == b""
        await stream.aclose()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A pair of contexts, for the client and the server."""
    file = make_certificate(tmp_path_factory.mktemp("tls"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return ssl.create_default_context(cafile=file), server
