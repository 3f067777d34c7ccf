"""Requests that two programs read in two ways: each HTTP server of Iris has one reader, which accepts none of them."""

from __future__ import annotations

import h11
import pytest

from iris.node.telemetry.strict_http import StrictConnection

POST = b"POST /x HTTP/1.1\r\nhost: a\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
NEXT = b"GET /drain HTTP/1.1\r\nhost: a\r\n\r\n"

REFUSED = {
    "two ends of a body": POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "the same, the other way round": POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n",
    "chunks before there were any": b"POST /x HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "two lengths in a line": POST + b"content-length: 1, 2\r\n\r\nab",
    "a length with a sign": POST + b"content-length: +1\r\n\r\na",
    "a length with a line": POST + b"content-length: 1_0\r\n\r\n0123456789",
    "chunks within": POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "no chunks": POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks behind a tab of its own": POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "CR in a header": POST + b"a: b\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "CR before a chunk": CHUNKED + b"1;a\rb\r\nx\r\n0\r\n\r\n",
    "CR before the last chunk": CHUNKED + b"0;a\r0\r\n\r\n",
    "LF before a chunk": CHUNKED + b"1;a\nb\r\nx\r\n0\r\n\r\n",
    "a size in C": CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    "a size with a sign": CHUNKED + b"+1\r\na\r\n0\r\n\r\n",
    "more than a chunk has": CHUNKED + b"1\r\nabb\r\n0\r\n\r\n",
    "a trailer that ends the body": CHUNKED + b"0\r\ntransfer-encoding: x\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "a host with NUL": b"GET / HTTP/1.1\r\nhost: a\0b\r\n\r\n",
    "a first header that goes on": b"GET / HTTP/1.1\r\n host: a\r\n\r\n",
}


@pytest.mark.parametrize("step", [1, 7, 65_536])
@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_what_can_be_read_in_two_ways_is_refused_however_it_is_cut(sent: bytes, step: int) -> None:
    connection = StrictConnection(65_536)
    requests = 0
    data = sent + NEXT
    with pytest.raises(h11.RemoteProtocolError):  # noqa: PT012 -- it is refused where it can be, and not before
        for at in range(0, len(data), step):
            connection.receive_data(data[at : at + step])
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                requests += isinstance(event, h11.Request)
    assert requests <= 1
    assert connection.their_state is h11.ERROR


@pytest.mark.parametrize("step", [1, 65_536])
@pytest.mark.parametrize(
    "body", [b"1\r\na\r\n0\r\n\r\n", b"1;name=value\r\na\r\n0;b\r\nt: u\r\n\r\n", b"00000001\r\na\r\n0\r\n\r\n"]
)
def test_what_everybody_reads_alike_is_taken(body: bytes, step: int) -> None:
    connection = StrictConnection(65_536)
    data = b""
    for at in range(0, len(CHUNKED + body), step):
        connection.receive_data((CHUNKED + body)[at : at + step])
        while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            data += bytes(event.data) if isinstance(event, h11.Data) else b""
    assert data == b"a"
    assert connection.their_state is h11.DONE
